"""One call at a time by the clock of a cable: what ports and agents that have no timers come back with."""

from collections.abc import Callable

from vhca.fabric.link import LinkEnd


class Alarm:
    """Runs `due` when the time that was set last has come, and once for each time."""

    __slots__ = ("_at_ns", "_due")

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._at_ns: int | None = None

    def set(self, deadline_ns: int | None, now_ns: int, end: LinkEnd) -> None:
        """Come back at `deadline_ns`, if nothing was set for that time or an earlier one; None: there is no need."""
        if deadline_ns is None or (self._at_ns is not None and self._at_ns <= deadline_ns):
            return
        self._at_ns = deadline_ns
        end.link.call_later(max(0, deadline_ns - now_ns), lambda: self._ring(deadline_ns))

    def _ring(self, deadline_ns: int) -> None:
        # A call that was for later has become needless.
        if self._at_ns == deadline_ns:
            self._at_ns = None
            self._due()
