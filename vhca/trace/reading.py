"""A capture, read event by event: pcapng as :mod:`vhca.fabric.pcapng` writes it. Any bytes are read or refused."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import BinaryIO, Final

from vhca.fabric import pcapng
from vhca.trace.events import KINDS, Meaning, Selection, TraceEvent
from vhca.trace.packets import told_of

MOST_BLOCK_BYTES: Final = 1 << 20
MOST_INTERFACES: Final = 1 << 16
MOST_RECORD_BYTES: Final = 16 << 10
"""A card's record; and the text and name of anything is not longer."""
MOST_NAME_BYTES: Final = 256
MOST_EVENTS: Final = 10_000
"""What a page or a ladder has, unless more is asked for."""
CARD_SUFFIX: Final = "-card"

_HEAD: Final = Struct("<II")
_U32: Final = Struct("<I")
_OPTION: Final = Struct("<HH")
_PACKET: Final = Struct("<IIIII")
_INTERFACE: Final = Struct("<HHI")
_TAG: Final = Struct(">HH")
_SECTION_HEADER: Final = 0x0A0D0D0A
_INTERFACE_BLOCK: Final = 1
_PACKET_BLOCK: Final = 6
_MAGIC: Final = 0x1A2B3C4D
_IF_NAME: Final = 2
_EPB_FLAGS: Final = 2
_EPB_DROPPED: Final = 4
_TAG_END: Final = 0
_TOLD: Final = (str, int, float, type(None))
_TAG_INFO: Final = 36


class TraceError(Exception):
    """It is no capture, or a damaged one; the text says where."""


@dataclass(slots=True)
class Trace:
    """The events of a capture that were wanted, the last ones if there were too many.

    :ivar seen: events in the capture.
    :ivar wanted: of those, the ones that were wanted.
    :ivar lost: what the capture itself lacks, by its own count.
    :ivar trouble: why it ends before its end; empty if it does not.
    """

    events: list[TraceEvent] = field(default_factory=list)
    seen: int = 0
    wanted: int = 0
    lost: int = 0
    trouble: str = ""

    @property
    def left_out(self) -> int:
        """How many that were wanted are not among the events."""
        return self.wanted - len(self.events)

    def notes(self) -> list[str]:
        """What whoever reads it should know, in sentences."""
        said = []
        if self.left_out:
            said.append(f"{self.left_out} earlier events are left out: these are the last {len(self.events)}")
        if self.wanted < self.seen:
            said.append(f"{self.seen - self.wanted} events of the capture are not of those that were asked for")
        if self.lost:
            said.append(f"{self.lost} events are missing in the capture: it was written or read too slowly")
        if self.trouble:
            said.append(f"the capture ends before its end: {self.trouble}")
        return said


def gather(
    files: Iterable[Path], selection: Selection | None = None, meaning: Meaning | None = None, most: int = MOST_EVENTS
) -> Trace:
    """The last events of a capture, which may be several files, in their order.

    :raises TraceError: the first of them is no capture, or has no event before it is damaged.
    :raises OSError: a file cannot be read.
    """
    trace = Trace()
    wanted = selection if selection is not None else Selection()
    kept: deque[TraceEvent] = deque(maxlen=most)
    for path in files:
        with path.open("rb") as file:
            try:
                for event in events_of(file):
                    trace.seen += 1
                    trace.lost += event.lost
                    if wanted.wants(event):
                        trace.wanted += 1
                        kept.append(replace(event, number=trace.seen))
            except TraceError as error:
                if not trace.seen:
                    raise TraceError(f"{path}: {error}") from None
                trace.trouble = f"{path.name}: {error}"
                break
    trace.events = [explained(event, meaning) for event in kept]
    return trace


def explained(event: TraceEvent, meaning: Meaning | None) -> TraceEvent:
    """The event with what it means, if it tells of something that went wrong."""
    return event if meaning is None or not event.bad else replace(event, meaning=meaning(event))


def events_of(file: BinaryIO) -> Iterator[TraceEvent]:
    """The events of a capture as they come.

    :raises TraceError: it is none, or it is damaged.
    """
    number = 0
    with closing(_Reader(file)) as reader:
        for block in reader.packets():
            number += 1
            yield replace(block, number=number)


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._names: list[tuple[int, str]] = []

    def close(self) -> None:
        self._names.clear()

    def packets(self) -> Iterator[TraceEvent]:
        first = True
        while (block := self._block(first)) is not None:
            kind, body = block
            first = False
            if kind == _SECTION_HEADER:
                self._section(body)
            elif kind == _INTERFACE_BLOCK:
                self._interface(body)
            elif kind == _PACKET_BLOCK:
                yield self._packet(body)

    def _damaged(self, what: str) -> TraceError:
        return TraceError(f"it is damaged at byte {self._at}: {what}")

    def _block(self, first: bool) -> tuple[int, bytes] | None:
        head = self._file.read(_HEAD.size)
        if not head and not first:
            return None
        if first and head[:4] != _U32.pack(_SECTION_HEADER):
            raise TraceError("it is no capture: pcapng begins with another block")
        if len(head) < _HEAD.size:
            raise self._damaged("it ends in the middle of a block")
        kind, size = _HEAD.unpack(head)
        if size < 12 or size % 4 or size > MOST_BLOCK_BYTES:
            if first:
                raise TraceError("it is no capture of ours: little-endian pcapng has another first block")
            raise self._damaged(f"a block of {size} bytes")
        rest = self._file.read(size - _HEAD.size)
        if len(rest) < size - _HEAD.size:
            raise self._damaged("it ends in the middle of a block")
        if _U32.unpack_from(rest, len(rest) - 4)[0] != size:
            raise self._damaged("a block has two lengths")
        self._at += size
        return kind, rest[:-4]

    def _section(self, body: bytes) -> None:
        if len(body) < 16 or _U32.unpack_from(body)[0] != _MAGIC:
            raise self._damaged("the header of a section is of another kind")
        self._names.clear()

    def _interface(self, body: bytes) -> None:
        if len(body) < _INTERFACE.size or len(self._names) >= MOST_INTERFACES:
            raise self._damaged("an interface that cannot be")
        link_type = _INTERFACE.unpack_from(body)[0]
        name = self._options(body, _INTERFACE.size).get(_IF_NAME, b"")[:MOST_NAME_BYTES].decode("utf-8", "replace")
        self._names.append((link_type, name))

    def _options(self, body: bytes, at: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        while at + _OPTION.size <= len(body):
            code, length = _OPTION.unpack_from(body, at)
            if not code:
                break
            at += _OPTION.size
            if at + length > len(body):
                raise self._damaged("an option is longer than its block")
            found[code] = body[at : at + length]
            at += length + (-length & 3)
        return found

    def _packet(self, body: bytes) -> TraceEvent:
        if len(body) < _PACKET.size:
            raise self._damaged("a packet's block is too short")
        interface, high, low, length, size = _PACKET.unpack_from(body)
        end = _PACKET.size + length
        if interface >= len(self._names) or end > len(body):
            raise self._damaged("a packet of an interface that is not there, or longer than its block")
        link_type, name = self._names[interface]
        data = body[_PACKET.size : end]
        options = self._options(body, end + (-length & 3))
        inbound = options.get(_EPB_FLAGS, b"")[:1] == bytes((pcapng.INBOUND,))
        lost = int.from_bytes(options.get(_EPB_DROPPED, b"")[:8], "little")
        about = (high << 32 | low), name, inbound, lost
        if link_type == pcapng.LINKTYPE_EXPORTED:
            return self._told(data, *about)
        if link_type == pcapng.LINKTYPE_ERF:
            data, size = data[pcapng.ERF_BYTES :], size - pcapng.ERF_BYTES
        elif link_type != pcapng.LINKTYPE_INFINIBAND:
            raise TraceError(f"it has packets of link type {link_type}: it is no capture of InfiniBand")
        text, fields, bad = told_of(data, size)
        return TraceEvent(0, about[0], name, "packet", inbound, text, fields, lost, bad)

    def _told(self, data: bytes, time_ns: int, name: str, inbound: bool, lost: int) -> TraceEvent:
        """A record of a card: its line, and JSON behind the tags."""
        if len(data) > MOST_RECORD_BYTES:
            raise self._damaged(f"a card's record of {len(data)} bytes")
        at = 0
        info = ""
        try:
            while True:
                code, length = _TAG.unpack_from(data, at)
                at += _TAG.size
                if code == _TAG_END:
                    break
                if code == _TAG_INFO:
                    info = data[at : at + length].rstrip(b"\0").decode("utf-8", "replace")
                at += length
            fields = json.loads(data[at:])
        except (StructError, ValueError, RecursionError):
            raise self._damaged("a card's record cannot be read") from None
        if not isinstance(fields, dict) or fields.get("record") not in KINDS:
            raise self._damaged("a card's record is of no known kind")
        kind = str(fields["record"])
        # Cards tell numbers and words; of lists in lists a small record can make large ones.
        fields = {key: value for key, value in fields.items() if isinstance(value, _TOLD)}
        card = name.removesuffix(CARD_SUFFIX)
        return TraceEvent(0, time_ns, card, kind, inbound, info, fields, lost, _is_bad(kind, fields))


def _is_bad(kind: str, fields: dict[str, object]) -> bool:
    """Tell whether a record is of a refused command or work request, or of an error."""
    if kind == "command":
        return fields.get("status") != "OK"
    if kind == "event":
        return "ERR" in str(fields.get("type")) or "ERROR" in str(fields.get("type"))
    return (kind == "completion" and "syndrome" in fields) or (kind == "send" and "error" in fields)
