"""A card of the scenarios: the program on a small board of its own, and the driver that uses it through its door.

In go the events of `vhca.hw.events`: commands, doorbells written to the BAR's pages, packets, link changes, due timers
and turns. Out come effects, which are carried out before the next event. A step is one event, so a test sees each.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firmware import boot
from firmware.model.hca import Hca
from firmware.model.objects import Mkey
from firmware.port_view import PortView
from tests.scenario.manager import Manager
from tests.support.commands import PAGE, Commands
from vhca.chip.bar0 import Bar0
from vhca.chip.device_memory import DeviceMemory
from vhca.hw.effects import (
    CommandDone,
    DeviceWrite,
    DmaWrite,
    Effect,
    Effects,
    EntryWrite,
    Loopback,
    RaiseIrq,
    Transmit,
)
from vhca.hw.events import CommandPosted, Event, LinkChange, PacketIn, SqDoorbell
from vhca.hw.hardware import BoardInfo, Through, TraceSink
from vhca.hw.memory import FlatMemory, Memory
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cmd.qp import DestroyQpIn
from vhca.wire.connectx.eqe import Eqe, EventType
from vhca.wire.connectx.init_segment import (
    UAR_BLUE_FLAME,
    UAR_CQ_ARM,
    UAR_EQ_ARM,
    UAR_EQ_UPDATE,
    CqArmDoorbell,
    EqUpdateDoorbell,
)
from vhca.wire.connectx.mkey import AccessMode
from vhca.wire.connectx.qpc import RqType, ServiceType
from vhca.wire.packet import Packet, Route

if TYPE_CHECKING:
    from tests.scenario.world import World

BASE = 0x10_0000
LOG_EQ = 6
LOG_MTT_PAGE = 12
PKEYS = (0xFFFF, 0x8001, 0x0002)
# Numbers differ between the cards, so that one taken for the other shows.
QPNS_APART = 0x40
# Everything but completions of commands, which are polled.
ALL_EVENTS = (1 << 64) - 1 & ~(1 << EventType.CMD)
RIGHTS = ("lr", "lw", "rr", "rw", "a")


@dataclass
class Board:
    """What the firmware may use."""

    memory: Memory
    device_memory: Memory
    info: BoardInfo
    trace: TraceSink | None = None
    limit_bytes: int = 64 << 20
    way: Callable[[Route], Through | None] = lambda route: None

    def memory_limit(self) -> int:
        return self.limit_bytes

    def through(self, port: int, route: Route, back: Route, pkeys: tuple[int, int]) -> Through | None:
        return self.way(route)


class LazyMemory(FlatMemory):
    """Memory that costs what is used of it."""

    __slots__ = ()

    def __init__(self, size_bytes: int, base: int) -> None:
        self.base = base
        self.data = mmap.mmap(-1, size_bytes)  # type: ignore[assignment]


@dataclass(frozen=True)
class Started:
    """A card that has been brought up: the program's state, and what its driver knows."""

    image: bytes
    known: dict[str, int]


class NoSegment:
    """The init segment is the board's; a driver that is past bring-up leaves it alone."""

    def read(self, offset: int, count: int) -> bytes:
        raise AssertionError(f"a read of the init segment at {offset:#x}")

    def write(self, offset: int, data: bytes) -> None:
        raise AssertionError(f"a write to the init segment at {offset:#x}")


def rights_fields(rights: int) -> dict[str, int]:
    """A mask of access rights as the fields of a memory key context."""
    return {name: rights >> bit & 1 for bit, name in enumerate(RIGHTS)}


class Card(Commands):
    """One HCA with its memory, one active port, one domain, one key for all of its memory."""

    # By LID: the commands that bring a card up are run once.
    _started: dict[int, Started] = {}

    def __init__(self, world: World, name: str, lid: int, memory_bytes: int = 8 << 20) -> None:
        self.world = world
        self.name = name
        self.memory = LazyMemory(memory_bytes, BASE)
        self._free = BASE
        info = BoardInfo(node_guid=lid, system_image_guid=lid, port_guids=(lid,))
        self.traces: list[tuple[str, dict[str, object]]] = []
        device = DeviceMemory(info.device_memory_start, info.device_memory_bytes)
        self.device_memory = device.ram
        self.board = Board(
            self.memory,
            device.ram,
            info,
            lambda what, details: self.traces.append((what, dict(details))),
            way=lambda route: world.way(self, route),
        )
        self.firmware = boot.power_up(self.board)
        self.bar0 = Bar0(NoSegment(), info.first_free_uar, device, self.event)
        self.manager = Manager(self)
        self.irqs: list[int] = []
        self.effects: list[Effect] = []
        self.loops: deque[Loopback] = deque()
        self.cable: Callable[[Packet], None] = lambda packet: world.wire(self, packet)
        self._output = b""
        # What helpers of the tests keep with the card.
        self.kept: dict[str, Any] = {}
        self.eq_addr = self.alloc(64 << LOG_EQ)
        self._empty_eq()
        started = self._started.get(lid)
        if started is None:
            self._bring_up(lid)
            known = {name: vars(self)[name] for name in ("uar", "pd", "eqn", "key")}
            self._started[lid] = Started(self.firmware.dump(), known)
        else:
            self.firmware.restore(started.image)
            vars(self).update(started.known)
        self.effects.clear()
        self.traces.clear()

    def _bring_up(self, lid: int) -> None:
        self.manager.set_pkeys(*PKEYS)
        self.plug(lid)
        self.probe()
        self.pd = self.alloc_pd()
        self.eqn = self.make_eq(self.eq_addr, LOG_EQ, ALL_EVENTS)
        self.key = self.register_all()
        context = self.qp_context(ServiceType.RC, no_sq=1, rq_type=RqType.ZERO_SIZE)
        for _ in range((lid - 1) * QPNS_APART):
            self.destroy(Op.DESTROY_QP, self.make_qp(context, b""))
        while self.turn():
            pass

    def _empty_eq(self) -> None:
        self.memory.write(self.eq_addr, (bytes(63) + b"\1") * (1 << LOG_EQ))
        self.eq_consumer = 0

    def listen(self, mask: int) -> None:
        """Take another event queue, for these types of events, before there are completion queues."""
        self.destroy(Op.DESTROY_EQ, self.eqn)
        self._empty_eq()
        self.eqn = self.make_eq(self.eq_addr, LOG_EQ, mask)

    # ---- what the card is made of, for looking only ----

    @property
    def hca(self) -> Hca:
        """The state of the card."""
        return self.firmware.hca

    @property
    def port(self) -> PortView:
        """The port, as the transport sees it."""
        port = self.hca.ports[1]
        assert isinstance(port, PortView)
        return port

    def mkey(self, key: int) -> Mkey:
        """The object of a memory key."""
        mkey = self.hca.mkeys.get(key >> 8)
        assert mkey is not None
        return mkey

    # ---- the driver: memory, objects ----

    def alloc(self, size: int, align: int = 4096) -> int:
        """Bus address of fresh memory."""
        self._free = -(-self._free // align) * align
        addr = self._free
        self._free += size
        assert self._free <= BASE + len(self.memory.data), "the test's memory is full"
        return addr

    def register_all(self) -> int:
        """A key for all of memory, address = bus address."""
        return self.create_key(AccessMode.PA)

    def register(
        self,
        addr: int,
        size: int,
        rights: int | None = None,
        pages: bytes | None = None,
        pd: int | None = None,
        **fields: int,
    ) -> int:
        """A key for a region with a page list; by default with all rights, address = bus address."""
        if pages is None:
            start = addr & -PAGE
            pages = self.pages(start, addr + size - start)
        basic = {
            "pd": self.pd if pd is None else pd, "mkey_7_0": 0x77, "start_addr": addr, "len": size,
            "log_page_size": LOG_MTT_PAGE, "umr_en": 1, "en_rinval": 1,
            "translations_octword_size": max(64, -(-len(pages) // 16)),
        }  # fmt: skip
        if rights is not None:
            basic |= rights_fields(rights)
        return self.create_key(AccessMode.MTT, pages, **{**basic, **fields})

    def destroy(self, op: Op, number: int) -> None:
        """End an object; all DESTROY and DEALLOC commands have its number in the same place."""
        view = DestroyQpIn.from_bytes(bytes(8) + number.to_bytes(4, "big") + bytes(4))
        self.run(op, view)

    def destroy_key(self, key: int) -> None:
        """End a memory key."""
        self.destroy(Op.DESTROY_MKEY, key >> 8)

    # ---- the cable ----

    def plug(self, lid: int) -> None:
        """Plug the cable in; the manager leads the port into Active."""
        self.event(LinkChange(1, True))
        self.manager.activate(lid)

    def unplug(self) -> None:
        """Pull the cable."""
        self.event(LinkChange(1, False))

    # ---- the door ----

    def step(self, action: Callable[[Effects], Any]) -> None:
        """Run one step of the firmware and carry out its effects."""
        out: Effects = []
        action(out)
        for effect in out:
            self.effects.append(effect)
            if isinstance(effect, DmaWrite | EntryWrite):
                self.memory.write(effect.addr, effect.data)
            elif isinstance(effect, Transmit):
                self.cable(effect.packet)
            elif isinstance(effect, Loopback):
                self.loops.append(effect)
            elif isinstance(effect, DeviceWrite):
                self.device_memory.write(effect.offset, effect.data)
            elif isinstance(effect, RaiseIrq):
                self.irqs.append(effect.vector)
            elif isinstance(effect, CommandDone):
                self._output = effect.output

    def event(self, event: Event) -> None:
        """Something happens to the card."""
        if type(event) is SqDoorbell:
            event.at_once = self.world.rails and self.world.at_once
        self.step(lambda out: self.firmware.handle(event, self.world.now_ns, out))

    def receive(self, packet: Packet) -> None:
        """A packet arrives at the port."""
        self.event(PacketIn(1, packet))

    def raw(self, data: bytes, out_size: int = 16) -> bytes:
        """See :class:`tests.support.commands.Commands`."""
        self.event(CommandPosted(0, data, out_size))
        return self._output

    def ring_send_queue(self, words: bytes) -> None:
        """Doorbell of a send queue: the first 8 bytes of the last control segment."""
        self.bar0.write(self.uar * PAGE + UAR_BLUE_FLAME, words)

    def arm_cq(self, cqn: int, consumer: int, solicited_only: bool) -> None:
        """Ask a completion queue for an event."""
        bell = CqArmDoorbell(cmd=int(solicited_only), ci=consumer & 0xFFFFFF, cqn=cqn)
        self.bar0.write(self.uar * PAGE + UAR_CQ_ARM, bell.to_bytes())

    def update_eq(self, arm: bool) -> None:
        """Tell how far events have been read; with `arm`, ask for an interrupt."""
        bell = EqUpdateDoorbell(eqn=self.eqn, ci=self.eq_consumer & 0xFFFFFF)
        self.bar0.write(self.uar * PAGE + (UAR_EQ_ARM if arm else UAR_EQ_UPDATE), bell.to_bytes())

    def run_timers(self) -> None:
        """What is due now, as far as one step does it."""
        self.step(lambda out: self.firmware.on_timer(self.world.now_ns, out))

    def turn(self) -> bool:
        """One piece of the work that waits on the card."""
        if not self.firmware.waiting():
            return False
        self.step(lambda out: self.firmware.step(self.world.now_ns, out))
        return True

    def loop(self) -> bool:
        """Deliver one packet of the card to itself."""
        if not self.loops:
            return False
        effect = self.loops.popleft()
        self.world.looped(self, effect.packet)
        self.event(PacketIn(effect.port, effect.packet, looped=True))
        return True

    def new_events(self) -> list[Eqe]:
        """Events that the host has not read yet; the card is not told."""
        out: list[Eqe] = []
        while True:
            raw = self.memory.read(self.eq_addr + (self.eq_consumer & (1 << LOG_EQ) - 1) * 64, 64)
            if raw[63] & 1 != self.eq_consumer >> LOG_EQ & 1:
                return out
            out.append(Eqe.from_bytes(raw))
            self.eq_consumer += 1

    def events(self) -> list[tuple[int, int]]:
        """New events: type and the number at 0x38; another one is asked for."""
        out = [(event.event_type, int.from_bytes(event.event_data[-4:], "big")) for event in self.new_events()]
        self.update_eq(arm=True)
        return out

    def inside(self, action: Callable[[], Any]) -> None:
        """Past the door: run a part of the program as a step of its own, for what no event brings about by itself."""

        def run(out: Effects) -> None:
            # Past the door: that is what this is for.
            self.hca.now_ns, self.hca.out = self.world.now_ns, out
            action()

        self.step(run)
