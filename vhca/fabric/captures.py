"""The captures of one fabric: which ends of cables each has, when it begins, and when it ends by itself."""

import errno
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vhca.fabric.capture import NO_LIMITS, Capture, CaptureLimits
from vhca.fabric.capture_filter import EVERYTHING, CaptureFilter
from vhca.fabric.capture_writer import Destination, File, Writer
from vhca.fabric.fabric_port import FabricPort
from vhca.fabric.link import CallLater, Link, LinkEnd
from vhca.fabric.recording import Recording
from vhca.management.fair_queue import CallSoon

ALL: Final = "all"
"""As the name of a port: every cable of the fabric."""


@dataclass(frozen=True, slots=True)
class CaptureChoice:
    """What a capture is to have.

    - `ports`: names of cards; of ends of other cables, such as leaf1/3; of switches and simulated hosts, whose ports
      are all meant; or "all", every cable of the fabric. None: all cards, those that are added later, too.
    - `both_ends`: record a packet where it arrives, too, though it is recorded where it was sent.
    - `records`: record what the cards among the ports tell of themselves, too: commands, doorbells, work requests,
      completions, events, interrupts.
    - `only`: which packets.
    - `limits`: where the capture ends by itself.
    """

    ports: Sequence[str] | None = None
    both_ends: bool = False
    records: bool = False
    only: CaptureFilter = EVERYTHING
    limits: CaptureLimits = NO_LIMITS


class Captures:
    """Those that are running; for the fabric's loop. `find` gives the end that a name means, or raises KeyError."""

    def __init__(
        self,
        ports: dict[str, FabricPort],
        links: Callable[[], Iterable[Link]],
        find: Callable[[str], LinkEnd],
        call_soon: CallSoon,
        call_later: CallLater,
        now_ns: Callable[[], int],
    ) -> None:
        self._ports = ports
        self._links = links
        self._find = find
        self._call_soon = call_soon
        self._call_later = call_later
        self._now_ns = now_ns
        self.running: dict[Capture, tuple[Recording, CaptureChoice]] = {}

    def check(self, choice: CaptureChoice) -> None:
        """KeyError if there is no such port."""
        self._chosen(choice)

    def _chosen(self, choice: CaptureChoice) -> tuple[list[FabricPort], list[LinkEnd]]:
        """Ports of cards, and ends of other cables."""
        if choice.ports is None:
            return list(self._ports.values()), []
        by_end = {port.end: port for port in self._ports.values()}
        cards: dict[FabricPort, None] = {}
        ends: dict[LinkEnd, None] = {}
        for name in choice.ports:
            for end in [self._ports[name].end] if name in self._ports else self._named(name):
                if end in by_end:
                    cards[by_end[end]] = None
                else:
                    ends[end] = None
        return list(cards), list(ends)

    def _named(self, name: str) -> list[LinkEnd]:
        """The ends that a name means which is not that of a card: all, those of a node, or one."""
        everything = [end for link in self._links() for end in (link.a, link.b)]
        if name == ALL:
            return everything
        own = f"{name}/"
        found = [end for end in everything if end.name.startswith(own) and end.name.rpartition("/")[0] == name]
        return found or [self._find(name)]

    def start(self, destination: Destination, choice: CaptureChoice) -> Capture:
        """Record from now on, until :meth:`stop` or a limit.

        KeyError if there is no such port, OSError if another capture has the same file, or no thread can be had; then
        the destination is closed.
        """
        try:
            cards, ends = self._chosen(choice)
            if isinstance(destination, File) and any(each.is_file(destination.path) for each in self.running):
                raise OSError(errno.EBUSY, "another capture writes to this file", destination.name)
        except BaseException:
            destination.close()
            raise
        writer = Writer(destination)
        offset_ns = time.time_ns() - self._now_ns()
        capture = Capture(writer, lambda: self._now_ns() + offset_ns, only=choice.only, limits=choice.limits)
        recording = Recording(capture, choice.both_ends, self._call_soon, lambda: self.stop(capture))
        self.running[capture] = recording, choice
        for port in cards:
            self._add(port, recording, choice)
        if ends:
            recording.add_ends(ends)
            for port in self._ports.values():
                recording.hold(port)
        if choice.limits.seconds is not None:
            self._call_later(int(choice.limits.seconds * 1e9), lambda: self.stop(capture))
        try:
            writer.start()
        except OSError:
            self.stop(capture)
            raise
        return capture

    def _add(self, port: FabricPort, recording: Recording, choice: CaptureChoice) -> None:
        recording.add(port)
        if choice.records:
            recording.watch(port)

    def added(self, port: FabricPort) -> None:
        """A card has come."""
        for recording, choice in self.running.values():
            if choice.ports is None or ALL in choice.ports:
                self._add(port, recording, choice)

    def stop(self, capture: Capture) -> None:
        """End a recording; its file is complete behind :meth:`Capture.wait`."""
        recording, _ = self.running.pop(capture, (None, None))
        if recording is not None:
            recording.end()
        capture.close()

    def finish(self, capture: Capture) -> None:
        """Give the writer all that has passed so far."""
        recording, _ = self.running.get(capture, (None, None))
        if recording is not None:
            recording.finish()
