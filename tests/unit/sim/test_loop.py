"""The rack's loop."""

import os
import select
import socket
import threading
import time

import pytest

from vhca.sim.clock import VirtualClock
from vhca.sim.loop import ASK_NS, LOGGED_ERRORS, SLICE_NS, Loop, LoopEnded


class Alarm:
    def __init__(self, deadline: int | None) -> None:
        self.deadline = deadline
        self.ran: list[int] = []

    def next_deadline(self) -> int | None:
        return self.deadline

    def run_timers(self, now_ns: int) -> None:
        self.ran.append(now_ns)
        self.deadline = None


def test_timers_run_when_due() -> None:
    clock = VirtualClock()
    loop, alarm = Loop(clock), Alarm(100)
    loop.add_timer_source(alarm)
    loop.run_once(max_wait_ns=0)
    assert alarm.ran == []
    clock.advance(100)
    loop.run_once(max_wait_ns=0)
    assert alarm.ran == [100]
    loop.close()


def test_sources_that_stir_are_asked_only_then() -> None:
    clock = VirtualClock()
    loop, early, late = Loop(clock), Alarm(100), Alarm(None)
    loop.stir(early)
    loop.stir(late)
    loop.run_once(max_wait_ns=0)
    # Not told of, so not known.
    late.deadline = 50
    clock.advance(60)
    loop.run_once(max_wait_ns=0)
    assert (early.ran, late.ran) == ([], [])
    loop.stir(late)
    loop.run_once(max_wait_ns=0)
    assert (early.ran, late.ran) == ([], [60])
    # What has become later is asked again before it would run.
    early.deadline = 200
    clock.advance(40)
    loop.run_once(max_wait_ns=0)
    assert early.ran == []
    clock.advance(100)
    loop.run_once(max_wait_ns=0)
    assert early.ran == [200]
    loop.close()


def test_a_timer_that_stirs_another_is_looked_at_before_the_wait() -> None:
    clock = VirtualClock()
    loop, other = Loop(clock), Alarm(None)

    class Stirring(Alarm):
        def run_timers(self, now_ns: int) -> None:
            super().run_timers(now_ns)
            other.deadline = now_ns
            loop.stir(other)

    asked, told = Stirring(10), Stirring(20)
    loop.add_timer_source(asked)
    loop.stir(told)
    for due in (10, 20):
        clock.advance(10)
        # Would wait for ever if it missed what the first one did.
        loop.run_once()
        loop.run_once(max_wait_ns=0)
        assert other.ran[-1] == due
    assert len(other.ran) == 2
    loop.close()


def test_deadlines_are_asked_for_now_and_then_while_there_is_traffic() -> None:
    clock = VirtualClock(1)
    asked = 0

    class Asked(Alarm):
        def next_deadline(self) -> int | None:
            nonlocal asked
            asked += 1
            return super().next_deadline()

    loop, alarm = Loop(clock), Asked(None)
    loop.add_timer_source(alarm)
    reader, writer = os.pipe()
    seen: list[bytes] = []
    loop.add_reader(reader, lambda: seen.append(os.read(reader, 1)))
    for _ in range(10):
        os.write(writer, b"a")
        loop.run_once()
    assert asked == 1
    # A deadline that traffic made is run in time, give or take so long; nothing else has to happen for it.
    alarm.deadline = 2
    clock.advance(ASK_NS)
    os.write(writer, b"a")
    loop.run_once()
    assert alarm.ran == [1 + ASK_NS]
    # Where nothing came the deadlines are asked for before the next wait.
    alarm.deadline = clock.now_ns() + 1
    loop.run_once()
    clock.advance(1)
    loop.run_once()
    assert len(alarm.ran) == 2
    loop.remove_reader(reader)
    os.close(reader)
    os.close(writer)
    loop.close()


def test_readers_and_calls_in_order() -> None:
    loop = Loop(VirtualClock())
    seen: list[str] = []
    reader, writer = os.pipe()

    def readable() -> None:
        seen.append(os.read(reader, 1).decode())
        loop.call_soon(lambda: seen.append("soon"))

    loop.add_reader(reader, readable)
    os.write(writer, b"a")
    loop.run_once(max_wait_ns=0)
    # What a socket brought has its turn at once.
    assert seen == ["a", "soon"]
    loop.remove_reader(reader)
    loop.remove_reader(reader)
    os.write(writer, b"b")
    loop.run_once(max_wait_ns=0)
    assert seen == ["a", "soon"]
    os.close(reader)
    os.close(writer)
    loop.close()


def test_a_failing_callback_is_counted_and_does_not_end_the_loop() -> None:
    loop = Loop(VirtualClock())
    seen: list[int] = []
    loop.call_soon(lambda: 1 // 0)  # type: ignore[arg-type]
    loop.call_soon(lambda: seen.append(1))
    # Telling of the failure may use up the slice.
    for _ in range(2):
        loop.run_once(max_wait_ns=0)
    assert (loop.errors, seen) == (1, [1])
    loop.close()


def test_calls_from_other_threads_return_and_raise() -> None:
    loop = Loop()
    loop.start()
    try:
        assert loop.call(threading.current_thread).name == "vhca-loop"
        with pytest.raises(ZeroDivisionError):
            loop.call(lambda: 1 // 0)
    finally:
        loop.stop()


def test_reading_and_writing_of_one_socket_are_waited_for_separately() -> None:
    loop = Loop(VirtualClock())
    seen: list[str] = []
    ours, theirs = socket.socketpair()
    loop.add_reader(ours, lambda: seen.append(ours.recv(9).decode()))
    loop.add_writer(ours, lambda: seen.append("room"))
    theirs.send(b"data")
    loop.run_once(max_wait_ns=0)
    assert seen == ["data", "room"]
    loop.remove_writer(ours)
    loop.remove_writer(ours)
    theirs.send(b"more")
    loop.run_once(max_wait_ns=0)
    assert seen == ["data", "room", "more"]
    loop.remove_reader(ours)
    theirs.send(b"unread")
    loop.run_once(max_wait_ns=0)
    assert seen == ["data", "room", "more"]
    ours.close()
    theirs.close()
    loop.close()


def test_a_reader_that_closes_its_socket_spares_the_writer() -> None:
    loop = Loop(VirtualClock())
    seen: list[str] = []
    ours, theirs = socket.socketpair()

    def hang_up() -> None:
        loop.remove_reader(ours)
        loop.remove_writer(ours)
        ours.close()

    loop.add_reader(ours, hang_up)
    loop.add_writer(ours, lambda: seen.append("room"))
    theirs.send(b"data")
    loop.run_once(max_wait_ns=0)
    assert (seen, loop.errors) == ([], 0)
    theirs.close()
    loop.close()


def test_later_calls_come_by_time_then_by_order() -> None:
    clock = VirtualClock()
    loop = Loop(clock)
    seen: list[str] = []
    loop.call_later(2e-6, lambda: seen.append("late"))
    loop.call_later(1e-6, lambda: seen.append("first"))
    loop.call_later(1e-6, lambda: seen.append("second"))
    loop.run_once(max_wait_ns=0)
    assert seen == []
    clock.advance(1000)
    loop.run_once(max_wait_ns=0)
    assert seen == ["first", "second"]
    clock.advance(1000)
    loop.run_once(max_wait_ns=0)
    assert seen == ["first", "second", "late"]
    loop.close()


def test_a_call_for_the_next_round_lets_sockets_come_first() -> None:
    loop = Loop(VirtualClock())
    seen: list[str] = []
    reader, writer = os.pipe()
    loop.add_reader(reader, lambda: seen.append(os.read(reader, 1).decode()))

    def again() -> None:
        seen.append("turn")
        loop.call_later(0, again)

    loop.call_later(0, again)
    os.write(writer, b"abc")
    for _ in range(3):
        loop.run_once(max_wait_ns=0)
    assert seen == ["turn", "a", "turn", "b", "turn", "c"]
    os.close(reader)
    os.close(writer)
    loop.close()


class Broken:
    """A timer source out of order."""

    def next_deadline(self) -> int | None:
        raise MemoryError

    def run_timers(self, now_ns: int) -> None:
        raise AssertionError("never due")


def test_a_source_without_a_deadline_to_give_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    loop, alarm = Loop(clock), Alarm(100)
    loop.add_timer_source(Broken())
    loop.add_timer_source(alarm)
    clock.advance(100)
    for _ in range(3 * LOGGED_ERRORS):
        loop.run_once(max_wait_ns=0)
    assert alarm.ran == [100]
    assert loop.errors == 3 * LOGGED_ERRORS
    # then at each power of two: 128, 256
    assert len(caplog.records) == LOGGED_ERRORS + 2
    loop.close()


class FailingWait:
    """An epoll whose waits fail a few times."""

    def __init__(self, epoll: object, failures: int) -> None:
        self._epoll = epoll
        self.failures = failures

    def poll(self, timeout: float) -> object:
        if self.failures:
            self.failures -= 1
            raise MemoryError
        return self._epoll.poll(timeout)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._epoll, name)


def test_a_failing_wait_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(loop, "_epoll", FailingWait(loop._epoll, 3))
    loop.start()
    assert loop.call(lambda: 7) == 7
    assert loop.errors == 3
    assert loop.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_asks_a_loop_that_has_ended_is_told(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    loop.start()
    assert not loop.ended
    with pytest.raises(SystemExit):
        loop.call(lambda: exec("raise SystemExit"))
    loop.call_threadsafe(lambda: exec("raise SystemExit"))
    while not loop.ended:
        time.sleep(0.001)
    assert loop.ended
    with pytest.raises(LoopEnded):
        loop.call(lambda: None)
    assert "the device loop has ended" in caplog.text
    assert loop.stop()
    assert not loop.ended


def test_a_loop_that_hangs_is_left_behind() -> None:
    loop = Loop()
    loop.start()
    reader, writer = os.pipe()
    hanging = threading.Event()

    def hang() -> None:
        hanging.set()
        select.select([reader], [], [])

    loop.call_threadsafe(hang)
    assert hanging.wait(10)
    assert not loop.stop(timeout_s=0.05)
    os.close(writer)
    assert loop.stop()
    os.close(reader)


def test_work_without_end_lets_sockets_and_timers_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    loop, alarm = Loop(clock), Alarm(1)
    loop.add_timer_source(alarm)
    looked = 0

    def now_ns() -> int:
        nonlocal looked
        looked += SLICE_NS // 10
        return looked

    monkeypatch.setattr("vhca.sim.loop.time.monotonic_ns", now_ns)
    reader, writer = os.pipe()
    seen: list[str] = []
    loop.add_reader(reader, lambda: seen.append(os.read(reader, 1).decode()))
    os.write(writer, b"a")

    def work() -> None:
        seen.append("work")
        clock.advance(1)
        loop.call_soon(work)

    loop.call_soon(work)
    loop.run_once()
    assert seen == ["a"] + ["work"] * 10
    os.write(writer, b"b")
    loop.run_once()
    assert alarm.ran
    assert seen[11:] == ["b"] + ["work"] * 10
    loop.remove_reader(reader)
    os.close(reader)
    os.close(writer)
    loop.close()
