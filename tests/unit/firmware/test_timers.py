"""The timer block."""

import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware.kernel import EFFECTS_PER_STEP
from firmware.model.hca import Hca
from firmware.model.timers import STALE_BUDGET, Timer, TimerHeap, TimerKind
from firmware.transport import engine
from tests.support.driver import Driver
from vhca.hw.effects import RaiseIrq


def make(action: Callable[[int], object]) -> Timer:
    """A timer whose owner is what is to be done."""
    return Timer(TimerKind.ACKNOWLEDGE, action)


def run(heap: TimerHeap, now_ns: int) -> None:
    """Do what is due."""
    while (timer := heap.due(now_ns)) is not None:
        timer.owner(now_ns)


def test_due_timers_run_in_order_of_their_deadlines() -> None:
    heap = TimerHeap()
    ran: list[int] = []
    for deadline in (30, 10, 20):
        heap.arm(make(lambda now, d=deadline: ran.append(d)), deadline)  # type: ignore[misc]
    assert heap.next_deadline() == 10
    run(heap, 20)
    assert ran == [10, 20]
    assert heap.next_deadline() == 30


def test_a_moved_timer_runs_once_at_its_new_time() -> None:
    heap = TimerHeap()
    ran: list[int] = []
    timer = make(ran.append)
    heap.arm(timer, 10)
    heap.arm(timer, 50)
    run(heap, 20)
    assert ran == []
    heap.arm(timer, 30)
    assert heap.next_deadline() == 30
    run(heap, 100)
    assert ran == [100]
    assert heap.next_deadline() is None


def test_a_timer_may_arm_itself_again() -> None:
    heap = TimerHeap()
    ran: list[int] = []

    def again(now: int) -> None:
        ran.append(now)
        heap.arm(timer, now + 5)

    timer = make(again)
    heap.arm(timer, 5)
    for now in (5, 10, 12, 15):
        run(heap, now)
    assert ran == [5, 10, 15]


@given(st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 100))), max_size=40))
def test_the_heap_agrees_with_a_dictionary(steps: list[tuple[int, int | None]]) -> None:
    heap = TimerHeap()
    fired: list[int] = []
    timers = [make(lambda now, i=i: fired.append(i)) for i in range(5)]  # type: ignore[misc]
    model: dict[int, int] = {}
    for index, deadline in steps:
        if deadline is None:
            heap.cancel(timers[index])
            model.pop(index, None)
        else:
            heap.arm(timers[index], deadline)
            model[index] = deadline
        assert heap.next_deadline() == min(model.values(), default=None)
    run(heap, 50)
    assert sorted(fired) == sorted(i for i, deadline in model.items() if deadline <= 50)


class Owner:
    """Somebody whom a timer's action knows."""

    def act(self, now: int) -> None:
        """Nothing."""


def test_a_dropped_timer_lets_go_of_its_owner_at_once() -> None:
    heap = TimerHeap()
    owner = Owner()
    gone = weakref.ref(owner)
    sooner, timer = make(lambda now: None), make(owner.act)
    heap.arm(sooner, 10)
    heap.arm(timer, 1 << 60)
    heap.drop(timer)
    del owner
    assert gone() is None
    assert heap.next_deadline() == 10
    run(heap, 1 << 61)
    assert heap.next_deadline() is None
    heap.drop(None)


def test_the_heap_holds_no_more_dead_entries_than_live_ones() -> None:
    heap = TimerHeap()
    ran: list[int] = []
    live = [make(lambda now, n=number: ran.append(n)) for number in range(10)]  # type: ignore[misc]
    for number, timer in enumerate(live):
        heap.arm(timer, 1000 - number)
    for _ in range(1000):
        timer = make(lambda now: ran.append(-1))
        heap.arm(timer, 1 << 60)
        heap.drop(timer)
        assert len(heap) <= 2 * len(live) + 1
    run(heap, 1 << 61)
    assert ran == list(range(9, -1, -1))


def test_a_look_at_many_cancelled_timers_is_cut_into_pieces() -> None:
    heap = TimerHeap()
    ran: list[int] = []
    timers = [make(ran.append) for _ in range(6 * STALE_BUDGET)]
    for number, timer in enumerate(timers):
        heap.arm(timer, 100 + number)
    last = make(ran.append)
    heap.arm(last, 1_000_000)
    for timer in timers:
        heap.cancel(timer)
    # Too early, but never too late; and each look takes a bounded number away.
    looks = 0
    while (deadline := heap.next_deadline()) != 1_000_000:
        looks += 1
        assert deadline is not None
        assert len(heap) >= 6 * STALE_BUDGET + 1 - (2 * looks - 1) * STALE_BUDGET
        run(heap, deadline)
        assert ran == []
    assert looks >= 2
    run(heap, 1_000_000)
    assert ran == [1_000_000]


@pytest.mark.parametrize(("effects", "steps"), [(0, 2), (EFFECTS_PER_STEP, 10), (EFFECTS_PER_STEP + 1, 20)])
def test_timers_that_are_due_together_share_steps_by_what_they_do(
    effects: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last try of a queue pair ends hundreds of requests: 16 of those are no step."""
    kernel = Driver().board.firmware
    hca: Hca = kernel.hca  # type: ignore[attr-defined]
    monkeypatch.setitem(engine._EXPIRED, TimerKind.FLUSH, lambda hca, _: hca.out.extend([RaiseIrq(1)] * effects))
    for _ in range(20):
        hca.timers.arm(Timer(TimerKind.FLUSH, None), 1000)
    taken = 0
    while hca.timers.next_deadline() is not None:
        kernel.on_timer(1000, [])
        taken += 1
    assert taken == steps
