"""The watchdog of a loop."""

import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from vhca.sim.loop import Loop
from vhca.sim.watchdog import FULL_REPORTS, Watchdog

HANG_S = 0.2


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    loop.start()
    yield loop
    assert loop.stop()


class Step:
    """A callback that stays where it is until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.name = "h7"

    def hang(self) -> None:
        self.let_go.wait(20)


def whose(frame: FrameType) -> str | None:
    owner = frame.f_locals.get("self")
    return owner.name if isinstance(owner, Step) else None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_hanging_step_is_named_with_its_stack(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(loop, whose, HANG_S)
    watchdog.start()
    step = Step()
    loop.call_threadsafe(step.hang)
    wait_until(lambda: watchdog.stalls == 1 and "h7" in caplog.text)
    time.sleep(2 * HANG_S)
    assert len(caplog.records) == 1
    assert "in a step of h7" in caplog.text
    assert "self.let_go.wait(20)" in caplog.text
    step.let_go.set()
    wait_until(lambda: "goes on, after" in caplog.text)
    watchdog.stop()
    assert watchdog.stalls == 1


def test_a_step_of_no_card(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(loop, hang_s=HANG_S)
    watchdog.start()
    step = Step()
    loop.call_threadsafe(step.hang)
    wait_until(lambda: "in no card's step" in caplog.text)
    step.let_go.set()
    watchdog.stop()


def test_idle_and_busy_loops_are_fine(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(loop, whose, HANG_S)
    watchdog.start()
    time.sleep(2 * HANG_S)
    end = time.monotonic() + 3 * HANG_S

    def again() -> None:
        if time.monotonic() < end:
            loop.call_soon(again)

    loop.call_threadsafe(again)
    wait_until(lambda: time.monotonic() > end)
    watchdog.stop()
    assert watchdog.stalls == 0
    assert caplog.records == []


def test_reports_do_not_fill_the_disk(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    hang_s = 0.02
    watchdog = Watchdog(loop, whose, hang_s)
    watchdog.start()
    for count in range(1, FULL_REPORTS + 4):
        step = Step()
        loop.call_threadsafe(step.hang)
        wait_until(lambda count=count: watchdog.stalls >= count)  # type: ignore[misc]
        step.let_go.set()
        wait_until(lambda count=count: loop.waiting)  # type: ignore[misc]
    watchdog.stop()
    reports = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(reports) == FULL_REPORTS
