"""Python's garbage collector, held in check: a rack must not stand still while a million objects are looked at.

Objects of a guest live long and are freed by their reference counts; the collector is needed for the few that refer to
each other in a circle. Its full collections look at every object of the process: half a second with 600,000 keys. So
the automatic collections are off while a rack runs. After each few thousand new objects the young ones alone are
collected, and the survivors are frozen, that is, never looked at again. A full collection happens only in an idle
moment, and only while it is short.
"""

import gc
import time
from typing import Final

YOUNG: Final = 10_000
"""New objects after which the young ones are collected: about half a millisecond."""
IDLE_PERIOD_NS: Final = 60_000_000_000
FEW: Final = 150_000
"""Frozen objects up to which a full collection is short enough (some 20 ms) for an idle moment."""

_running = 0


class Collector:
    """The collector of the process, for the time between :meth:`start` and :meth:`stop`; racks may overlap."""

    def __init__(self) -> None:
        self._started = False
        self._last_full_ns = 0

    def start(self) -> None:
        """Take the automatic collections over."""
        global _running
        if not self._started:
            self._started = True
            self._last_full_ns = time.monotonic_ns()
            _running += 1
            gc.collect()
            gc.freeze()
            gc.disable()

    def stop(self) -> None:
        """Hand them back to Python when the last rack has ended."""
        global _running
        if self._started:
            self._started = False
            _running -= 1
            if not _running:
                gc.unfreeze()
                gc.enable()

    def look(self) -> None:
        """Between two rounds of a busy loop: collect what is young, if there is enough of it."""
        if gc.get_count()[0] > YOUNG:
            gc.collect(0)
            gc.freeze()

    def idle(self) -> None:
        """Nobody has work: a full collection now and then, if the process is small."""
        now = time.monotonic_ns()
        if now - self._last_full_ns > IDLE_PERIOD_NS and gc.get_freeze_count() < FEW:
            self._last_full_ns = now
            gc.unfreeze()
            gc.collect()
            gc.freeze()
