"""Where a protocol analyser listens: at the connectors of cards, and inside them for what they send to themselves.

Guarantees: unless both ends are asked for, a packet between two recorded cards is recorded once, where it was sent.
Packets are encoded and written in turns of the loop, some at a time; while many wait, the recorded cables are full.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from vhca.fabric.capture import INBOUND, OUTBOUND, Capture, Frames
from vhca.fabric.fabric_port import FabricPort
from vhca.fabric.link import FULL_PACKETS
from vhca.fabric.wires import Tap
from vhca.management.fair_queue import CallSoon
from vhca.wire.packet import Packet

LOOPBACK_SUFFIX: Final = "-loopback"
# Packets that one turn writes: half a millisecond. A larger part of what waits if that is much, since management
# packets are not held back.
PACKETS_PER_TURN: Final = 16
MOST_TURNS: Final = 32


class Recording:
    """One capture and its taps; `names` are the cards to record, None for all."""

    def __init__(self, capture: Capture, names: frozenset[str] | None, both_ends: bool, call_soon: CallSoon) -> None:
        self.capture = capture
        self._call_soon = call_soon
        self._waiting: deque[Frames] = deque()
        self._packets = 0
        self._called = False
        self._names = names
        self._both_ends = both_ends
        self._ports: list[FabricPort] = []
        self._taps: list[tuple[list[Tap], Tap]] = []

    @property
    def full(self) -> bool:
        """True while so many packets wait to be written that the recorded cables should hold theirs back."""
        return self._packets > FULL_PACKETS

    def finish(self) -> None:
        """Write what waits."""
        while self._waiting:
            self._packets -= self.capture.write(self._waiting.popleft())
        self._packets = 0

    def _record(self, interface: int, packet: Packet, direction: int) -> None:
        self._waiting.append(self.capture.frames(interface, packet, direction))
        self._packets += packet.count
        if not self._called:
            self._called = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        most = max(PACKETS_PER_TURN, self._packets // MOST_TURNS)
        waiting = self._waiting
        while waiting and most > 0:
            before = waiting[0].left
            most -= self.capture.write(waiting[0], most)
            self._packets -= before - waiting[0].left
            if not waiting[0].left:
                waiting.popleft()
        self._called = bool(waiting)
        if waiting:
            self._call_soon(self._turn)

    def add(self, port: FabricPort) -> None:
        """Listen at a card's port, if it is one of those to record."""
        if self._names is not None and port.name not in self._names:
            return
        self._ports.append(port)
        port.recordings.append(self)
        capture, interface = self.capture, self.capture.interface(port.name)

        def arrived(packet: Packet) -> None:
            if self._both_ends or not self._sender_is_recorded(packet):
                self._record(interface, packet, INBOUND)

        def looped(packet: Packet) -> None:
            # A copy of what is sent to a group is on the cable, too.
            if self._both_ends or not packet.route.is_multicast:
                self._record(capture.interface(port.name + LOOPBACK_SUFFIX), packet, OUTBOUND)

        self._tap(port.sent_taps, lambda packet: self._record(interface, packet, OUTBOUND))
        self._tap(port.arrival_taps, arrived)
        self._tap(port.loopback_taps, looped)

    def end(self) -> None:
        """Listen no more, and write what waits."""
        for port in self._ports:
            port.recordings.remove(self)
        self._ports.clear()
        for taps, tap in self._taps:
            taps.remove(tap)
        self._taps.clear()
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
