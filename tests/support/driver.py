"""A driver without a kernel: posts commands to a Board through its BAR and memory, as mlx5_core does.

It writes real queue entries and mailboxes, polls or waits for command events, and keeps a bump allocator over a flat
memory; every layer but the socket is the real one.
"""

from __future__ import annotations

from firmware import boot
from tests.support.commands import PAGE, CommandFailed, Commands
from vhca.chip.board import Board
from vhca.hw.hardware import BoardInfo, FirmwareImage
from vhca.hw.memory import FlatMemory
from vhca.sim.clock import VirtualClock
from vhca.wire.packet import Packet

TOKEN = 0x5A


class SentPackets:
    """A cable that keeps what is sent."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.enabled = True
        self.full = False

    def send(self, packet: Packet) -> None:
        self.packets.append(packet)

    def set_enabled(self, enabled: bool) -> None:
        self.enabled = enabled

    def through(self, *_: object) -> None:
        return None


def board_info(**changes: object) -> BoardInfo:
    info = BoardInfo(
        node_guid=0x0002C90300000100, system_image_guid=0x0002C90300000100, port_guids=(0x0002C90300000101,)
    )
    for name, value in changes.items():
        setattr(info, name, value)
    return info


class Driver(Commands):
    """One card and its driver; `irqs` lists raised vectors, `cable.packets` what was sent."""

    def __init__(self, memory_bytes: int = 64 << 20, image: FirmwareImage = boot, **info: object) -> None:
        self.memory = FlatMemory(memory_bytes)
        self.clock = VirtualClock(1_000_000_000)
        self.irqs: list[int] = []
        self.later: list[object] = []
        self.cable = SentPackets()
        self.board = Board("h0", board_info(**info), image, self.memory, self.clock, self.irqs.append, self._defer)
        self.board.plug(1, self.cable)
        # Without: the card has its turn only when run_deferred() is called.
        self.at_once = True
        self._deferring = False
        self._next = 16 * PAGE
        self._slot = 0
        self.queue = self.alloc(PAGE)
        self._in_box = self.alloc(1024 * 1024)
        self._out_box = self.alloc(1024 * 16)
        self.bar_write(0x10, (self.queue >> 32).to_bytes(4, "big"))
        self.bar_write(0x14, (self.queue & 0xFFFFFFFF).to_bytes(4, "big"))

    def _defer(self, call: object) -> None:
        self.later.append(call)

    def run_deferred(self) -> None:
        """All turns that were asked for; not from within one, as in the loop."""
        if not self._deferring:
            self._deferring = True
            try:
                while self.later:
                    self.later.pop(0)()  # type: ignore[operator]
            finally:
                self._deferring = False

    # ---- memory and registers ----

    def alloc(self, size: int) -> int:
        addr = self._next
        self._next += -(-size // PAGE) * PAGE
        assert self._next <= len(self.memory.data)
        return addr

    def bar_read(self, offset: int, count: int = 4) -> bytes:
        return self.board.bar0.read(offset, count)

    def bar_write(self, offset: int, data: bytes) -> None:
        self.board.bar0.write(offset, data)
        if self.at_once:
            self.run_deferred()

    # ---- commands ----

    def post(self, data: bytes, out_size: int, *, slot: int = 0) -> int:
        """Write an entry and its mailboxes, ring the doorbell; returns the entry's address."""
        self._mailboxes(self._in_box, data[16:])
        self._mailboxes(self._out_box, bytes(max(0, out_size - 16)))
        entry = bytearray(64)
        entry[0] = 7
        entry[4:8] = len(data).to_bytes(4, "big")
        if len(data) > 16:
            entry[8:16] = self._in_box.to_bytes(8, "big")
        entry[16 : 16 + len(data[:16])] = data[:16]
        if out_size > 16:
            entry[0x30:0x38] = self._out_box.to_bytes(8, "big")
        entry[0x38:0x3C] = out_size.to_bytes(4, "big")
        entry[0x3C] = TOKEN
        entry[0x3F] = 1
        addr = self.queue + (slot << 6)
        self.memory.write(addr, entry)
        self.bar_write(0x18, (1 << slot).to_bytes(4, "big"))
        return addr

    def wait(self, addr: int) -> None:
        """Until the command is done; here it is already."""

    def _mailboxes(self, base: int, data: bytes) -> None:
        count = -(-len(data) // 512)
        for number in range(count):
            block = bytearray(576)
            part = data[number * 512 : number * 512 + 512]
            block[: len(part)] = part
            if number + 1 < count:
                block[0x230:0x238] = (base + (number + 1) * 1024).to_bytes(8, "big")
            block[0x238:0x23C] = number.to_bytes(4, "big")
            block[0x23D] = TOKEN
            self.memory.write(base + number * 1024, block)

    def raw(self, data: bytes, out_size: int = 16) -> bytes:
        """Run a command; returns its whole output, whatever its status."""
        addr = self.post(data, out_size)
        self.wait(addr)
        entry = self.memory.read(addr, 64)
        assert not entry[0x3F] & 1, "the command is still the device's"
        assert entry[0x3F] == 0, f"delivery status {entry[0x3F] >> 1:#x}"
        output = entry[0x20:0x30]
        for number in range(-(-(out_size - 16) // 512)):
            output += self.memory.read(self._out_box + number * 1024, 512)
        return output[:out_size]

    # ---- bring-up ----

    def create_eq(self, log_size: int, mask: int, vector: int = 0) -> tuple[int, int]:
        """An event queue; returns its number and buffer address."""
        size = 64 << log_size
        buffer = self.alloc(size)
        for at in range(buffer, buffer + size, 64):
            self.memory.data[at + 0x3F] = 1
        return self.make_eq(buffer, log_size, mask, vector), buffer


__all__ = ["PAGE", "TOKEN", "CommandFailed", "Driver", "SentPackets", "board_info"]
