"""Work of many askers, in turns: nobody's questions keep another one's waiting longer than a piece of each.

A job is a generator; what it does up to its next `yield` is a piece, and a piece is short (well below a millisecond).
Each turn of the loop does one piece for one asker, then it is the next asker's turn. An asker's own jobs are done in
order; one that waits for somebody else (:meth:`FairQueue.pause`) keeps the asker's other jobs waiting with it. Whoever
has too many of them loses the newest.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator

CallSoon = Callable[[Callable[[], None]], None]
"""Runs a function in a later turn of a loop."""

Job = Iterator[None]


class _Pause:
    """What a job waits for that others do."""

    __slots__ = ("go_on", "over")

    def __init__(self) -> None:
        self.over = False
        self.go_on: Callable[[], None] | None = None

    def end(self) -> None:
        self.over = True
        if self.go_on is not None:
            self.go_on()


class FairQueue:
    """Jobs by asker, any hashable number such as a LID; at most `limit` wait for each."""

    def __init__(self, call_soon: CallSoon, limit: int) -> None:
        self._call_soon = call_soon
        self._limit = limit
        self._jobs: dict[int, deque[Job]] = {}
        self._ring: deque[int] = deque()
        self._called = False
        self._held: Counter[int] = Counter()
        self._pause: _Pause | None = None  # of the job that is being done

    def put(self, asker: int, job: Job, *, limit: int | None = None) -> bool:
        """Have a job done; False if this asker has too many waiting (`limit`, if not the usual number)."""
        jobs = self._jobs.get(asker)
        if self.waiting(asker) >= (self._limit if limit is None else limit):
            return False
        if jobs is None:
            jobs = self._jobs[asker] = deque()
            self._ring.append(asker)
        jobs.append(job)
        self._call()
        return True

    def hold(self, asker: int) -> Callable[[], None]:
        """A job of this asker is not over when it ends: it counts as waiting until what is returned is called."""
        self._held[asker] += 1

        def free() -> None:
            self._held[asker] -= 1
            if not self._held[asker]:
                del self._held[asker]

        return free

    def pause(self) -> Callable[[], None]:
        """For the job that is being done: behind its next `yield` it waits until what is returned has been called."""
        self._pause = _Pause()
        return self._pause.end

    def waiting(self, asker: int) -> int:
        """How many jobs of an asker are not done."""
        return len(self._jobs.get(asker, ())) + self._held[asker]

    def _turn(self) -> None:
        self._called = False
        self._pause = None
        asker = self._ring.popleft()
        jobs = self._jobs[asker]
        done = True
        try:
            next(jobs[0])
            done = False
        except StopIteration:
            pass
        finally:
            # A job that fails is gone, too.
            if done:
                jobs.popleft()
            if not jobs:
                del self._jobs[asker]
            elif not done and self._pause is not None and not self._pause.over:
                self._pause.go_on = lambda: self._go_on(asker)
            else:
                self._ring.append(asker)
            self._call()

    def _go_on(self, asker: int) -> None:
        self._ring.append(asker)
        self._call()

    def _call(self) -> None:
        if self._ring and not self._called:
            self._called = True
            self._call_soon(self._turn)
