"""The DMA engine as firmware sees it: reads are synchronous calls, writes are effects.

Addresses are bus addresses (IOVA as the host programmed them); sizes are bytes. Guest memory is hostile and shared:
copy what you check, check what you copied, use the copy.
"""

import ctypes
from typing import Final, NamedTuple, Protocol


class DmaError(Exception):
    """A bus address could not be read or written: not mapped, not writable, or the host refused."""


class Memory(Protocol):
    """Guest memory by bus address."""

    def read(self, addr: int, size: int) -> bytes:
        """Return a private copy of `size` bytes at `addr`; raises :class:`DmaError`."""
        ...

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """Store `data` at `addr`; raises :class:`DmaError`. Board use: firmware returns `DmaWrite` instead."""
        ...


MOST_SPANS: Final = 64
"""Of one memory: where there are more, none of it is reached by address."""


class Span(NamedTuple):
    """Bus addresses `start` to `end` lie at the address `place` of this process, whatever a guest does."""

    start: int
    end: int
    place: int
    readable: bool = True
    writable: bool = True


class MappedMemory(Memory, Protocol):
    """Memory of which some can be reached by address, by whoever looks at `generation` before each use."""

    @property
    def generation(self) -> int:
        """Another number whenever :meth:`spans` says something else."""
        ...

    @property
    def faults_at(self) -> int:
        """The address of a number of 64 bits that is another one after an access by address that has failed; 0: none.

        Such an access ends like any other, but has read or written nothing; :meth:`Memory.read` tells of it later on.
        """
        ...

    def spans(self) -> list[Span]:
        """What can be reached by address, in the order of bus addresses; nothing if that were above MOST_SPANS."""
        ...


class FlatMemory:
    """Memory backed by one bytearray from bus address `base`: for tests and host-only benchmarks."""

    __slots__ = ("base", "data")

    generation = 0
    faults_at = 0

    def __init__(self, size_bytes: int, base: int = 0) -> None:
        self.data = bytearray(size_bytes)
        self.base = base

    def spans(self) -> list[Span]:
        """See :class:`MappedMemory`; the bytes are never moved."""
        place = ctypes.addressof(ctypes.c_char.from_buffer(self.data))
        return [Span(self.base, self.base + len(self.data), place)]

    def read(self, addr: int, size: int) -> bytes:
        """See :class:`Memory`."""
        start = addr - self.base
        if size < 0 or start < 0 or start + size > len(self.data):
            raise DmaError(f"read of {size} bytes at {addr:#x} is outside memory")
        return bytes(self.data[start : start + size])

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """See :class:`Memory`."""
        start = addr - self.base
        end = start + len(data)
        if start < 0 or end > len(self.data):
            raise DmaError(f"write of {len(data)} bytes at {addr:#x} is outside memory")
        self.data[start:end] = data
