"""The rack's loop."""

import os
import threading

import pytest

from vhca.sim.clock import VirtualClock
from vhca.sim.loop import Loop


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
