"""The initialization segment: the registers a driver reads before it can speak to the firmware.

Every register is a row of ``vhca.wire.connectx.init_segment``; what the host may write is in that table too. Time and
health are computed at the read: the free-running timer ticks in the firmware's clock, the health counter once per
10 ms as long as the device runs.
"""

import logging
from collections.abc import Callable
from typing import Final

from vhca.hw.hardware import BoardInfo
from vhca.sim.clock import Clock

log = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 0x2010
CMDIF_REVISION: Final = 5
LOG_COMMAND_SLOTS: Final = 5
LOG_COMMAND_STRIDE: Final = 6

FW_REV: Final = 0x000
CMDIF_REV: Final = 0x004
QUEUE_ADDRESS_HIGH: Final = 0x010
QUEUE_ADDRESS_LOW: Final = 0x014
COMMAND_DOORBELL: Final = 0x018
INITIALIZING: Final = 0x1FC
HEALTH_BUFFER: Final = 0x200
HEALTH_BYTES: Final = 0x40
TIMER_HIGH: Final = 0x1000
TIMER_LOW: Final = 0x1004
HEALTH_COUNTER: Final = 0x1010

# nic_interface, bits 10:8 of the queue address register
INTERFACE_FULL_DRIVER: Final = 0
INTERFACE_DISABLED: Final = 1
INTERFACE_SOFTWARE_RESET: Final = 7
# In the word of "initializing": the driver may ask for a reset by writing that state.
RESET_SUPPORTED: Final = 1 << 30

HEALTH_TICK_NS: Final = 10_000_000

# Names that firmware may set, as byte offset and width in bytes
REGISTERS: Final = {
    "health_synd": (HEALTH_BUFFER + 0x3D, 1),
    "health_ext_synd": (HEALTH_BUFFER + 0x3E, 2),
    "health_rfr_severity": (HEALTH_BUFFER + 0x38, 1),
    "initializing": (INITIALIZING, 4),
}


class InitSegment:
    """One card's segment; calls back for the three things a host does with it."""

    def __init__(
        self,
        info: BoardInfo,
        clock: Clock,
        *,
        on_queue_address: Callable[[int], None],
        on_interface: Callable[[int], None],
        on_doorbell: Callable[[int], None],
    ) -> None:
        self._info = info
        self._clock = clock
        self._on_queue_address = on_queue_address
        self._on_interface = on_interface
        self._on_doorbell = on_doorbell
        self._bytes = bytearray(SEGMENT_BYTES)
        self.frozen = False
        self._frozen_ns = 0
        self.ignored_writes = 0
        self.reset()

    def reset(self) -> None:
        """All registers at their power-up values."""
        major, minor, subminor = self._info.fw_version
        self._bytes[:] = bytes(SEGMENT_BYTES)
        self.set_word(FW_REV, minor << 16 | major)
        self.set_word(CMDIF_REV, CMDIF_REVISION << 16 | subminor)
        # Disabled until a driver gives a queue address, which says "full driver" in the same write. Under a driver that
        # had given one, that is what tells its health poll of a reset that it did not ask for.
        self.set_word(QUEUE_ADDRESS_LOW, INTERFACE_DISABLED << 8 | LOG_COMMAND_SLOTS << 4 | LOG_COMMAND_STRIDE)
        self.set_word(INITIALIZING, RESET_SUPPORTED)
        self.set_word(HEALTH_BUFFER + 0x30, major << 24 | minor << 16 | subminor)
        self.set_word(HEALTH_BUFFER + 0x34, self._info.device_id)
        self.frozen = False

    def freeze(self) -> None:
        """The device has stopped: the health counter no longer moves."""
        self.frozen = True
        self._frozen_ns = self._clock.now_ns()

    def set_word(self, offset: int, value: int) -> None:
        """Store a 32-bit register."""
        self._bytes[offset : offset + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")

    def word(self, offset: int) -> int:
        """A stored 32-bit register."""
        return int.from_bytes(self._bytes[offset : offset + 4], "big")

    def set_register(self, name: str, value: int) -> None:
        """Store a register that firmware drives, by name; raises KeyError for others."""
        offset, width = REGISTERS[name]
        self._bytes[offset : offset + width] = value.to_bytes(width, "big")

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the segment as the host sees them now."""
        if offset + count > TIMER_HIGH and offset < HEALTH_COUNTER + 4:
            now = self._frozen_ns if self.frozen else self._clock.now_ns()
            ticks = now * self._info.timer_khz // 1_000_000
            self.set_word(TIMER_HIGH, ticks >> 32)
            self.set_word(TIMER_LOW, ticks)
            self.set_word(HEALTH_COUNTER, now // HEALTH_TICK_NS + 1 & 0xFFFFFF)
        data = bytes(self._bytes[offset : offset + count])
        return data.ljust(count, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        """A host write; only the queue address, the interface state and the doorbell take any."""
        for at in range(0, len(data) & ~3, 4):
            self._write_word(offset + at, int.from_bytes(data[at : at + 4], "big"))
        if len(data) & 3 or offset & 3:
            self.ignored_writes += 1

    def _write_word(self, offset: int, value: int) -> None:
        if offset == COMMAND_DOORBELL:
            self._on_doorbell(value)
        elif offset == QUEUE_ADDRESS_HIGH:
            self.set_word(offset, value)
        elif offset == QUEUE_ADDRESS_LOW:
            self._write_queue_low(value)
        else:
            self.ignored_writes += 1

    def _write_queue_low(self, value: int) -> None:
        """Address bits and interface state are taken, the queue's sizes stay."""
        old = self.word(QUEUE_ADDRESS_LOW)
        self.set_word(QUEUE_ADDRESS_LOW, value & 0xFFFFFF00 & ~0x800 | old & 0xFF)
        self._on_queue_address(self.word(QUEUE_ADDRESS_HIGH) << 32 | value & 0xFFFFF000)
        state = value >> 8 & 7
        if state != old >> 8 & 7:
            self._on_interface(state)
