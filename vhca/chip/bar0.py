"""BAR0 of the card: the initialization segment, behind it one doorbell page per UAR, and device memory at the end.

Register accesses become events for the board; nothing is decided here. A 64-bit doorbell that a host splits in two
halves acts on its second half.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from vhca.chip.device_memory import DeviceMemory
from vhca.hw.events import CqDoorbell, EqDoorbell, Event, SqDoorbell
from vhca.wire.connectx.init_segment import (
    SEGMENT_BYTES,
    UAR_BLUE_FLAME,
    UAR_CQ_ARM,
    UAR_EQ_ARM,
    UAR_EQ_UPDATE,
    UAR_SQ_RECORDLESS,
    CqArmDoorbell,
    EqUpdateDoorbell,
    SendDoorbell,
)

log = logging.getLogger(__name__)

# Each of the four 512-byte send registers has two halves; a doorbell is at the start of a half.
SQ_HALF_MASK: Final = 0xFF
# Halves that wait for their other half: as many as processors may be at it, not one for each register of the BAR.
MOST_HALVES: Final = 1024
_SQ: Final = SendDoorbell.unpacker("opmod_idx_opcode", "qpn_ds")
_CQ_ARM: Final = CqArmDoorbell.unpacker("cmd", "ci", "cqn")
_EQ_UPDATE: Final = EqUpdateDoorbell.unpacker("eqn", "ci")


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
        if offset < SEGMENT_BYTES:
            return self._segment.read(offset, count)
        if offset >= self._device_memory_start:
            return self._device_memory.read(offset, count)
        self.uar_reads += 1
        return bytes(count)

    def write(self, offset: int, data: bytes) -> None:
        """A register or doorbell write of any size."""
        if offset < SEGMENT_BYTES:
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
        elif size == SendDoorbell.SIZE and inner >= UAR_BLUE_FLAME and not inner & SQ_HALF_MASK:
            self._ring_sq(uar, data)
        elif inner >= UAR_BLUE_FLAME:
            self._wide(offset, inner & SQ_HALF_MASK, uar, data, self._ring_sq)
        elif UAR_CQ_ARM <= inner < UAR_CQ_ARM + 8:
            self._wide(offset, inner - UAR_CQ_ARM, uar, data, self._ring_cq)
        elif inner in (UAR_EQ_ARM, UAR_EQ_UPDATE) and size >= 4:
            eqn, consumer = _EQ_UPDATE(data)
            self._emit(EqDoorbell(uar, eqn, consumer, inner == UAR_EQ_ARM))
        elif UAR_SQ_RECORDLESS <= inner < UAR_SQ_RECORDLESS + 8:
            self._wide(offset, inner - UAR_SQ_RECORDLESS, uar, data, self._ring_sq)
        else:
            self.ignored_writes += 1

    def _wide(self, offset: int, inner: int, uar: int, data: bytes, ring: Callable[[int, bytes], None]) -> None:
        """An 8-byte doorbell at `inner` 0, whole or in two halves; what lies behind it is write-combined WQE data."""
        size = len(data)
        if inner == 0 and size >= 8:
            ring(uar, data)
        elif inner == 0 and size == 4:
            if len(self._halves) >= MOST_HALVES and offset not in self._halves:
                # The oldest will hardly be followed by anything.
                del self._halves[next(iter(self._halves))]
                self.ignored_writes += 1
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
        self._emit(SqDoorbell(uar, *_SQ(data)))

    def _ring_cq(self, uar: int, data: bytes) -> None:
        command, consumer, cqn = _CQ_ARM(data)
        self._emit(CqDoorbell(uar, cqn, consumer, bool(command)))
