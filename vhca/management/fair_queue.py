"""Work of many askers, in turns: nobody's questions keep another one's waiting longer than a piece of each.

A job is a generator; what it does up to its next `yield` is a piece, and a piece is short (well below a millisecond).
Each turn of the loop does one piece for one asker, then it is the next asker's turn. An asker's own jobs are done in
order. Whoever has too many of them loses the newest.
"""

from collections import deque
from collections.abc import Callable, Iterator

CallSoon = Callable[[Callable[[], None]], None]
"""Runs a function in a later turn of a loop."""

Job = Iterator[None]


class FairQueue:
    """Jobs by asker, any hashable number such as a LID; at most `limit` wait for each."""

    def __init__(self, call_soon: CallSoon, limit: int) -> None:
        self._call_soon = call_soon
        self._limit = limit
        self._jobs: dict[int, deque[Job]] = {}
        self._ring: deque[int] = deque()
        self._called = False

    def put(self, asker: int, job: Job, *, limit: int | None = None) -> bool:
        """Have a job done; False if this asker has too many waiting (`limit`, if not the usual number)."""
        jobs = self._jobs.get(asker)
        if jobs is None:
            jobs = self._jobs[asker] = deque()
            self._ring.append(asker)
        elif len(jobs) >= (self._limit if limit is None else limit):
            return False
        jobs.append(job)
        if not self._called:
            self._called = True
            self._call_soon(self._turn)
        return True

    def waiting(self, asker: int) -> int:
        """How many jobs of an asker are not done."""
        return len(self._jobs.get(asker, ()))

    def _turn(self) -> None:
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
            if jobs:
                self._ring.append(asker)
            else:
                del self._jobs[asker]
            self._called = bool(self._ring)
            if self._called:
                self._call_soon(self._turn)
