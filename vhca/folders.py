"""Where this project keeps what it fetches or builds once."""

import os
from pathlib import Path


def default_root() -> Path:
    """The cache: `$VHCA_CACHE`, else `$XDG_CACHE_HOME/vhca`, else `~/.cache/vhca`."""
    if own := os.environ.get("VHCA_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "vhca"
    return Path.home() / ".cache" / "vhca"
