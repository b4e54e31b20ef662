"""What a PCI card offers to its slot: the shape of the objects that a vfio-user server drives.

Everything here is structural typing: a device needs no base class and no import from this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

ResetReason = Literal["device", "lost_connection"]
"""A reset that the client asked for, or the one that follows the loss of the client."""


class RegionInfo(Protocol):
    """One region of a device: a BAR, the ROM or the configuration space.

    One region that can be mapped makes every write of QEMU's to the device wait for its reply.
    """

    @property
    def size(self) -> int:
        """Bytes; 0 for a region that is not there. The size of a BAR must be a power of two."""
        ...

    @property
    def readable(self) -> bool:
        """Whether a client may read."""
        ...

    @property
    def writable(self) -> bool:
        """Whether a client may write."""
        ...

    @property
    def mmap_fd(self) -> int:
        """A descriptor that the client may map, or -1. It stays the device's."""
        ...

    @property
    def mmap_offset(self) -> int:
        """Where the region's byte 0 is in that file."""
        ...

    @property
    def mmap_areas(self) -> Sequence[tuple[int, int]]:
        """The (offset, size) parts, of whole pages, that may be mapped; none means the whole region."""
        ...


class Device(Protocol):
    """A device. All methods are called in the thread that runs the server's loop.

    The server checks every access against the region table before it calls: offset + count is inside
    the region, count is at least 1, and the direction is allowed. An exception from a method is
    answered with EIO (or dropped, for a posted write), logged and counted.

    Three more methods are called if the device has them: `dma_changed()` after a change of the DMA
    mappings and `irq_state_changed()` after a change of the interrupt set-up, both before the client
    gets its reply; and `overloaded()`, before messages are handled: while it is true, so much of what
    the client sent before still waits in the device that the rest is left in the socket.
    """

    @property
    def regions(self) -> Sequence[RegionInfo]:
        """Regions by index, at least 8: BAR0 to BAR5, ROM, configuration space."""
        ...

    @property
    def irq_counts(self) -> Sequence[int]:
        """Vectors by index, at least 3: INTx, MSI, MSI-X, error, request."""
        ...

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        """Return exactly `count` bytes."""
        ...

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        """Take a write; a posted one gets no reply, so a failure reaches nobody but the log."""
        ...

    def reset(self, reason: ResetReason) -> None:
        """Return to the state after power-up. The interrupt set-up is the client's and stays."""
        ...
