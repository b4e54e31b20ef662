"""The subnet management agent inside a switch: what a manager reads and writes in it (14.2 of volume 1).

Answers datagrams only; how they travel is the switch's business. Guarantees that any 256 bytes give an answer or none,
and that a Set is done as a whole or not at all.
"""

from collections.abc import Callable
from typing import Final

from vhca.fabric.counters import Drop
from vhca.fabric.port import ENFORCEMENT_CAP, PARTITION_CAP, SwitchPort
from vhca.fabric.topology import Make
from vhca.fabric.wires import Wires
from vhca.layout import Layout
from vhca.management.agent import ZEROS, link_order, settings_valid
from vhca.management.port_agent import PortAgent, may_tell, node_info
from vhca.management.port_state import LANES
from vhca.management.subnet import apply_link_settings, is_answered, port_of
from vhca.wire import mad as madwire
from vhca.wire import notices
from vhca.wire import smp as smpwire
from vhca.wire.mad import STATUS_INVALID_FIELD, STATUS_OK, Smp
from vhca.wire.notices import LinkStateDetails, PortErrorDetails, SwitchKeyDetails
from vhca.wire.packet import MULTICAST_LID_FIRST, UD, Packet
from vhca.wire.smp import PortInfo, SwitchInfo

MULTICAST_FDB_CAP: Final = 4096


class SwitchState:
    """What managers read and write of a switch, beside SwitchInfo.

    :ivar make: who made it.
    :ivar ports: 0 is the management port.
    :ivar lft: the linear forwarding table: port by LID.
    :ivar mft: the multicast forwarding table: the set of ports of an MLID, as a bit mask.
    """

    def __init__(self, node_guid: int, make: Make, name: str, ports: list[SwitchPort], wires: Wires) -> None:
        self.node_guid = node_guid
        self.make = make
        self.name = name
        self.ports = ports
        self.lft = bytearray(b"\xff" * MULTICAST_LID_FIRST)
        self.mft: dict[int, int] = {}
        self.wires = wires

    def set_linear(self, first: int, ports: bytes) -> None:
        """Write entries of the linear forwarding table, for LIDs from `first` on."""
        self.wires.changes += 1
        self.lft[first : first + len(ports)] = ports

    @property
    def lid(self) -> int:
        """LID of the management port, 0 before a manager assigned one."""
        return self.ports[0].info.lid


class SwitchAgent(PortAgent[SwitchPort]):
    """Agent of one switch; its key, its notices and its GUID are those of port 0 (14.2.4)."""

    producer = madwire.PRODUCER_SWITCH

    def __init__(self, switch: SwitchState, now_ns: Callable[[], int]) -> None:
        super().__init__()
        self.switch = switch
        self._now_ns = now_ns
        self.info = SwitchInfo(
            linear_fdb_cap=MULTICAST_LID_FIRST,
            multicast_fdb_cap=MULTICAST_FDB_CAP,
            life_time_value=16,
            partition_enforcement_cap=ENFORCEMENT_CAP,
            inbound_enforcement_cap=1,
            outbound_enforcement_cap=1,
            filter_raw_inbound_cap=1,
            filter_raw_outbound_cap=1,
            multicast_fdb_top=MULTICAST_LID_FIRST + MULTICAST_FDB_CAP - 1,
        )
        self.readers |= {
            smpwire.SWITCH_INFO: self._read_switch_info,
            smpwire.LINEAR_FORWARDING_TABLE: self._read_linear_table,
            smpwire.MULTICAST_FORWARDING_TABLE: self._read_multicast_table,
            smpwire.SOURCE_LIDS: self._read_source_lids,
            smpwire.MLNX_EXT_PORT_INFO: self._read_ext_port_info_or_none,
        }
        self.writers |= {
            smpwire.SWITCH_INFO: self._write_switch_info,
            smpwire.LINEAR_FORWARDING_TABLE: self._write_linear_table,
            smpwire.MULTICAST_FORWARDING_TABLE: self._write_multicast_table,
            smpwire.SOURCE_LIDS: self._write_source_lids,
        }

    def state_changed(self) -> None:
        """Note that a port changed: PortStateChange, and trap 128 for the manager."""
        self.info.port_state_change = 1
        self._post(madwire.TRAP_LINK_STATE_CHANGE, lambda lid: LinkStateDetails(lid=lid))

    def link_unsteady(self, port: SwitchPort) -> None:
        """Note that a port has more local errors than its threshold allows: trap 129."""
        number = port.number
        self._post(madwire.TRAP_LINK_INTEGRITY, lambda lid: PortErrorDetails(lid=lid, port=number), number)

    def bad_pkey(self, port: SwitchPort, packet: Packet) -> None:
        """Note that an external port did not let a packet pass: P_KeyViolations, and trap 259."""
        port.pkey_violation()
        self._post(madwire.TRAP_SWITCH_BAD_PKEY, lambda lid: _switch_key_details(lid, port.number, packet), port.number)

    def _post(self, trap: int, details: Callable[[int], Layout], place: int = 0) -> None:
        zero = self.switch.ports[0]
        if may_tell(zero):
            zero.notices.post(trap, self.producer, details(zero.info.lid), self._now_ns(), place)

    def handle(self, port: SwitchPort, mad: bytes, source: int) -> bytes | None:
        """Answer one SMP request from LID `source` that arrived at `port`; None if it deserves no answer."""
        request = Smp.from_bytes(mad)
        if not self.admit(port, request, self._now_ns(), source):
            port.dropped[Drop.BAD_MKEY] += 1
            return None
        if not is_answered(request.method):
            return None
        self.respond(port, request)
        return request.to_bytes()

    def _external(self, number: int) -> SwitchPort | None:
        return self.switch.ports[number] if number < len(self.switch.ports) else None

    # What is a switch's own

    def describe(self, port: SwitchPort) -> bytes:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        return self.switch.name.encode()[:64].ljust(64, b"\0")

    def identify(self, port: SwitchPort) -> bytes:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        guid = self.switch.node_guid
        return node_info(
            node_type=smpwire.NODE_TYPE_SWITCH,
            num_ports=len(self.switch.ports) - 1,
            guids=(self.switch.make.system_guid, guid, guid),
            partition_cap=PARTITION_CAP,
            device_id=self.switch.make.device_id,
            local_port_num=port.number,
            vendor_id=self.switch.make.vendor_id,
        )

    def selected(self, port: SwitchPort, number: int) -> SwitchPort | None:
        """The port with this number, wherever a request arrived."""
        return self._external(number)

    def speaker(self, port: SwitchPort) -> SwitchPort:
        """Port 0."""
        return self.switch.ports[0]

    def pkey_port(self, port: SwitchPort, modifier: int) -> SwitchPort | None:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        return self._external(modifier)

    def pkeys_changed(self, port: SwitchPort) -> None:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        port.enforce()

    def weights_port(self, port: SwitchPort, modifier: int) -> SwitchPort | None:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        return self._external(modifier)

    def lanes(self, port: SwitchPort, modifier: int) -> bytes | None:
        """Of the ports of arrival and of departure that the modifier names."""
        port_in, port_out = modifier >> 8 & 0xFF, self._external(modifier & 0xFF)
        if port_out is None or port_in >= len(self.switch.ports):
            return None
        return port_out.sl_to_vl.get(port_in, LANES)

    def set_lanes(self, port: SwitchPort, modifier: int, lanes: bytes) -> bool:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        if self.lanes(port, modifier) is None:
            return False
        self.switch.ports[modifier & 0xFF].set_lanes(modifier >> 8 & 0xFF, lanes)
        return True

    def ext_ports(self, port: SwitchPort, number: int) -> list[SwitchPort]:
        """One external port, or all; the management port has no link."""
        if number == smpwire.ALL_PORTS:
            return self.switch.ports[1:]
        target = self._external(number)
        return [] if target is None or number == 0 else [target]

    def _read_ext_port_info_or_none(self, arrival: SwitchPort, modifier: int, mkey: int) -> bytes | None:
        # The management port has no link, which is no error.
        return self._read_ext_port_info(arrival, modifier, mkey) if modifier else ZEROS

    def _read_switch_info(self, arrival: SwitchPort, modifier: int, mkey: int) -> bytes:
        return self.info.to_bytes().ljust(64, b"\0")

    def _write_switch_info(self, arrival: SwitchPort, modifier: int, data: bytes) -> int:
        info = self.info
        wanted = SwitchInfo.from_bytes(data)
        if wanted.linear_fdb_top >= info.linear_fdb_cap:
            return STATUS_INVALID_FIELD
        info.linear_fdb_top = wanted.linear_fdb_top
        self.switch.wires.changes += 1
        info.default_port = wanted.default_port
        info.life_time_value = wanted.life_time_value
        if MULTICAST_LID_FIRST - 1 <= wanted.multicast_fdb_top < MULTICAST_LID_FIRST + MULTICAST_FDB_CAP:
            info.multicast_fdb_top = wanted.multicast_fdb_top
        if wanted.port_state_change:
            info.port_state_change = 0
        return STATUS_OK

    def write_port_info(self, arrival: SwitchPort, modifier: int, data: bytes) -> int:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        port = self._external(port_of(modifier))
        if port is None:
            return STATUS_INVALID_FIELD
        wanted = PortInfo.from_bytes(data)
        if not (_valid_zero(wanted) if port.number == 0 else settings_valid(port.info, wanted, modifier)):
            return STATUS_INVALID_FIELD
        told = may_tell(self.switch.ports[0])
        _apply(port, wanted, modifier)
        if not told and self.info.port_state_change:
            self.state_changed()  # amid the manager's first sweep, when it did not know whom to tell
        return STATUS_OK

    def _sources(self, block: int) -> list[SwitchPort]:
        size = smpwire.SOURCES_PER_BLOCK
        return self.switch.ports[block * size : (block + 1) * size]

    def _read_source_lids(self, arrival: SwitchPort, modifier: int, mkey: int) -> bytes | None:
        ports = self._sources(modifier)
        return smpwire.pack_sources(port.source for port in ports) if ports else None

    def _write_source_lids(self, arrival: SwitchPort, modifier: int, data: bytes) -> int:
        for port, (lid, lmc) in zip(self._sources(modifier), smpwire.unpack_sources(data), strict=False):
            # Port 0 is this switch itself.
            if port.number:
                port.set_source(lid, lmc)
        return STATUS_OK

    def _linear_block(self, modifier: int) -> slice | None:
        start = (modifier & 0xFFFF) * smpwire.LFT_PORTS_PER_BLOCK
        return slice(start, start + smpwire.LFT_PORTS_PER_BLOCK) if start < len(self.switch.lft) else None

    def _read_linear_table(self, arrival: SwitchPort, modifier: int, mkey: int) -> bytes | None:
        block = self._linear_block(modifier)
        return None if block is None else bytes(self.switch.lft[block])

    def _write_linear_table(self, arrival: SwitchPort, modifier: int, data: bytes) -> int:
        block = self._linear_block(modifier)
        if block is None:
            return STATUS_INVALID_FIELD
        self.switch.set_linear(block.start, data)
        return STATUS_OK

    def _multicast_block(self, modifier: int) -> tuple[range, int] | None:
        """The LIDs and the position of the ports that the modifier names."""
        block, position = modifier & 0x1FF, modifier >> 28
        first = MULTICAST_LID_FIRST + block * smpwire.MFT_MASKS_PER_BLOCK
        if first >= MULTICAST_LID_FIRST + MULTICAST_FDB_CAP or position * 16 >= len(self.switch.ports):
            return None
        return range(first, first + smpwire.MFT_MASKS_PER_BLOCK), position * 16

    def _read_multicast_table(self, arrival: SwitchPort, modifier: int, mkey: int) -> bytes | None:
        block = self._multicast_block(modifier)
        if block is None:
            return None
        lids, shift = block
        return smpwire.pack_words([self.switch.mft.get(lid, 0) >> shift & 0xFFFF for lid in lids])

    def _write_multicast_table(self, arrival: SwitchPort, modifier: int, data: bytes) -> int:
        block = self._multicast_block(modifier)
        if block is None:
            return STATUS_INVALID_FIELD
        mft = self.switch.mft
        lids, shift = block
        for lid, ports in zip(lids, smpwire.unpack_words(data), strict=True):
            mask = mft.get(lid, 0) & ~(0xFFFF << shift) | ports << shift
            if mask:
                mft[lid] = mask
            else:
                mft.pop(lid, None)
        return STATUS_OK


def _valid_zero(wanted: PortInfo) -> bool:
    return 0 < wanted.lid < MULTICAST_LID_FIRST and wanted.port_state <= smpwire.PORT_ACTIVE


def _apply(port: SwitchPort, wanted: PortInfo, attr_mod: int) -> None:
    info = port.info
    if port.number == 0:
        for name in (
            "mkey",
            "gid_prefix",
            "lid",
            "sm_lid",
            "mkey_lease_period",
            "mkey_protect_bits",
            "sm_sl",
            "subnet_timeout",
        ):
            setattr(info, name, getattr(wanted, name))
        return
    apply_link_settings(info, wanted, attr_mod)
    if wanted.neighbor_mtu:
        port.set_mtu(wanted.neighbor_mtu)
    if wanted.operational_vls:
        port.set_data_vls(wanted.operational_vls)
    info.vl_high_limit = wanted.vl_high_limit
    info.hoq_life = wanted.hoq_life
    info.vl_stall_count = wanted.vl_stall_count
    info.local_phy_errors = wanted.local_phy_errors
    info.overrun_errors = wanted.overrun_errors
    info.filter_raw_inbound = wanted.filter_raw_inbound
    info.filter_raw_outbound = wanted.filter_raw_outbound
    info.partition_enforcement_inbound = wanted.partition_enforcement_inbound
    info.partition_enforcement_outbound = wanted.partition_enforcement_outbound
    if not wanted.pkey_violations:
        info.pkey_violations = 0
    port.enforce()
    order = link_order(port.state, wanted)
    if order == "disable":
        port.retrain(disabled=True)
    elif order == "poll":
        port.retrain(disabled=False)
    elif order == "down":
        port.retrain(port.disabled)
    elif order == "move":
        port.move(wanted.port_state)


def _switch_key_details(lid: int, number: int, packet: Packet) -> SwitchKeyDetails:
    """What trap 259 of the switch at `lid` tells of a packet that its port `number` did not let pass."""
    route = packet.route
    details = SwitchKeyDetails(
        data_valid=notices.VALID_LID1 | notices.VALID_LID2 | notices.VALID_PKEY | notices.VALID_SL | notices.VALID_QP2,
        lid1=route.slid,
        lid2=route.dlid,
        pkey=packet.pkey,
        sl=route.sl << 4,
        qp2=packet.dest_qp.to_bytes(3, "big"),
        switch_lid=lid,
        port=number,
    )
    if packet.service == UD:
        details.data_valid |= notices.VALID_QP1
        details.qp1 = packet.src_qp.to_bytes(3, "big")
    if route.grh is not None:
        details.data_valid |= notices.VALID_GID1 | notices.VALID_GID2
        details.gid1, details.gid2 = route.grh.sgid, route.grh.dgid
    return details
