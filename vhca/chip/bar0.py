"""BAR0 of the card: the initialization segment, behind it one doorbell page per UAR, and device memory at the end.

Register accesses become events for the board; nothing is decided here. A 64-bit doorbell that a host splits in two
halves acts on its second half.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from vhca.chip.device_memory import DeviceMemory
from vhca.hw.events import CqDoorbell, EqDoorbell, Event, SqDoorbell

log = logging.getLogger(__name__)

INIT_SEGMENT_BYTES: Final = 0x2010
PAGE_BYTES: Final = 4096

# Offsets in a UAR page
CQ_DOORBELL: Final = 0x20
EQ_DOORBELL_ARM: Final = 0x40
EQ_DOORBELL: Final = 0x48
# Doorbells of send queues without a doorbell record
SQ_RECORDLESS: Final = 0x600
SQ_REGISTERS: Final = 0x800
# Each of the four 512-byte send registers has two halves; a doorbell is at the start of a half.
SQ_HALF_MASK: Final = 0xFF


class Segment(Protocol):
    """The init segment's registers."""

    def read(self, offset: int, count: int) -> bytes:
        """Register bytes."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Register bytes."""
        ...


class Bar0:
    """Decoder of one card's BAR0; `first_uar` is the lowest page that doorbells are taken from."""

    def __init__(
        self, segment: Segment, first_uar: int, device_memory: DeviceMemory, emit: Callable[[Event], None]
    ) -> None:
        self._segment = segment
        self._first_uar = first_uar
        self._device_memory = device_memory
        self._device_memory_start = device_memory.start
        self._emit = emit
        self._halves: dict[int, bytes] = {}
        self.ignored_writes = 0
        self.uar_reads = 0

    def reset(self) -> None:
        """Forget half-written doorbells."""
        self._halves.clear()

    def read(self, offset: int, count: int) -> bytes:
        """Registers of the init segment; doorbell pages read as zero."""
        if offset < INIT_SEGMENT_BYTES:
            return self._segment.read(offset, count)
        if offset >= self._device_memory_start:
            return self._device_memory.read(offset, count)
        self.uar_reads += 1
        return bytes(count)

    def write(self, offset: int, data: bytes) -> None:
        """A register or doorbell write of any size."""
        if offset < INIT_SEGMENT_BYTES:
            self._segment.write(offset, data)
            return
        if offset >= self._device_memory_start:
            self._device_memory.write(offset, data)
            return
        uar = offset >> 12
        inner = offset & 0xFFF
        size = len(data)
        if uar < self._first_uar:
            self.ignored_writes += 1
        elif inner >= SQ_REGISTERS:
            self._wide(offset, inner & SQ_HALF_MASK, uar, data, self._ring_sq)
        elif CQ_DOORBELL <= inner < CQ_DOORBELL + 8:
            self._wide(offset, inner - CQ_DOORBELL, uar, data, self._ring_cq)
        elif inner in (EQ_DOORBELL_ARM, EQ_DOORBELL) and size >= 4:
            value = int.from_bytes(data[:4], "big")
            self._emit(EqDoorbell(uar, value >> 24, value & 0xFFFFFF, inner == EQ_DOORBELL_ARM))
        elif SQ_RECORDLESS <= inner < SQ_RECORDLESS + 8:
            self._wide(offset, inner - SQ_RECORDLESS, uar, data, self._ring_sq)
        else:
            self.ignored_writes += 1

    def _wide(self, offset: int, inner: int, uar: int, data: bytes, ring: Callable[[int, bytes], None]) -> None:
        """An 8-byte doorbell at `inner` 0, whole or in two halves; what lies behind it is write-combined WQE data."""
        size = len(data)
        if inner == 0 and size >= 8:
            ring(uar, data)
        elif inner == 0 and size == 4:
            self._halves[offset] = data
        elif inner == 4 and size == 4:
            first = self._halves.pop(offset - 4, None)
            if first is None:
                self.ignored_writes += 1
            else:
                ring(uar, first + data)
        else:
            self.ignored_writes += 1

    def _ring_sq(self, uar: int, data: bytes) -> None:
        self._emit(SqDoorbell(uar, int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")))

    def _ring_cq(self, uar: int, data: bytes) -> None:
        self._emit(CqDoorbell(uar, int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")))
