"""Two cards, a fake link and a virtual clock: the stage on which the scenarios play.

Everything comes through the door and through the formats: objects are made by commands, work requests are written into
memory and rung for as the driver does, completions are read from completion queues by their ownership bit. A step is
one event; its effects are carried out before the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from firmware.model.objects import LOCAL_READ, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from firmware.model.qp import ERR, INIT, RTR, RTS, ST_QP0, ST_QP1, ST_RC, ST_REG_UMR, ST_UC, ST_UD, ST_XRC
from tests.scenario.card import BASE, Card, rights_fields
from tests.scenario.end import End
from tests.scenario.queues import Completion, CompletionQueue, SharedQueue, data, packed_klms
from vhca.hw.effects import Effects
from vhca.hw.hardware import Firmware, Through
from vhca.wire.connectx.wqe import XrcSegment
from vhca.wire.packet import Packet, Route

ALL_RIGHTS = LOCAL_READ | LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC
FOREVER_NS = 20_000_000_000
ACCESS_ERROR_EVENT = 0x11


def describe(packet: Packet) -> str:
    """One line for the ladder."""
    names = ("SEND", "WRITE", "READ_REQ", "READ_RESP", "ACK", "ATOMIC_ACK", "CMP_SWAP", "FETCH_ADD", "OP8?")
    place = ("F" if packet.start else "") + ("L" if packet.end else "")
    extra = f" syn={packet.syndrome:#04x} msn={packet.msn}" if packet.op in (3, 4, 5) else ""
    ask = " ask" if packet.ack_req else ""
    return (
        f"{names[packet.op]}[{place}] psn={packet.psn:#08x}+{packet.count} {len(packet.payload)} B"
        f" to {packet.dest_qp:#x}{extra}{ask}"
    )


Fault = Callable[[Packet], "list[Packet]"]


class Rails:
    """The way of trains to `card`; see :class:`vhca.hw.hardware.Through`."""

    __slots__ = ("_card", "_world")

    port = 1

    def __init__(self, world: World, card: Card) -> None:
        self._world = world
        self._card = card

    @property
    def firmware(self) -> Firmware:
        return self._card.firmware

    def is_open(self, mtu: int, *, empty: bool = False) -> bool:
        world = self._world
        return world.rails and world.fault is None and not world.queue

    def passed(self, sent: int, sent_words: int, back: int, back_words: int) -> None:
        self._world.trains.append((sent, sent_words, back, back_words))

    def step(self, run: Callable[[Effects], None]) -> None:
        self._card.step(run)

    parted = False

    def set_apart(self, finish: Callable[[Effects], None], most: int) -> bool:
        return False


class World:
    """Two cards `a` and `b`; packets wait on the wire until :meth:`run` delivers them in order."""

    # Whether trains may pass from the beginning.
    rails_by_default = False

    def __init__(self, memory_bytes: int = 8 << 20) -> None:
        self.now_ns = 1_000
        self.ladder: list[str] = []
        self.queue: deque[tuple[Card, Packet]] = deque()
        self.fault: Fault | None = None
        self.rails = self.rails_by_default
        # As on boards where nothing else waits than what a doorbell tells of.
        self.at_once = True
        # Packets and words, there and back, of each train.
        self.trains: list[tuple[int, int, int, int]] = []
        self.a = Card(self, "a", 1, memory_bytes)
        self.b = Card(self, "b", 2, memory_bytes)

    def way(self, card: Card, route: Route) -> Through | None:
        """The way for trains from `card`: none, unless :meth:`lay_rails` has laid one."""
        other = self.other(card)
        return Rails(self, other) if self.rails and route.dlid == other.port.lid else None

    def lay_rails(self) -> None:
        """Let trains pass the cable, where nothing is on it and nothing happens to packets; they are on no ladder."""
        self.rails = True

    def other(self, card: Card) -> Card:
        return self.b if card is self.a else self.a

    def wire(self, source: Card, packet: Packet) -> None:
        """A packet leaves `source`; the fault decides what arrives."""
        packets = [packet] if self.fault is None else self.fault(packet)
        arrow = "->" if source is self.a else "<-"
        self.ladder.append(f"a {arrow} b {describe(packet)}{'' if packets else '   LOST'}")
        for item in packets:
            self.queue.append((self.other(source), item))

    def looped(self, card: Card, packet: Packet) -> None:
        """A packet of a card to itself arrives."""
        self.ladder.append(f"{card.name} loop {describe(packet)}")

    def deliver(self, count: int = 1) -> int:
        """Deliver up to `count` packets."""
        done = 0
        while self.queue and done < count:
            card, packet = self.queue.popleft()
            card.receive(packet)
            done += 1
        return done

    def settle(self) -> None:
        """Deliver everything that is under way, without letting time pass (steps that are due now do run)."""
        for _ in range(200_000):
            if self.a.loop() or self.b.loop() or self.deliver() or self.a.turn() or self.b.turn():
                continue
            if not self._run_due(self.now_ns):
                return
        raise AssertionError("the world does not settle")

    def _run_due(self, until_ns: int) -> bool:
        deadlines = [card.firmware.next_deadline() for card in (self.a, self.b)]
        due = [deadline for deadline in deadlines if deadline is not None and deadline <= until_ns]
        if not due:
            return False
        self.now_ns = max(self.now_ns, min(due))
        for card in (self.a, self.b):
            deadline = card.firmware.next_deadline()
            if deadline is not None and deadline <= self.now_ns:
                card.run_timers()
        return True

    def pass_time(self, span_ns: int) -> None:
        """Let time pass, with everything that becomes due."""
        end = self.now_ns + span_ns
        self.settle()
        while self._run_due(end):
            self.settle()
        self.now_ns = max(self.now_ns, end)

    def show(self) -> str:
        """The ladder, for a failing test's output."""
        return "\n".join(self.ladder)


def pair(
    service: int = ST_RC,
    world: World | None = None,
    made: Mapping[str, Any] = MappingProxyType({}),
    **fields: int | bytes,
) -> tuple[World, End, End]:
    """A world with a connected queue pair on each card: `made` goes to their creation, `fields` to the transitions."""
    world = world or World()
    left, right = End(world.a, service, **made), End(world.b, service, **made)
    left.connect(right, **fields)
    right.connect(left, **fields)
    return world, left, right


__all__ = [
    "BASE",
    "ERR",
    "INIT",
    "RTR",
    "RTS",
    "ST_QP0",
    "ST_QP1",
    "ST_RC",
    "ST_REG_UMR",
    "ST_UC",
    "ST_UD",
    "ST_XRC",
    "Card",
    "Completion",
    "CompletionQueue",
    "End",
    "SharedQueue",
    "World",
    "XrcSegment",
    "data",
    "describe",
    "packed_klms",
    "pair",
    "rights_fields",
]  # fmt: skip
