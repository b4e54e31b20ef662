"""Trains that other threads run: what they leave behind, and what happens to their cards meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random

import pytest

from firmware.kernel import Kernel
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.qp import RTS, Qp
from firmware.native.library import loaded
from firmware.transport import cut_through
from tests.support.hall import Hall, Machine
from tests.support.remote import RC, RemoteQp, WqeOpcode
from vhca.native import NativeError, cores
from vhca.wire.connectx.wqe import RaddrSegment

pytestmark = pytest.mark.skipif(not loaded().there, reason=f"no engine in C: {loaded().reason}")

PLACE = 1 << 15
ENOUGH_S = 60.0


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each train but a conversation's first is worth another thread, and is short."""
    monkeypatch.setattr(cut_through, "WORTH_BYTES", 1)
    monkeypatch.setattr(cut_through, "SHARE_NS", 20_000)
    before = loaded().crew
    loaded().enlist(2)
    yield
    loaded().enlist(before)


def hca_of(machine: Machine) -> Hca:
    firmware = machine.board.firmware
    assert isinstance(firmware, Kernel)
    return firmware.hca


class Lane:
    """A connection in one direction, with a place of its own on both sides."""

    def __init__(self, hall: Hall, near: Machine, far: Machine) -> None:
        self.near, self.far = near, far
        self.qp, self.other = RemoteQp(near, RC, log_sq=8), RemoteQp(far, RC, log_sq=4, log_rq=8)
        self.qp.connect(hall.lids[far], self.other.number)
        self.other.connect(hall.lids[near], self.qp.number)
        self.source, self.target, self.inbox = near.alloc(PLACE), far.alloc(PLACE), far.alloc(PLACE)
        self.receives = 0

    def write(self, size: int, key: int | None = None) -> bytes:
        return self.qp.write(self.source, size, self.target, self.far.key if key is None else key)

    def room(self) -> int:
        sq = self._inside().sq
        assert sq is not None
        return (1 << self.qp.log_sq) - (self.qp.posted - sq.consumer)

    def state(self) -> int:
        return self._inside().state

    def _inside(self) -> Qp:
        qp = hca_of(self.near).qps.get(self.qp.number)
        assert qp is not None
        return qp


def hall_of(machines: int, ways: list[tuple[int, int]]) -> tuple[Hall, list[Lane]]:
    hall = Hall(machines)
    lanes = [Lane(hall, hall.machines[near], hall.machines[far]) for near, far in ways]
    hall.pass_time(0.01)
    for lane in lanes:
        # The first train of each is like any other's.
        lane.qp.post(WqeOpcode.RDMA_WRITE, lane.write(8))
    hall.settle()
    return hall, lanes


def apart(lane: Lane) -> int:
    return hca_of(lane.near).count[Count.TRAINS_APART]


def all_at_once(hall: Hall, lanes: list[Lane], count: int = 100, size: int = 64) -> None:
    """Each lane has so many WRITEs posted, and all are rung before anybody has a turn."""
    hall.at_once = False
    for number, lane in enumerate(lanes):
        lane.near.memory.write(lane.source, bytes([number + 1]) * size)
        lane.qp.post(WqeOpcode.RDMA_WRITE, lane.write(size), count)
    hall.at_once = True


def arrived(lanes: list[Lane], size: int = 64) -> list[bool]:
    return [lane.far.memory.read(lane.target, size) == bytes([at + 1]) * size for at, lane in enumerate(lanes)]


def between(hall: Hall, do: Callable[[], None]) -> None:
    """Have something done by another board in its turn, once."""

    class Other:
        apart = False

        def turn(self) -> None:
            do()

    hall.rounds.ask(Other())


def test_there_is_an_end_to_threads() -> None:
    loaded().enlist(1000)
    assert loaded().crew == 16


def test_two_pairs_go_side_by_side() -> None:
    hall, lanes = hall_of(4, [(0, 1), (2, 3)])
    all_at_once(hall, lanes)
    hall.settle()
    assert arrived(lanes) == [True, True]
    # The last one that has its turn runs its own.
    assert (apart(lanes[0]) > 0, apart(lanes[1])) == (True, 0)


def test_one_pair_alone_is_left_to_no_thread() -> None:
    hall, lanes = hall_of(4, [(0, 1), (1, 0)])
    all_at_once(hall, lanes)
    hall.settle()
    assert arrived(lanes) == [True, True]
    assert [apart(lane) for lane in lanes] == [0, 0]


def test_one_core_is_enough() -> None:
    loaded().enlist(0)
    hall, lanes = hall_of(4, [(0, 1), (2, 3)])
    all_at_once(hall, lanes)
    hall.settle()
    assert arrived(lanes) == [True, True]
    assert [apart(lane) for lane in lanes] == [0, 0]


def test_two_that_want_the_same_third() -> None:
    hall, lanes = hall_of(5, [(0, 2), (1, 2), (3, 4)])
    for _ in range(20):
        all_at_once(hall, lanes)
        hall.settle()
    assert arrived(lanes) == [True, True, True]
    assert apart(lanes[0])


def test_one_that_sends_while_it_is_sent_to() -> None:
    hall, lanes = hall_of(5, [(0, 1), (1, 2), (2, 0), (3, 4)])
    for _ in range(20):
        all_at_once(hall, lanes)
        hall.settle()
    assert arrived(lanes) == [True] * 4
    assert sum(apart(lane) for lane in lanes)


@pytest.mark.parametrize("of_far", [False, True])
def test_a_reset_in_the_same_round_comes_behind_the_train(of_far: bool) -> None:
    hall, lanes = hall_of(6, [(0, 1), (2, 3), (4, 5)])
    lane = lanes[0]
    all_at_once(hall, lanes)
    seen: list[bool] = []

    def reset() -> None:
        seen.append(lane.near.board.apart and lane.far.board.apart)
        (lane.far if of_far else lane.near).board.reset("test")
        seen.append(lane.near.board.apart or lane.far.board.apart)

    between(hall, reset)
    hall.settle()
    hall.pass_time(ENOUGH_S)
    # Trains are short: what was left of the ring is the reset's.
    assert seen == [True, False]
    assert arrived(lanes)[1:] == [True, True]
    assert not any(machine.board.dead for machine in hall.machines)


def test_a_cable_that_is_pulled_in_the_same_round() -> None:
    hall, lanes = hall_of(6, [(0, 1), (2, 3), (4, 5)])
    all_at_once(hall, lanes)
    near = lanes[0].near
    seen: list[bool] = []

    def pull() -> None:
        seen.append(near.board.apart)
        near.port.set_enabled(False)
        # What the cable tells the card a moment later, told at once.
        near.board.link_change(1, False)
        seen.append(near.board.apart)

    between(hall, pull)
    hall.settle()
    assert seen == [True, False]
    assert arrived(lanes)[1:] == [True, True]
    near.port.set_enabled(True)
    hall.pass_time(5.0)
    assert near.lid()
    hall.pass_time(ENOUGH_S)
    # It was sent again once the port was back.
    assert arrived(lanes) == [True, True, True]
    assert lanes[0].state() == RTS
    assert not any(machine.board.dead for machine in hall.machines)


def test_nothing_is_apart_when_a_turn_of_the_loop_is_over() -> None:
    """So that nothing else of the loop (sockets, timers, calls) ever meets a train."""
    hall, lanes = hall_of(8, [(0, 1), (2, 3), (4, 5), (6, 7)])
    all_at_once(hall, lanes, count=200)
    turns = 0
    while hall.turns._queue:
        hall.turns.one()
        turns += 1
        assert not hall.rounds.parted
        assert not any(machine.board.apart for machine in hall.machines)
    assert turns
    assert arrived(lanes) == [True] * 4


def test_what_a_train_refuses_is_answered_as_ever() -> None:
    """A key that is not there, in the middle: an error for this queue pair, and nothing for its neighbours."""
    hall, lanes = hall_of(6, [(0, 1), (2, 3), (4, 5)])
    for lane in lanes[:2]:
        hall.at_once = False
        lane.qp.post(WqeOpcode.RDMA_WRITE, lane.write(8), 20, ring=False)
        lane.qp.post(WqeOpcode.RDMA_WRITE, lane.write(8, key=0x666600), 1, ring=False)
        lane.qp.post(WqeOpcode.RDMA_WRITE, lane.write(8), 20)
    hall.at_once = True
    all_at_once(hall, lanes[2:])
    hall.settle()
    hall.pass_time(ENOUGH_S)
    assert sum(apart(lane) for lane in lanes[:2])
    assert arrived(lanes[2:]) == [True]
    assert [lane.state() == RTS for lane in lanes] == [False, False, True]


class Script:
    """The same traffic for any number of threads: chance comes from the seed alone."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        machines = 6
        ways = [tuple(random.sample(range(machines), 2)) for _ in range(7)]
        self.hall, self.lanes = hall_of(machines, ways)  # type: ignore[arg-type]
        for lane in self.lanes:
            lane.near.memory.write(lane.source, random.randbytes(PLACE))

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.hall.at_once = False
            for lane in self.random.sample(self.lanes, self.random.randrange(2, len(self.lanes) + 1)):
                for _ in range(self.random.randrange(1, 4)):
                    self._post(lane)
                lane.qp.ring()
            self.hall.at_once = True
            self.hall.settle()
        self.hall.pass_time(ENOUGH_S)

    def _post(self, lane: Lane) -> None:
        random = self.random
        opcode = random.choice((WqeOpcode.RDMA_WRITE, WqeOpcode.RDMA_READ, WqeOpcode.SEND, WqeOpcode.ATOMIC_FA))
        count = random.randrange(1, 40)
        if lane.room() < 2 * count:
            return
        size = 8 if opcode == WqeOpcode.ATOMIC_FA else random.choice((0, 1, 64, 900, 4096, 20_000))
        at = random.randrange(PLACE - size + 1) & ~7
        local = lane.qp.sge(lane.source + at, size) if size else b""
        remote = RaddrSegment(raddr=lane.target + at, rkey=lane.far.key).to_bytes()
        if opcode == WqeOpcode.SEND:
            lane.receives += count
            lane.other.receives(lane.receives, lane.inbox, PLACE)
            remote = b""
        elif opcode == WqeOpcode.ATOMIC_FA:
            remote += (3).to_bytes(8, "big") + bytes(8)
        lane.qp.post(opcode, remote + local, count, ring=False)

    def counters(self, machine: Machine) -> dict[str, int]:
        """What does not depend on where trains end, as the number of acknowledgements does."""
        count = hca_of(machine).count
        differ = {Count.TRAINS, Count.TRAINS_APART, Count.TX_PACKETS, Count.RX_PACKETS}
        return {name.value: number for name, number in count.items() if name not in differ}


@pytest.mark.parametrize("seed", range(int(os.environ.get("CREW_SEEDS", "6"))))
def test_threads_change_nothing(seed: int) -> None:
    scripts = []
    for threads in (0, 2):
        loaded().enlist(threads)
        script = Script(seed)
        script.run(12)
        scripts.append(script)
    alone, together = scripts
    for mine, theirs in zip(together.hall.machines, alone.hall.machines, strict=True):
        assert together.counters(mine) == alone.counters(theirs)
        assert bytes(mine.memory.data) == bytes(theirs.memory.data)
    assert [lane.state() for lane in together.lanes] == [RTS] * len(together.lanes)
    assert sum(apart(lane) for lane in together.lanes)
    assert not sum(apart(lane) for lane in alone.lanes)


def test_a_child_has_threads_of_its_own() -> None:
    hall, lanes = hall_of(4, [(0, 1), (2, 3)])
    all_at_once(hall, lanes)
    hall.settle()
    child = os.fork()
    if not child:
        status = 1
        try:
            all_at_once(hall, lanes, size=100)
            hall.settle()
            status = 0 if arrived(lanes, 100) == [True, True] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    all_at_once(hall, lanes, size=200)
    hall.settle()
    assert arrived(lanes, 200) == [True, True]


def test_the_number_of_cores_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VHCA_CORES", raising=False)
    assert cores() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("VHCA_CORES", "5")
    assert cores() == 5
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("VHCA_CORES", wrong)
        with pytest.raises(NativeError, match="a number from 1 on"):
            cores()


@pytest.mark.parametrize("number", [1, 3])
def test_threads_are_made_for_the_cores_that_there_are(number: int) -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from firmware.native.library import loaded; print(loaded().crew)"],
        env={**os.environ, "VHCA_CORES": str(number)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{number - 1}\n"
