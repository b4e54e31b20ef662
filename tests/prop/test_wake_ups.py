"""Completion events: whoever arms and polls after each event is woken for everything, and for nothing twice."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from firmware.model.hca import Hca
from firmware.model.objects import Cq, Eq
from firmware.model.queue_buffer import QueueBuffer
from firmware.queues import cq_doorbell, write_cqe
from tests.support.driver import board_info
from vhca.hw.memory import FlatMemory

RECORD = 0x1000
CQES = 0x10000
EQES = 0x40000
FIRST_INDICES = st.sampled_from([0, 5, (1 << 23) - 3, (1 << 24) - 3, (1 << 24) + 7, (3 << 24) - 1])


class Socket:
    def __init__(self) -> None:
        self.memory = FlatMemory(1 << 20)
        self.device_memory = FlatMemory(1 << 12)
        self.info = board_info()
        self.trace = None

    def through(self, *_: object) -> None:
        return None

    def memory_limit(self) -> int:
        return 1 << 20


@dataclass
class Consumer:
    """Software on one queue of 8 entries. `stuck_index`: it polls by itself and arms by a library that never does."""

    first: int
    stuck_index: bool
    solicited_only: bool
    hca: Hca = field(default_factory=lambda: Hca(Socket()))  # type: ignore[arg-type]
    polled: int = 0
    events: int = 0
    taken: int = 0
    # since it took the last event
    has_armed: bool = False
    has_polled: bool = False
    wanted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        eq = Eq(buffer=QueueBuffer(EQES.to_bytes(8, "big"), 12, 0, 64 << 4), log_size=4, vector=0, event_mask=0)
        self.hca.eqs.add(eq)
        self.cq = Cq(
            eq=eq,
            buffer=QueueBuffer(CQES.to_bytes(8, "big"), 12, 0, 64 << 3),
            log_size=3,
            cqe_bytes=64,
            dbr_addr=RECORD,
        )
        self.hca.cqs.add(self.cq)
        self.cq.producer = self.cq.consumer = self.cq.notified = self.polled = self.first

    def arrive(self, solicited: bool) -> None:
        """A completion, if there is room."""
        if self.cq.producer - self.polled < 8:
            if solicited or not self.solicited_only:
                self.wanted.append(self.cq.producer)
            assert write_cqe(self.hca, self.cq, bytearray(64), solicited)

    def arm(self) -> None:
        index = self.first if self.stuck_index else self.polled
        cq_doorbell(self.hca, self.cq, index & 0xFFFFFF, self.solicited_only)
        self.has_armed = True

    def poll(self) -> None:
        """Until it is empty."""
        self.polled = self.cq.producer
        self.hca.memory.write(RECORD, (self.polled & 0xFFFFFF).to_bytes(4, "big"))
        self.wanted.clear()
        self.has_polled = True

    def take(self) -> None:
        """Read one event from the completion channel, if there is one."""
        if self.taken < self.events:
            self.taken += 1
            self.has_armed = self.has_polled = False

    def look(self) -> None:
        """Account for the events that the card has sent, and give their room back."""
        eq = self.cq.eq
        self.events += eq.producer - eq.consumer
        eq.consumer = eq.producer

    def would_sleep_for_ever(self) -> bool:
        """It did its duty, no event is there, and what it asked for is in the queue."""
        return self.has_armed and self.has_polled and self.taken == self.events and bool(self.wanted)


MOVES = st.sampled_from(["arrive", "arrive", "arrive solicited", "arm", "poll", "take"])


@settings(max_examples=400)
@given(FIRST_INDICES, st.booleans(), st.booleans(), st.lists(MOVES, max_size=60))
def test_no_wake_up_is_lost_and_none_comes_twice(first: int, stuck: bool, solicited: bool, moves: list[str]) -> None:
    consumer = Consumer(first, stuck, solicited)
    arrived = 0
    for move in moves:
        if move.startswith("arrive"):
            consumer.arrive(move.endswith("solicited"))
            arrived = consumer.cq.producer - first
        else:
            getattr(consumer, move)()
        consumer.look()
        assert not consumer.would_sleep_for_ever()
        # each event tells of something that none before it told of
        assert consumer.events <= arrived


@settings(max_examples=200)
@given(FIRST_INDICES, st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_a_program_that_counts_an_event_for_each_completion_is_right(first: int, early: list[int]) -> None:
    """One completion at a time, event, arm, one poll: the latency loop of perftest, whatever is late or early."""
    consumer = Consumer(first, stuck_index=False, solicited_only=False)
    consumer.arm()
    for _ in early:
        consumer.arrive(False)
        consumer.look()
        assert consumer.events - consumer.taken == 1
        consumer.take()
        consumer.arm()
        consumer.look()
        assert consumer.events == consumer.taken
        consumer.poll()
