"""Sending answers that do not fit one datagram: the sender's half of RMPP (13.6 of volume 1).

A transaction sends as many segments as the receiver's window allows, goes on with each acknowledgement, repeats from
the first unacknowledged segment on a timeout and aborts after the last retry.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vhca.wire import mad as madwire
from vhca.wire.mad import SA_DATA_BYTES, SA_HEADER_BYTES, SaMad
from vhca.wire.packet import Packet

TIMEOUT_NS: Final = 1_000_000_000
RETRIES: Final = 3
MAX_TRANSACTIONS: Final = 256

Key = tuple[int, int, int]
"""(LID, QP, transaction id) of the receiver"""


@dataclass(slots=True)
class _Transfer:
    reply: Callable[[bytes], Packet]
    segments: list[bytes]
    acked: int = 0
    window_last: int = 1
    deadline_ns: int = 0
    retries: int = RETRIES


def segments_of(header: SaMad, data: bytes) -> list[bytes]:
    """Cut `data` into the 256-byte datagrams of one transfer; `header` gives the SA part of each."""
    pieces = [data[at : at + SA_DATA_BYTES] for at in range(0, len(data), SA_DATA_BYTES)] or [b""]
    out = []
    for number, piece in enumerate(pieces, 1):
        mad = SaMad.from_bytes(header.to_bytes())
        mad.rmpp_version = madwire.RMPP_VERSION
        mad.rmpp_type = madwire.RMPP_DATA
        mad.rmpp_flags = madwire.RMPP_ACTIVE
        mad.segment_number = number
        if number == 1:
            # Counted with the SA header of each segment, as receivers count it.
            mad.rmpp_flags |= madwire.RMPP_FIRST
            mad.payload_length = len(data) + SA_HEADER_BYTES * len(pieces)
        if number == len(pieces):
            mad.rmpp_flags |= madwire.RMPP_LAST
            mad.payload_length = len(piece) + SA_HEADER_BYTES
        mad.data = piece.ljust(SA_DATA_BYTES, b"\0")
        out.append(mad.to_bytes())
    return out


class RmppSender:
    """All transfers under way."""

    def __init__(self, send: Callable[[Packet], None], now_ns: Callable[[], int]) -> None:
        self._send = send
        self._now_ns = now_ns
        self._transfers: dict[Key, _Transfer] = {}
        self.aborted = 0

    def start(self, key: Key, reply: Callable[[bytes], Packet], header: SaMad, data: bytes) -> None:
        """Send `data` to whoever asked; `reply` makes a packet of a datagram. A repeated question restarts."""
        transfer = _Transfer(reply, segments_of(header, data))
        if len(transfer.segments) == 1:
            # Answered as a whole: nothing to remember, the question is repeated if this is lost.
            self._send(reply(transfer.segments[0]))
            return
        if len(self._transfers) >= MAX_TRANSACTIONS:
            del self._transfers[next(iter(self._transfers))]
            self.aborted += 1
        self._transfers[key] = transfer
        self._push(transfer, 1)

    def control(self, key: Key, mad: SaMad) -> None:
        """An ACK, STOP or ABORT arrived from the receiver."""
        transfer = self._transfers.get(key)
        if transfer is None:
            return
        if mad.rmpp_type != madwire.RMPP_ACK:
            del self._transfers[key]
            self.aborted += 1
            return
        segment, window = mad.segment_number, mad.payload_length
        if segment > transfer.window_last or window < segment:
            return
        if segment >= len(transfer.segments):
            del self._transfers[key]
            return
        first = max(transfer.acked, transfer.window_last) + 1 if window > transfer.window_last else segment + 1
        transfer.acked = max(transfer.acked, segment)
        transfer.window_last = max(transfer.window_last, min(window, len(transfer.segments)))
        transfer.retries = RETRIES
        self._push(transfer, first)

    def next_deadline(self) -> int | None:
        """When the first transfer must be repeated."""
        return min((t.deadline_ns for t in self._transfers.values()), default=None)

    def run_timers(self, now_ns: int) -> None:
        """Repeat from the first segment that was not acknowledged; abort after the last retry."""
        for key, transfer in list(self._transfers.items()):
            if transfer.deadline_ns > now_ns:
                continue
            if transfer.retries == 0:
                del self._transfers[key]
                self.aborted += 1
                self._send(transfer.reply(_abort(transfer.segments[0])))
                continue
            transfer.retries -= 1
            self._push(transfer, transfer.acked + 1)

    def _push(self, transfer: _Transfer, first: int) -> None:
        transfer.deadline_ns = self._now_ns() + TIMEOUT_NS
        for segment in transfer.segments[first - 1 : transfer.window_last]:
            self._send(transfer.reply(segment))


def _abort(segment: bytes) -> bytes:
    mad = SaMad.from_bytes(segment)
    mad.rmpp_type = madwire.RMPP_ABORT
    mad.rmpp_flags = madwire.RMPP_ACTIVE
    mad.rmpp_status = madwire.RMPP_STATUS_TIMEOUT
    mad.segment_number = mad.payload_length = 0
    mad.data = bytes(SA_DATA_BYTES)
    return mad.to_bytes()
