"""A watchdog for a loop: a thread that notices when the loop does not turn, and says where it is.

One callback that does not return stops every card of a rack. That is a fault of vhca, whatever a guest did to bring it
about, and can be mended only if one knows whose step it was and where it stood.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final

from vhca.sim.loop import Loop

log = logging.getLogger(__name__)

HANG_S: Final = 1.0
"""A loop that takes longer for one callback has failed everybody: a driver gives a card 100 ms for some things."""
LOOKS: Final = 4
"""Looks at the loop in that time."""
FULL_REPORTS: Final = 20
"""Reports that are logged one by one; of the others, each time their number has doubled."""


class Watchdog:
    """Watches one loop from a thread of its own.

    :ivar stalls: how often the loop has stood still for :data:`HANG_S` or longer.
    """

    def __init__(
        self, loop: Loop, whose: Callable[[FrameType], str | None] = lambda frame: None, hang_s: float | None = None
    ) -> None:
        """`whose` names the card in whose step a frame is, or gives None if it is in none."""
        self.stalls = 0
        self._loop = loop
        self._whose = whose
        self._hang_s = HANG_S if hang_s is None else hang_s
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch until :meth:`stop`."""
        self._thread = threading.Thread(target=self._run, name="vhca-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        interval = self._hang_s / LOOKS
        turns, since, reported = -1, time.monotonic(), False
        last_look = since
        while not self._end.wait(interval):
            now = time.monotonic()
            asleep = now - last_look > self._hang_s
            last_look = now
            loop = self._loop
            if loop.waiting or loop.turns != turns:
                if reported:
                    log.warning("the device loop goes on, after %.1f s", now - since)
                turns, since, reported = loop.turns, now, False
            elif asleep:
                # The host, or something that keeps the interpreter, had this thread stand still as well.
                since = now
            elif not reported and now - since >= self._hang_s:
                reported = True
                self.stalls += 1
                if self.stalls <= FULL_REPORTS or not self.stalls & (self.stalls - 1):
                    self._report(now - since)

    def _report(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop.thread_id or 0)
        if frame is None:
            return
        inner: FrameType | None = frame
        name = None
        while inner is not None and name is None:
            name = self._whose(inner)
            inner = inner.f_back
        log.error(
            "the device loop has not turned for %.1f s (time %d), %s:\n%s",
            seconds,
            self.stalls,
            f"in a step of {name}" if name else "in no card's step",
            "".join(traceback.format_stack(frame)),
        )
