"""Requests and answers that do not fit one datagram: both halves of RMPP (13.6 of volume 1).

A transaction sends as many segments as the receiver's window allows, goes on with each acknowledgement, repeats from
the first unacknowledged segment on a timeout and aborts after the last retry. A segment is made when it is sent; a
window is sent a few segments at a time, in the receiver's turns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from vhca.management.fair_queue import FairQueue, Job
from vhca.wire import mad as madwire
from vhca.wire.mad import SA_DATA_BYTES, SA_HEADER_BYTES, SaMad
from vhca.wire.packet import Packet

TIMEOUT_NS: Final = 1_000_000_000
RETRIES: Final = 3
TRANSFERS_PER_LID: Final = 4
BYTES_PER_LID: Final = 8 << 20
"""Of answers that are under way to one LID; more than that only if one alone has it."""
WINDOW: Final = 64
SEGMENTS_PER_TURN: Final = 4
REQUESTS_PER_LID: Final = 2
REQUEST_TIMEOUT_NS: Final = 5_000_000_000
REQUEST_WINDOW: Final = 16
MAX_REQUEST_BYTES: Final = 16 << 10
"""Records of one request: a MultiPathRecord with 510 GIDs has half of that."""
_NO_LIMIT: Final = 1 << 30

Key = tuple[int, int, int]
"""(LID, QP, transaction id) of the receiver"""


class Table(Protocol):
    """A datagram in segments."""

    segments: int

    def segment(self, number: int) -> bytes:
        """The datagram of segment `number`, from 1."""
        ...


class TableResponse:
    """Records as the datagrams of one transfer; `header` gives the SA part of each, `data` are the records."""

    def __init__(self, header: SaMad, data: bytes) -> None:
        self._header = header.to_bytes()
        self._data = data
        self.segments = max(1, -(-len(data) // SA_DATA_BYTES))

    def segment(self, number: int) -> bytes:
        """The datagram of segment `number`, from 1."""
        piece = self._data[(number - 1) * SA_DATA_BYTES : number * SA_DATA_BYTES]
        mad = SaMad.from_bytes(self._header)
        mad.rmpp_version = madwire.RMPP_VERSION
        mad.rmpp_type = madwire.RMPP_DATA
        mad.rmpp_flags = madwire.RMPP_ACTIVE
        mad.segment_number = number
        if number == 1:
            # Counted with the SA header of each segment, as receivers count it.
            mad.rmpp_flags |= madwire.RMPP_FIRST
            mad.payload_length = len(self._data) + SA_HEADER_BYTES * self.segments
        if number == self.segments:
            mad.rmpp_flags |= madwire.RMPP_LAST
            mad.payload_length = len(piece) + SA_HEADER_BYTES
        mad.data = piece.ljust(SA_DATA_BYTES, b"\0")
        return mad.to_bytes()


@dataclass(slots=True)
class _Transfer:
    reply: Callable[[bytes], Packet]
    table: Table
    next: int = 1
    acked: int = 0
    window_last: int = 1
    deadline_ns: int = 0
    retries: int = RETRIES
    sending: bool = False


class RmppSender:
    """All transfers under way; a few of so many bytes for each LID, the oldest of which make room for a new one."""

    def __init__(self, send: Callable[[Packet], None], now_ns: Callable[[], int], queue: FairQueue) -> None:
        self._send = send
        self._now_ns = now_ns
        self._queue = queue
        self._transfers: dict[Key, _Transfer] = {}
        self.aborted = 0

    def start(self, key: Key, reply: Callable[[bytes], Packet], table: Table) -> None:
        """Send `table` to whoever asked; `reply` makes a packet of a datagram. A repeated question restarts."""
        if table.segments == 1:
            # Answered as a whole: nothing to remember, the question is repeated if this is lost.
            self._send(reply(table.segment(1)))
            return
        self._transfers.pop(key, None)
        mine = [other for other in self._transfers if other[0] == key[0]]
        held = sum(self._transfers[other].table.segments for other in mine)
        for oldest in mine:
            if len(mine) < TRANSFERS_PER_LID and (held + table.segments) * SA_DATA_BYTES <= BYTES_PER_LID:
                break
            held -= self._transfers[oldest].table.segments
            mine = mine[1:]
            self._end(oldest)
        transfer = self._transfers[key] = _Transfer(reply, table)
        self._push(key, transfer, 1)

    def control(self, key: Key, mad: SaMad) -> None:
        """An ACK, STOP or ABORT arrived from the receiver."""
        transfer = self._transfers.get(key)
        if transfer is None:
            return
        if mad.rmpp_type != madwire.RMPP_ACK:
            self._end(key)
            return
        segment, window = mad.segment_number, mad.payload_length
        if segment > transfer.window_last or window < segment:
            return
        if segment >= transfer.table.segments:
            del self._transfers[key]
            return
        first = max(transfer.acked, transfer.window_last) + 1 if window > transfer.window_last else segment + 1
        transfer.acked = max(transfer.acked, segment)
        window = min(window, transfer.table.segments, transfer.acked + WINDOW)
        transfer.window_last = max(transfer.window_last, window)
        transfer.retries = RETRIES
        self._push(key, transfer, first)

    def next_deadline(self) -> int | None:
        """When the first transfer must be repeated."""
        return min((each.deadline_ns for each in self._transfers.values()), default=None) if self._transfers else None

    def run_timers(self, now_ns: int) -> None:
        """Repeat from the first segment that was not acknowledged; abort after the last retry."""
        for key, transfer in list(self._transfers.items()):
            if transfer.deadline_ns > now_ns:
                continue
            if transfer.retries == 0:
                self._end(key)
                self._send(transfer.reply(_abort(transfer.table.segment(1))))
                continue
            transfer.retries -= 1
            self._push(key, transfer, transfer.acked + 1)

    def _end(self, key: Key) -> None:
        del self._transfers[key]
        self.aborted += 1

    def _push(self, key: Key, transfer: _Transfer, first: int) -> None:
        """Send the window from segment `first` on, or go on from there if it is being sent."""
        transfer.deadline_ns = self._now_ns() + TIMEOUT_NS
        transfer.next = min(transfer.next, first) if transfer.sending else first
        if not transfer.sending and first <= transfer.window_last:
            transfer.sending = True
            # There are never more of these than transfers.
            self._queue.put(key[0], self._segments(key, transfer), limit=_NO_LIMIT)

    def _segments(self, key: Key, transfer: _Transfer) -> Job:
        sent = 0
        try:
            while transfer.next <= transfer.window_last and self._transfers.get(key) is transfer:
                self._send(transfer.reply(transfer.table.segment(transfer.next)))
                transfer.next += 1
                sent += 1
                if sent % SEGMENTS_PER_TURN == 0:
                    yield
        finally:
            transfer.sending = False


@dataclass(slots=True)
class _Arriving:
    data: bytearray
    expected: int = 1
    deadline_ns: int = 0


class RmppReceiver:
    """Requests of several segments that arrive: a few for each LID, of so many bytes, and not for ever.

    Segments in order are taken and acknowledged, others are asked for again by the number of the last one.
    """

    def __init__(
        self,
        send: Callable[[Packet], None],
        now_ns: Callable[[], int],
        *,
        most_bytes: int = MAX_REQUEST_BYTES,
        most_each: int = REQUESTS_PER_LID,
    ) -> None:
        self._send = send
        self._now_ns = now_ns
        self._most_bytes = most_bytes
        self._most_each = most_each
        self._arriving: dict[Key, _Arriving] = {}
        self.aborted = 0

    def segment(self, key: Key, mad: SaMad, reply: Callable[[bytes], Packet]) -> bytes | None:
        """A segment arrived; gives the records of the whole request with the last one. `reply` makes a packet."""
        arriving = self._arriving.get(key)
        if arriving is None:
            # One that was whole is repeated if its acknowledgement was lost: it begins anew, and is answered again.
            if mad.segment_number != 1:
                return None
            mine = [other for other in self._arriving if other[0] == key[0]]
            if len(mine) >= self._most_each:
                del self._arriving[mine[0]]
                self.aborted += 1
            arriving = self._arriving[key] = _Arriving(bytearray())
        arriving.deadline_ns = self._now_ns() + REQUEST_TIMEOUT_NS
        last = bool(mad.rmpp_flags & madwire.RMPP_LAST)
        if mad.segment_number == arriving.expected:
            arriving.expected += 1
            length = SA_DATA_BYTES
            if last and SA_HEADER_BYTES <= mad.payload_length <= SA_DATA_BYTES + SA_HEADER_BYTES:
                length = mad.payload_length - SA_HEADER_BYTES
            arriving.data += mad.data[:length]
        else:
            last = False
        if len(arriving.data) > self._most_bytes:
            del self._arriving[key]
            self.aborted += 1
            self._send(reply(_abort(mad.to_bytes(), madwire.RMPP_STATUS_NO_RESOURCES)))
            return None
        if arriving.expected > 2 or not last:
            # A request of one segment is answered, and not acknowledged before.
            self._send(reply(_ack(mad, arriving.expected - 1)))
        if not last:
            return None
        del self._arriving[key]
        return bytes(arriving.data)

    def next_deadline(self) -> int | None:
        """When the first request that does not go on is forgotten."""
        return min((one.deadline_ns for one in self._arriving.values()), default=None) if self._arriving else None

    def run_timers(self, now_ns: int) -> None:
        """Forget what did not go on."""
        for key in [key for key, one in self._arriving.items() if one.deadline_ns <= now_ns]:
            del self._arriving[key]
            self.aborted += 1


def _ack(segment: SaMad, number: int) -> bytes:
    mad = SaMad.from_bytes(segment.to_bytes())
    # It goes the other way: an answer is acknowledged by a request.
    mad.method ^= madwire.METHOD_RESPONSE
    mad.rmpp_type, mad.rmpp_flags, mad.rmpp_status = madwire.RMPP_ACK, madwire.RMPP_ACTIVE, 0
    mad.segment_number, mad.payload_length = number, number + REQUEST_WINDOW
    mad.data = bytes(SA_DATA_BYTES)
    return mad.to_bytes()


def _abort(segment: bytes, status: int = madwire.RMPP_STATUS_TIMEOUT) -> bytes:
    mad = SaMad.from_bytes(segment)
    mad.rmpp_type = madwire.RMPP_ABORT
    mad.rmpp_flags = madwire.RMPP_ACTIVE
    mad.rmpp_status = status
    mad.segment_number = mad.payload_length = 0
    mad.data = bytes(SA_DATA_BYTES)
    return mad.to_bytes()
