"""Two cards on a cable, each with a host that speaks to it through registers, mailboxes and rings.

No socket and no real clock: a step is deterministic, so a failure can be played again from its seed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from firmware import boot
from firmware.model.block import BLOCKS, image
from firmware.model.ledger import HcaObject
from firmware.model.qp import Qp
from tests.fuzz.book import TEARDOWN, Book, Item
from tests.fuzz.watch import BASE, Violation, WatchedBoard, WatchedMemory
from tests.support import account
from vhca.hw.hardware import BoardInfo
from vhca.layout import Layout
from vhca.sim.clock import VirtualClock
from vhca.wire import mad as madwire
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import DeliveryStatus, Op, Status
from vhca.wire.mad import Smp
from vhca.wire.packet import Packet, Route
from vhca.wire.smp import PORT_INFO, PortInfo

PAGE = 4096
MEMORY_BYTES = 3 << 20
IN_BLOCKS = 24
OUT_BLOCKS = 12
STATUSES = {int(status) for status in Status}
DELIVERY = {int(status) for status in DeliveryStatus}
# Packets that may pass without time passing.
STORM = 20_000
HEALTH_SYNDROME = 0x23D

Mutation = Callable[[bytearray], None]


class NoMemory(Exception):
    """The host's memory is used up: the move is left out."""


class Host:
    """One card, its memory and its driver."""

    def __init__(self, world: World, name: str, lid: int) -> None:
        self.world = world
        self.name = name
        self.lid = lid
        self.memory = WatchedMemory(MEMORY_BYTES, f"<never handed to {name}> ".encode().ljust(32, b"#"))
        self.irqs: list[int] = []
        # What the board asks for: its next turn, and calls after what is under way.
        self.turns: deque[Callable[[], None]] = deque()
        info = BoardInfo(node_guid=lid << 8, system_image_guid=lid << 8, port_guids=(lid << 8 | 1,))
        self.board = WatchedBoard(name, info, boot, self.memory, world.clock, self.irqs.append, self.turns.append)
        self.board.secrets = (self.memory.secret,)
        self.board.plug(1, _Cable(world, self))
        self.book = Book(self.memory)
        self._next = BASE
        self.uar = 0
        self.queue = self.alloc(PAGE)
        self.in_box = self.alloc(IN_BLOCKS * 1024)
        self.out_box = self.alloc(OUT_BLOCKS * 1024)
        self.scratch = self.alloc(PAGE)
        self.memory.grant("commands", [(self.queue, self.scratch + PAGE - self.queue)], write=True)
        self.board.on_done = self._done
        self.link = False
        self._posted = b""
        self.answers = 0
        self.refused = 0

    @property
    def other(self) -> Host:
        return self.world.b if self is self.world.a else self.world.a

    # ---- memory and registers ----

    def alloc(self, size: int) -> int:
        addr = self._next
        self._next += -(-size // PAGE) * PAGE
        if self._next > BASE + self.memory.size:
            self._next = addr
            raise NoMemory
        # Used memory holds no secret any more.
        self.memory.poke(addr, bytes(self._next - addr))
        return addr

    def bar_write(self, offset: int, data: bytes) -> None:
        self.board.bar0.write(offset, data)

    def doorbell(self, offset: int, *words: int) -> None:
        data = b"".join((word & 0xFFFFFFFF).to_bytes(4, "big") for word in words)
        self.bar_write(self.uar * PAGE + offset, data)

    # ---- commands ----

    def post(self, data: bytes, out_size: int, slot: int, spoil: Callable[[Host, bytearray], None] | None) -> bytes:
        """Write entry and mailboxes (spoilt on the way, if asked), ring, and return the entry as the card left it."""
        self._mailboxes(self.in_box, data[16:], IN_BLOCKS)
        self._mailboxes(self.out_box, bytes(max(0, out_size - 16)), OUT_BLOCKS)
        entry = bytearray(64)
        entry[0] = 7
        entry[4:8] = len(data).to_bytes(4, "big")
        if len(data) > 16:
            entry[8:16] = self.in_box.to_bytes(8, "big")
        entry[16 : 16 + len(data[:16])] = data[:16]
        if out_size > 16:
            entry[0x30:0x38] = self.out_box.to_bytes(8, "big")
        entry[0x38:0x3C] = out_size.to_bytes(4, "big")
        entry[0x3C] = 0x5A
        entry[0x3F] = 1
        if spoil is not None:
            spoil(self, entry)
        addr = self.queue + slot * 64
        self.memory.poke(addr, bytes(entry))
        self.memory.stores.clear()
        self.bar_write(0x18, (1 << slot).to_bytes(4, "big"))
        for _ in range(STORM):
            if not self.turns:
                break
            self.turns.popleft()()
        owned = entry[0x3F] & 1
        if self.memory.stores.count(addr + 0x3F) != owned:
            raise Violation(f"{self.memory.stores.count(addr + 0x3F)} answers to one command")
        left = self.memory.peek(addr, 64)
        if owned:
            if left[0x3F] & 1 or left[0x3F] >> 1 not in DELIVERY:
                raise Violation(f"command entry handed back as {left[0x3F]:#x}")
            self.answers += 1
        return left

    def _mailboxes(self, base: int, data: bytes, blocks: int) -> None:
        count = min(-(-len(data) // 512), blocks)
        for number in range(count):
            block = bytearray(576)
            part = data[number * 512 : number * 512 + 512]
            block[: len(part)] = part
            if number + 1 < count:
                block[0x230:0x238] = (base + (number + 1) * 1024).to_bytes(8, "big")
            block[0x238:0x23C] = number.to_bytes(4, "big")
            block[0x23D] = 0x5A
            self.memory.poke(base + number * 1024, bytes(block))

    def raw(
        self,
        data: bytes,
        out_size: int = 16,
        slot: int = 0,
        spoil: Callable[[Host, bytearray], None] | None = None,
    ) -> bytes | None:
        """Run a command; its output if it was accepted, None if it was refused or not delivered."""
        self._posted = data
        entry = self.post(data, out_size, slot, spoil)
        if entry[0x3F]:
            return None
        output = entry[0x20:0x30]
        for number in range(-(-(out_size - 16) // 512)):
            output += self.memory.peek(self.out_box + number * 1024, 512)
        if output[0] not in STATUSES:
            raise Violation(f"command status {output[0]:#x}")
        if output[0] == Status.INTERNAL_ERR:
            raise Violation("a command ended with an internal error")
        if output[0]:
            self.refused += 1
            return None
        return output[:out_size]

    def _done(self, slot: int, output: bytes) -> None:
        if not output[0]:
            self.book.learn(int.from_bytes(self._posted[0:2], "big"), self._posted, output)

    def run(
        self,
        op: int,
        view: Layout | None = None,
        tail: bytes = b"",
        *,
        out_size: int = 16,
        op_mod: int = 0,
        uid: int = 0,
        mutate: Mutation | None = None,
        spoil: Callable[[Host, bytearray], None] | None = None,
        slot: int = 0,
    ) -> bytes | None:
        data = bytearray((view or cmd.BareIn()).to_bytes() + tail)
        data[0:2] = int(op).to_bytes(2, "big")
        if uid:
            data[2:4] = uid.to_bytes(2, "big")
        data[6:8] = op_mod.to_bytes(2, "big")
        if mutate is not None:
            mutate(data)
        return self.raw(bytes(data), out_size, slot, spoil)

    def must(
        self, op: int, view: Layout | None = None, tail: bytes = b"", *, out_size: int = 16, op_mod: int = 0
    ) -> bytes:
        out = self.run(op, view, tail, out_size=out_size, op_mod=op_mod)
        if out is None:
            raise Violation(f"a well-formed {Op(op).name} was refused: {list(self.board.ring)[-1]}")
        return out

    # ---- bring-up ----

    def probe(self) -> None:
        """As a driver starts, after power-up or reset."""
        self.book.forget()
        self.bar_write(0x10, (self.queue >> 32).to_bytes(4, "big"))
        self.bar_write(0x14, (self.queue & 0xFFFFFFFF).to_bytes(4, "big"))
        self.must(Op.ENABLE_HCA, cmd.EnableHcaIn())
        self.must(Op.INIT_HCA, cmd.InitHcaIn())
        self.uar = cmd.AllocUarOut.from_bytes(self.must(Op.ALLOC_UAR)).uar

    def set_link(self, up: bool) -> None:
        """Plug or pull the cable."""
        if up != self.link:
            self.link = up
            self.board.link_change(1, up)

    def link_up(self) -> None:
        """Cable in, and through the link states as a subnet manager leads."""
        self.set_link(True)
        for state, physical in ((0, 0), (3, 0), (4, 0)):
            info = PortInfo(lid=self.lid, sm_lid=1, gid_prefix=0xFE80 << 48, port_state=state,
                            port_physical_state=physical, subnet_timeout=18)  # fmt: skip
            mad = Smp(base_version=1, mgmt_class=madwire.CLASS_SUBN_LID, class_version=1, method=madwire.METHOD_SET,
                      attr_id=PORT_INFO, data=info.to_bytes()).to_bytes()  # fmt: skip
            self.mad(mad)

    def mad(self, mad: bytes, op_mod: int = 1) -> bytes | None:
        view = cmd.MadIfcIn(port=1, mad=mad)
        return self.run(Op.MAD_IFC, view, out_size=cmd.MadIfcOut.SIZE, op_mod=op_mod)

    # ---- checks ----

    def check(self) -> None:
        """What holds after every step."""
        board = self.board
        if board.dead:
            raise Violation(f"the firmware failed: {_reason(board.death)}\n{board.death}")
        if board.bar0.read(HEALTH_SYNDROME, 1) != b"\0":
            raise Violation("health syndrome")
        ledger, book = board.objects(), self.book.counts()
        if any(ledger.get(kind) != count for kind, count in book.items()):
            wrong = {kind: (ledger.get(kind), book.get(kind)) for kind in book if ledger.get(kind) != book[kind]}
            raise Violation(f"ledger and book differ (card, host): {wrong}")
        hca = board.firmware.hca  # type: ignore[attr-defined]
        if hca.budget.used != account.expected(hca):
            raise Violation(f"the budget counts {hca.budget.used} bytes instead of {account.expected(hca)}")
        for table in (hca.pds, hca.xrcds, hca.eqs, hca.cqs, hca.srqs, hca.qps, hca.mkeys):
            for obj in table:
                assert isinstance(obj, HcaObject)
                if obj.refs < 0:
                    raise Violation(f"{table.kind} {obj.handle:#x} has {obj.refs} references")
                _check_blocks(obj)

    def take_down(self) -> None:
        """A driver that unloads: everything can be destroyed in order, and then nothing is left."""
        for number, item in list(self.book.items["qp"].items()):
            for gid in list(item.gids):
                self.must(Op.DETACH_FROM_MCG, cmd.DetachFromMcgIn(qpn=number, multicast_gid=gid))
        for kind, op in TEARDOWN:
            for number, item in list(self.book.items[kind].items()):
                self._destroy(kind, op, number, item)
        left = {kind: count for kind, count in self.board.objects().items() if count}
        hca = self.board.firmware.hca  # type: ignore[attr-defined]
        if left or hca.special_qps or hca.flushing or hca.multicast:
            raise Violation(f"left after everything was destroyed: {left}")
        faults = hca.page_faults
        if hca.budget.used != account.expected(hca) or (hca.budget.used and not faults.outstanding):
            raise Violation(f"charged after everything was destroyed: {hca.budget.used} bytes")
        self.must(Op.TEARDOWN_HCA, cmd.TeardownHcaIn())
        self.must(Op.DISABLE_HCA, cmd.DisableHcaIn())

    def _destroy(self, kind: str, op: int, number: int, item: Item) -> None:
        if kind == "srq" and item.service == 1:
            op = Op.DESTROY_XRC_SRQ
        if kind == "memic":
            self.must(op, cmd.DeallocMemicIn(memic_start_addr=number, memic_size=item.length))
            return
        view = cmd.BareIn().to_bytes()[:8] + number.to_bytes(4, "big") + bytes(4)
        self.must(op, cmd.DestroyQpIn.from_bytes(view))


def _check_blocks(obj: HcaObject) -> None:
    """What a guest and its peers make of numbers, they stay within their width."""
    parts = [obj, obj.requester, obj.responder, obj.sq, obj.rq] if isinstance(obj, Qp) else [obj]
    for part in parts:
        for cls in type(part).__mro__:
            if cls.__name__ in BLOCKS:
                try:
                    image(part, cls)
                except struct.error as error:
                    raise Violation(f"{cls.__name__} of {obj.handle:#x}: {error}") from None


def _reason(trace: str) -> str:
    return trace.strip().rpartition("\n")[2]


class _Rails:
    """The way of trains: open while nothing is on the cable and nothing is done to packets."""

    def __init__(self, world: World, host: Host) -> None:
        self._world = world
        self._host = host

    def is_open(self, mtu: int, *, empty: bool = False) -> bool:
        world = self._world
        if not world.rails or world.spoil is not None or world.wire or not self._host.link:
            return False
        for host in world.hosts:
            host.memory.remember()
        return True

    def passed(self, sent: int, sent_words: int, back: int, back_words: int) -> None:
        self._world.trains += 1
        for host in self._world.hosts:
            host.memory.compare(host.other.memory.secret)


class _Cable:
    full = False

    def __init__(self, world: World, host: Host) -> None:
        self._world = world
        self._host = host

    def send(self, packet: Packet) -> None:
        self._world.send(self._host, packet)

    def through(self, route: Route, back: Route, pkeys: tuple[int, int]) -> tuple[_Rails, SimpleNamespace] | None:
        other = self._host.other
        return (_Rails(self._world, other), SimpleNamespace(card=other.board)) if route.dlid == other.lid else None

    def set_enabled(self, enabled: bool) -> None:
        """A driver that switches its link off (PAOS) sees it go and come."""
        host = self._host
        self._world.deferred.append(lambda: host.set_link(enabled))


class World:
    """Both hosts, the wire between them and the time that they share."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = VirtualClock(1_000_000_000)
        self.deferred: deque[Callable[[], None]] = deque()
        self.wire: deque[tuple[Host, Packet]] = deque()
        self.spoil: Callable[[Packet], list[Packet]] | None = None
        self.last: deque[Packet] = deque(maxlen=64)
        self.packets = 0
        # Whether trains may pass.
        self.rails = False
        self.trains = 0
        # Pairs of ends that fit (:mod:`tests.fuzz.talk`).
        self.talkers: list[Any] = []
        self.notes: list[str] = []
        self.a = Host(self, "a", 1)
        self.b = Host(self, "b", 2)
        self.hosts = (self.a, self.b)
        for host in self.hosts:
            host.board.secrets = (self.a.memory.secret, self.b.memory.secret)
            host.probe()
            host.link_up()
        self.settle()
        for host in self.hosts:
            if not host.board.firmware.hca.ports[1].active:  # type: ignore[attr-defined]
                raise Violation(f"{host.name}: the port is not Active, so there would be no traffic to speak of")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def send(self, source: Host, packet: Packet) -> None:
        self.packets += 1
        self.last.append(packet)
        for item in [packet] if self.spoil is None else self.spoil(packet):
            self.wire.append((source.other, item))

    def deliver(self, count: int) -> None:
        """Up to `count` packets, turns and deferred calls, oldest first."""
        for _ in range(count):
            host = next((host for host in self.hosts if host.turns), None)
            if host is not None:
                host.turns.popleft()()
            elif self.deferred:
                self.deferred.popleft()()
            elif self.wire:
                host, packet = self.wire.popleft()
                if host.link:
                    host.board.packet_in(1, packet)
            else:
                return

    def settle(self) -> None:
        """Deliver until nothing is under way; that must end without time passing."""
        for _ in range(STORM):
            if not (self.deferred or self.wire or self.a.turns or self.b.turns):
                return
            self.deliver(1)
        raise Violation("the packets do not end")

    def pass_time(self, span_ns: int, rounds: int) -> None:
        """Move the clock and run what is due, a bounded number of rounds."""
        self.clock.advance(span_ns)
        for _ in range(rounds):
            now = self.clock.now_ns()
            due = [host for host in self.hosts if (at := host.board.next_deadline()) is not None and at <= now]
            if not due:
                return
            for host in due:
                host.board.run_timers(now)
            self.settle()
            # Work that yields goes on one tick later.
            self.clock.advance(1)

    def check(self) -> None:
        for host in self.hosts:
            host.check()
