"""Simulated end nodes: hosts of a topology of which there is nothing but an adapter's management.

Each port answers a subnet manager and shows its counters, as the ports of a card do; data that is sent to it is counted
and gone. One agent serves all nodes of a fabric, and a node keeps only what managers have written, so that thousands
cost little.
"""

from collections.abc import Callable
from typing import Final, Protocol

from vhca.fabric.alarm import Alarm
from vhca.fabric.line import LinkCount
from vhca.fabric.link import LinkEnd
from vhca.fabric.telling import tell
from vhca.fabric.topology import Node
from vhca.fabric.watched import WatchedPort
from vhca.management.agent import apply_end_port, end_port_settings_valid, link_order
from vhca.management.directed import end_of_path
from vhca.management.fair_queue import CallSoon, FairQueue, Job
from vhca.management.link_speed import LinkSpeed
from vhca.management.packets import gmp_reply, is_gmp, smp_reply
from vhca.management.partitions import default_table
from vhca.management.performance import PerformanceAgent, PortCounters, data_words
from vhca.management.port_agent import PortAgent, damaged_arrived, may_tell, node_info
from vhca.management.port_state import END_PORT_CAPABILITIES, first_port_info
from vhca.management.refusal import refusal
from vhca.management.subnet import LINK_CHANGE_NS, SMP_CLASSES, for_agent, is_answered, is_asked, is_smp, port_of
from vhca.management.vendor import Device, answer
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire import vendor
from vhca.wire.mad import STATUS_INVALID_FIELD, STATUS_OK, Smp
from vhca.wire.notices import LocalChangeDetails
from vhca.wire.packet import PERMISSIVE_LID, SEND, UD, Packet
from vhca.wire.smp import NodeInfo, PortInfo

PARTITION_CAP: Final = 128
GUID_CAP: Final = 8
# Questions that wait for each asker.
QUESTIONS: Final = 16

_FIRST_PKEYS: Final = default_table(PARTITION_CAP)


class Programs(Protocol):
    """Programs of the host at a port."""

    def take(self, packet: Packet) -> bool:
        """Take a datagram that arrived at the port, if it is for a program."""
        ...


class EndPort(WatchedPort):
    """A port of a simulated node, at the end `end` of its cable; `programs` are those of its host, if there are any."""

    __slots__ = ("_falling", "counters", "end", "node", "programs")

    def __init__(self, node: "EndNode", number: int, end: LinkEnd, speed: LinkSpeed) -> None:
        info = first_port_info(
            number,
            gid_prefix=smpwire.DEFAULT_GID_PREFIX,
            capability_mask=END_PORT_CAPABILITIES,
            guid_cap=GUID_CAP,
        )
        super().__init__(number, info, _FIRST_PKEYS, (node.node.port_guids[number - 1],))
        self.set_speed(speed)
        self.node = node
        self.end = end
        self.counters = PortCounters()
        self.programs: Programs | None = None
        self._falling = False

    @property
    def guid(self) -> int:
        """Its port GUID."""
        return self.guids[0]

    def blocked(self, packet: Packet) -> bool:
        """See :class:`vhca.fabric.link.Endpoint`."""
        return False

    def receive(self, packet: Packet) -> None:
        """See :class:`vhca.fabric.link.Endpoint`."""
        self.node.receive(self, packet)

    def send(self, packet: Packet) -> None:
        """Put a packet on the cable."""
        self.counters.sent(packet, data_words(packet))
        self.end.send(packet)

    def take(self, packet: Packet) -> None:
        """Take a datagram that the port's own host sent to itself; it is on no cable."""
        self.node.take(self, packet)

    def answer(self, packet: Packet) -> None:
        """Send a packet of an agent; one for the host's own programs does not leave it."""
        if self.programs is None or not self._is_own(packet):
            self.send(packet)
            return
        programs = self.programs

        def arrive() -> None:
            programs.take(packet)

        self.end.link.call_soon(arrive)

    def _is_own(self, packet: Packet) -> bool:
        dlid, info = packet.route.dlid, self.info
        if dlid == PERMISSIVE_LID:
            return packet.payload[1] == madwire.CLASS_SUBN_DR and not packet.payload[7]
        return bool(info.lid) and info.lid <= dlid < info.lid + (1 << info.lmc)

    def set_capability(self, bit: int, present: bool) -> None:
        """Set or clear a bit of CapabilityMask, and tell the manager (trap 144)."""
        info = self.info
        mask = info.capability_mask | bit if present else info.capability_mask & ~bit
        if mask != info.capability_mask:
            info.capability_mask = mask
            self.node.capability_changed(self)

    def count(self, what: LinkCount, number: int) -> None:
        """Count what the cable noticed."""
        setattr(self.counters, what, getattr(self.counters, what) + number)

    def link_changed(self, up: bool) -> None:
        """See :class:`vhca.fabric.link.Endpoint`."""
        info = self.info
        if up:
            info.port_state, info.port_physical_state = smpwire.PORT_INIT, smpwire.PHYS_LINK_UP
            return
        self.counters.link_downed += 1
        info.port_state = smpwire.PORT_DOWN
        info.port_physical_state = smpwire.PHYS_DISABLED if self.disabled else smpwire.PHYS_POLLING

    def retrain(self, disabled: bool) -> None:
        """Take the link down, once the answer is out; it trains again unless it is `disabled`."""
        self.disabled = disabled
        self.info.port_state = smpwire.PORT_DOWN
        self.info.port_physical_state = smpwire.PHYS_DISABLED if disabled else smpwire.PHYS_POLLING
        if not self._falling:
            self._falling = True
            self.end.link.call_later(LINK_CHANGE_NS, self._fall)

    def _fall(self) -> None:
        self._falling = False
        if self.end.endpoint is self:  # a card may have taken this place
            self.end.set_enabled(False)
            self.end.set_enabled(not self.disabled)


class EndAgent(PortAgent[EndPort]):
    """The subnet management agent of all simulated nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.writers[smpwire.GUID_INFO] = self.write_guid_info

    def handle(self, port: EndPort, mad: bytes, now_ns: int, source: int) -> bytes | None:
        """Answer one SMP from LID `source` that arrived at `port`; None if it deserves no answer."""
        request = Smp.from_bytes(mad)
        answered = is_answered(request.method)
        if not answered and request.method != madwire.METHOD_TRAP_REPRESS:
            return None
        if request.mgmt_class == madwire.CLASS_SUBN_DR and not end_of_path(request, port.number):
            return None
        if not self.admit(port, request, now_ns, source) or not answered:
            return None
        self.respond(port, request)
        return request.to_bytes()

    def describe(self, port: EndPort) -> bytes:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        return port.node.node.description.encode()[:64].ljust(64, b"\0")

    def identify(self, port: EndPort) -> bytes:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        node = port.node.node
        return node_info(
            node_type=smpwire.NODE_TYPE_CA,
            num_ports=node.ports,
            guids=(node.make.system_guid, node.guid, port.guid),
            partition_cap=PARTITION_CAP,
            device_id=node.make.device_id,
            local_port_num=port.number,
            vendor_id=node.make.vendor_id,
        )

    def selected(self, port: EndPort, number: int) -> EndPort | None:
        """The port that a modifier names; 0 is the port of arrival. One without a cable has no state."""
        return port.node.ports.get(number) if number else port

    def write_port_info(self, port: EndPort, modifier: int, data: bytes) -> int:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        target = self.selected(port, port_of(modifier))
        wanted = PortInfo.from_bytes(data)
        if target is None or not end_port_settings_valid(target.info, wanted, modifier):
            return STATUS_INVALID_FIELD
        now = target.info.port_state
        apply_end_port(target.info, wanted, modifier)
        order = link_order(now, wanted)
        if order in ("disable", "poll", "down"):
            target.retrain(order == "disable" or (order == "down" and target.disabled))
        elif order == "move":
            target.info.port_state = wanted.port_state
        return STATUS_OK


class Company:
    """What all simulated nodes of a fabric share: their agent, and turns in which questions are answered.

    A question about counters is answered in a turn of its own, so that whoever asks without end waits for itself.
    """

    def __init__(self, call_soon: CallSoon, now_ns: Callable[[], int]) -> None:
        self.agent = EndAgent()
        self.now_ns = now_ns
        self.since_ns = now_ns()
        self.queue = FairQueue(call_soon, QUESTIONS)


class EndNode:
    """A simulated host: the ports of `node` that have cables, by number."""

    __slots__ = ("_alarm", "_company", "_performance", "node", "ports")

    def __init__(self, node: Node, company: Company) -> None:
        self.node = node
        self.ports: dict[int, EndPort] = {}
        self._company = company
        self._performance: PerformanceAgent | None = None
        # Of its agent, once something was measured.
        self._alarm: Alarm | None = None

    def plug(self, number: int, end: LinkEnd, speed: LinkSpeed) -> None:
        """Put a cable into a port, and switch it on."""
        port = self.ports[number] = EndPort(self, number, end, speed)
        self._performance = self._alarm = None
        end.count = port.count
        end.attach(port)

    def receive(self, port: EndPort, packet: Packet) -> None:
        """A packet or burst arrived at a port."""
        port.counters.received(packet, data_words(packet))
        if not packet.good:
            self._damaged(port, packet)
        else:
            self.take(port, packet)

    def take(self, port: EndPort, packet: Packet) -> None:
        """Do with a good packet what it asks for."""
        if packet.dest_qp == 0 and _is_datagram(packet):
            if is_smp(packet.payload):
                self._take_smp(port, packet)
        elif is_gmp(packet) and packet.payload[1] not in SMP_CLASSES:
            if not self._company.agent.keys_fit(port, packet, self._company.now_ns()):
                self.tell(port)
                return
            if port.programs is not None and port.programs.take(packet):
                return
            # More questions of one asker than it has room for are dropped, and asked again by whoever means them.
            if not self._company.queue.put(packet.route.slid, self._answer(port, packet)):
                port.counters.qp1_dropped += 1

    def _take_smp(self, port: EndPort, packet: Packet) -> None:
        mad = packet.payload
        if port.programs is not None and port.programs.take(packet):
            return
        if not for_agent(mad) and not is_asked(mad):
            return
        # Who asks for a manager where none is is told so by the agent.
        answer = self.answer_smp(port, mad, packet.route.slid)
        if answer is not None:
            port.answer(smp_reply(packet, answer, port.info.lid))

    def answer_smp(self, port: EndPort, mad: bytes, source: int = PERMISSIVE_LID) -> bytes | None:
        """The agent's answer to an SMP from LID `source` that arrived at `port`; None if it deserves none."""
        company = self._company
        answer = company.agent.handle(port, mad, company.now_ns(), source)
        if len(port.notices):
            self.tell(port)
        return answer

    @property
    def agent(self) -> EndAgent:
        """Its agent, which other nodes have, too."""
        return self._company.agent

    def tell(self, port: EndPort) -> None:
        """Send the traps of a port that are due."""
        company = self._company
        tell(company.agent, port, company.now_ns, port.answer, port.end)

    def node_info(self, port: EndPort) -> NodeInfo:
        """NodeInfo, as it is read by a port."""
        return NodeInfo.from_bytes(self._company.agent.identify(port))

    def capability_changed(self, port: EndPort) -> None:
        """Tell the manager, if there is one, what a port can do now."""
        if may_tell(port):
            details = LocalChangeDetails(lid=port.info.lid, capability_mask=port.info.capability_mask)
            port.notices.post(madwire.TRAP_CAPABILITY_CHANGE, madwire.PRODUCER_CA, details, self._company.now_ns())
            self.tell(port)

    def _damaged(self, port: EndPort, packet: Packet) -> None:
        port.end.link.wires.settle()
        counters, company = port.counters, self._company
        good = counters.rcv_pkts - counters.rcv_errors - packet.count
        if damaged_arrived(port, counters, packet, good, company.now_ns()):
            self.tell(port)

    def _answer(self, port: EndPort, packet: Packet) -> Job:
        mad = packet.payload
        if mad[1] == madwire.CLASS_PERF:
            reply = self._measured(port, mad)
        elif mad[1] == vendor.CLASS:
            reply = answer(mad, Device(self.node.make.device_id), self._company.now_ns() - self._company.since_ns)
        else:
            reply = refusal(mad)
        if reply is not None:
            port.answer(gmp_reply(packet, reply, port.info.lid, port.pkeys))
        yield from ()

    def _measured(self, port: EndPort, mad: bytes) -> bytes | None:
        agent = self._performance
        if agent is None:
            agent = self._performance = PerformanceAgent({number: port.counters for number, port in self.ports.items()})
        port.end.link.wires.settle()
        reply = agent.handle(mad, self._company.now_ns())
        if agent.deadline_ns is not None:
            self._measure(agent, port.end)
        return reply

    def _measure(self, agent: PerformanceAgent, end: LinkEnd) -> None:
        """Come back when a measurement begins or ends."""

        def due() -> None:
            end.link.wires.settle()
            agent.run(self._company.now_ns())
            self._measure(agent, end)

        if self._alarm is None:
            self._alarm = Alarm(due)
        self._alarm.set(agent.deadline_ns, self._company.now_ns(), end)


def _is_datagram(packet: Packet) -> bool:
    return packet.service == UD and packet.op == SEND and packet.count == 1
