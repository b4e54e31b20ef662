"""Where a protocol analyser listens: at the connectors of cards, and inside them; at other ends of cables on request.

Guarantees: unless both ends are asked for, a packet is recorded once on each cable, where it was sent; and of two
recorded cards, once, if nothing between them is recorded. Packets are encoded in turns of the loop, some at a time;
while many wait, cables of cards are full. What cannot be held back so (management, what cards tell of themselves) is
lost, and counted, when too much of it waits.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from vhca.fabric.capture import Capture, CardRecord, Item
from vhca.fabric.fabric_port import FabricPort
from vhca.fabric.link import FULL_PACKETS, LinkEnd
from vhca.fabric.pcapng import INBOUND, OUTBOUND
from vhca.fabric.port import SwitchPort
from vhca.fabric.wires import Tap
from vhca.management.fair_queue import CallSoon
from vhca.management.link_speed import SPEEDS, WIDTHS
from vhca.wire.packet import Packet

LOOPBACK_SUFFIX: Final = "-loopback"
RECORDS_SUFFIX: Final = "-card"
# Packets that one turn writes: half a millisecond. A larger part of what waits if that is much, since management
# packets are not held back.
PACKETS_PER_TURN: Final = 16
MOST_TURNS: Final = 32
MOST_PER_TURN: Final = 64
ENDS_PER_TURN: Final = 100
"""Ends of cables at which one turn begins to listen: a millisecond."""
MOST_WAITING: Final = 16 * FULL_PACKETS
"""Packets that wait to be encoded; what comes then is lost."""
MOST_RECORDS: Final = 1024
"""Of one card that wait: a card that tells much does not take the place of others."""


class Recording:
    """One capture and its taps; `over` is called, once, when it has all that it was to have, or cannot go on."""

    def __init__(self, capture: Capture, both_ends: bool, call_soon: CallSoon, over: Callable[[], None]) -> None:
        self.capture = capture
        self._call_soon = call_soon
        self._over: Callable[[], None] | None = over
        # What waits, and the card that told it, "" for packets.
        self._waiting: deque[tuple[Item, str]] = deque()
        self._packets = 0
        self._records: Counter[str] = Counter()
        self._called = False
        self._both_ends = both_ends
        self._ports: list[FabricPort] = []
        self._held: list[FabricPort] = []
        self._ends: set[LinkEnd] = set()
        self._to_come: list[LinkEnd] = []
        self._taps: list[tuple[list[Tap], Tap]] = []
        self._unwatch: list[Callable[[], None]] = []

    @property
    def full(self) -> bool:
        """True while so many packets wait to be written that the recorded cables should hold theirs back."""
        return self._packets > FULL_PACKETS

    def finish(self) -> None:
        """Write what waits."""
        while self._waiting:
            self._write(1 << 30)

    def _record(self, name: str, end: LinkEnd, packet: Packet, direction: int) -> None:
        capture = self.capture
        if not capture.only.wants(packet, direction):
            return
        interface = capture.find(name) or capture.interface(name, *_described(end))
        if self._packets > MOST_WAITING:
            capture.lose(interface, packet.count)
            return
        self._wait(capture.frames(interface, packet, direction), "")

    def _tell(self, card: str, record: CardRecord) -> None:
        name = card + RECORDS_SUFFIX
        capture = self.capture
        interface = capture.find(name) or capture.interface(name, f"what {card} tells of itself", records=True)
        if self._records[card] >= MOST_RECORDS:
            capture.lose(interface, 1)
            return
        self._records[card] += 1
        self._wait(capture.told(interface, record), card)

    def _wait(self, item: Item, card: str) -> None:
        self._waiting.append((item, card))
        self._packets += item.left
        if not self._called:
            self._called = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        most = min(max(PACKETS_PER_TURN, self._packets // MOST_TURNS), MOST_PER_TURN)
        while self._waiting and most > 0:
            most -= self._write(most)
        self._called = bool(self._waiting)
        if self._waiting:
            self._call_soon(self._turn)
        elif self.capture.over and self._over is not None:
            over, self._over = self._over, None
            over()

    def _write(self, most: int) -> int:
        """Write of the first that waits; how many packets, at least one."""
        item, card = self._waiting[0]
        before = item.left
        written = self.capture.write(item, most)
        self._packets -= before - item.left
        if not item.left:
            self._waiting.popleft()
            if card:
                self._records[card] -= 1
        return max(written, 1)

    # ---- where it listens ----

    def add(self, port: FabricPort) -> None:
        """Listen at a card's port, and inside the card for what it sends to itself."""
        self._ports.append(port)
        self.hold(port)
        name, end = port.name, port.end
        self._ends.add(end)
        self.capture.interface(name, *_described(end))

        def arrived(packet: Packet) -> None:
            if self._both_ends or not (end.other in self._ends or self._sender_is_recorded(packet)):
                self._record(name, end, packet, INBOUND)

        def looped(packet: Packet) -> None:
            # A copy of what is sent to a group is on the cable, too.
            if self._both_ends or not packet.route.is_multicast:
                self._record(name + LOOPBACK_SUFFIX, end, packet, OUTBOUND)

        self._tap(port.sent_taps, lambda packet: self._record(name, end, packet, OUTBOUND))
        self._tap(port.arrival_taps, arrived)
        self._tap(port.loopback_taps, looped)

    def add_ends(self, ends: list[LinkEnd]) -> None:
        """Listen at ends of any cables: at some of them now, at the others in turns that follow."""
        self._ends.update(ends)
        self._to_come = ends
        self._come()

    def _come(self) -> None:
        ends, self._to_come = self._to_come[:ENDS_PER_TURN], self._to_come[ENDS_PER_TURN:]
        for end in ends:
            self._add_end(end)
        if self._to_come:
            self._call_soon(self._come)

    def _add_end(self, end: LinkEnd) -> None:
        name = end.name

        def arrived(packet: Packet) -> None:
            if self._both_ends or end.other not in self._ends:
                self._record(name, end, packet, INBOUND)

        self._tap(end.sent_taps, lambda packet: self._record(name, end, packet, OUTBOUND))
        self._tap(end.arrival_taps, arrived)

    def hold(self, port: FabricPort) -> None:
        """Let a card hold back while much waits to be written, whether it is recorded or not."""
        if port not in self._held:
            self._held.append(port)
            port.recordings.append(self)

    def watch(self, port: FabricPort) -> None:
        """Record what the card at a port tells of itself, if it can."""
        if port.watch is not None:
            self._unwatch.append(port.watch(lambda record: self._tell(port.name, record)))

    def end(self) -> None:
        """Listen no more, and write what waits."""
        self._over = None
        self._to_come = []
        for port in self._held:
            port.recordings.remove(self)
        self._held.clear()
        self._ports.clear()
        self._ends.clear()
        for taps, tap in self._taps:
            taps.remove(tap)
        self._taps.clear()
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch.clear()
        self.finish()

    def _tap(self, taps: list[Tap], tap: Callable[[Packet], None]) -> None:
        taps.append(tap)
        self._taps.append((taps, tap))

    def _sender_is_recorded(self, packet: Packet) -> bool:
        """By its SLID, which the switch has checked. A directed route (permissive LID) changes on the way: no copy."""
        slid = packet.route.slid
        return any(
            port.switch_port.source_lid and slid & port.switch_port.source_mask == port.switch_port.source_lid
            for port in self._ports
        )


def _described(end: LinkEnd) -> tuple[str, int]:
    """What an end's cable is, and its bits per second, as the switch at one of its ends tells."""
    switch_port = end.endpoint if isinstance(end.endpoint, SwitchPort) else end.other.endpoint
    if not isinstance(switch_port, SwitchPort):
        return f"to {end.other.name}", 0
    info = switch_port.info
    lanes = next((lanes for lanes, bit in WIDTHS.items() if bit == info.link_width_active), 0)
    for speed, (code, extended, gbps) in reversed(SPEEDS.items()):
        if (code, extended) == (info.link_speed_active, info.link_speed_ext_active):
            return f"to {end.other.name}, {lanes}x{speed}", int(lanes * gbps * 1e9)
    return f"to {end.other.name}", 0
