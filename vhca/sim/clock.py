"""The crystal on the board: a source of nanoseconds, real or driven by a test."""

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in ns."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary origin; never goes back."""
        ...


class RealClock:
    """The host's monotonic clock."""

    # Asked ten times for each doorbell: a call less each time.
    now_ns = staticmethod(time.monotonic_ns)


class VirtualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """See :class:`Clock`."""
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        """Move forward by `delta_ns`."""
        if delta_ns < 0:
            raise ValueError("time does not go back")
        self._now_ns += delta_ns
