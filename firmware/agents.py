"""The management agents of the card and their ways in and out: the wire's QP0 and the host's MAD_IFC.

SMPs from the wire that the agent owns never reach the host's QP0, so a port can be brought up with no driver loaded.
What an agent changes is announced to the driver as port change events.
"""

from typing import Final

from firmware.mads.packets import reply_packet, trap_packet
from firmware.mads.port import PortEvent
from firmware.mads.sma import Sma, owns
from firmware.model.counters import Count, CountOf, SmpCount
from firmware.model.hca import Hca
from firmware.model.timers import Timer, TimerKind
from firmware.port_view import PortView
from firmware.queues import post_event
from firmware.transport.port import transmit
from vhca.counting import shown
from vhca.hw.effects import LinkControl
from vhca.management.partitions import pkeys_match
from vhca.management.performance import PerformanceAgent, PortCounters, data_words
from vhca.management.port_agent import damaged_arrived, key_details, may_tell
from vhca.management.refusal import refusal
from vhca.management.subnet import LINK_CHANGE_NS, SMP_CLASSES
from vhca.management.vendor import Device, answer
from vhca.wire import vendor
from vhca.wire.connectx.eqe import EventType, PortChangeData
from vhca.wire.mad import CLASS_PERF, METHOD_GET, METHOD_SET, QP1_QKEY
from vhca.wire.packet import Packet

EVENT_PORT_CHANGE: Final = int(EventType.PORT_CHANGE)
LINK_TRAINING_NS: Final = 2_000_000_000
_port_change = PortChangeData.packer("port_num")


class Agents:
    """SMA and PMA of one card; also counts what its ports see."""

    def __init__(self, hca: Hca) -> None:
        self._hca = hca
        self._chip = hca.chip
        self.timers = self._chip.timers
        self._chip.management = self
        self._power_on()

    def _power_on(self) -> None:
        """Start from nothing: no address, no table, no counter."""
        # Since when there has been a cable to somebody.
        self._since_ns: int | None = None
        self._sma = Sma(self._chip.info)
        self.port_counters = {number: PortCounters() for number in self._sma.ports}
        self.ports = {
            number: PortView(port, self.port_counters[number], self._violated)
            for number, port in self._sma.ports.items()
        }
        # A run of messages to another card tells no lanes.
        self._performance = PerformanceAgent(self.port_counters, by_lane=False)
        self._training = {number: Timer(TimerKind.LINK_TRAINING, number) for number in self.ports}
        self._falling = {number: Timer(TimerKind.LINK_FALLING, number) for number in self.ports}
        self._measuring = Timer(TimerKind.MEASUREMENT, 0)
        self._telling = {number: Timer(TimerKind.TRAP, number) for number in self.ports}
        self._chip.ports.clear()
        self._chip.ports.update(self.ports)

    def run_timers(self, now_ns: int) -> None:
        """Do what is due at the ports."""
        while (timer := self.timers.due(now_ns)) is not None:
            if timer.kind is TimerKind.MEASUREMENT:
                self._performance.run(now_ns)
                self._measure()
                continue
            port = self.ports[timer.owner]
            if timer.kind is TimerKind.LINK_TRAINING:
                self._raise_link(port)
            elif timer.kind is TimerKind.TRAP:
                self._tell(port.number)
            else:
                self._bounce_link(port)

    def counters(self) -> dict[str, int]:
        """What both agents count, by name."""
        return {
            **shown(self._sma.counters, self._sma.counters_of),
            **shown(self._performance.counters, self._performance.counters_of),
        }

    def local_mad(self, number: int, mad: bytes, ignore_mkey: bool) -> bytes | None:
        """A MAD from the host (MAD_IFC); returns the reply, None if it is discarded."""
        if mad[1] in SMP_CLASSES:
            reply, events = self._sma.handle(number, mad, ignore_mkey, self._hca.now_ns, self.ports[number].lid)
            self._refresh()
            self._announce(events)
            self._tell(number)
            return reply
        return self._general(mad)

    def _general(self, mad: bytes) -> bytes | None:
        """Answer a datagram of a general service: counters and the vendor's class; all others are refused by status."""
        if mad[1] == CLASS_PERF:
            reply = self._performance.handle(mad, self._hca.now_ns)
            self._measure()
            return reply
        if mad[1] == vendor.CLASS:
            info = self._hca.chip.info
            device = Device(info.device_id, info.revision, info.fw_version)
            return answer(mad, device, 0 if self._since_ns is None else self._hca.now_ns - self._since_ns)
        self._hca.count_of.add(CountOf.MAD_CLASS_REFUSED, mad[1])
        return refusal(mad)

    def _measure(self) -> None:
        """Come back when a measurement of counters begins or ends."""
        deadline = self._performance.deadline_ns
        if deadline is None:
            self.timers.cancel(self._measuring)
        elif self._measuring.deadline_ns != deadline:
            self.timers.arm(self._measuring, deadline)

    def smp_in(self, number: int, packet: Packet) -> bool:
        """An SMP from the wire; True if it was the agent's (whether or not it gets an answer)."""
        if not owns(packet.payload):
            return False
        self._serve_smp(number, packet)
        return True

    def _serve_smp(self, number: int, packet: Packet) -> None:
        source = packet.route.slid
        reply, events = self._sma.handle(number, packet.payload, now_ns=self._hca.now_ns, source=source)
        self._hca.count[Count.SMPS_HANDLED] += 1
        self._refresh()
        if reply is None:
            self._hca.count[Count.SMPS_UNANSWERED] += 1
        else:
            transmit(self._hca, number, reply_packet(packet, reply, self.ports[number].lid))
        self._announce(events)
        self._tell(number)

    def unattended(self, number: int, packet: Packet) -> bool:
        """A datagram for QP0 or QP1 while the host has no such queue pair; True if it was answered.

        Monitors read the counters of a card that no driver runs, and who asks for more is not left waiting.
        """
        hca = self._hca
        mad = packet.payload
        if packet.dest_qp == 0:
            # Only a manager on the host could answer for SMInfo: the agent says that there is none.
            if mad[3] not in (METHOD_GET, METHOD_SET):
                return False
            self._serve_smp(number, packet)
            return True
        in_partition = any(pkeys_match(packet.pkey, pkey) for pkey in self.ports[number].pkeys)
        if packet.qkey != QP1_QKEY or not in_partition or mad[1] in SMP_CLASSES:
            return False
        reply = self._general(mad)
        if reply is None:
            return False
        port = self.ports[number]
        back = reply_packet(packet, reply, port.lid, port.pkeys)
        back.route = back.route._replace(vl=port.lanes[back.route.sl])
        return transmit(hca, number, back)

    def link_change(self, number: int, up: bool) -> None:
        """The cable at a port was plugged or pulled."""
        if number in self.ports:
            if self._since_ns is None:
                self._since_ns = self._hca.now_ns
            if not up and self.ports[number].managed.cable_up:
                self.port_counters[number].link_downed += 1
            events = self._sma.link_up(number, up)
            self._refresh()
            self._announce(events)

    def link_counted(self, number: int, what: str, count: int) -> None:
        """The cable at a port noticed something that is counted by this name."""
        counters = self.port_counters.get(number)
        if counters is not None:
            setattr(counters, what, getattr(counters, what) + count)

    def set_admin_state(self, number: int, up: bool) -> None:
        """The host wants the link up or down."""
        port = self.ports[number]
        if up != port.admin_up:
            port.admin_up = up
            if up:
                self._raise_link(port)
            else:
                self._hca.out.append(LinkControl(port.number, False))

    def reset(self, reason: str) -> None:
        """A reset of the card: links that the host had switched off come back.

        A reset under a running machine takes the link down and trains it again; the resets of a machine that starts do
        so before anybody looks. What a manager had disabled stays so over a function level reset only: that is one of
        the function, not of the port. Nothing that the host wrote outlives any reset, and nothing at all the loss of
        the host: that is loss of power.
        """
        for number, port in self.ports.items():
            managed = port.managed
            timers = (self._training[number], self._falling[number])
            was_off = not port.admin_up or managed.disabled or any(timer.deadline_ns for timer in timers)
            was_off |= managed.host_wrote
            for timer in (*timers, self._telling[number]):
                self.timers.cancel(timer)
            managed.notices.clear()
            port.admin_up = True
            if reason != "flr":
                port.managed.power_cycled()
            if reason in ("flr", "software"):
                self._hca.out.append(LinkControl(number, False))
                self.timers.arm(self._training[number], self._hca.now_ns + LINK_TRAINING_NS)
            elif was_off:
                self._bounce_link(port)
        self._sma.forget_host()
        if reason == "lost_connection":
            self.timers.cancel(self._measuring)
            self._power_on()
        self._refresh()

    def _bounce_link(self, port: PortView) -> None:
        self._hca.out.append(LinkControl(port.number, False))
        self._raise_link(port)

    def _raise_link(self, port: PortView) -> None:
        """Switch the transmitter on, if host and manager want it and no reset keeps it off for a while."""
        if port.admin_up and not port.managed.disabled and self._training[port.number].deadline_ns is None:
            self._hca.out.append(LinkControl(port.number, True))

    def set_capability_mask(self, number: int, mask: int) -> None:
        """The host changed what its management software can do."""
        self._sma.set_capability_mask(number, mask, self._hca.now_ns)
        self._tell(number)

    def set_node_description(self, text: bytes) -> None:
        """The host renamed the node."""
        self._sma.set_node_description(text, self._hca.now_ns)
        for number in self.ports:
            self._tell(number)

    def _violated(self, number: int, trap: int, key: int, packet: Packet) -> None:
        """A packet with a wrong key arrived (10.9.4, 10.2.5): the manager hears of it."""
        port = self.ports[number].managed
        if may_tell(port):
            port.notices.post(trap, self._sma.producer, key_details(key, packet), self._hca.now_ns)
            self._tell(number)

    def _tell(self, number: int) -> None:
        """Send the traps of a port that are due, and come back when more will be."""
        port = self.ports[number].managed
        now_ns = self._hca.now_ns
        for mad in self._sma.traps(port, now_ns):
            self._sma.counters[SmpCount.SMP_TRAPS] += 1
            transmit(self._hca, number, trap_packet(port, mad))
        deadline = port.notices.next_deadline(port.info.subnet_timeout)
        timer = self._telling[number]
        if deadline is None:
            self.timers.cancel(timer)
        elif timer.deadline_ns != deadline:
            self.timers.arm(timer, deadline)

    def node_description(self) -> bytes:
        """The node's name, 64 bytes."""
        return self._sma.node_description

    def count_sent(self, number: int, packet: Packet) -> None:
        """Port counters for a packet or burst that leaves."""
        counters = self.port_counters.get(number)
        if counters is not None:
            counters.sent(packet, data_words(packet))

    def count_received(self, number: int, packet: Packet) -> None:
        """Port counters for a packet or burst that arrives."""
        counters = self.port_counters.get(number)
        if counters is None:
            return
        if packet.good:
            counters.received(packet, data_words(packet))
            return
        if damaged_arrived(self.ports[number].managed, counters, packet, counters.rcv_pkts, self._hca.now_ns):
            self._tell(number)

    def _refresh(self) -> None:
        for number, port in self.ports.items():
            port.refresh()
            if port.managed.retrain:
                # The answer to who ordered it leaves first.
                port.managed.retrain = False
                self.timers.arm(self._falling[number], self._hca.now_ns + LINK_CHANGE_NS)

    def _announce(self, events: list[PortEvent]) -> None:
        hca = self._hca
        for event in events:
            hca.note("port", number=event.port, event=event.subtype, lid=self.ports[event.port].lid)
            post_event(hca, EVENT_PORT_CHANGE, event.subtype, _port_change(event.port))
