"""A driver without a kernel: posts commands to a Board through its BAR and memory, as mlx5_core does.

It writes real queue entries and mailboxes, polls or waits for command events, and keeps a bump allocator over a flat
memory; every layer but the socket is the real one.
"""

from __future__ import annotations

from firmware import boot
from vhca.chip.board import Board
from vhca.hw.hardware import BoardInfo, FirmwareImage
from vhca.hw.memory import FlatMemory
from vhca.layout import Layout
from vhca.sim.clock import VirtualClock
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.packet import Packet

PAGE = 4096
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


class CommandFailed(Exception):
    """A command came back with a status."""

    def __init__(self, op: int, status: int, syndrome: int) -> None:
        super().__init__(f"{op:#x}: status {status:#x}, syndrome {syndrome:#x}")
        self.status = status


def board_info(**changes: object) -> BoardInfo:
    info = BoardInfo(
        node_guid=0x0002C90300000100, system_image_guid=0x0002C90300000100, port_guids=(0x0002C90300000101,)
    )
    for name, value in changes.items():
        setattr(info, name, value)
    return info


class Driver:
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

    def run(
        self, op: Op, view: Layout | None = None, tail: bytes = b"", *, out_size: int = 16, op_mod: int = 0
    ) -> bytes:
        """Run a command that must succeed; `view` is its input (its header is filled in here)."""
        data = bytearray((view or cmd.BareIn()).to_bytes() + tail)
        data[0:2] = int(op).to_bytes(2, "big")
        data[6:8] = op_mod.to_bytes(2, "big")
        output = self.raw(bytes(data), out_size)
        if output[0]:
            raise CommandFailed(op, output[0], int.from_bytes(output[4:8], "big"))
        return output

    # ---- bring-up ----

    def probe(self) -> None:
        """The commands of mlx5_core up to the event queues."""
        self.run(Op.ENABLE_HCA, cmd.EnableHcaIn())
        self.run(Op.QUERY_ISSI, out_size=cmd.QueryIssiOut.SIZE)
        issi = cmd.SetIssiIn()
        issi.current_issi = 1
        self.run(Op.SET_ISSI, issi)
        self.run(Op.QUERY_PAGES, cmd.QueryPagesIn(), op_mod=1)
        block = self.run(Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn(), out_size=0x1010, op_mod=1)
        caps = cmd.SetHcaCapIn()
        caps.capability = block[16:]
        self.run(Op.SET_HCA_CAP, caps)
        self.run(Op.QUERY_PAGES, cmd.QueryPagesIn(), op_mod=2)
        self.run(Op.INIT_HCA, cmd.InitHcaIn())
        self.run(Op.QUERY_ADAPTER, out_size=0x110)
        self.uar = cmd.AllocUarOut.from_bytes(self.run(Op.ALLOC_UAR)).uar

    def create_eq(self, log_size: int, mask: int, vector: int = 0) -> tuple[int, int]:
        """An event queue; returns its number and buffer address."""
        size = 64 << log_size
        buffer = self.alloc(size)
        for at in range(buffer, buffer + size, 64):
            self.memory.data[at + 0x3F] = 1
        view = cmd.CreateEqIn()
        view.eq_context_entry.log_eq_size = log_size
        view.eq_context_entry.uar_page = self.uar
        view.eq_context_entry.intr = vector
        view.event_bitmask = mask.to_bytes(8, "big") + bytes(24)
        if not mask:
            # Queues of completions are for everybody: user contexts name them.
            view.uid = 0xFFFF
        out = self.run(Op.CREATE_EQ, view, self.pages(buffer, size))
        return cmd.CreateEqOut.from_bytes(out).eq_number, buffer

    @staticmethod
    def pages(buffer: int, size: int) -> bytes:
        return b"".join((buffer + at).to_bytes(8, "big") for at in range(0, max(size, 1), PAGE))
