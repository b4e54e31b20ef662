"""Simulated end nodes: hosts of a topology of which there is nothing but an adapter's management.

Each port answers a subnet manager and shows its counters, as the ports of a card do; data that is sent to it is counted
and gone. One agent serves all nodes of a fabric, and a node keeps only what managers have written, so that thousands
cost little.
"""

from collections.abc import Callable
from typing import Final

from vhca.fabric.link import LinkEnd
from vhca.fabric.topology import Node
from vhca.management.agent import (
    SubnetAgent,
    apply_end_port,
    end_port_settings_valid,
    link_order,
    pack_sl_to_vl,
    unpack_sl_to_vl,
)
from vhca.management.directed import end_of_path
from vhca.management.fair_queue import CallSoon, FairQueue, Job
from vhca.management.link_speed import LinkSpeed
from vhca.management.mkey import MKeyGuard
from vhca.management.packets import gmp_reply, is_gmp, smp_reply
from vhca.management.performance import PerformanceAgent, PortCounters, data_words
from vhca.management.refusal import refusal
from vhca.management.subnet import (
    LINK_CHANGE_NS,
    SMP_CLASSES,
    ext_port_info,
    ext_port_wanted,
    for_agent,
    is_answered,
    is_smp,
    port_of,
)
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import STATUS_INVALID_FIELD, STATUS_OK, Smp
from vhca.wire.packet import SEND, UD, Packet
from vhca.wire.smp import NodeInfo, PortInfo

PARTITION_CAP: Final = 16
GUID_CAP: Final = 8
DATA_VLS: Final = 4
# As those of a card; the description says what it is.
VENDOR_ID: Final = 0x0002C9
DEVICE_ID: Final = 0x1017
# Questions that wait for each asker.
QUESTIONS: Final = 16

_CAPABILITIES: Final = (
    smpwire.CAP_TRAP
    | smpwire.CAP_SL_MAPPING
    | smpwire.CAP_SYSTEM_IMAGE_GUID
    | smpwire.CAP_EXTENDED_SPEEDS
    | smpwire.CAP_MASK2
    | smpwire.CAP_CLIENT_REREGISTRATION
)
_EVEN: Final = b"".join(bytes((vl, 64)) for vl in range(DATA_VLS)) + bytes(2 * DATA_VLS)
_LANES: Final = bytes(sl % DATA_VLS for sl in range(16))


class EndPort:
    """A port of a simulated node, at the end `end` of its cable."""

    __slots__ = (
        "_falling",
        "counters",
        "disabled",
        "end",
        "ext_speed_enabled",
        "guard",
        "guids",
        "info",
        "lanes",
        "node",
        "number",
        "pkeys",
        "weights",
    )  # fmt: skip

    def __init__(self, node: "EndNode", number: int, end: LinkEnd, speed: LinkSpeed) -> None:
        self.node = node
        self.number = number
        self.end = end
        self.counters = PortCounters()
        self.disabled = False
        self._falling = False
        self.ext_speed_enabled = smpwire.SPEED_FDR10
        # What managers wrote; None where they did not.
        self.pkeys: list[int] | None = None
        self.guids: list[int] | None = None
        self.lanes = _LANES
        self.weights: dict[int, bytes] | None = None
        self.info = PortInfo(
            gid_prefix=smpwire.DEFAULT_GID_PREFIX,
            capability_mask=_CAPABILITIES,
            local_port_num=number,
            port_state=smpwire.PORT_DOWN,
            port_physical_state=smpwire.PHYS_POLLING,
            link_down_default_state=smpwire.PHYS_POLLING,
            neighbor_mtu=smpwire.MTU_4096,
            vl_cap=smpwire.VL_CAP_4,
            vl_arbitration_high_cap=2 * DATA_VLS,
            vl_arbitration_low_cap=2 * DATA_VLS,
            mtu_cap=smpwire.MTU_4096,
            operational_vls=smpwire.VL_CAP_4,
            guid_cap=GUID_CAP,
            subnet_timeout=18,
            resp_time_value=16,
            local_phy_errors=15,
            overrun_errors=15,
        )
        speed.train(self.info)
        self.guard = MKeyGuard(self.info)

    @property
    def guid(self) -> int:
        """Its port GUID."""
        return self.node.node.port_guids[self.number - 1]

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


class EndAgent(SubnetAgent[EndPort]):
    """The subnet management agent of all simulated nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.getters = {
            smpwire.NODE_DESCRIPTION: self._get_node_description,
            smpwire.NODE_INFO: self._get_node_info,
            smpwire.GUID_INFO: self._get_guid_info,
            smpwire.PORT_INFO: self._get_port_info,
            smpwire.P_KEY_TABLE: self._get_pkey_table,
            smpwire.SL_TO_VL: self._get_sl_to_vl,
            smpwire.VL_ARBITRATION: self._get_vl_arbitration,
            smpwire.MLNX_EXT_PORT_INFO: self._get_ext_port_info,
        }
        self.setters = {
            smpwire.GUID_INFO: self._set_guid_info,
            smpwire.PORT_INFO: self._set_port_info,
            smpwire.P_KEY_TABLE: self._set_pkey_table,
            smpwire.SL_TO_VL: self._set_sl_to_vl,
            smpwire.VL_ARBITRATION: self._set_vl_arbitration,
            smpwire.MLNX_EXT_PORT_INFO: self._set_ext_port_info,
        }

    def handle(self, port: EndPort, mad: bytes, now_ns: int) -> bytes | None:
        """Answer one SMP that arrived at `port`; None if it deserves no answer."""
        request = Smp.from_bytes(mad)
        answered = is_answered(request.method)
        if not answered and request.method != madwire.METHOD_TRAP_REPRESS:
            return None
        if request.mgmt_class == madwire.CLASS_SUBN_DR and not end_of_path(request, port.number):
            return None
        if not port.guard.allows(request, now_ns) or not answered:
            return None
        self.respond(port, request)
        return request.to_bytes()

    def _get_node_description(self, port: EndPort, request: Smp) -> int:
        request.data = port.node.node.description.encode()[:64].ljust(64, b"\0")
        return STATUS_INVALID_FIELD if request.attr_mod else STATUS_OK

    def _get_node_info(self, port: EndPort, request: Smp) -> int:
        node = port.node.node
        info = NodeInfo(
            base_version=1,
            class_version=1,
            node_type=smpwire.NODE_TYPE_CA,
            num_ports=node.ports,
            system_image_guid=node.guid,
            node_guid=node.guid,
            port_guid=port.guid,
            partition_cap=PARTITION_CAP,
            device_id=DEVICE_ID,
            local_port_num=port.number,
            vendor_id=VENDOR_ID,
        )
        request.data = info.to_bytes().ljust(64, b"\0")
        return STATUS_INVALID_FIELD if request.attr_mod else STATUS_OK

    def _get_guid_info(self, port: EndPort, request: Smp) -> int:
        if request.attr_mod * smpwire.GUIDS_PER_BLOCK >= GUID_CAP:
            return STATUS_INVALID_FIELD
        request.data = smpwire.pack_guids(port.guids or [port.guid]).ljust(64, b"\0")
        return STATUS_OK

    def _set_guid_info(self, port: EndPort, request: Smp) -> int:
        if request.attr_mod * smpwire.GUIDS_PER_BLOCK >= GUID_CAP:
            return STATUS_INVALID_FIELD
        # Entry 0 is burnt in (14.2.5.5).
        port.guids = [port.guid, *smpwire.unpack_guids(request.data)[1:]]
        return STATUS_OK

    def _selected(self, port: EndPort, number: int) -> EndPort | None:
        """The port that a modifier names; 0 is the port of arrival. One without a cable has no state."""
        return port.node.ports.get(number) if number else port

    def _get_port_info(self, port: EndPort, request: Smp) -> int:
        target = self._selected(port, port_of(request.attr_mod))
        if target is None:
            return STATUS_INVALID_FIELD
        info = PortInfo.from_bytes(target.info.to_bytes())
        info.mkey = target.guard.shown_to(request.mkey)
        info.local_port_num = port.number
        if request.method == madwire.METHOD_SET:
            info.client_reregister = PortInfo.from_bytes(request.data).client_reregister
        request.data = info.to_bytes()
        return STATUS_OK

    def _set_port_info(self, port: EndPort, request: Smp) -> int:
        target = self._selected(port, port_of(request.attr_mod))
        wanted = PortInfo.from_bytes(request.data)
        if target is None or not end_port_settings_valid(target.info, wanted, request.attr_mod):
            return STATUS_INVALID_FIELD
        now = target.info.port_state
        apply_end_port(target.info, wanted, request.attr_mod)
        order = link_order(now, wanted)
        if order in ("disable", "poll", "down"):
            target.retrain(order == "disable" or (order == "down" and target.disabled))
        elif order == "move":
            target.info.port_state = wanted.port_state
        return STATUS_OK

    def _get_pkey_table(self, port: EndPort, request: Smp) -> int:
        if (request.attr_mod & 0xFFFF) * smpwire.P_KEYS_PER_BLOCK >= PARTITION_CAP:
            return STATUS_INVALID_FIELD
        request.data = smpwire.pack_words(port.pkeys or [0xFFFF]).ljust(64, b"\0")
        return STATUS_OK

    def _set_pkey_table(self, port: EndPort, request: Smp) -> int:
        if (request.attr_mod & 0xFFFF) * smpwire.P_KEYS_PER_BLOCK >= PARTITION_CAP:
            return STATUS_INVALID_FIELD
        port.pkeys = smpwire.unpack_words(request.data)[:PARTITION_CAP]
        return STATUS_OK

    def _get_sl_to_vl(self, port: EndPort, request: Smp) -> int:
        request.data = pack_sl_to_vl(port.lanes)
        return STATUS_OK

    def _set_sl_to_vl(self, port: EndPort, request: Smp) -> int:
        port.lanes = bytes(unpack_sl_to_vl(request.data))
        return STATUS_OK

    def _get_vl_arbitration(self, port: EndPort, request: Smp) -> int:
        block = request.attr_mod >> 16
        if block not in (1, 3):
            return STATUS_INVALID_FIELD
        request.data = (port.weights or {}).get(block, _EVEN).ljust(64, b"\0")
        return STATUS_OK

    def _set_vl_arbitration(self, port: EndPort, request: Smp) -> int:
        block = request.attr_mod >> 16
        if block not in (1, 3):
            return STATUS_INVALID_FIELD
        port.weights = (port.weights or {}) | {block: request.data[: len(_EVEN)]}
        return STATUS_OK

    def _get_ext_port_info(self, port: EndPort, request: Smp) -> int:
        target = self._selected(port, request.attr_mod)
        if target is None:
            return STATUS_INVALID_FIELD
        request.data = ext_port_info(target.ext_speed_enabled)
        return STATUS_OK

    def _set_ext_port_info(self, port: EndPort, request: Smp) -> int:
        target = self._selected(port, request.attr_mod)
        wanted = None if target is None else ext_port_wanted(target.ext_speed_enabled, request.data)
        if target is None or wanted is None:
            return STATUS_INVALID_FIELD
        target.ext_speed_enabled = wanted
        return STATUS_OK


class Company:
    """What all simulated nodes of a fabric share: their agent, and turns in which questions are answered.

    A question about counters is answered in a turn of its own, so that whoever asks without end waits for itself.
    """

    def __init__(self, call_soon: CallSoon, now_ns: Callable[[], int]) -> None:
        self.agent = EndAgent()
        self.now_ns = now_ns
        self.queue = FairQueue(call_soon, QUESTIONS)


class EndNode:
    """A simulated host: the ports of `node` that have cables, by number."""

    __slots__ = ("_company", "_performance", "node", "ports")

    def __init__(self, node: Node, company: Company) -> None:
        self.node = node
        self.ports: dict[int, EndPort] = {}
        self._company = company
        self._performance: PerformanceAgent | None = None

    def plug(self, number: int, end: LinkEnd, speed: LinkSpeed) -> None:
        """Put a cable into a port, and switch it on."""
        port = self.ports[number] = EndPort(self, number, end, speed)
        self._performance = None
        end.attach(port)

    def receive(self, port: EndPort, packet: Packet) -> None:
        """A packet or burst arrived at a port."""
        port.counters.received(packet, data_words(packet))
        if not packet.good:
            port.counters.rcv_errors += packet.count
        elif packet.dest_qp == 0 and _is_datagram(packet):
            if is_smp(packet.payload) and for_agent(packet.payload):
                answer = self._company.agent.handle(port, packet.payload, self._company.now_ns())
                if answer is not None:
                    port.send(smp_reply(packet, answer, port.info.lid))
        elif is_gmp(packet) and packet.payload[1] not in SMP_CLASSES:
            # More questions of one asker than it has room for are dropped, and asked again by whoever means them.
            self._company.queue.put(packet.route.slid, self._answer(port, packet))

    def _answer(self, port: EndPort, packet: Packet) -> Job:
        mad = packet.payload
        if mad[1] == madwire.CLASS_PERF:
            if self._performance is None:
                counters = {number: port.counters for number, port in self.ports.items()}
                self._performance = PerformanceAgent(counters)
            reply = self._performance.handle(mad)
        else:
            reply = refusal(mad)
        if reply is not None:
            port.send(gmp_reply(packet, reply, port.info.lid))
        yield from ()


def _is_datagram(packet: Packet) -> bool:
    return packet.service == UD and packet.op == SEND and packet.count == 1
