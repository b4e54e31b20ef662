"""The initialization segment: the registers a driver reads before it can speak to the firmware.

Which registers there are, and which of their bits the host may write, is in `vhca.wire.connectx.init_segment`. Time
and health are computed at the read: the free-running timer ticks in the firmware's clock, the health counter once per
10 ms as long as the device runs.
"""

import logging
from collections.abc import Callable
from typing import Final

from vhca.hw.hardware import BoardInfo
from vhca.sim.clock import Clock
from vhca.wire.connectx.init_segment import (
    BY_NAME,
    BY_OFFSET,
    CMDIF_REV,
    FW_RESET_SUPPORTED,
    SEGMENT_BYTES,
    CmdqAddrLow,
    HealthBuffer,
    NicInterface,
)

log = logging.getLogger(__name__)

LOG_COMMAND_SLOTS: Final = 5
LOG_COMMAND_STRIDE: Final = 6
HEALTH_TICK_NS: Final = 10_000_000
_COUNTING: Final = range(BY_NAME["internal_timer_h"].offset, BY_NAME["health_counter"].offset + 4)
_HEALTH: Final = BY_NAME["health_buffer"].offset


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
        self._stopped_ns: int | None = None
        self.ignored_writes = 0
        self.reset()

    def reset(self) -> None:
        """All registers at their power-up values."""
        major, minor, subminor = self._info.fw_version
        self._bytes[:] = bytes(SEGMENT_BYTES)
        self._set("fw_rev", minor << 16 | major)
        self._set("cmdif_rev_fw_sub", CMDIF_REV << 16 | subminor)
        # Disabled until a driver gives a queue address, which says "full driver" in the same write. Under a driver that
        # had given one, that is what tells its health poll of a reset that it did not ask for.
        queue = CmdqAddrLow(
            nic_interface=NicInterface.DISABLED, log_cmdq_size=LOG_COMMAND_SLOTS, log_cmdq_stride=LOG_COMMAND_STRIDE
        )
        self._set("cmdq_addr_l_sz", int.from_bytes(queue.to_bytes(), "big"))
        self._set("initializing", FW_RESET_SUPPORTED)
        self.set_health(fw_ver=major << 24 | minor << 16 | subminor, hw_id=self._info.device_id)
        self.frozen = False
        self._stopped_ns = None

    def stop_counter(self, stopped: bool) -> None:
        """The health counter no longer moves while all else goes on; or it does again. A reset ends it, too."""
        self._stopped_ns = self._clock.now_ns() if stopped else None

    def freeze(self) -> None:
        """The device has stopped: the health counter no longer moves."""
        self.frozen = True
        self._frozen_ns = self._clock.now_ns()

    def set_health(self, **fields: int) -> None:
        """Store fields of :class:`vhca.wire.connectx.init_segment.HealthBuffer`, by name.

        :raises LayoutError: there is no such field.
        :raises ValueError: a value that does not fit.
        """
        fresh = HealthBuffer(**fields)
        health = HealthBuffer.from_bytes(self._bytes, _HEALTH)
        for name in fields:
            setattr(health, name, getattr(fresh, name))
        self._bytes[_HEALTH : _HEALTH + HealthBuffer.SIZE] = health.to_bytes()

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the segment as the host sees them now."""
        if offset + count > _COUNTING.start and offset < _COUNTING.stop:
            now = self._frozen_ns if self.frozen else self._clock.now_ns()
            ticks = now * self._info.timer_khz // 1_000_000
            self._set("internal_timer_h", ticks >> 32)
            self._set("internal_timer_l", ticks)
            counted = now if self._stopped_ns is None else self._stopped_ns
            self._set("health_counter", counted // HEALTH_TICK_NS + 1 & 0xFFFFFF)
        data = bytes(self._bytes[offset : offset + count])
        return data.ljust(count, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        """A host write; what the table does not let it write is counted and stays."""
        for at in range(0, len(data) & ~3, 4):
            self._write_word(offset + at, int.from_bytes(data[at : at + 4], "big"))
        if len(data) & 3 or offset & 3:
            self.ignored_writes += 1

    def _write_word(self, offset: int, value: int) -> None:
        register = BY_OFFSET.get(offset)
        if register is None or not register.writable:
            self.ignored_writes += 1
            return
        old = self._word(register.name)
        if register.access == "rw":
            self._set(register.name, value & register.writable | old & ~register.writable)
        if register.name == "cmd_dbell":
            self._on_doorbell(value)
        elif register.name == "cmdq_addr_l_sz":
            self._queue_address_written(CmdqAddrLow.from_bytes(old.to_bytes(4, "big")))

    def _queue_address_written(self, before: CmdqAddrLow) -> None:
        low = self._word("cmdq_addr_l_sz")
        now = CmdqAddrLow.from_bytes(low.to_bytes(4, "big"))
        self._on_queue_address(self._word("cmdq_addr_h") << 32 | now.cmdq_phy_addr_31_12 << 12)
        if now.nic_interface != before.nic_interface:
            self._on_interface(now.nic_interface)

    def _set(self, name: str, value: int) -> None:
        """Store a 32-bit register."""
        at = BY_NAME[name].offset
        self._bytes[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")

    def _word(self, name: str) -> int:
        """A stored 32-bit register."""
        at = BY_NAME[name].offset
        return int.from_bytes(self._bytes[at : at + 4], "big")
