"""The timer block: every timeout of the card is data in one heap, re-armed by replacement.

What a timeout does is not known here: a timer has a kind and an owner, and whoever runs the heap has a table of kinds.

A timer that is moved later keeps its heap entry until it surfaces; so re-arming an ACK timer per message costs two
stores and no heap operation. A timer whose owner ends is dropped instead: it lets go of the owner at once, however far
away its entry's time is.
"""

import heapq
from enum import IntEnum
from typing import Any, Final

# Entries of timers that are not armed any more which one look at the heap takes away: some ms at the most.
STALE_BUDGET: Final = 2000


class TimerKind(IntEnum):
    """What a timeout is for, and who its owner is."""

    DROPPED = 0
    """Nothing any more; nobody."""
    ACKNOWLEDGE = 1
    """The peer's acknowledgement is late; a queue pair."""
    RECEIVER_NOT_READY = 2
    """The time that a receiver asked for is over; a queue pair."""
    FLUSH = 3
    """Look for receives that were posted in the error state; nobody, it is for all queue pairs."""
    MODERATION = 4
    """A completion event was held back for long enough; a completion queue."""
    PAGES_REFUSED = 5
    """Ask the host once more for pages; a page request."""
    LINK_TRAINING = 6
    """A reset keeps the transmitter off no longer; a port's number."""
    LINK_FALLING = 7
    """The answer to who ordered it has left: take the link down; a port's number."""
    COMPRESSION = 8
    """Completions of a compressed session were held back for long enough; a completion queue."""
    TRAP = 9
    """A trap is to be sent, or once more since nobody has repressed it; a port's number."""
    MEASUREMENT = 10
    """A measurement of port counters begins or ends; nobody."""


class Timer:
    """One timeout. Armed and dropped through :class:`TimerHeap` only."""

    __slots__ = ("_queued_ns", "deadline_ns", "kind", "owner")

    def __init__(self, kind: TimerKind, owner: Any) -> None:
        self.kind = kind
        self.owner = owner
        self.deadline_ns: int | None = None
        self._queued_ns: int | None = None


class TimerHeap:
    """All armed timers of one card."""

    __slots__ = ("_dropped", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        # Entries of timers that were dropped, at most.
        self._dropped = 0

    def __len__(self) -> int:
        """Entries of the heap, some of which may be of timers that are not armed any more."""
        return len(self._heap)

    @property
    def entries(self) -> list[tuple[int, int, Timer]]:
        """What the heap holds, to be freed in pieces; nobody uses the heap any more."""
        return self._heap

    def arm(self, timer: Timer, deadline_ns: int) -> None:
        """(Re)arm `timer` for `deadline_ns`; replaces an earlier deadline."""
        timer.deadline_ns = deadline_ns
        queued = timer._queued_ns
        if queued is None or queued > deadline_ns:
            timer._queued_ns = deadline_ns
            self._sequence += 1
            heapq.heappush(self._heap, (deadline_ns, self._sequence, timer))

    def cancel(self, timer: Timer) -> None:
        """Disarm `timer`; harmless if it is not armed."""
        timer.deadline_ns = None

    def drop(self, timer: Timer | None) -> None:
        """Disarm `timer` for good and let go of its owner; None is no timer."""
        if timer is None:
            return
        timer.deadline_ns = None
        timer.kind = TimerKind.DROPPED
        timer.owner = None
        if timer._queued_ns is None:
            return
        self._dropped += 1
        if self._dropped * 2 > len(self._heap):
            # Mostly entries of the dead: their room is given back, at a cost that the drops since then have earned.
            self._dropped = 0
            self._heap = [entry for entry in self._heap if entry[2].kind is not TimerKind.DROPPED]
            heapq.heapify(self._heap)

    def next_deadline(self) -> int | None:
        """Earliest armed deadline in ns, None if nothing is armed.

        Entries of timers that are not armed any more are taken away on the way, a bounded number: if there are more,
        the answer is too early, and :meth:`due` goes on with them.
        """
        heap = self._heap
        looked = 0
        while heap:
            queued_ns, _, timer = heap[0]
            looked += 1
            if looked > STALE_BUDGET:
                return queued_ns
            deadline = timer.deadline_ns
            if timer._queued_ns != queued_ns:
                heapq.heappop(heap)
            elif deadline is None:
                timer._queued_ns = None
                heapq.heappop(heap)
            elif deadline > queued_ns:
                heapq.heappop(heap)
                timer._queued_ns = None
                self.arm(timer, deadline)
            else:
                return deadline
        return None

    def due(self, now_ns: int) -> Timer | None:
        """Take the earliest timer that is due, disarmed; None if none is, or a step's worth was looked at."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now_ns:
            return None
        queued_ns, _, timer = self._heap[0]
        if timer._queued_ns != queued_ns or timer.deadline_ns != queued_ns:
            # Not armed for this moment.
            return None
        heapq.heappop(self._heap)
        timer._queued_ns = None
        timer.deadline_ns = None
        return timer
