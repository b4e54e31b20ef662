"""Whose turn it is: the cards of a rack, one after the other, in rounds; and what two of them have set apart.

A program may set work apart that concerns two boards and that a thread of its own does (see
:class:`vhca.hw.hardware.Through`): until it has taken over what came of it, nothing else may happen to either board.
That ends with the round at the latest, and a round is one callback of the loop. So whatever comes from elsewhere (a
message of a host, a timer, a change of the fabric, a call from another thread) finds nothing under way, as if cards
worked one after the other.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

# A round ends by the clock, with those that are left to be the first of the next: timers and sockets wait for it.
ROUND_NS: Final = 1_000_000
# What is set apart is finished after so long, so that those boards go on; less if the round is over.
APART_NS: Final = 200_000


class Member(Protocol):
    """A board, as the round sees it."""

    apart: bool
    """Whether it takes part in something that is set apart."""

    def turn(self) -> None:
        """Do a bounded piece of what waits."""
        ...


class Rounds:
    """Turns for boards; `call_soon` runs a call after what is under way, `now_ns` is a clock."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], None], now_ns: Callable[[], int]) -> None:
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._asked = False
        # Who waits for a turn: in this round, and from the next one on.
        self._line: deque[Member] = deque()
        self._next: deque[Member] = deque()
        self._apart: deque[tuple[Member, Member, Callable[[], None]]] = deque()
        self._join_at = 0

    def ask(self, member: Member) -> None:
        """Stand in line for one turn."""
        self._next.append(member)
        if not self._asked:
            self._asked = True
            self._call_soon(self._round)

    def set_apart(self, near: Member, far: Member, finish: Callable[[], None], most: int) -> bool:
        """Leave both alone until `finish` is called; False if no other board could do something meanwhile.

        Nor if `most` others are set apart: whoever finishes them might have to do it all alone.
        """
        if len(self._apart) >= most:
            return False
        for member in self._line:
            if member is not near and member is not far and not member.apart:
                if not self._apart:
                    self._join_at = self._now_ns() + APART_NS
                near.apart = far.apart = True
                self._apart.append((near, far, finish))
                return True
        return False

    @property
    def parted(self) -> bool:
        """True while something is set apart, which should not wait longer than need be."""
        return bool(self._apart)

    def join(self) -> None:
        """Finish all that is set apart."""
        apart = self._apart
        try:
            while apart:
                near, far, finish = apart.popleft()
                near.apart = far.apart = False
                finish()
        finally:
            if apart:
                self.join()

    def _round(self) -> None:
        """A turn for each that waits now, as far as the time goes."""
        self._asked = False
        line, self._next = self._next, self._line
        self._line = line
        # Those whose turn came while they were apart.
        later: deque[Member] = deque()
        end = self._now_ns() + ROUND_NS
        try:
            while line:
                member = line.popleft()
                if member.apart:
                    later.append(member)
                else:
                    member.turn()
                now = self._now_ns()
                if self._apart and (not line or now >= self._join_at):
                    self.join()
                if later and not self._apart:
                    line.extend(later)
                    later.clear()
                if now >= end:
                    break
        finally:
            try:
                if self._apart:
                    self.join()
            finally:
                if line or later:
                    line.extend(later)
                    # Who is left stands in front of those who have asked meanwhile.
                    self._next.extendleft(reversed(line))
                    line.clear()
                if self._next and not self._asked:
                    self._asked = True
                    self._call_soon(self._round)
