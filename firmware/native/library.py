"""The engine in C as Python sees it: loaded once, or not there, with the reason.

`VHCA_ENGINE` chooses: `python` leaves it out, `native` insists on it, and without it there is the engine in C where it
can be had. `VHCA_CORES` says how many cores it may use at once.
"""

from functools import cache
from typing import Any, Final

import cffi

from firmware.native import declarations
from vhca.native import NativeError, choice, cores, library, sources_of

PAIRS: Final = f"struct card; struct train {{ uint64_t words[{declarations.TRAIN_BYTES >> 3}]; }};"


class Library:
    """The loaded library: `ffi` and `lib` of cffi, or None and why."""

    def __init__(self, ffi: Any, lib: Any, reason: str) -> None:
        self.ffi = ffi
        self.lib = lib
        self.reason = reason
        self.crew = 0

    def enlist(self, threads: int) -> None:
        """Have so many threads, at the most, beside the caller's own; they are made when there is work for them.

        `crew` is how many there may be then.
        """
        self.crew = self.lib.vhca_crew(threads)

    @property
    def there(self) -> bool:
        """Whether the engine in C can be used."""
        return self.lib is not None


@cache
def loaded() -> Library:
    """The engine in C; NativeError if it cannot be had and `VHCA_ENGINE` insists on it."""
    wanted, threads = choice(), cores() - 1
    if wanted == "python":
        return Library(None, None, "VHCA_ENGINE=python")
    try:
        path = library(
            "engine",
            sources_of(__file__),
            {"train.h": declarations.train_h(), "formats.h": declarations.formats_h()},
        )
        ffi = cffi.FFI()
        ffi.cdef(PAIRS + declarations.PROTOTYPES)
        found = Library(ffi, ffi.dlopen(str(path)), str(path))
        found.enlist(threads)
        return found
    except (NativeError, OSError) as error:
        if wanted == "native":
            raise NativeError(str(error)) from error
        return Library(None, None, str(error))
