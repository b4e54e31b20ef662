"""A cable: joins two ports, keeps packets in order, and can be tapped, damaged and pulled.

Assumes one thread. Delivery is never re-entrant: what is sent now arrives in a later turn of the loop, in order per
direction, so many packets a turn. An end that is full keeps what is sent to it on the cable, as a receiver without
credits does (7.9): nothing is lost, and a sender that asks :attr:`LinkEnd.full` holds back. Bursts travel whole unless
rules are active. The link is up while the cable is plugged and both ends are enabled; each change is told to both ends.
A cable takes no time and changes no bit, unless it is given :class:`vhca.fabric.line.LineConfig`.
"""

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from vhca.fabric.counters import CableDrop
from vhca.fabric.faults import FaultInjector
from vhca.fabric.line import PLAIN, Line, LineConfig, LinkCount
from vhca.fabric.wires import Taps, Wires
from vhca.management.fair_queue import CallSoon
from vhca.wire.packet import MANAGEMENT_VL, Packet

# Packets that one turn hands over.
PACKETS_PER_TURN: Final = 64
# A cable with more than this on it is full; what is sent nevertheless was under way, or is management (VL 15).
FULL_BYTES: Final = 1 << 20
FULL_PACKETS: Final = 512
# And so much may be under way on one that delays packets: with more it is full, however long they take.
DELAYED_BYTES: Final = 16 << 20
DELAYED_PACKETS: Final = 4096
# VL 15 has no flow control: what a full cable cannot take is gone (7.9.1).
# While cables take time, a receiver that is full is asked again after so long.
ASK_AGAIN_NS: Final = 1_000
# With more bad packets than this, less the good ones between them, the link recovers, whatever PortInfo:LocalPhyErrors
# (whose largest value it is) lets the port call an error of link integrity ...
BAD_PACKETS: Final = 15
# ... and falls instead, for so long, if it had to so often within a second.
RECOVERIES: Final = 8
RECOVERIES_NS: Final = 1_000_000_000
FALL_NS: Final = 100_000_000

CallLater = Callable[[int, Callable[[], None]], None]


class Endpoint(Protocol):
    """Whatever a cable is plugged into."""

    def receive(self, packet: Packet) -> None:
        """A packet or burst arrived; the receiver owns it."""
        ...

    def link_changed(self, up: bool) -> None:
        """The physical link came up or went down."""
        ...

    def blocked(self, packet: Packet) -> bool:
        """True if the receiver cannot take this packet now: it stays on the cable, and what is behind it, too."""
        ...


class LinkEnd:
    """One end of a cable; `send` goes to the other one."""

    __slots__ = (
        "_bad",
        "_bytes",
        "_delayed",
        "_delayed_bytes",
        "_draining",
        "_queue",
        "_recoveries",
        "arrival_taps",
        "count",
        "enabled",
        "endpoint",
        "faults",
        "line",
        "link",
        "name",
        "other",
        "parked",
        "sent_taps",
    )

    def __init__(self, link: "Link", name: str) -> None:
        self.link = link
        self.name = name
        self.endpoint: Endpoint | None = None
        self.enabled = False
        self.faults: FaultInjector | None = None
        # How the cable is for what is sent from here, if that is not as usual.
        self.line: Line | None = None
        # The port at this end counts what the cable noticed.
        self.count: Callable[[LinkCount, int], None] | None = None
        self._bad = 0
        self._recoveries: deque[int] | None = None
        self.other: LinkEnd = self
        self.sent_taps = Taps(link.wires)
        self.arrival_taps = Taps(link.wires)
        self._queue: deque[Packet] = deque()
        self._bytes = 0
        self._draining = False
        # The endpoint says when it takes packets again, with resume().
        self.parked = False
        # What a fault holds back that was sent from here: packets, bytes.
        self._delayed = 0
        self._delayed_bytes = 0

    @property
    def up(self) -> bool:
        """Tell whether packets pass."""
        return self.link.up

    @property
    def full(self) -> bool:
        """True while so much is on the cable toward the other end that the sender should hold back."""
        return self._crowded or (self.line is not None and self.line.full)

    @property
    def _crowded(self) -> bool:
        return not self.other.roomy or self._delayed > DELAYED_PACKETS or self._delayed_bytes > DELAYED_BYTES

    @property
    def roomy(self) -> bool:
        """See :class:`vhca.fabric.line.Far`."""
        return self._bytes <= FULL_BYTES and len(self._queue) <= FULL_PACKETS

    @property
    def waiting(self) -> int:
        """Packets that came to this end and are handed over in a later turn: neither counted by its port nor lost."""
        return sum(packet.count for packet in self._queue)

    @property
    def in_use(self) -> bool:
        """True while anything that was sent from here is on the cable."""
        return bool(self.other._queue) or self._delayed > 0 or (self.line is not None and self.line.in_use)

    @property
    def plain(self) -> bool:
        """Tell whether what is sent from here just arrives: nobody listens, damages or delays."""
        rules = self.faults is not None and self.faults.rules
        return not (self.sent_taps or self.arrival_taps or rules or self.line is not None)

    def attach(self, endpoint: Endpoint, enabled: bool = True) -> None:
        """Plug in; an enabled end may bring the link up."""
        self.link.wires.cable_changed()
        self.endpoint = endpoint
        self.set_enabled(enabled)

    def set_enabled(self, enabled: bool) -> None:
        """Switch this end's transmitter on or off (a reset card, a disabled port)."""
        if enabled != self.enabled:
            self.enabled = enabled
            self.link.evaluate()

    def bounce(self) -> None:
        """Take the link down and let it train again: both ends see it."""
        if self.enabled:
            self.set_enabled(False)
            self.set_enabled(True)

    def send(self, packet: Packet) -> None:
        """Put a packet or burst on the cable; counted and gone if the link is down."""
        link = self.link
        if not link.up:
            link.dropped[CableDrop.LINK_DOWN] += packet.count
            return
        for tap in self.sent_taps:
            tap(packet)
        if self.faults is not None and self.faults.rules:
            self._send_faulty(packet)
        else:
            self._send_on(packet)

    def _send_faulty(self, packet: Packet) -> None:
        assert self.faults is not None
        arrived = 0
        for delay_ns, part in self.faults.apply(packet):
            arrived += 1
            if delay_ns:
                self._delay(delay_ns, part)
            else:
                self._send_on(part)
        if arrived < packet.count:
            self.link.dropped[CableDrop.FAULT] += packet.count - arrived

    def _delay(self, delay_ns: int, packet: Packet) -> None:
        if packet.route.vl == MANAGEMENT_VL and self.full:
            self.link.dropped[CableDrop.VL15] += packet.count
            return
        self._delayed += 1
        self.link.wires.busy += 1
        self._delayed_bytes += len(packet.payload)

        def over() -> None:
            self._delayed -= 1
            self.link.wires.busy -= 1
            self._delayed_bytes -= len(packet.payload)
            if self.link.up:
                self._send_on(packet)
            else:
                self.link.dropped[CableDrop.LINK_DOWN] += packet.count

        self.link.call_later(delay_ns, over)

    def _send_on(self, packet: Packet) -> None:
        """Behind all faults."""
        if packet.route.vl == MANAGEMENT_VL and self._crowded:
            self.link.dropped[CableDrop.VL15] += packet.count
        elif self.line is None:
            self.other.arrive(packet)
        elif lost := self.line.send(packet):
            self.link.dropped[CableDrop.VL15] += lost

    def arrive(self, packet: Packet) -> None:
        """A packet is at this end; it is handed over in a later turn."""
        self._queue.append(packet)
        self._bytes += len(packet.payload)
        if not self._draining:
            self._draining = True
            self.link.wires.busy += 1
            self.link.call_soon(self._drain)

    def _drain(self) -> None:
        """Hand over what was queued when the turn began, a bounded number; the rest waits for the next turn."""
        queue = self._queue
        endpoint = self.endpoint
        there = len(queue)
        try:
            for _ in range(min(len(queue), PACKETS_PER_TURN)):
                if not queue or (endpoint is not None and endpoint.blocked(queue[0])):
                    break  # the link went down on the way, or the receiver is full
                packet = queue.popleft()
                self._bytes -= len(packet.payload)
                for tap in self.arrival_taps:
                    tap(packet)
                if endpoint is not None:
                    endpoint.receive(packet)
        finally:
            if not queue:
                self._draining = False
                self.link.wires.busy -= 1
            elif self.parked:
                pass
            elif len(queue) == there and self.link.wires.timed:
                # What it waits for may take time, in which there is nothing else to do.
                self.link.call_later(ASK_AGAIN_NS, self._drain)
            else:
                self.link.call_soon(self._drain)
            if self.other.line is not None:
                self.other.line.advance()  # there is room again

    def resume(self) -> None:
        """The endpoint, which is `parked`, takes packets again."""
        if self.parked:
            self.parked = False
            self.link.call_soon(self._drain)

    def clear(self) -> None:
        """Lose what is on the way to this end."""
        self.link.dropped[CableDrop.LINK_DOWN] += sum(packet.count for packet in self._queue)
        self._queue.clear()
        self._bytes = 0
        self._bad = 0
        self.resume()
        if self.faults is not None:
            self.faults.flush()
        if self.line is not None:
            self.link.dropped[CableDrop.LINK_DOWN] += self.line.clear()

    def decoded(self, symbol_errors: int) -> None:
        """A packet came to this end with so many wrong symbols; many such make the link recover, or fall."""
        if not symbol_errors:
            self._bad = max(0, self._bad - 1)
            return
        self._count("symbol_errors", symbol_errors)
        self._bad += 1
        if self._bad <= BAD_PACKETS:
            return
        self._bad = 0
        now = self.link.wires.now_ns()
        if self._recoveries is None:
            self._recoveries = deque(maxlen=RECOVERIES)
        if len(self._recoveries) == RECOVERIES and now - self._recoveries[0] < RECOVERIES_NS:
            self._recoveries.clear()
            self.link.call_soon(self.link.fall)
            return
        self._recoveries.append(now)
        self._count("link_error_recovery", 1)

    def _count(self, what: LinkCount, number: int) -> None:
        if self.count is not None:
            self.count(what, number)

    def set_line(self, config: LineConfig, seed: int) -> None:
        """How the cable is for what is sent from here, from now on; what is under way is lost if it took time."""
        self.link.wires.cable_changed()
        if self.line is not None:
            self.link.dropped[CableDrop.LINK_DOWN] += self.line.clear()
            self.link.wires.timed -= self.line.config.timed
            self.line = None
        self.link.wires.timed += config.timed
        if config != PLAIN:
            link = self.link
            self.line = Line(
                config, self.other, link.wires, link.wires.now_ns, link.call_later, self._count, Random(seed)
            )


class Link:
    """A cable with two ends; `call_later(delay_ns, fn)` is needed for delays only."""

    def __init__(
        self, call_soon: CallSoon, call_later: CallLater, name_a: str, name_b: str, wires: Wires | None = None
    ) -> None:
        self.wires = wires if wires is not None else Wires()
        self.call_soon = call_soon
        self.call_later = call_later
        self.a = LinkEnd(self, name_a)
        self.b = LinkEnd(self, name_b)
        self.a.other = self.b
        self.b.other = self.a
        self.dropped: Counter[CableDrop] = Counter()
        self.plugged = True
        self.up = False
        self._fallen = False
        # Somebody lets training fail.
        self._held = False
        # Told of each change of what makes a link, whether or not it is up then.
        self.watch: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        """Both ends, readable."""
        return f"{self.a.name} - {self.b.name}"

    def set_plugged(self, plugged: bool) -> None:
        """Plug or pull the cable."""
        self.plugged = plugged
        self.evaluate()

    @property
    def offered(self) -> bool:
        """Whether the link would be up if only end `a` is enabled: what the other half of a trunk wants to know."""
        return self.plugged and self.b.enabled and not (self._fallen or self._held)

    def hold(self, held: bool) -> None:
        """Lose the link, and let no training succeed; or no more."""
        self._held = held
        self.evaluate()

    def fall(self) -> None:
        """Lose the link, and train it again a little later."""
        if self.up and not self._fallen:
            self._fallen = True
            self.evaluate()
            self.call_later(FALL_NS, self._trained)

    def _trained(self) -> None:
        self._fallen = False
        self.evaluate()

    def evaluate(self) -> None:
        """Find out whether the link is up now, and tell both ends if that changed."""
        if self.watch is not None:
            self.watch()
        up = self.plugged and self.a.enabled and self.b.enabled and not (self._fallen or self._held)
        if up == self.up:
            return
        self.up = up
        self.wires.cable_changed()
        if not up:
            self.a.clear()
            self.b.clear()
        self.call_soon(lambda: self._tell(up))

    def _tell(self, up: bool) -> None:
        for end in (self.a, self.b):
            if end.endpoint is not None:
                end.endpoint.link_changed(up)
