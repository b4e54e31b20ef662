"""A protocol analyser on the cables: writes what passes as pcapng, whole packets from LRH to VCRC.

Each tapped port is an interface of the file; direction is that of the card (outbound: the card sent it). Bursts are cut
into packets and CRCs computed here. Times are in ns.

Wireshark knows InfiniBand inside extensible records (ERF, as hardware analysers write) but not as the link type of its
own, 247, that is registered for it. So records are ERF unless the bare link type is asked for.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import IO, Final

from vhca.wire.ib import encode, packets_of
from vhca.wire.packet import Packet

log = logging.getLogger(__name__)

LINKTYPE_INFINIBAND: Final = 247
LINKTYPE_ERF: Final = 197
INBOUND: Final = 1
OUTBOUND: Final = 2

_SECTION_HEADER: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_ENHANCED_PACKET: Final = 6
_OPT_COMMENT: Final = 1
_OPT_IF_NAME: Final = 2
_OPT_IF_TSRESOL: Final = 9
_OPT_EPB_FLAGS: Final = 2
_OPT_USER_APPLICATION: Final = 4
_ERF_TYPE_INFINIBAND: Final = 21
_ERF_VARYING_LENGTH: Final = 4
_ERF_HEADER_BYTES: Final = 16
_MAX_BYTES: Final = _ERF_HEADER_BYTES + 8 + 40 + 12 + 28 + 4096 + 6

_U32: Final = Struct("<I")
_OPTION: Final = Struct("<HH")
_PACKET: Final = Struct("<IIIII")
_ERF_TIME: Final = Struct("<Q")
_ERF_REST: Final = Struct(">BBHHH")


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) & 3)


def _option(code: int, value: bytes) -> bytes:
    return _OPTION.pack(code, len(value)) + _padded(value)


def _block(kind: int, body: bytes) -> bytes:
    size = len(body) + 12
    return _U32.pack(kind) + _U32.pack(size) + body + _U32.pack(size)


def _erf(now_ns: int, size: int) -> bytes:
    """The record header in front of a packet: time in 2**-32 s, type, length with header, loss, length."""
    seconds, ns = divmod(now_ns, 1_000_000_000)
    stamp = _ERF_TIME.pack((seconds << 32 | (ns << 32) // 1_000_000_000) & 0xFFFFFFFFFFFFFFFF)
    return stamp + _ERF_REST.pack(_ERF_TYPE_INFINIBAND, _ERF_VARYING_LENGTH, size + _ERF_HEADER_BYTES, 0, size)


def _for_its_owner(path: str, flags: int) -> int:
    """Open a file that, if it is new, its owner alone may read: captures tell keys and payload."""
    return os.open(path, flags, 0o600)


class Frames:
    """A packet or burst that is being written, packet by packet.

    :ivar left: packets that are not written.
    """

    __slots__ = ("at_ns", "interface", "left", "options", "packets")

    def __init__(self, interface: int, at_ns: int, options: bytes, packet: Packet) -> None:
        self.interface = interface
        self.at_ns = at_ns
        self.options = options
        self.left = packet.count
        # Receivers own their packets, and change them.
        self.packets = packets_of(replace(packet))


class Capture:
    """One capture file; `link_type` is LINKTYPE_ERF or LINKTYPE_INFINIBAND.

    A file that cannot be written any further ends there, which is logged; packets go on.

    :ivar packets: recorded so far.
    :ivar trouble: why the file ended before its time, "" if it did not.
    """

    def __init__(self, path: Path | str, timestamp_ns: Callable[[], int], link_type: int = LINKTYPE_ERF) -> None:
        self.link_type = link_type
        self.path = Path(path)
        self.packets = 0
        self.unencodable = 0
        self.trouble = ""
        self._timestamp_ns = timestamp_ns
        self._file: IO[bytes] | None = open(self.path, "wb", opener=_for_its_owner)  # noqa: SIM115
        self._interfaces: dict[str, int] = {}
        header = _U32.pack(0x1A2B3C4D) + Struct("<HHq").pack(1, 0, -1)
        self._write(_block(_SECTION_HEADER, header + _option(_OPT_USER_APPLICATION, b"vhca") + _option(0, b"")))

    def interface(self, name: str) -> int:
        """The number of the interface called `name`, declared on first use."""
        number = self._interfaces.get(name)
        if number is None:
            number = self._interfaces[name] = len(self._interfaces)
            body = Struct("<HHI").pack(self.link_type, 0, _MAX_BYTES)
            options = _option(_OPT_IF_NAME, name.encode()) + _option(_OPT_IF_TSRESOL, b"\x09") + _option(0, b"")
            self._write(_block(_INTERFACE, body + options))
        return number

    def record(self, interface: int, packet: Packet, direction: int, comment: str = "") -> None:
        """Write a packet, or all packets of a burst; `direction` is INBOUND or OUTBOUND."""
        self.write(self.frames(interface, packet, direction, comment))

    def frames(self, interface: int, packet: Packet, direction: int, comment: str = "") -> "Frames":
        """A packet or burst as it is now, to be written with this moment's time."""
        options = _option(_OPT_EPB_FLAGS, _U32.pack(direction))
        if comment:
            options += _option(_OPT_COMMENT, comment.encode())
        if self._file is not None:
            self.packets += packet.count
        return Frames(interface, self._timestamp_ns(), options + _option(0, b""), packet)

    def write(self, frames: "Frames", most: int = 1 << 30) -> int:
        """Write some packets of a burst, `most` of what is left; returns how many that were."""
        before = frames.left
        while frames.left and before - frames.left < most:
            if self._file is None:
                frames.left = 0
                break
            try:
                raw = encode(next(frames.packets))
            except (ValueError, StructError):
                # A card sent what no wire could carry: its own trouble, which recording must not make worse.
                if not self.unencodable:  # a guest may send any number of them
                    log.exception("cannot record a packet; others like it are only counted")
                self.unencodable += frames.left
                self.packets -= frames.left
                frames.left = 0
                break
            frames.left -= 1
            at = frames.at_ns
            if self.link_type != LINKTYPE_INFINIBAND:
                raw = _erf(at, len(raw)) + raw
            head = _PACKET.pack(frames.interface, at >> 32 & 0xFFFFFFFF, at & 0xFFFFFFFF, len(raw), len(raw))
            self._write(_block(_ENHANCED_PACKET, head + _padded(raw) + frames.options))
        return before - frames.left

    def writes_to(self, path: Path | str) -> bool:
        """Whether this is the capture's file, and the capture has not ended."""
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), os.stat(path))
        except OSError:
            return False

    def close(self) -> None:
        """Write out what is buffered and close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                self.trouble = str(error.strerror)
                log.error("the capture %s has lost its end: %s", self.path, error.strerror)

    def flush(self) -> None:
        """Make what was recorded so far visible to readers of the file."""
        if self._file is not None:
            self._or_end(self._file.flush)

    def _write(self, data: bytes) -> None:
        if self._file is not None:
            file = self._file
            self._or_end(lambda: file.write(data))

    def _or_end(self, write: Callable[[], object]) -> None:
        """A disk that is full ends the capture; the fabric goes on."""
        try:
            write()
        except OSError as error:
            self.trouble = str(error.strerror)
            log.error("the capture %s ends here: %s", self.path, error.strerror)
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()
