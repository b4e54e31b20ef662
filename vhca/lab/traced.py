"""Traces of a running lab, made a page when they are wanted; and what went wrong in them, explained."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vhca.lab import explain

if TYPE_CHECKING:
    from vhca.lab.lab import Lab
    from vhca.trace.events import Meaning, TraceEvent
    from vhca.trace.reading import Trace

RING_BYTES: Final = 24 << 20
RING_FILES: Final = 2


def explaining(firmware: str = "firmware") -> Meaning:
    """What tells the meaning of what went wrong in a trace."""
    explainer = explain.firmware_explainer(firmware)
    return lambda event: _meaning(event, explainer)


def _meaning(event: TraceEvent, explainer: explain.Explainer) -> str:
    fields = event.fields
    if event.kind == "command":
        number = event.number_of("syndrome")
        return "; ".join(explain.syndrome(number, explainer)) if number else ""
    if event.kind == "completion":
        return explain.completion_error(str(fields.get("syndrome", "")))
    return ""


class LabTrace:
    """Packets of all cards of a lab and what its cards do, from now on: the last of it, in a folder of its own.

    While it runs, each packet and work request is told of, which slows a lab down: docs/trace.md says how much.
    """

    def __init__(self, lab: Lab) -> None:
        from vhca.fabric.capture_writer import Ring

        self._folder = Path(tempfile.mkdtemp(prefix="vhca-trace-"))
        try:
            ring = Ring(RING_BYTES, RING_FILES)
            self._capture = lab.fabric.capture(self._folder / "trace.pcapng", records=True, ring=ring)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def end(self) -> Trace:
        """Stop, and give the last events.

        :raises vhca.trace.reading.TraceError: what was recorded cannot be read.
        """
        from vhca.trace.reading import gather

        self._capture.stop()
        trace = gather(sorted(self._folder.glob("*.pcapng")), meaning=explaining())
        trace.lost = max(trace.lost, self._capture.dropped)
        return trace

    def write(self, path: Path, title: str) -> Trace:
        """Stop, and write a page. OSError: it cannot be written."""
        trace = self.end()
        write_page(trace, path, title)
        return trace

    def discard(self) -> None:
        """Stop, and forget what was recorded."""
        try:
            self._capture.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def write_page(trace: Trace, path: Path, title: str) -> None:
    """Write a page, which its owner alone may read: captures tell what is in guests' memory, and so do their traces."""
    from vhca.trace.page import page

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(page(trace, title))
