"""The timer block: every timeout of the card is data in one heap, re-armed by replacement.

A timer that is moved later keeps its heap entry until it surfaces; so re-arming an ACK timer per message costs two
stores and no heap operation.
"""

import heapq
from collections.abc import Callable


class Timer:
    """One timeout; `action(now_ns)` runs when it is due. Armed through :class:`TimerHeap` only."""

    __slots__ = ("_queued_ns", "action", "deadline_ns")

    def __init__(self, action: Callable[[int], None]) -> None:
        self.action = action
        self.deadline_ns: int | None = None
        self._queued_ns: int | None = None


class TimerHeap:
    """All armed timers of one card."""

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0

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

    def next_deadline(self) -> int | None:
        """Earliest armed deadline in ns, None if nothing is armed."""
        heap = self._heap
        while heap:
            queued_ns, _, timer = heap[0]
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

    def run(self, now_ns: int, most: int = 1 << 30) -> None:
        """Run the actions of timers that are due, `most` of them, earliest first; an action may arm timers again."""
        for _ in range(most):
            deadline = self.next_deadline()
            if deadline is None or deadline > now_ns:
                return
            _, _, timer = heapq.heappop(self._heap)
            timer._queued_ns = None
            timer.deadline_ns = None
            timer.action(now_ns)

    def clear(self) -> None:
        """Forget all timers (reset)."""
        for _, _, timer in self._heap:
            timer.deadline_ns = None
            timer._queued_ns = None
        self._heap.clear()
