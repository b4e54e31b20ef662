"""The event loop of a rack: one thread that serves sockets, timers and calls from other threads.

Raw selectors, no coroutines: a wake-up costs about 1.5 us. This is the one scheduler of a rack: whatever has more to do
than a moment's work does a bounded piece of it (well below a millisecond) and asks for another turn with
:meth:`Loop.call_soon`. A round is timers, the sockets that have something, then turns in the order in which they were
asked for, for :data:`SLICE_NS` by the clock: so what came by a socket is worked on at once, and a card that is idle
waits for a slice, whatever the others do. A callback that raises is logged and counted; the loop goes on.
"""

import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from vhca.sim.clock import Clock, RealClock
from vhca.sim.collector import Collector

log = logging.getLogger(__name__)
T = TypeVar("T")

# A wait of at least so long is a moment in which nobody has work.
IDLE_S: Final = 0.5
# Turns are given for so long before timers and sockets are looked at again.
SLICE_NS: Final = 2_000_000
# Failures that are logged one by one; of the others, each time their number has doubled.
LOGGED_ERRORS: Final = 100
FAILED_ROUND_PAUSE_S: Final = 0.01
ALIVE_CHECK_S: Final = 0.2
# While there is traffic, deadlines are asked for so often, and not in every round.
ASK_NS: Final = 200_000
NEVER_NS: Final = 1 << 63
# An end that is gone wakes whoever waits for anything.
READABLE: Final = ~select.EPOLLOUT
WRITABLE: Final = ~select.EPOLLIN


class LoopEnded(RuntimeError):
    """The thread of a loop is gone, so that nothing can be asked of it."""


class HasFileno(Protocol):
    """Anything with a file descriptor."""

    def fileno(self) -> int:
        """The descriptor."""
        ...


class _Watched(NamedTuple):
    """Something with a descriptor, and who is called when there is something to read, or room to write."""

    fileobj: int | HasFileno
    read: Callable[[], None] | None
    write: Callable[[], None] | None


_NOBODY: Final = _Watched(-1, None, None)


class TimerSource(Protocol):
    """Something with deadlines."""

    def next_deadline(self) -> int | None:
        """Time in ns of the next deadline, None for none."""
        ...

    def run_timers(self, now_ns: int) -> None:
        """Do what is due."""
        ...


class Loop:
    """One thread's event loop.

    :ivar turns: callbacks so far.
    :ivar rounds: rounds that have begun.
    :ivar waiting: the loop waits for something to happen.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or RealClock()
        self.errors = 0
        self._collector: Collector | None = None
        self._epoll = select.epoll()
        # By descriptor: what is watched, and the callbacks for reading and writing.
        self._watched: dict[int, _Watched] = {}
        self._ready: deque[Callable[[], None]] = deque()
        self._foreign: deque[Callable[[], None]] = deque()
        self._timers: list[TimerSource] = []
        # Those of which the loop is told when they may have a deadline that is earlier than the one that it knows ...
        self._stirred: dict[TimerSource, None] = {}
        # ... and those deadlines, of which each may have become later meanwhile.
        self._told: dict[TimerSource, int] = {}
        self._earliest: int | None = None
        # When all deadlines were asked for, the earliest of them (a far one for none), and whether something came since
        # then.
        self._asked_ns = 0
        self._next_ns = NEVER_NS
        self._traffic = False
        # (time, order of asking, call) of what call_later was asked for.
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._later_order = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._given_up = False
        self.turns = self.rounds = 0
        self.waiting = False
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.add_reader(self._wake_r, self._drain_wake)

    def add_reader(self, fileobj: int | HasFileno, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fileobj` is readable."""
        self._watch(fileobj, False, callback)

    def remove_reader(self, fileobj: int | HasFileno) -> None:
        """Wait for readable `fileobj` no more; unknown ones are ignored."""
        self._watch(fileobj, False, None)

    def add_writer(self, fileobj: int | HasFileno, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fileobj` can be written to; beside a reader, if there is one."""
        self._watch(fileobj, True, callback)

    def remove_writer(self, fileobj: int | HasFileno) -> None:
        """Wait for writable `fileobj` no more; unknown ones are ignored."""
        self._watch(fileobj, True, None)

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> None:
        """Run `fn` after `delay_s`; with 0, in the next round, after the sockets of this one. Loop thread only."""
        due = self.clock.now_ns() + int(delay_s * 1e9)
        heapq.heappush(self._later, (due, next(self._later_order), fn))

    def add_timer_source(self, source: TimerSource) -> None:
        """Ask `source` for its deadline before each wait."""
        self._timers.append(source)

    def stir(self, source: TimerSource) -> None:
        """Ask `source` for its deadline before the next wait: one that is not asked each time. Loop thread only.

        To be called whenever the deadline may have become earlier.
        """
        self._stirred[source] = None

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Run `fn` in a turn of this loop, behind those that wait already. Loop thread only."""
        self._ready.append(fn)

    def call_threadsafe(self, fn: Callable[[], None]) -> None:
        """Run `fn` in the loop thread soon; may be called from any thread."""
        self._foreign.append(fn)
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_w, b"x")

    def call(self, fn: Callable[[], T], timeout_s: float = 30.0) -> T:
        """Run `fn` in the loop thread and return its result; raises what it raised.

        :raises TimeoutError: the loop did not come to it.
        :raises LoopEnded: the loop's thread has ended, though nobody stopped it.
        """
        if self._thread is None or threading.current_thread() is self._thread:
            return fn()
        if self._given_up:
            raise TimeoutError("the device loop hangs")
        done = threading.Event()
        result: list[T] = []
        error: list[BaseException] = []

        def run() -> None:
            try:
                result.append(fn())
            except BaseException as exc:
                error.append(exc)
            finally:
                done.set()

        self.call_threadsafe(run)
        deadline = time.monotonic() + timeout_s
        while not done.wait(min(ALIVE_CHECK_S, max(0.0, deadline - time.monotonic()))):
            if self.ended:
                raise LoopEnded("the device loop has ended; the log says why")
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the device loop did not answer within {timeout_s} s")
        if error:
            raise error[0]
        return result[0]

    def start(self, name: str = "vhca-loop") -> None:
        """Run the loop in a thread of its own."""
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the loop's own thread has ended without :meth:`stop`: nothing is served any more. Any thread."""
        thread = self._thread
        return thread is not None and not self._stopping and not thread.is_alive()

    @property
    def thread_id(self) -> int | None:
        """Identifier of the loop's own thread, if it has one. Any thread."""
        return None if self._thread is None else self._thread.ident

    def responds(self, timeout_s: float) -> bool:
        """Tell whether the loop answers in time; one that does not is given up, and calls to it fail at once."""
        try:
            self.call(lambda: None, timeout_s)
        except (TimeoutError, LoopEnded):
            self._given_up = True
        return not self._given_up

    def stop(self, timeout_s: float = 10.0) -> bool:
        """End the loop and wait for its thread; False if it hangs in a callback, which then is left to itself."""
        self._stopping = True
        self.call_threadsafe(lambda: None)
        thread = self._thread
        if thread is not None and threading.current_thread() is not thread:
            thread.join(timeout_s)
            if thread.is_alive():
                return False
            self._thread = None
        self.close()
        return True

    def close(self) -> None:
        """Release descriptors."""
        if self._wake_r >= 0:
            self._epoll.close()
            os.close(self._wake_r)
            os.close(self._wake_w)
            self._wake_r = self._wake_w = -1

    def run(self) -> None:
        """Serve until :meth:`stop`; garbage is collected in between, never in the middle of something."""
        collector = self._collector = Collector()
        collector.start()
        try:
            while not self._stopping:
                self._round()
                collector.look()
        finally:
            self._collector = None
            collector.stop()

    def _round(self) -> None:
        try:
            self.run_once()
        except Exception:
            # The wait itself failed (out of memory, of descriptors): the cards are worth another try.
            self._failed("a round of the device loop failed")
            time.sleep(FAILED_ROUND_PAUSE_S)

    def _main(self) -> None:
        try:
            self.run()
        except BaseException:
            log.critical("the device loop has ended, and with it every card", exc_info=True)
            raise

    def run_once(self, max_wait_ns: int | None = None) -> None:
        """One round: timers, sockets (waiting for the next deadline at most), a slice of turns."""
        self.rounds += 1
        timeout = self._before_wait(max_wait_ns)
        if self._collector is not None and (timeout < 0 or timeout >= IDLE_S):
            self._collector.idle()
        watched = self._watched
        self.waiting = True
        try:
            ready = self._epoll.poll(timeout)
        finally:
            self.waiting = False
        self._traffic = bool(ready or self._foreign or self._ready)
        for fd, events in ready:
            # A callback of this very wake-up may have closed the descriptor.
            if events & READABLE and (now := watched.get(fd)) is not None and now.read is not None:
                self._guard(now.read)
            if events & WRITABLE and (now := watched.get(fd)) is not None and now.write is not None:
                self._guard(now.write)
        for _ in range(len(self._foreign)):
            self._guard(self._foreign.popleft())
        if self._ready:
            self._run_ready()

    def _watch(self, fileobj: int | HasFileno, write: bool, callback: Callable[[], None] | None) -> None:
        """Set or forget the callback of one kind of readiness."""
        fd = self._descriptor(fileobj)
        before = self._watched.get(fd, _NOBODY)
        now = _Watched(fileobj, before.read, callback) if write else _Watched(fileobj, callback, before.write)
        events = (select.EPOLLIN if now.read is not None else 0) | (select.EPOLLOUT if now.write is not None else 0)
        if not events:
            if self._watched.pop(fd, None) is not None:
                # One that was closed first is forgotten by the kernel already.
                with contextlib.suppress(OSError, ValueError):
                    self._epoll.unregister(fd)
            return
        if fd in self._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._watched[fd] = now

    def _descriptor(self, fileobj: int | HasFileno) -> int:
        """The descriptor of `fileobj`, also of one that is closed by now; -1 if it is not watched."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd >= 0:
            return fd
        return next((number for number, known in self._watched.items() if known.fileobj is fileobj), -1)

    def _before_wait(self, max_wait_ns: int | None) -> float:
        """Run what is due; return how long to wait at most for something to happen, in seconds, -1 for any time.

        The deadlines that traffic makes are far away, and asking costs as much as a message: so it is done now and
        then, and before a wait that is not short.
        """
        now = self.clock.now_ns()
        if self._later:
            self._run_later(now)
        if self._traffic and self._asked_ns <= now < self._next_ns and now < self._asked_ns + ASK_NS:
            next_ns = self._next_ns if self._next_ns < now + ASK_NS else now + ASK_NS
        else:
            next_ns = self._next_ns = self._run_due(now)
            self._asked_ns = now
        if self._ready or self._foreign or self._stopping:
            return 0
        later = self._later[0][0] if self._later else NEVER_NS
        wait = None if min(next_ns, later) >= NEVER_NS else max(0, min(next_ns, later) - now)
        if wait is not None and later <= next_ns:
            # The system waits for whole milliseconds, rounded up. What was asked for at a time is not to be late: the
            # last bit of the wait are rounds that only look.
            wait -= wait % 1_000_000
        if max_wait_ns is not None and (wait is None or max_wait_ns < wait):
            wait = max_wait_ns
        return -1 if wait is None else wait / 1e9

    def _run_due(self, now: int) -> int:
        """Ask for all deadlines and run what is due; return the next one, which is now if something ran."""
        if self._stirred:
            self._ask_stirred()
        ran = self._earliest is not None and self._earliest <= now
        if ran:
            self._run_told(now)
        next_ns = NEVER_NS
        for source in self._timers:
            deadline = self._deadline(source)
            if deadline is None:
                continue
            if deadline <= now:
                ran = True
                self._guard(lambda source=source: source.run_timers(now))  # type: ignore[misc]
            else:
                next_ns = min(next_ns, deadline)
        if ran:
            # Each of them may have given any of them an earlier deadline.
            return now
        return next_ns if self._earliest is None else min(next_ns, self._earliest)

    def _ask_stirred(self) -> None:
        """Learn the deadlines of those that have stirred, and of all the earliest."""
        stirred, told = self._stirred, self._told
        while stirred:
            source = stirred.popitem()[0]
            deadline = self._deadline(source)
            if deadline is None:
                told.pop(source, None)
            else:
                told[source] = deadline
        self._earliest = min(told.values(), default=None)

    def _run_told(self, now: int) -> None:
        """Run those that are due, unless their deadline has become a later one since they told."""
        for source in [source for source, deadline in self._told.items() if deadline <= now]:
            deadline = self._deadline(source)
            if deadline is not None and deadline <= now:
                self._guard(lambda source=source: source.run_timers(now))  # type: ignore[misc]
            self._stirred[source] = None
        self._ask_stirred()

    def _run_later(self, now_ns: int) -> None:
        """What is due, but not what that asks for anew."""
        later = self._later
        due = []
        while later and later[0][0] <= now_ns:
            due.append(heapq.heappop(later)[2])
        for fn in due:
            self._guard(fn)

    def _run_ready(self) -> None:
        """A slice of turns: those that were asked for, and those that these ask for, until the time is up."""
        ready = self._ready
        now_ns = time.monotonic_ns
        end = now_ns() + SLICE_NS
        while ready:
            self._guard(ready.popleft())
            if now_ns() >= end:
                return

    def _guard(self, fn: Callable[[], None]) -> None:
        self.turns += 1
        try:
            fn()
        except Exception:
            self._failed("callback failed in the device loop")

    def _deadline(self, source: TimerSource) -> int | None:
        """Deadline of a source; one that fails has none, and the other sources keep theirs."""
        try:
            return source.next_deadline()
        except Exception:
            self._failed("a timer source failed to name its deadline")
            return None

    def _failed(self, what: str) -> None:
        """Count and log the exception under way, but do not let one that comes every round fill the disk."""
        self.errors += 1
        if self.errors <= LOGGED_ERRORS or not self.errors & (self.errors - 1):
            log.exception("%s (failure %d)", what, self.errors)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_r, 4096):
                pass
