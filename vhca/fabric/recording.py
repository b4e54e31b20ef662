"""Where a protocol analyser listens: at the connectors of cards, and inside them for what they send to themselves.

Guarantees: unless both ends are asked for, a packet between two recorded cards is recorded once, where it was sent.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vhca.fabric.capture import INBOUND, OUTBOUND, Capture
from vhca.fabric.link import Tap
from vhca.fabric.port import is_multicast
from vhca.wire.packet import Packet

if TYPE_CHECKING:
    from vhca.fabric.fabric import FabricPort

LOOPBACK_SUFFIX: Final = "-loopback"


class Recording:
    """One capture and its taps; `names` are the cards to record, None for all."""

    def __init__(self, capture: Capture, names: frozenset[str] | None, both_ends: bool) -> None:
        self.capture = capture
        self._names = names
        self._both_ends = both_ends
        self._ports: list[FabricPort] = []
        self._taps: list[tuple[list[Tap], Tap]] = []

    def add(self, port: "FabricPort") -> None:
        """Listen at a card's port, if it is one of those to record."""
        if self._names is not None and port.name not in self._names:
            return
        self._ports.append(port)
        capture, interface = self.capture, self.capture.interface(port.name)

        def arrived(packet: Packet) -> None:
            if self._both_ends or not self._sender_is_recorded(packet):
                capture.record(interface, packet, INBOUND)

        def looped(packet: Packet) -> None:
            # A copy of what is sent to a group is on the cable, too.
            if self._both_ends or not is_multicast(packet.dlid):
                capture.record(capture.interface(port.name + LOOPBACK_SUFFIX), packet, OUTBOUND)

        self._tap(port.sent_taps, lambda packet: capture.record(interface, packet, OUTBOUND))
        self._tap(port.arrival_taps, arrived)
        self._tap(port.loopback_taps, looped)

    def end(self) -> None:
        """Listen no more."""
        for taps, tap in self._taps:
            taps.remove(tap)
        self._taps.clear()

    def _tap(self, taps: list[Tap], tap: Callable[[Packet], None]) -> None:
        taps.append(tap)
        self._taps.append((taps, tap))

    def _sender_is_recorded(self, packet: Packet) -> bool:
        """By its SLID, which the switch has checked. A directed route (permissive LID) changes on the way: no copy."""
        slid = packet.slid
        return any(
            port.switch_port.source_lid and slid & port.switch_port.source_mask == port.switch_port.source_lid
            for port in self._ports
        )
