"""Loads and stores in mapped files whose pages the host cannot provide: errors, where they would end the process.

The part that handles the signal is in C (`src/guard.c`); without a compiler, or with `VHCA_ENGINE=python`, there is
none, and such an access ends the process.
"""

from __future__ import annotations

import logging
import mmap
from functools import cache
from typing import Any, Final

log = logging.getLogger(__name__)

_CDEF: Final = """
int vhca_guard_start(void);
int vhca_guard_add(uintptr_t start, uint64_t size);
void vhca_guard_remove(int number);
int vhca_guard_lost(int number);
uint64_t *vhca_guard_faults(void);
"""
NOT_GUARDED: Final = -1


class Guard:
    """What is guarded in this process, each range with a number.

    :ivar faults: its one element counts all faults: another number than before an access means that some access has
        failed since.
    :ivar faults_at: the address of that number; 0 if nothing is guarded.
    """

    def __init__(self, ffi: Any = None, lib: Any = None) -> None:
        self._ffi = ffi
        self._lib = lib
        self.faults = memoryview(bytes(8)).cast("Q")
        self.faults_at = 0
        if lib is not None:
            counted = lib.vhca_guard_faults()
            self.faults = memoryview(ffi.buffer(counted, 8)).cast("B").cast("Q")
            self.faults_at = int(ffi.cast("uintptr_t", counted))

    def add(self, memory: mmap.mmap) -> int:
        """Guard a mapping until :meth:`remove`; NOT_GUARDED if that cannot be."""
        if self._lib is None:
            return NOT_GUARDED
        start = int(self._ffi.cast("uintptr_t", self._ffi.from_buffer(memory)))
        return int(self._lib.vhca_guard_add(start, len(memory)))

    def remove(self, number: int) -> None:
        """The mapping ends."""
        if number != NOT_GUARDED:
            self._lib.vhca_guard_remove(number)

    def lost(self, number: int) -> bool:
        """Tell whether some access to the mapping has failed; what was read is nothing, what was written is nowhere."""
        return number != NOT_GUARDED and bool(self._lib.vhca_guard_lost(number))


@cache
def guard() -> Guard:
    """The guard of this process; one that guards nothing if there is no library."""
    # Whoever uses this package alone may have neither.
    try:
        import cffi

        from vhca import native
    except ImportError as error:
        log.info("guest memory is not guarded: %s", error)
        return Guard()
    if native.choice() == "python":
        return Guard()
    try:
        path = native.library("guard", native.sources_of(__file__), {})
        ffi = cffi.FFI()
        ffi.cdef(_CDEF)
        lib: Any = ffi.dlopen(str(path))
    except (native.NativeError, OSError) as error:
        log.info("guest memory is not guarded: %s", error)
        return Guard()
    return Guard(ffi, lib) if lib.vhca_guard_start() else Guard()
