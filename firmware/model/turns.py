"""The run queue of the processor: what is to be done for queue pairs, one bounded piece after the other.

A doorbell, an acknowledgement or a timer only asks for a turn. :class:`firmware.kernel.Kernel` gives one turn per step;
what is left after it stands in line again, behind the others. So a queue pair with much to do delays another one of its
card by one piece, and the board decides after each piece whether another card or the host has its turn first.

A turn is data, (work, queue pair): no closure, and nothing but the line holds on to a queue pair.
"""

from collections import deque
from typing import Final

from firmware.model.qp import Qp

# What a turn is for, as a bit of `Qp.turns`.
SEND: Final = 1
"""Send queue: execute what is posted and may be sent."""
REPLY: Final = 2
"""Responder: answers that wait."""
FLUSH: Final = 4
"""Queues in error: completions for what is posted."""
STORE: Final = 8
"""Packets that wait behind a burst which is stored in parts."""


class Turns:
    """The line of one card, first come, first served; a queue pair stands in it at most once for each kind of work."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: deque[tuple[int, Qp]] = deque()

    def add(self, work: int, qp: Qp) -> None:
        """Ask for a turn; nothing happens if one is waiting already."""
        if not qp.turns & work:
            qp.turns |= work
            self._line.append((work, qp))

    def take(self) -> tuple[int, Qp] | None:
        """The next in line, None if nobody waits; one whose wish was taken back (`Qp.turns` = 0) has gone."""
        line = self._line
        while line:
            work, qp = line.popleft()
            if qp.turns & work:
                qp.turns &= ~work
                return work, qp
        return None

    def __bool__(self) -> bool:
        """True if somebody may be waiting."""
        return bool(self._line)

    @property
    def line(self) -> deque[tuple[int, Qp]]:
        """Who waits, to be freed in pieces; nobody uses the line any more."""
        return self._line
