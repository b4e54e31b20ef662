"""C sources of this project, compiled on this host when they are first needed, and kept in the cache."""

import os
from pathlib import Path

from vhca.native.build import NativeError, compiler, library

CHOICES = ("python", "native", "")


def choice() -> str:
    """Which engine `$VHCA_ENGINE` asks for: `python`, `native`, or what can be had; NativeError for another word."""
    wanted = os.environ.get("VHCA_ENGINE", "")
    if wanted not in CHOICES:
        raise NativeError(f"VHCA_ENGINE={wanted}: there are python and native\n  -> unset it for whatever can be had")
    return wanted


def sources_of(module_file: str) -> Path:
    """The folder with the C files of a module: `src` beside it."""
    return Path(module_file).parent / "src"


__all__ = ["NativeError", "choice", "compiler", "library", "sources_of"]
