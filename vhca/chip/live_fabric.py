"""The fabric of a running rack, for people and programs outside its loop."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from vhca.fabric.cables import CableStatus
from vhca.fabric.capture import NO_LIMITS, Capture, CaptureLimits
from vhca.fabric.capture_filter import EVERYTHING, CaptureFilter
from vhca.fabric.capture_writer import File, Ring, Stream
from vhca.fabric.captures import CaptureChoice
from vhca.fabric.chart import Chart, of_fabric, route
from vhca.fabric.fabric import Fabric, ManagerState, ManagerStatus, PortStatus
from vhca.fabric.faults import Direction, Fault
from vhca.fabric.line import LineConfig
from vhca.fabric.schedule import Player, Schedule
from vhca.sim.loop import Loop
from vhca.subnet.partitions import Partitions

log = logging.getLogger(__name__)


class LiveFabric:
    """The running fabric for other threads: every method is carried out in the rack's loop.

    Ports are named like the cards that they connect. Cables are named by a card (h0), in a lab by a guest's card
    (g0/1), by one of their ends (leaf1/3, switch/2), or by a host that has one port; KeyError for any other name.

    What guests can do to each other here: no guest changes, reads or speaks for another's port or the switch (M_Keys,
    SLIDs, rights at the SA; not with `mkey=0`), takes more than its share, or leaves anything in a card for the next
    machine. But all are in one partition, anybody may send to anybody's queue pairs, the directory and the counters are
    open to all, and bandwidth is not shared out.
    docs/security.md has the whole list, with the tests that show it.
    """

    def __init__(self, loop: Loop, fabric: Fabric, more_counters: Callable[[], dict[str, int]] = dict) -> None:
        self._loop = loop
        self._fabric = fabric
        self._more_counters = more_counters

    def counters(self) -> dict[str, int]:
        """All counters by name: port.counter, switch.dropped.reason, sm.counter, sa.counter, tools.counter."""
        return self._loop.call(lambda: self._fabric.counters() | self._more_counters())

    def active(self, *names: str) -> bool:
        """True if a subnet manager brought these ports to ACTIVE at both ends; if none is named, all that have a link.

        The ports are asked, so it is true whoever the manager is.
        """
        return self._loop.call(lambda: self._fabric.active(*names))

    def lid(self, name: str) -> int:
        """LID of a card's port, 0 while it has none."""
        return self._loop.call(lambda: self._fabric.lid(name))

    def sm_lid(self, name: str) -> int:
        """LID of the subnet manager that a card's port knows, whoever that is; 0 if it knows none."""
        return self._loop.call(lambda: self._fabric.sm_lid(name))

    def manager_state(self) -> ManagerState:
        """What our own subnet manager is: "master", or "standby" while another one is, and so on (14.4.1)."""
        return self._loop.call(lambda: self._fabric.manager_state)

    def managers(self) -> list[ManagerStatus]:
        """The subnet managers that ours knows, with it: a master first."""
        return self._loop.call(self._fabric.managers)

    def partitions(self) -> Partitions:
        """Who may speak to whom, by port GUIDs."""
        return self._loop.call(lambda: self._fabric.manager.partitions)

    def link_down(self, name: str) -> None:
        """Pull a cable."""
        self._loop.call(lambda: self._fabric.link_down(name))

    def link_up(self, name: str) -> None:
        """Plug a cable in again."""
        self._loop.call(lambda: self._fabric.link_up(name))

    def flap(self, name: str, times: int = 1, down_s: float = 1.0, up_s: float = 1.0) -> None:
        """Pull a cable and plug it in again, `times` times, for so long each, from now on; this does not wait.

        Any other order to the cable's plugs ends it. ValueError for times that are not 1 to 10,000.
        """
        down_ns, up_ns = round(down_s * 1e9), round(up_s * 1e9)
        self._loop.call(lambda: self._fabric.cables.flap(name, times, down_ns, up_ns))

    def disable(self, name: str) -> None:
        """Disable the switch's port that is named, or at which the named cable ends: no manager enables it."""
        self._loop.call(lambda: self._fabric.cables.set_disabled(name, True))

    def enable(self, name: str) -> None:
        """Let a port that was disabled train again."""
        self._loop.call(lambda: self._fabric.cables.set_disabled(name, False))

    def set_line(self, name: str, config: LineConfig) -> None:
        """What a cable takes of time, and how many bits arrive wrong; `LineConfig()` is the usual: nothing."""
        self._loop.call(lambda: self._fabric.set_line(name, config))

    def line(self, name: str) -> LineConfig:
        """What a cable takes of time, and how many bits arrive wrong."""
        return self._loop.call(lambda: self._fabric.cables.line(name))

    def play(self, schedule: Schedule) -> Player:
        """Carry a schedule out from now on; see :mod:`vhca.fabric.schedule`, and :meth:`stop_playing` for its end."""
        return self._loop.call(lambda: self._fabric.play(schedule))

    def stop_playing(self, player: Player) -> None:
        """Let nothing more of a schedule happen."""
        self._loop.call(player.stop)

    def knows(self, name: str) -> bool:
        """Tell whether there is a cable of this name."""
        return self._loop.call(lambda: self._fabric.knows(name))

    def cables(self) -> list[CableStatus]:
        """The cables that are pulled or disabled, have rules, or take time."""
        return self._loop.call(self._fabric.cable_status)

    def names(self) -> list[str]:
        """The cards, by the names of their ports."""
        return self._loop.call(lambda: list(self._fabric.ports))

    def status(self) -> list[PortStatus]:
        """How each card's port and cable are."""
        return self._loop.call(self._fabric.status)

    def chart(self, start: int = 0, count: int | None = None) -> Chart:
        """Nodes and cables with states and errors: all of them, or a page of `count` from number `start` on."""
        return self._loop.call(lambda: of_fabric(self._fabric, start, count))

    def route(self, source: str, target: str) -> list[str]:
        """The ports by which packets leave nodes on their way from one node of a topology to another.

        :raises TopologyError: there is no such node, or no way.
        """
        return self._loop.call(lambda: route(self._fabric, source, target))

    def add_fault(self, name: str, fault: Fault, direction: Direction = "both") -> Fault:
        """Let something go wrong on a cable, and return the rule, which counts its hits.

        `direction`: "from" or "to": what is sent from, or to, the end that is named; "from_card" or "to_card": the same
        as seen from the card; "both" (counted together) either.
        """
        self._loop.call(lambda: self._fabric.add_fault(name, fault, direction))
        return fault

    def faults(self, name: str) -> list[tuple[Direction, Fault]]:
        """The rules of a cable and which way they look (from its card, else its first end), in order."""
        return self._loop.call(lambda: self._fabric.faults(name))

    def clear_faults(self, name: str) -> None:
        """Take away the rules of a cable."""
        self._loop.call(lambda: self._fabric.clear_faults(name))

    def faulty(self) -> list[str]:
        """The cables that have rules."""
        return self._loop.call(self._fabric.cables.faulty)

    def capture(
        self,
        path: Path | str,
        ports: Sequence[str] | None = None,
        *,
        both_ends: bool = False,
        records: bool = False,
        only: CaptureFilter = EVERYTHING,
        limits: CaptureLimits = NO_LIMITS,
        ring: Ring | None = None,
    ) -> LiveCapture:
        """Record what passes in a pcapng file, from now on until :meth:`LiveCapture.stop` or a limit.

        Of all cards, or of `ports`, as :class:`vhca.fabric.captures.CaptureChoice` names them, which tells of the other
        choices, too. `ring` makes it several files. It is a context manager, which stops at its end. See
        :meth:`vhca.fabric.fabric.Fabric.capture` for what is recorded where, and for errors.
        """
        return self.capture_choice(Path(path), CaptureChoice(ports, both_ends, records, only, limits), ring)

    def capture_choice(self, path: Path, choice: CaptureChoice, ring: Ring | None = None) -> LiveCapture:
        """As :meth:`capture`."""
        captures = self._fabric.captures
        self.check_capture(choice)
        file = File(path, ring)  # not in the loop: a disk may be slow to open
        return LiveCapture(self._loop, self._fabric, self._loop.call(lambda: captures.start(file, choice)), path)

    def check_capture(self, choice: CaptureChoice) -> None:
        """KeyError if a capture of this kind could not begin, since there is no such port."""
        self._loop.call(lambda: self._fabric.captures.check(choice))

    def capture_stream(self, sock: socket.socket, name: str, choice: CaptureChoice, before: bytes) -> LiveCapture:
        """As :meth:`capture`, to who reads at the other end of a socket; one who is slow misses something.

        He is told `before` once it has begun.
        """
        stream = Stream(sock, name, before)
        start = self._fabric.captures.start
        return LiveCapture(self._loop, self._fabric, self._loop.call(lambda: start(stream, choice)), Path(name))


class LiveCapture:
    """A recording that runs; any thread. The rack stops it if nobody else does.

    :ivar path: the pcapng file; of a ring, the name that the files' names are made of.
    """

    def __init__(self, loop: Loop, fabric: Fabric, capture: Capture, path: Path) -> None:
        self._loop = loop
        self._fabric = fabric
        self._capture = capture
        self.path = path

    @property
    def packets(self) -> int:
        """Packets and records so far."""
        return self._capture.packets

    @property
    def dropped(self) -> int:
        """How many are missing, since the disk or the reader was too slow, or a card told too much."""
        return self._capture.dropped

    @property
    def trouble(self) -> str:
        """Why the file ended before its time (a full disk), "" if it did not."""
        return self._capture.trouble

    @property
    def ended(self) -> bool:
        """True once the file is complete, by :meth:`stop`, a limit, or trouble."""
        return self._capture.writer.ended

    def flush(self) -> None:
        """Make what was recorded so far visible to readers of the file."""
        self._loop.call(lambda: self._fabric.captures.finish(self._capture))
        self._capture.flush()

    def stop(self) -> None:
        """End the recording and close its file; nothing if that was done before."""
        self._loop.call(lambda: self._fabric.stop_capture(self._capture))
        if not self._capture.wait():
            log.error("the capture %s is not written to its end: its disk takes too long", self._capture.name)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended by a limit or trouble; False if that takes longer."""
        return self._capture.writer.wait_ended(timeout_s)

    def __enter__(self) -> LiveCapture:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
