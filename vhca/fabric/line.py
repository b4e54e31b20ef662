"""What a direction of a cable is like, if asked for: its rate, how long bits are under way, how many arrive wrong.

Time is the loop's clock, modelled: a packet takes its bits divided by the rate to leave, one behind the other, and the
latency to arrive; a timer that comes late makes nothing slower, since what happened meanwhile is reckoned from when it
should have. A burst leaves as one, and arrives when its last bit does. Management (VL 15) goes first, and needs no room
at the other end; all else waits here while the other end has no room for it (flow control, 7.9), and the time in which
that was so is counted as PortXmitWait.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log, log1p
from random import Random
from typing import Final, Literal, Protocol

from vhca.fabric.quantities import told_rate, told_time
from vhca.fabric.wires import Wires
from vhca.management.samples import TICK_NS
from vhca.wire.ib import split, wire_size_bytes
from vhca.wire.packet import MANAGEMENT_VL, Packet

MAX_LATENCY_NS: Final = 10_000_000_000
# With so much waiting to leave, the sender holds back ...
BACKLOG_BYTES: Final = 256 << 10
BACKLOG_PACKETS: Final = 256
# ... and so much may be between sender and receiver: the room that the other end grants, however long the cable is.
WINDOW_BYTES: Final = 16 << 20
WINDOW_PACKETS: Final = 4096
# Management that waits to leave, beyond which it is lost.
URGENT_PACKETS: Final = 1024
LinkCount = Literal["symbol_errors", "link_error_recovery", "xmit_wait"]
"""What a cable has the port at its end count, by the name in PortCounters."""


@dataclass(frozen=True, slots=True)
class LineConfig:
    """How a cable is in each direction.

    :ivar rate_bps: bits per second; 0: no time is taken.
    :ivar latency_ns: from the last bit's departure to its arrival.
    :ivar bit_error_rate: the probability of each bit to arrive wrong, 0 to 0.1.

    :raises ValueError: there is no such cable.
    """

    rate_bps: int = 0
    latency_ns: int = 0
    bit_error_rate: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.bit_error_rate <= 0.1:
            raise ValueError(f"bit error rate {self.bit_error_rate:g} is not in 0 .. 0.1")
        if not 0 <= self.latency_ns <= MAX_LATENCY_NS:
            raise ValueError(f"latency {told_time(self.latency_ns)} is not in 0 .. {told_time(MAX_LATENCY_NS)}")
        if self.rate_bps < 0:
            raise ValueError("a rate cannot be negative")

    @property
    def timed(self) -> bool:
        """Tell whether packets take time."""
        return bool(self.rate_bps or self.latency_ns)

    def __str__(self) -> str:
        """As it is shown, "" for a cable of which nothing is asked."""
        words = [told_rate(self.rate_bps)] * bool(self.rate_bps)
        words += [told_time(self.latency_ns)] * bool(self.latency_ns)
        return " ".join(words + [f"ber {self.bit_error_rate:g}"] * bool(self.bit_error_rate))


PLAIN: Final = LineConfig()
"""A cable of which nothing is asked."""


class Far(Protocol):
    """The other end of the cable, where packets arrive."""

    @property
    def roomy(self) -> bool:
        """Tell whether there is room for more data."""
        ...

    def arrive(self, packet: Packet) -> None:
        """A packet or burst is there; it is handed over in a later turn."""
        ...

    def decoded(self, symbol_errors: int) -> None:
        """A packet came with so many wrong symbols."""
        ...


class Noise:
    """Wrong bits: each with the same probability, by the seed the same in every run."""

    def __init__(self, bit_error_rate: float, random: Random) -> None:
        self._scale = log1p(-bit_error_rate)
        self._random = random
        self._good_bits = self._gap()

    def _gap(self) -> int:
        """How many good bits are before the next wrong one: a geometric distribution."""
        return int(log(1.0 - self._random.random()) / self._scale)

    def strike(self, packet: Packet) -> list[tuple[int, Packet]]:
        """What comes of a packet or burst: (wrong symbols, packet), in order; a burst that is good stays whole."""
        bits = wire_size_bytes(packet) * 8
        if self._good_bits >= bits:
            self._good_bits -= bits
            return [(0, packet)]
        return [self._one(part) for part in split(packet)]

    def _one(self, packet: Packet) -> tuple[int, Packet]:
        bits = wire_size_bytes(packet) * 8
        wrong = 0
        while self._good_bits < bits:
            wrong += 1
            bits -= self._good_bits + 1
            self._good_bits = self._gap()
        self._good_bits -= bits
        return wrong, damaged(packet, self._random) if wrong else packet


def damaged(packet: Packet, random: Random) -> Packet:
    """The packet with a flipped payload bit, if it has a payload, and a wrong CRC in any case."""
    payload = bytearray(packet.payload)
    if payload:
        bit = random.randrange(len(payload) * 8)
        payload[bit >> 3] ^= 1 << (bit & 7)
    return replace(packet, payload=bytes(payload), good=False)


class Line:
    """One direction of a cable; `count` is called with what the sending port is to count.

    :ivar config: how it is.
    """

    def __init__(
        self,
        config: LineConfig,
        far: Far,
        wires: Wires,
        now_ns: Callable[[], int],
        call_later: Callable[[int, Callable[[], None]], None],
        count: Callable[[LinkCount, int], None],
        random: Random,
    ) -> None:
        self.config = config
        self._far = far
        self._wires = wires
        self._now_ns = now_ns
        self._call_later = call_later
        self._count = count
        self._noise = Noise(config.bit_error_rate, random) if config.bit_error_rate else None
        self._waiting: deque[Packet] = deque()
        self._waiting_bytes = 0
        self._urgent: deque[Packet] = deque()
        self._leaving: tuple[int, Packet] | None = None  # and when its last bit has left
        self._under_way: deque[tuple[int, Packet]] = deque()  # and when it arrives
        self._under_way_bytes = 0
        self._stopped_ns: int | None = None  # since when there is no room at the other end
        self._armed_ns: int | None = None
        self._busy = False

    # ---- what a sender asks ----

    @property
    def full(self) -> bool:
        """True while so much waits to leave that the sender should hold back."""
        if self._busy:
            self.advance()
        return self._waiting_bytes > BACKLOG_BYTES or len(self._waiting) > BACKLOG_PACKETS

    @property
    def in_use(self) -> bool:
        """True while anything is on this line."""
        return self._busy

    def send(self, packet: Packet) -> int:
        """Put a packet or burst on the line; gives how many packets of it were lost for want of room."""
        lost = 0
        for wrong, part in [(0, packet)] if self._noise is None else self._noise.strike(packet):
            if self._noise is not None:
                self._far.decoded(wrong)
            if not self.config.timed:
                self._far.arrive(part)
            elif part.route.vl != MANAGEMENT_VL:
                self._waiting.append(part)
                self._waiting_bytes += len(part.payload)
            elif len(self._urgent) < URGENT_PACKETS:
                self._urgent.append(part)
            else:
                lost += part.count
        if self.config.timed:
            self.advance()
        return lost

    def clear(self) -> int:
        """Lose all that is on the line; gives how many packets that were."""
        lost = [*self._waiting, *self._urgent, *(packet for _, packet in self._under_way)]
        if self._leaving is not None:
            lost.append(self._leaving[1])
        self._waiting.clear()
        self._urgent.clear()
        self._under_way.clear()
        self._leaving = self._stopped_ns = None
        self._waiting_bytes = self._under_way_bytes = 0
        self._note_use()
        return sum(packet.count for packet in lost)

    # ---- time ----

    def advance(self) -> None:
        """Let everything happen that has happened by now, in the order of its time, and wait for what comes next."""
        now = self._now_ns()
        self._start(now)
        while (due := self._next_ns()) is not None and due <= now:
            if self._under_way and self._under_way[0][0] == due:
                _, packet = self._under_way.popleft()
                self._under_way_bytes -= len(packet.payload)
                self._far.arrive(packet)
                self._start(due)
            elif self._leaving is not None:
                packet, self._leaving = self._leaving[1], None
                self._under_way.append((due + self.config.latency_ns, packet))
                self._start(due)
        self._note_use()
        if due is not None and (self._armed_ns is None or due < self._armed_ns):
            self._armed_ns = due
            self._call_later(due - now, self._fire)

    def _fire(self) -> None:
        if self._armed_ns is not None and self._armed_ns <= self._now_ns():
            self._armed_ns = None
        self.advance()

    def _next_ns(self) -> int | None:
        """When something happens next, None if nothing does by itself."""
        leaving = None if self._leaving is None else self._leaving[0]
        if not self._under_way:
            return leaving
        arriving = self._under_way[0][0]
        return arriving if leaving is None else min(arriving, leaving)

    def _start(self, at_ns: int) -> None:
        """Let the next packet begin to leave at this time, if none does and the other end has room for it."""
        if self._leaving is not None:
            return
        if self._urgent:
            packet = self._urgent.popleft()
        elif not self._waiting:
            return
        elif not self._room:
            if self._stopped_ns is None:
                self._stopped_ns = at_ns
            return
        else:
            packet = self._waiting.popleft()
            self._waiting_bytes -= len(packet.payload)
            if self._stopped_ns is not None:
                self._count("xmit_wait", max(0, at_ns - self._stopped_ns) // TICK_NS)
                self._stopped_ns = None
        self._under_way_bytes += len(packet.payload)
        self._leaving = (at_ns + self._serialisation_ns(packet), packet)

    @property
    def _room(self) -> bool:
        within = self._under_way_bytes < WINDOW_BYTES and len(self._under_way) < WINDOW_PACKETS
        return within and self._far.roomy

    def _serialisation_ns(self, packet: Packet) -> int:
        rate = self.config.rate_bps
        return -(-wire_size_bytes(packet) * 8_000_000_000 // rate) if rate else 0

    def _note_use(self) -> None:
        busy = bool(self._waiting or self._urgent or self._leaving or self._under_way)
        if busy != self._busy:
            self._busy = busy
            self._wires.busy += 1 if busy else -1
