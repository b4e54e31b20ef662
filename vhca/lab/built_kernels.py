"""Kernels that were built here: their names in the cache, and which of them a name means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vhca.lab.cache import Cache

KIND: Final = "kernel-builds"
"""The folder of the cache."""
KEY_DIGITS: Final = 12
_NAME: Final = re.compile(rf"(?P<label>.+)-[0-9a-f]{{{KEY_DIGITS}}}")


def built(cache: Cache) -> Iterator[Path]:
    """The kernels that are there, the one that was built or asked for last first."""
    folder = cache.path(KIND)
    entries = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    yield from sorted(entries, key=lambda path: path.stat().st_mtime, reverse=True)


def find_built(name: str, cache: Cache) -> Path | None:
    """The kernel of this name; of a name without its last part the newest."""
    for path in built(cache):
        match = _NAME.fullmatch(path.name)
        if name == path.name or (match is not None and name == match["label"]):
            return path
    return None


def release_of(place: Path) -> str:
    """The release of a kernel that was built; empty if the entry is damaged."""
    images = sorted((place / "boot").glob("vmlinuz-*"))
    return images[0].name.removeprefix("vmlinuz-") if images else ""


def work_folder(place: Path) -> Path | None:
    """Where it was built, with all that modules are built against; None if that was cleared away."""
    link = place / "usr/lib/modules" / release_of(place) / "build"
    return link.resolve() if link.exists() else None


def symbols(place: Path) -> Path:
    """Its vmlinux, with debug information if it has any."""
    return place / "usr/lib/debug/boot" / f"vmlinux-{release_of(place)}"
