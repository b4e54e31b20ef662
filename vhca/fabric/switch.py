"""A switch: forwards packets by tables that a subnet manager writes, and SMPs by the path inside them.

Assumes one thread and ordered cables. Unicast goes by the linear forwarding table, multicast to all ports of its mask
but the one of arrival, directed-route SMPs by hop pointer (14.2.2 of volume 1). Bursts are looked up once and stay
whole. Data passes only ports in Armed or Active (in) and Active (out); SMPs pass all links that are up. Whatever goes
no further is counted by name at its port of arrival or departure.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from vhca.fabric.counters import Drop
from vhca.fabric.general_services import GeneralServices
from vhca.fabric.port import SwitchPort
from vhca.fabric.switch_agent import SwitchAgent, SwitchState
from vhca.fabric.telling import tell
from vhca.fabric.topology import Make, usual_make
from vhca.fabric.wires import Wires
from vhca.management import directed
from vhca.management.fair_queue import CallSoon
from vhca.management.packets import gmp_reply, is_gmp
from vhca.management.performance import data_words
from vhca.management.port_state import LANES
from vhca.management.subnet import SMP_CLASSES, for_agent, is_asked
from vhca.management.vendor import Device
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import MAD_BYTES, Smp
from vhca.wire.packet import MANAGEMENT_VL, MULTICAST_LID_FIRST, PERMISSIVE_LID, SEND, UD, Packet


class Switch(SwitchState):
    """A switch with external ports 1..`num_ports` and the management port 0."""

    def __init__(
        self,
        call_soon: CallSoon,
        node_guid: int,
        num_ports: int = 36,
        name: str = "vhca switch",
        now_ns: Callable[[], int] = lambda: 0,
        wires: Wires | None = None,
        make: Make | None = None,
    ) -> None:
        if not 1 <= num_ports <= 254:
            raise ValueError(f"a switch has 1 to 254 ports, not {num_ports}")
        self.wires = wires if wires is not None else Wires()
        self.node_guid = node_guid
        zero = SwitchPort(self, 0)
        ports = [zero, *(SwitchPort(self, number, zero.guard) for number in range(1, num_ports + 1))]
        super().__init__(node_guid, make or usual_make("switch", node_guid), name, ports, self.wires)
        self.call_soon = call_soon
        self._now_ns = now_ns
        self.agent = SwitchAgent(self, now_ns)
        self.services = GeneralServices(
            self.ports,
            call_soon,
            answer=lambda question, mad: self.send_from_management(
                gmp_reply(question, mad, self.lid, self.ports[0].pkeys)
            ),
            administered=lambda: self.management is not None,
            now_ns=now_ns,
            device=Device(self.make.device_id),
        )
        # Gets what is for port 0, with the number of the port of arrival.
        self.management: Callable[[Packet, int], None] | None = None

    def now_ns(self) -> int:
        """See :class:`vhca.fabric.port.Relay`."""
        return self._now_ns()

    def free_port(self) -> SwitchPort:
        """The lowest external port without a cable; LookupError if all are taken."""
        for port in self.ports[1:]:
            if port.end is None:
                return port
        raise LookupError(f"{self.name}: all {len(self.ports) - 1} ports are taken")

    def dropped(self) -> Counter[Drop]:
        """Packets that went no further, by reason."""
        total: Counter[Drop] = Counter()
        for port in self.ports:
            total.update(port.dropped)
        return total

    def port_state_changed(self, port: SwitchPort) -> None:
        """A cable came or went: tell the manager (trap 128)."""
        for each in self.ports:
            each.waits_no_more()
        self.agent.state_changed()
        self.tell()

    def tell(self) -> None:
        """Send the traps that are due."""
        if not len(self.ports[0].notices):
            return
        # What happens here comes by a cable.
        end = next((port.end for port in self.ports if port.end is not None), None)
        tell(self.agent, self.ports[0], self._now_ns, self.send_from_management, end)

    def send_from_management(self, packet: Packet) -> None:
        """A packet from whoever sits on port 0 (subnet manager, agents)."""
        self.receive(self.ports[0], packet)

    def blocked(self, port: SwitchPort, packet: Packet) -> bool:
        """True if a cable that this packet leaves by is full: it waits on the cable of its arrival (7.9)."""
        if packet.route.vl == MANAGEMENT_VL:
            return False
        route = packet.route
        if not route.is_multicast:
            number = self.lft[route.dlid] if route.dlid < len(self.lft) else 0xFF
            if number >= len(self.ports) or number == port.number or not self.ports[number].full:
                return False
            return self.ports[number].waits(self._now_ns())
        mask = self.mft.get(route.dlid, 0)
        now_ns = self._now_ns()
        full = [out for out in self.ports if mask >> out.number & 1 and out is not port and out.full]
        waiting = [out for out in full if out.waits(now_ns)]
        return bool(waiting)

    def receive(self, port: SwitchPort, packet: Packet) -> None:
        """A packet or burst arrived at `port`."""
        words = data_words(packet)
        route = packet.route
        port.counters.received(packet, words)
        if not packet.good:
            self._damaged(port, packet)
        elif route.vl == MANAGEMENT_VL:
            self._receive_smp(port, packet, words)
        elif port.state < smpwire.PORT_ARMED:
            port.drop(packet, Drop.PORT_NOT_ACTIVE)
        elif route.vl >= port.data_vls:
            port.counters.rcv_errors += packet.count
            port.counters.malformed_errors += packet.count
            port.drop(packet, Drop.VL)
        elif route.slid & port.source_mask != port.source_lid:
            self._relay_error(port, packet, Drop.BAD_SLID)
        elif port.admits is not None and packet.pkey not in port.admits:
            port.counters.rcv_constraint_errors += packet.count
            self._bad_pkey(port, packet)
        elif MULTICAST_LID_FIRST <= route.dlid < PERMISSIVE_LID:
            self._forward_multicast(port, packet, words)
        else:
            self._forward_unicast(port, packet, words)

    def out_port(self, dlid: int) -> SwitchPort | None:
        """See :class:`vhca.fabric.port.Relay`."""
        number = self.lft[dlid] if dlid <= self.agent.info.linear_fdb_top else smpwire.NO_PORT
        return self.ports[number] if number < len(self.ports) else None

    # Data

    def _forward_unicast(self, port: SwitchPort, packet: Packet, words: int) -> None:
        out = self._route(port, packet)
        if out is None:
            return
        if out is port:
            port.counters.looping_errors += packet.count
            self._relay_error(port, packet, Drop.LOOP)
        elif out.number == 0:
            self._take(port, packet)
        else:
            self._transmit_data(port, out, packet, words)

    def _take(self, port: SwitchPort, packet: Packet) -> None:
        """Data for the management port: for QP1, if it has its keys."""
        if is_gmp(packet) and not self.agent.keys_fit(self.ports[0], packet, self._now_ns()):
            port.drop(packet, Drop.KEYS)
            self.tell()
        elif not self.services.take(port, packet):
            self._deliver_to_management(port, packet)

    def _route(self, port: SwitchPort, packet: Packet) -> SwitchPort | None:
        """The port of departure by the linear forwarding table; None (and counted) if there is none."""
        dlid = packet.route.dlid
        if not 0 < dlid < MULTICAST_LID_FIRST:
            self._no_way(port, packet, Drop.BAD_LID)
            return None
        out = self.out_port(dlid)
        if out is None:
            self._no_way(port, packet, Drop.NO_ROUTE)
        return out

    def _forward_multicast(self, port: SwitchPort, packet: Packet, words: int) -> None:
        mask = self.mft.get(packet.route.dlid, 0)
        if not mask:
            self._no_way(port, packet, Drop.NO_GROUP)
            return
        for out in self.ports:
            if not mask >> out.number & 1 or out is port:
                continue
            # Receivers own their packets.
            copy = replace(packet)
            if out.number == 0:
                self._deliver_to_management(port, copy)
            else:
                self._transmit_data(port, out, copy, words)

    def _transmit_data(self, port: SwitchPort, out: SwitchPort, packet: Packet, words: int) -> None:
        counters = out.counters
        if out.state != smpwire.PORT_ACTIVE:
            counters.xmit_discards += packet.count
            counters.inactive_discards += packet.count
            out.drop(packet, Drop.PORT_NOT_ACTIVE)
            return
        if min(packet.mtu, len(packet.payload)) > out.mtu_bytes:
            counters.xmit_discards += packet.count
            counters.mtu_discards += packet.count
            out.drop(packet, Drop.MTU)
            return
        if out.emits is not None and packet.pkey not in out.emits:
            counters.xmit_constraint_errors += packet.count
            self._bad_pkey(out, packet)
            return
        route = packet.route
        vl = out.sl_to_vl.get(port.number, LANES)[route.sl]
        if vl >= out.data_vls:
            port.counters.vl_mapping_errors += packet.count
            self._relay_error(port, packet, Drop.SL_TO_VL)
            return
        if out.stuck_since_ns is not None and out.full and out.expired(self._now_ns()):
            counters.xmit_discards += packet.count
            counters.hoq_discards += packet.count
            out.drop(packet, Drop.HOQ)
            out.give_up(self._now_ns())
            return
        if vl != route.vl:
            packet.route = route._replace(vl=vl)
        out.transmit(packet, words)

    def _damaged(self, port: SwitchPort, packet: Packet) -> None:
        self.wires.settle()
        counters = port.counters
        counters.rcv_errors += packet.count
        counters.local_physical_errors += packet.count
        port.drop(packet, Drop.BAD_CRC)
        if port.damaged(packet.count, counters.rcv_pkts - counters.rcv_errors):
            counters.local_link_integrity_errors += 1
            self.agent.link_unsteady(port)
            self.tell()

    def _bad_pkey(self, port: SwitchPort, packet: Packet) -> None:
        """`port` does not let a packet in or out (partition enforcement)."""
        port.drop(packet, Drop.PKEY)
        self.agent.bad_pkey(port, packet)
        self.tell()

    def _no_way(self, port: SwitchPort, packet: Packet, reason: Drop) -> None:
        port.counters.dlid_mapping_errors += packet.count
        self._relay_error(port, packet, reason)

    def _relay_error(self, port: SwitchPort, packet: Packet, reason: Drop) -> None:
        port.counters.rcv_switch_relay_errors += packet.count
        port.drop(packet, reason)

    def _deliver_to_management(self, port: SwitchPort, packet: Packet) -> None:
        management = self.management
        if management is None:
            port.drop(packet, Drop.NO_MANAGER)
        else:
            self.ports[0].counters.sent(packet, data_words(packet))
            number = port.number
            self.call_soon(lambda: management(packet, number))

    # SMPs

    def _receive_smp(self, port: SwitchPort, packet: Packet, words: int) -> None:
        payload = packet.payload
        is_send = packet.service == UD and packet.op == SEND and packet.count == 1
        if not is_send or packet.dest_qp != 0 or len(payload) != MAD_BYTES or payload[1] not in SMP_CLASSES:
            port.counters.vl15_dropped += packet.count
            port.drop(packet, Drop.BAD_SMP)
        elif not port.is_source(packet.route.slid) and packet.route.slid != PERMISSIVE_LID:
            port.counters.vl15_dropped += packet.count
            port.drop(packet, Drop.BAD_SLID)
        elif packet.route.dlid not in (self.lid or PERMISSIVE_LID, PERMISSIVE_LID):
            self._route_smp(port, packet, words)
        elif payload[1] == madwire.CLASS_SUBN_DR:
            self._step_directed(port, packet, words)
        else:
            self._smp_arrived(port, packet)

    def _route_smp(self, port: SwitchPort, packet: Packet, words: int) -> None:
        """An SMP on a LID-routed part of its way, for another node."""
        out = self._route(port, packet)
        if out is not None:
            self._transmit_smp(port, out.number, packet, words)

    def _step_directed(self, port: SwitchPort, packet: Packet, words: int) -> None:
        """An SMP on the directed part of its way, or at one end of it."""
        if port.number and packet.route.dlid == packet.route.slid == PERMISSIVE_LID:
            passed = directed.pass_on(packet.payload, port.number)
            if passed is not None:
                packet.payload = passed[1]
                self._transmit_smp(port, passed[0], packet, words)
                return
        smp = Smp.from_bytes(packet.payload)
        arrival = directed.BY_LID if packet.route.dlid != PERMISSIVE_LID else directed.BY_PORT
        origin = arrival if port.number else directed.INSIDE
        returning = smp.status & madwire.STATUS_DIRECTION
        if returning:
            step = directed.response_step(smp, origin, self.lid)
        else:
            step = directed.request_step(smp, port.number, origin, self.lid)
        if step == directed.DISCARD:
            self._bad_path(port, packet)
        elif step == directed.TAKE:
            packet.payload = smp.to_bytes()
            self._smp_arrived(port, packet)
        elif step == directed.ROUTE:
            dlid = smp.dr_slid if returning else smp.dr_dlid
            onward = _on_way(packet, dlid, self.lid, smp.to_bytes())
            self._route_smp(port, onward, words)
        else:
            self._transmit_smp(port, step - directed.LEAVE, _directed(packet, smp), words)

    def _bad_path(self, port: SwitchPort, packet: Packet) -> None:
        port.counters.vl15_dropped += packet.count
        port.drop(packet, Drop.BAD_PATH)

    def _transmit_smp(self, port: SwitchPort, number: int, packet: Packet, words: int) -> None:
        if number == 0 or number >= len(self.ports):
            self._bad_path(port, packet)
            return
        out = self.ports[number]
        if out.state == smpwire.PORT_DOWN:
            out.counters.vl15_dropped += packet.count
            out.drop(packet, Drop.LINK_DOWN)
            return
        out.transmit(packet, words)

    def answer(self, port: SwitchPort, mad: bytes, source: int = PERMISSIVE_LID) -> bytes | None:
        """The agent's answer to an SMP from LID `source` that arrived at `port`; None if it deserves none."""
        reply = self.agent.handle(port, mad, source)
        self.tell()
        return reply

    def _smp_arrived(self, port: SwitchPort, packet: Packet) -> None:
        """An SMP for this switch: requests are for its agent, everything else for the manager on port 0."""
        if not for_agent(packet.payload) and (self.management is not None or not is_asked(packet.payload)):
            self._deliver_to_management(port, packet)
            return
        reply = self.answer(port, packet.payload, packet.route.slid)
        if reply is None:
            return
        by_lid = packet.route.dlid != PERMISSIVE_LID
        answer = _on_way(packet, packet.route.slid, self.lid, reply)
        if reply[1] == madwire.CLASS_SUBN_DR:
            smp = Smp.from_bytes(reply)
            if not smp.hop_count:
                smp.hop_pointer = 0
                answer.payload = smp.to_bytes()
            elif not by_lid:
                smp.hop_pointer = smp.hop_count
                self._answer_out(self.ports[smp.return_path[smp.hop_count]], _directed(answer, smp))
                return
        # The table may not have been written yet: an answer by LID leaves where the request came in.
        self._answer_out(port, answer)

    def _answer_out(self, out: SwitchPort, answer: Packet) -> None:
        if out.number == 0:
            self._deliver_to_management(out, answer)
        else:
            self._transmit_smp(out, out.number, answer, data_words(answer))


def _directed(packet: Packet, smp: Smp) -> Packet:
    """The packet that carries a directed-route SMP to the next hop: permissive LIDs."""
    return _on_way(packet, PERMISSIVE_LID, PERMISSIVE_LID, smp.to_bytes())


def _on_way(packet: Packet, dlid: int, slid: int, mad: bytes) -> Packet:
    """The packet, which is the switch's own, with other LIDs (permissive if there is none) and another datagram."""
    packet.route = packet.route._replace(dlid=dlid, slid=slid or PERMISSIVE_LID)
    packet.payload = mad
    return packet
