"""A protocol analyser on the cables: makes pcapng of what passes, whole packets from LRH to VCRC.

Each tapped port is an interface of the file; direction is that of the port (outbound: the port sent it). Bursts are cut
into packets and CRCs computed here, in the fabric's loop; :mod:`vhca.fabric.capture_writer` writes, in a thread.
What cards tell of themselves stands between the packets, as JSON for Wireshark's own dissector.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from struct import error as StructError
from typing import Final, Protocol

from vhca.fabric import pcapng
from vhca.fabric.capture_filter import EVERYTHING, CaptureFilter
from vhca.fabric.capture_writer import File, Ring, Writer
from vhca.fabric.pcapng import ERF_BYTES, INBOUND, LINKTYPE_ERF, LINKTYPE_EXPORTED, LINKTYPE_INFINIBAND, OUTBOUND
from vhca.wire.ib import encode, packets_of
from vhca.wire.packet import Packet

__all__ = ["INBOUND", "LINKTYPE_ERF", "LINKTYPE_INFINIBAND", "OUTBOUND"]

log = logging.getLogger(__name__)

MOST_BYTES: Final = 8 + 40 + 12 + 28 + 4096 + 6
"""The largest packet."""
LEAST_SNAP_BYTES: Final = 8
FLUSH_S: Final = 10.0
"""For the disk to take what waits."""
PROTOCOL: Final = "HCA"
"""What Wireshark's column says of what a card tells."""
_DISSECTOR: Final = "json"


class CardRecord(Protocol):
    """What a card tells of itself."""

    @property
    def direction(self) -> int:
        """INBOUND: the host to the card. OUTBOUND: the card to the host."""
        ...

    def words(self) -> tuple[str, Mapping[str, object]]:
        """A line for people, and the same by name, in values that JSON has."""
        ...


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Where a capture ends by itself: after so many packets and records, after a time. None: not.

    Of each packet the first `snap_bytes` are kept, which count from its LRH. ValueError if a limit cannot be.
    """

    packets: int | None = None
    seconds: float | None = None
    snap_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.packets is not None and self.packets < 1:
            raise ValueError(f"packets {self.packets}: 1 is the least")
        if self.seconds is not None and not 0 < self.seconds <= 10**9:
            raise ValueError(f"seconds {self.seconds}: more than 0")
        if self.snap_bytes is not None and self.snap_bytes < LEAST_SNAP_BYTES:
            raise ValueError(f"snap_bytes {self.snap_bytes}: {LEAST_SNAP_BYTES} is the least")


NO_LIMITS: Final = CaptureLimits()


class _Interface:
    """An interface of the file: how much of it was seen, and what of that is not in the file."""

    __slots__ = ("dropped", "lost", "number", "seen")

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0
        self.dropped = 0
        self.lost = 0  # since the last that is there


class Item(Protocol):
    """What waits to be written: a packet, a burst, a record; `left` of it are not written."""

    left: int
    interface: "_Interface"

    def next_block(self, capture: "Capture") -> bytes | None:
        """The next of it; None if it is not wanted. ValueError, struct.error if there can be none."""
        ...


class Frames:
    """A packet or burst that is being written, packet by packet."""

    __slots__ = ("at_ns", "comment", "direction", "interface", "left", "packets")

    def __init__(self, interface: _Interface, at_ns: int, direction: int, comment: str, packet: Packet) -> None:
        self.interface = interface
        self.at_ns = at_ns
        self.direction = direction
        self.comment = comment
        self.left = packet.count
        # Receivers own their packets, and change them.
        self.packets = packets_of(replace(packet))

    def next_block(self, capture: "Capture") -> bytes | None:
        """See :class:`Item`."""
        part = next(self.packets)
        if not capture.only.wants_part(part):
            return None
        raw = encode(part)
        size = len(raw)
        if capture.limits.snap_bytes is not None:
            raw = raw[: capture.limits.snap_bytes]
        if capture.link_type != LINKTYPE_INFINIBAND:
            raw = pcapng.erf(self.at_ns, raw, size)
            size += ERF_BYTES
        options = pcapng.packet_options(self.direction, self.comment, self.interface.lost)
        return pcapng.packet(self.interface.number, self.at_ns, raw, size, options)


class _Told:
    """A record of a card that is being written."""

    __slots__ = ("at_ns", "interface", "left", "record")

    def __init__(self, interface: _Interface, at_ns: int, record: CardRecord) -> None:
        self.interface = interface
        self.at_ns = at_ns
        self.left = 1
        self.record = record

    def next_block(self, capture: "Capture") -> bytes | None:
        """See :class:`Item`."""
        direction = self.record.direction
        info, fields = self.record.words()
        body = json.dumps(fields).encode("ascii")
        raw = pcapng.exported(_DISSECTOR, PROTOCOL, info, direction, body)
        options = pcapng.packet_options(direction, lost=self.interface.lost)
        return pcapng.packet(self.interface.number, self.at_ns, raw, len(raw), options)


class Capture:
    """One capture, written by `writer`; `link_type` of packets is LINKTYPE_ERF or LINKTYPE_INFINIBAND.

    A file that cannot be written any further ends there, which is logged; packets go on.

    :ivar packets: recorded so far, records of cards among them.
    :ivar dropped: of those that were seen, the ones that are not in the file: the disk or the reader was too slow.
    :ivar over: it has all that it was to have, or cannot be written any further.
    """

    def __init__(
        self,
        writer: Writer,
        timestamp_ns: Callable[[], int],
        link_type: int = LINKTYPE_ERF,
        only: CaptureFilter = EVERYTHING,
        limits: CaptureLimits = NO_LIMITS,
    ) -> None:
        self.writer = writer
        self.link_type = link_type
        self.only = only
        self.limits = limits
        self.packets = 0
        self.dropped = 0
        self.unencodable = 0
        self._timestamp_ns = timestamp_ns
        self._start_ns = timestamp_ns()
        self._interfaces: dict[str, _Interface] = {}
        self._closed = False

    @classmethod
    def to_file(
        cls,
        path: Path | str,
        timestamp_ns: Callable[[], int],
        link_type: int = LINKTYPE_ERF,
        ring: Ring | None = None,
    ) -> "Capture":
        """A capture in a file. OSError if that cannot be opened."""
        return cls(Writer(File(Path(path), ring)).start(), timestamp_ns, link_type)

    @property
    def name(self) -> str:
        """What it is written to, for people."""
        return self.writer.destination.name

    @property
    def trouble(self) -> str:
        """Why it ended before its time, "" if it did not."""
        return self.writer.trouble

    @property
    def over(self) -> bool:
        """See the class."""
        most = self.limits.packets
        return self._closed or self.writer.ended or (most is not None and self.packets >= most)

    def find(self, name: str) -> _Interface | None:
        """The interface called `name`, if it was declared."""
        return self._interfaces.get(name)

    def interface(self, name: str, description: str = "", bits_per_s: int = 0, records: bool = False) -> _Interface:
        """The interface called `name`, declared on first use; `records`: for what a card tells."""
        found = self.find(name)
        if found is None:
            found = self._interfaces[name] = _Interface(len(self._interfaces))
            link_type = LINKTYPE_EXPORTED if records else self.link_type
            snap_bytes = 0 if records else min(self.limits.snap_bytes or MOST_BYTES, MOST_BYTES) + ERF_BYTES
            self.writer.declare(pcapng.interface(link_type, snap_bytes, name, description, bits_per_s))
        return found

    def record(self, interface: _Interface, packet: Packet, direction: int, comment: str = "") -> None:
        """Write a packet, or all packets of a burst; `direction` is INBOUND or OUTBOUND."""
        self.write(self.frames(interface, packet, direction, comment))

    def frames(self, interface: _Interface, packet: Packet, direction: int, comment: str = "") -> Frames:
        """A packet or burst as it is now, to be written with this moment's time."""
        frames = Frames(interface, self._timestamp_ns(), direction, comment, packet)
        frames.left = self._take(interface, frames.left)
        return frames

    def told(self, interface: _Interface, record: CardRecord) -> Item:
        """What a card tells of itself now, to be written with this moment's time."""
        told = _Told(interface, self._timestamp_ns(), record)
        told.left = self._take(interface, 1)
        return told

    def _take(self, interface: _Interface, count: int) -> int:
        """Count what is to be recorded; how much of it."""
        if self._closed or self.writer.ended:
            return 0
        if self.limits.packets is not None:
            count = max(0, min(count, self.limits.packets - self.packets))
        self.packets += count
        interface.seen += count
        return count

    def lose(self, interface: _Interface, count: int) -> None:
        """Count what was seen and cannot wait to be written."""
        interface.seen += count
        self._lost(interface, count)

    def _lost(self, interface: _Interface, count: int) -> None:
        interface.dropped += count
        interface.lost += count
        self.dropped += count

    def write(self, item: Item, most: int = 1 << 30) -> int:
        """Write some packets of a burst, `most` of what is left; returns how many that were."""
        before = item.left
        interface = item.interface
        while item.left and before - item.left < most:
            if self.writer.ended or self._closed:
                item.left = 0
                break
            try:
                block = item.next_block(self)
            except (ValueError, StructError):
                # A card sent what no wire could carry: its own trouble, which recording must not make worse.
                if not self.unencodable:  # a guest may send any number of them
                    log.exception("cannot record a packet; others like it are only counted")
                self.unencodable += item.left
                self._unseen(interface, item.left)
                item.left = 0
                break
            item.left -= 1
            if block is None:
                self._unseen(interface, 1)
            elif self.writer.put(block):
                interface.lost = 0
            else:
                self.packets -= 1
                self._lost(interface, 1)
        return before - item.left

    def _unseen(self, interface: _Interface, count: int) -> None:
        self.packets -= count
        interface.seen -= count

    def is_file(self, path: Path | str) -> bool:
        """Whether this is the capture's file, and the capture has not ended."""
        destination = self.writer.destination
        return not self.writer.ended and isinstance(destination, File) and destination.is_file(path)

    def close(self) -> None:
        """Write the statistics and end; see :meth:`wait`."""
        if not self._closed:
            self._closed = True
            now_ns = self._timestamp_ns()
            self.writer.end(
                b"".join(
                    pcapng.statistics(each.number, self._start_ns, now_ns, each.seen, each.dropped)
                    for each in self._interfaces.values()
                )
            )

    def flush(self) -> bool:
        """Wait until what was recorded so far is visible to readers of the file; False if that takes too long."""
        return self.writer.flush(FLUSH_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Behind :meth:`close`: wait until the file is complete and closed; False if that takes too long."""
        return self.writer.wait(FLUSH_S if timeout_s is None else timeout_s)
