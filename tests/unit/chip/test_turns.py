"""A card's turn: packets, commands and sending in rotation, ended by the clock; full cables hold the sender back."""

from collections.abc import Callable
from types import SimpleNamespace

from tests.support.driver import SentPackets, board_info
from vhca.chip.board import INBOX_BYTES, INBOX_PIECES, TURN_NS, TURN_PIECES, Board
from vhca.hw.effects import Effects, Loopback
from vhca.hw.events import Event, LinkChange, PacketIn, SqDoorbell
from vhca.hw.memory import FlatMemory
from vhca.wire.packet import Packet, Route
from vhca.wire.smp import PortInfo


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now


class Program:
    """A firmware that notes what it is given; each piece of work takes `piece_ns`."""

    def __init__(self, clock: Clock, piece_ns: int) -> None:
        self.clock = clock
        self.piece_ns = piece_ns
        self.seen: list[str] = []
        self.left = 0
        self.within: Callable[[], None] | None = None

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        self.clock.now += self.piece_ns
        self.seen.append(type(event).__name__)
        if self.within is not None:
            within, self.within = self.within, None
            within()

    def waiting(self) -> bool:
        return self.left > 0

    def step(self, now_ns: int, out: Effects) -> None:
        self.clock.now += self.piece_ns
        self.left -= 1
        self.seen.append("step")

    def next_deadline(self) -> int | None:
        return None

    def on_timer(self, now_ns: int, out: Effects) -> None:
        self.seen.append("timer")

    def counters(self) -> dict[str, int]:
        return {}

    def objects(self) -> dict[str, int]:
        return {}

    def port_info(self, port: int) -> PortInfo:
        return PortInfo()


class Stage:
    def __init__(self, piece_ns: int = 0) -> None:
        self.clock = Clock()
        self.program = Program(self.clock, piece_ns)
        self.later: list[Callable[[], None]] = []
        self.cable = SentPackets()
        self.board = Board(
            "h0",
            board_info(),
            SimpleNamespace(power_up=lambda hardware: self.program),
            FlatMemory(1 << 20),
            self.clock,
            lambda vector: None,
            self.later.append,
        )
        self.board.plug(1, self.cable)

    def turn(self) -> None:
        self.later.pop(0)()


def packet(size: int = 0) -> Packet:
    return Packet(route=Route(1, 2), service=0, op=0, dest_qp=0x99, psn=0, payload=bytes(size))


def test_a_turn_ends_by_the_clock_and_asks_for_another() -> None:
    stage = Stage(piece_ns=TURN_NS // 4)
    for _ in range(10):
        stage.board.packet_in(1, packet())
    assert len(stage.later) == 1
    stage.turn()
    assert len(stage.program.seen) == 4
    stage.turn()
    stage.turn()
    assert stage.program.seen == ["PacketIn"] * 10
    assert not stage.later


def test_a_clock_that_stands_still_does_not_keep_a_turn_going() -> None:
    stage = Stage()
    stage.program.left = 10 * TURN_PIECES
    stage.board.packet_in(1, packet())
    stage.turn()
    assert stage.program.left == 9 * TURN_PIECES


def test_packets_do_not_keep_a_card_from_sending() -> None:
    stage = Stage()
    for _ in range(3 * INBOX_PIECES):
        stage.board.packet_in(1, packet())
    stage.program.left = 2
    stage.turn()
    burst = ["PacketIn"] * INBOX_PIECES
    assert stage.program.seen == [*burst, "step", *burst, "step", *burst]


def test_a_full_cable_stops_sending_but_not_receiving() -> None:
    stage = Stage()
    stage.cable.full = True
    stage.program.left = 1
    stage.board.packet_in(1, packet())
    stage.turn()
    assert stage.program.seen == ["PacketIn"]
    assert stage.later, "the card must ask again: nobody tells it that the cable has room"
    stage.cable.full = False
    stage.turn()
    assert stage.program.seen == ["PacketIn", "step"]
    assert not stage.later


def test_packets_of_a_card_to_itself_hold_it_back_like_a_cable() -> None:
    stage = Stage(piece_ns=TURN_NS)
    stage.program.left = 1
    half = INBOX_BYTES // 2 + 1
    stage.board.execute([Loopback(1, packet(half))] * 3)
    stage.turn()
    assert stage.board.full
    assert stage.program.seen == ["PacketIn"]
    stage.turn()
    assert not stage.board.full
    assert stage.program.seen == ["PacketIn", "PacketIn", "step"]


def test_what_the_host_does_during_a_step_keeps_its_order() -> None:
    stage = Stage()
    board = stage.board

    def meanwhile() -> None:
        board.event(SqDoorbell(16, 0, 0x100))
        board.event(LinkChange(1, True))

    stage.program.within = meanwhile
    board.event(SqDoorbell(16, 0, 0))
    assert stage.program.seen == ["SqDoorbell"]
    # Older accesses wait: a new one does not overtake them.
    board.event(PacketIn(1, packet()))
    stage.turn()
    assert stage.program.seen == ["SqDoorbell", "SqDoorbell", "LinkChange", "PacketIn"]


def test_a_doorbell_may_be_worked_on_at_once_where_nothing_else_waits() -> None:
    stage = Stage()
    board = stage.board

    def ring() -> bool:
        bell = SqDoorbell(16, 0, 0x100)
        board.event(bell)
        return bell.at_once

    assert ring()
    # The next one of a burst is here already: one turn is for all.
    board.reads_on = lambda: True
    assert not ring()
    board.reads_on = lambda: False
    board.packet_in(1, packet())
    assert not ring()
    stage.turn()
    assert ring()


def test_a_reset_forgets_what_waits_but_not_the_state_of_the_cable() -> None:
    stage = Stage()
    board = stage.board

    def meanwhile() -> None:
        board.event(SqDoorbell(16, 0, 0x100))
        board.link_change(1, True)
        board.packet_in(1, packet())

    stage.program.within = meanwhile
    board.event(SqDoorbell(16, 0, 0))
    board.reset("device")
    stage.turn()
    assert stage.program.seen == ["SqDoorbell", "Reset", "LinkChange"]


def test_timers_do_not_run_within_a_step() -> None:
    stage = Stage()
    stage.program.within = lambda: stage.board.run_timers(0)
    stage.board.event(SqDoorbell(16, 0, 0))
    assert stage.program.seen == ["SqDoorbell"]
