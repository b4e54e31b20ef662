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


def cores() -> int:
    """How many cores a rack's cards may use at once: `$VHCA_CORES`, or all that this process may run on.

    :raises NativeError: it is set to something else than a number from 1 on.
    """
    wanted = os.environ.get("VHCA_CORES", "")
    if not wanted:
        return len(os.sched_getaffinity(0))
    if not wanted.isdecimal() or not int(wanted):
        raise NativeError(f"VHCA_CORES={wanted}: a number from 1 on\n  -> unset it for all cores that there are")
    return int(wanted)


def sources_of(module_file: str) -> Path:
    """The folder with the C files of a module: `src` beside it."""
    return Path(module_file).parent / "src"


__all__ = ["NativeError", "choice", "compiler", "cores", "library", "sources_of"]
