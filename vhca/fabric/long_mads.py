"""Datagrams of programs that do not fit 256 bytes: RMPP (13.6 of volume 1), which a host's ib_mad does for programs.

Towards a program a long datagram is the series of its segments; towards the fabric it is a transfer with windows and
acknowledgements.
"""

from collections.abc import Callable, Sequence
from typing import Final

from vhca.management.fair_queue import CallSoon, FairQueue
from vhca.subnet.rmpp import RmppReceiver, RmppSender
from vhca.wire import mad as madwire
from vhca.wire.mad import SA_DATA_BYTES, SA_HEADER_BYTES, SaMad
from vhca.wire.packet import Packet

MOST_BYTES: Final = 8 << 20
"""Of one long answer."""
ANSWERS: Final = 8
"""Long answers that arrive at a time."""
COLLECTED: Final = 16
"""Long datagrams of programs of which some segments have come."""
_ALL: Final = madwire.RMPP_ACTIVE | madwire.RMPP_FIRST | madwire.RMPP_LAST

Reply = Callable[[bytes], Packet]


class _Series:
    """Segments that are there already, as a transfer sends them."""

    def __init__(self, segments: Sequence[bytes]) -> None:
        self._segments = segments
        self.segments = len(segments)

    def segment(self, number: int) -> bytes:
        """Segment `number`, from 1."""
        return self._segments[number - 1]


class LongMads:
    """The transfers of one port; `send` puts a packet on its way."""

    def __init__(self, send: Callable[[Packet], None], now_ns: Callable[[], int], call_soon: CallSoon) -> None:
        self._sender = RmppSender(send, now_ns, FairQueue(call_soon, COLLECTED))
        self._receiver = RmppReceiver(send, now_ns, most_bytes=MOST_BYTES, most_each=ANSWERS)
        self._collected: dict[tuple[int, int], list[bytes]] = {}

    # ---- what programs send ----

    def send(self, number: int, mad: bytes, length: int, lid: int, qp: int, reply: Reply) -> bytes | None:
        """A segment, of `length` bytes, of program `number` for queue pair `qp` at `lid`: sent when all are there.

        One that is alone, as it is, is given back with what makes it a whole: it is sent as any datagram.
        """
        segment = SaMad.from_bytes(mad)
        flags = segment.rmpp_flags
        segment.rmpp_version, segment.rmpp_type = madwire.RMPP_VERSION, madwire.RMPP_DATA
        if segment.segment_number <= 1 and not flags & ~madwire.RMPP_ACTIVE:
            # A program leaves it to its kernel to say so.
            segment.rmpp_flags, segment.segment_number = _ALL, 1
            segment.payload_length = max(0, length - madwire.MAD_BYTES + SA_DATA_BYTES) + SA_HEADER_BYTES
            return segment.to_bytes()
        mad = segment.to_bytes()
        if flags & _ALL == _ALL:
            return mad
        key = number, segment.tid
        if flags & madwire.RMPP_FIRST:
            if len(self._collected) >= COLLECTED:
                self._collected.pop(next(iter(self._collected)))
            self._collected[key] = []
        segments = self._collected.get(key)
        if segments is None or segment.segment_number != len(segments) + 1 or len(segments) * 256 > MOST_BYTES:
            self._collected.pop(key, None)
            return None
        segments.append(mad)
        if flags & madwire.RMPP_LAST:
            del self._collected[key]
            self._sender.start((lid, qp, segment.tid), reply, _Series(segments))
        return None

    def forget(self, number: int) -> None:
        """A program has gone."""
        for key in [key for key in self._collected if key[0] == number]:
            del self._collected[key]

    # ---- what arrives ----

    def control(self, packet: Packet) -> None:
        """An acknowledgement, or the end of a transfer."""
        mad = SaMad.from_bytes(packet.payload)
        self._sender.control((packet.route.slid, packet.src_qp, mad.tid), mad)

    def arrived(self, packet: Packet, reply: Reply) -> list[bytes] | None:
        """A segment of an answer: all segments of the answer if it was the last one."""
        mad = SaMad.from_bytes(packet.payload)
        data = self._receiver.segment((packet.route.slid, packet.src_qp, mad.tid), mad, reply)
        return None if data is None else _cut(mad, data)

    # ---- time ----

    def run_timers(self, now_ns: int) -> bool:
        """Do what is due; tells whether anything is under way."""
        self._sender.run_timers(now_ns)
        self._receiver.run_timers(now_ns)
        return self._sender.next_deadline() is not None or self._receiver.next_deadline() is not None


def is_to_be_sent(mad: bytes) -> bool:
    """Tell whether a program wants a datagram sent by RMPP; version and type it leaves to its kernel."""
    is_data = mad[25] in (0, madwire.RMPP_DATA)
    return mad[1] == madwire.CLASS_SUBN_ADM and bool(mad[26] & madwire.RMPP_ACTIVE) and is_data


def is_segment(mad: bytes) -> bool:
    """Tell whether a datagram is a segment of RMPP data."""
    return _is_rmpp(mad) and mad[25] == madwire.RMPP_DATA


def is_control(mad: bytes) -> bool:
    """Tell whether a datagram is an acknowledgement, or ends a transfer."""
    return _is_rmpp(mad) and mad[25] in (madwire.RMPP_ACK, madwire.RMPP_STOP, madwire.RMPP_ABORT)


def _is_rmpp(mad: bytes) -> bool:
    return mad[1] == madwire.CLASS_SUBN_ADM and mad[24] == madwire.RMPP_VERSION and bool(mad[26] & madwire.RMPP_ACTIVE)


def _cut(like: SaMad, data: bytes) -> list[bytes]:
    """A whole answer as segments with the header of `like`."""
    count = max(1, -(-len(data) // SA_DATA_BYTES))
    found = []
    for number in range(1, count + 1):
        piece = data[(number - 1) * SA_DATA_BYTES : number * SA_DATA_BYTES]
        last, first = number == count, number == 1
        like.rmpp_flags = (
            madwire.RMPP_ACTIVE | (madwire.RMPP_FIRST if first else 0) | (madwire.RMPP_LAST if last else 0)
        )
        like.segment_number = number
        like.payload_length = (
            len(piece) + SA_HEADER_BYTES if last else len(data) + SA_HEADER_BYTES * count if first else 0
        )
        like.data = piece.ljust(SA_DATA_BYTES, b"\0")
        found.append(like.to_bytes())
    return found
