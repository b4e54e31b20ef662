"""A cable: joins two ports, keeps packets in order, and can be tapped, damaged and pulled.

Assumes one thread. Delivery is never re-entrant: what is sent now arrives in a later turn of the loop, in order per
direction, so many packets a turn. An end that is full keeps what is sent to it on the cable, as a receiver without
credits does (7.9): nothing is lost, and a sender that asks :attr:`LinkEnd.full` holds back. Bursts travel whole unless
rules are active. The link is up while the cable is plugged and both ends are enabled; each change is told to both ends.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

from vhca.fabric.counters import CableDrop
from vhca.fabric.faults import FaultInjector
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
        "_bytes",
        "_delayed",
        "_delayed_bytes",
        "_draining",
        "_queue",
        "arrival_taps",
        "enabled",
        "endpoint",
        "faults",
        "link",
        "name",
        "other",
        "sent_taps",
    )

    def __init__(self, link: "Link", name: str) -> None:
        self.link = link
        self.name = name
        self.endpoint: Endpoint | None = None
        self.enabled = False
        self.faults: FaultInjector | None = None
        self.other: LinkEnd = self
        self.sent_taps = Taps(link.wires)
        self.arrival_taps = Taps(link.wires)
        self._queue: deque[Packet] = deque()
        self._bytes = 0
        self._draining = False
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
        other = self.other
        return (
            other._bytes > FULL_BYTES
            or len(other._queue) > FULL_PACKETS
            or self._delayed > DELAYED_PACKETS
            or self._delayed_bytes > DELAYED_BYTES
        )

    @property
    def in_use(self) -> bool:
        """True while anything that was sent from here is on the cable."""
        return bool(self.other._queue) or self._delayed > 0

    @property
    def plain(self) -> bool:
        """Tell whether what is sent from here just arrives: nobody listens, damages or delays."""
        rules = self.faults is not None and self.faults.rules
        return not (self.sent_taps or self.arrival_taps or rules)

    def attach(self, endpoint: Endpoint, enabled: bool = True) -> None:
        """Plug in; an enabled end may bring the link up."""
        self.link.wires.changes += 1
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
            self._put(packet)

    def _send_faulty(self, packet: Packet) -> None:
        assert self.faults is not None
        arrived = 0
        for delay_ns, part in self.faults.apply(packet):
            arrived += 1
            if delay_ns:
                self._delay(delay_ns, part)
            else:
                self._put(part)
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
            self._put(packet)

        self.link.call_later(delay_ns, over)

    def _put(self, packet: Packet) -> None:
        link = self.link
        if packet.route.vl == MANAGEMENT_VL and self.full:
            link.dropped[CableDrop.VL15] += packet.count
            return
        other = self.other
        other._queue.append(packet)
        other._bytes += len(packet.payload)
        if not other._draining:
            other._draining = True
            link.wires.busy += 1
            link.call_soon(other._drain)

    def _drain(self) -> None:
        """Hand over what was queued when the turn began, a bounded number; the rest waits for the next turn."""
        queue = self._queue
        endpoint = self.endpoint
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
            if queue:
                self.link.call_soon(self._drain)
            else:
                self._draining = False
                self.link.wires.busy -= 1

    def clear(self) -> None:
        """Lose what is on the way to this end."""
        self.link.dropped[CableDrop.LINK_DOWN] += sum(packet.count for packet in self._queue)
        self._queue.clear()
        self._bytes = 0
        if self.faults is not None:
            self.faults.flush()


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

    @property
    def name(self) -> str:
        """Both ends, readable."""
        return f"{self.a.name} - {self.b.name}"

    def set_plugged(self, plugged: bool) -> None:
        """Plug or pull the cable."""
        self.plugged = plugged
        self.evaluate()

    def evaluate(self) -> None:
        """Find out whether the link is up now, and tell both ends if that changed."""
        up = self.plugged and self.a.enabled and self.b.enabled
        if up == self.up:
            return
        self.up = up
        self.wires.changes += 1
        if not up:
            self.a.clear()
            self.b.clear()
        self.call_soon(lambda: self._tell(up))

    def _tell(self, up: bool) -> None:
        for end in (self.a, self.b):
            if end.endpoint is not None:
                end.endpoint.link_changed(up)
