"""The card's end of a cable: what is plugged in there, who listens, and what passed."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from vhca.counting import shown
from vhca.fabric.capture import CardRecord
from vhca.fabric.counters import PortCount
from vhca.fabric.line import LinkCount
from vhca.fabric.link import Link, LinkEnd
from vhca.fabric.port import SwitchPort
from vhca.fabric.through import Way, walk
from vhca.fabric.topology import Node
from vhca.fabric.wires import Tap, Taps
from vhca.management.link_speed import LinkSpeed
from vhca.wire.packet import DEFAULT_PKEY, MANAGEMENT_VL, Packet, Route
from vhca.wire.smp import PORT_ACTIVE, PortInfo


class Listener(Protocol):
    """Who records what passes."""

    @property
    def full(self) -> bool:
        """True while so much waits to be recorded that nothing more should pass."""
        ...


class FabricPort:
    """The card's end of a cable that runs at `cable` at most, None: as fast as the card can.

    `host` is whose place in a topology the card has.
    """

    def __init__(
        self, name: str, link: Link, switch_port: SwitchPort, host: Node | None = None, cable: LinkSpeed | None = None
    ) -> None:
        self.name = name
        self.link = link
        self.switch_port = switch_port
        self.host = host
        self._cable = cable
        self._wires = link.wires
        self.end: LinkEnd = link.a
        self.loopback_taps: list[Tap] = []
        self.recordings: list[Listener] = []
        self._receive: Callable[[Packet], None] | None = None
        self._link_changed: Callable[[bool], None] | None = None
        self._card_full: Callable[[], bool] | None = None
        # Begins to listen to what the card tells of itself, and gives what ends that.
        self.watch: Callable[[Callable[[CardRecord], None]], Callable[[], None]] | None = None
        self._port_info: Callable[[], PortInfo | None] | None = None
        # Whose port this is, for whoever looks through the switch.
        self.card: object = None
        # What the cable noticed at this end, and who wants to know.
        self.noticed: Counter[LinkCount] = Counter()
        self.notice: Callable[[LinkCount, int], None] | None = None
        self.end.count = self._count
        self.end.attach(self, enabled=False)

    @property
    def up(self) -> bool:
        """True while the physical link is up."""
        return self.link.up

    def attach(
        self,
        receive: Callable[[Packet], None],
        link_changed: Callable[[bool], None] | None = None,
        full: Callable[[], bool] | None = None,
        port_info: Callable[[], PortInfo | None] | None = None,
    ) -> None:
        """Plug a card in and switch its transmitter on; `link_changed` hears soon that the link is up.

        While `full` says so, data for the card waits on the cable. `port_info` gives what the card's agent has.
        """
        self._card_full = full
        self._port_info = port_info
        self._receive = receive
        self._link_changed = link_changed
        self.end.set_enabled(True)

    def detach(self) -> None:
        """Unplug the card: the link goes down."""
        self.end.set_enabled(False)
        self._receive = None
        self._link_changed = None
        self._card_full = None
        self._port_info = None

    @property
    def lid(self) -> int:
        """LID of the card's port, as the card itself has it; 0 without a link, or before a manager gave one."""
        info = self._card_info()
        return info.lid if info is not None else 0

    @property
    def sm_lid(self) -> int:
        """LID of the master subnet manager, as the card's port has it; 0 without a link, or before there was one."""
        info = self._card_info()
        return info.sm_lid if info is not None else 0

    @property
    def active(self) -> bool:
        """True if a manager, whoever it is, has brought both ends of the cable to Active."""
        info = self._card_info()
        return self.switch_port.state == PORT_ACTIVE and info is not None and info.port_state == PORT_ACTIVE

    def _card_info(self) -> PortInfo | None:
        return self._port_info() if self.link.up and self._port_info is not None else None

    def train(self, most: LinkSpeed) -> LinkSpeed:
        """What both ends of the cable run at, if the card can do `most`; to be asked before the link is up."""
        agreed = most if self._cable is None else self._cable.at_most(most)
        self.switch_port.set_speed(agreed)
        return agreed

    def set_enabled(self, enabled: bool) -> None:
        """Switch the card's transmitter on or off, as a reset does; the other end sees the link go."""
        self.end.set_enabled(enabled)

    def bounce(self) -> None:
        """Take the link down and up again: both ends see both changes, as after a reset of the card."""
        self.end.bounce()

    def send(self, packet: Packet) -> None:
        """Send a packet or burst into the fabric."""
        self.end.send(packet)

    @property
    def full(self) -> bool:
        """True while what was sent has not got far, or is not recorded yet: the card holds back."""
        if not (self.recordings or self._wires.busy):
            return False
        return self.end.full or self._unrecorded

    def blocked(self, packet: Packet) -> bool:
        """See :class:`vhca.fabric.link.Endpoint`; management passes a full card's data."""
        if packet.route.vl == MANAGEMENT_VL:
            return False
        return self._unrecorded or (self._card_full is not None and self._card_full())

    @property
    def _unrecorded(self) -> bool:
        """Does so much wait to be recorded that no more should pass here?"""
        return bool(self.recordings) and any(recording.full for recording in self.recordings)

    def receive(self, packet: Packet) -> None:
        """See :class:`vhca.fabric.link.Endpoint`."""
        if self._receive is not None:
            self._receive(packet)

    def _count(self, what: LinkCount, number: int) -> None:
        self.noticed[what] += number
        if self.notice is not None:
            self.notice(what, number)

    def link_changed(self, up: bool) -> None:
        """See :class:`vhca.fabric.link.Endpoint`."""
        if self._link_changed is not None:
            self._link_changed(up)

    @property
    def sent_taps(self) -> Taps:
        """Who sees what the card sends, before any fault of the cable."""
        return self.end.sent_taps

    @property
    def arrival_taps(self) -> Taps:
        """Who sees what arrives at the card."""
        return self.end.arrival_taps

    def through(
        self, route: Route, back: Route, pkeys: tuple[int, int] = (DEFAULT_PKEY, DEFAULT_PKEY)
    ) -> "tuple[Way, FabricPort] | None":
        """The way by `route` through the fabric to another card's port, and back; None if there is none.

        `pkeys`: the P_Keys of packets there and back.
        """
        _, other = walk(self, route)
        if not isinstance(other, FabricPort) or other is self:
            return None
        return Way(self, other, route, back, pkeys), other

    def looped(self, packet: Packet) -> None:
        """A packet or burst that the card sends to itself: it is on no cable, but an analyser is told."""
        for tap in self.loopback_taps:
            tap(packet)

    def counters(self) -> dict[str, int]:
        """What the card sent (xmit) and was sent (rcv), counted at the switch: words of 4 bytes, packets."""
        self.link.wires.settle()
        counters = self.switch_port.counters
        dropped = self.switch_port.dropped
        seen = {
            PortCount.XMIT_DATA: counters.rcv_data,
            PortCount.RCV_DATA: counters.xmit_data,
            PortCount.XMIT_PKTS: counters.rcv_pkts,
            PortCount.RCV_PKTS: counters.xmit_pkts,
            PortCount.MULTICAST_XMIT_PKTS: counters.multicast_rcv_pkts,
            PortCount.MULTICAST_RCV_PKTS: counters.multicast_xmit_pkts,
            PortCount.LINK_DOWNED: counters.link_downed,
            PortCount.SYMBOL_ERRORS: self.noticed["symbol_errors"],
            PortCount.LINK_ERROR_RECOVERY: self.noticed["link_error_recovery"],
            PortCount.XMIT_WAIT: self.noticed["xmit_wait"],
        }
        values = shown(seen)
        values |= {f"dropped.{reason}": count for reason, count in sorted(dropped.items())}
        return values | {f"dropped.cable_{reason}": count for reason, count in sorted(self.link.dropped.items())}
