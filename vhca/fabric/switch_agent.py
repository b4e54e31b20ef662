"""The subnet management agent inside a switch: what a manager reads and writes in it (14.2 of volume 1).

Answers datagrams only; how they travel is the switch's business. Guarantees that any 256 bytes give an answer or none,
and that a Set is done as a whole or not at all.
"""

from collections.abc import Callable
from typing import Final

from vhca.fabric.counters import Drop
from vhca.fabric.port import DEFAULT_SL_TO_VL, SwitchPort
from vhca.fabric.wires import Wires
from vhca.management.agent import SubnetAgent, link_order, pack_sl_to_vl, settings_valid, unpack_sl_to_vl
from vhca.management.mkey import MKeyGuard
from vhca.management.subnet import (
    apply_link_settings,
    ext_port_info,
    ext_port_wanted,
    is_answered,
    port_of,
)
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_SET, STATUS_INVALID_FIELD, STATUS_OK, Smp
from vhca.wire.packet import MANAGEMENT_VL, MULTICAST_LID_FIRST, SEND, UD, Packet, Route
from vhca.wire.smp import NodeInfo, PortInfo, SwitchInfo

MULTICAST_FDB_CAP: Final = 4096
_VENDOR_ID: Final = 0x0002C9
_DEVICE_ID: Final = 0xCB20


class SwitchState:
    """What managers read and write of a switch, beside SwitchInfo.

    :ivar ports: 0 is the management port.
    :ivar lft: the linear forwarding table: port by LID.
    :ivar mft: the multicast forwarding table: the set of ports of an MLID, as a bit mask.
    """

    def __init__(self, node_guid: int, name: str, ports: list[SwitchPort], wires: Wires) -> None:
        self.node_guid = node_guid
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


class SwitchAgent(SubnetAgent[SwitchPort]):
    """Agent of one switch."""

    def __init__(self, switch: SwitchState, now_ns: Callable[[], int]) -> None:
        super().__init__()
        self.switch = switch
        self._now_ns = now_ns
        self.info = SwitchInfo(
            linear_fdb_cap=MULTICAST_LID_FIRST,
            multicast_fdb_cap=MULTICAST_FDB_CAP,
            life_time_value=16,
            multicast_fdb_top=MULTICAST_LID_FIRST + MULTICAST_FDB_CAP - 1,
        )
        # The key of a switch is that of its port 0 (14.2.4).
        self.guard = MKeyGuard(switch.ports[0].info)
        self.getters = {
            smpwire.NODE_INFO: self._get_node_info,
            smpwire.NODE_DESCRIPTION: self._get_node_description,
            smpwire.SWITCH_INFO: self._get_switch_info,
            smpwire.PORT_INFO: self._get_port_info,
            smpwire.GUID_INFO: self._get_guid_info,
            smpwire.P_KEY_TABLE: self._get_pkey_table,
            smpwire.SL_TO_VL: self._get_sl_to_vl,
            smpwire.VL_ARBITRATION: self._get_vl_arbitration,
            smpwire.LINEAR_FORWARDING_TABLE: self._get_linear_table,
            smpwire.MULTICAST_FORWARDING_TABLE: self._get_multicast_table,
            smpwire.MLNX_EXT_PORT_INFO: self._get_ext_port_info,
            smpwire.SOURCE_LIDS: self._get_source_lids,
        }
        self.setters = {
            smpwire.SWITCH_INFO: self._set_switch_info,
            smpwire.PORT_INFO: self._set_port_info,
            # The table cannot be changed, and says so by what it shows.
            smpwire.P_KEY_TABLE: self._get_pkey_table,
            smpwire.SL_TO_VL: self._set_sl_to_vl,
            smpwire.VL_ARBITRATION: self._set_vl_arbitration,
            smpwire.LINEAR_FORWARDING_TABLE: self._set_linear_table,
            smpwire.MULTICAST_FORWARDING_TABLE: self._set_multicast_table,
            smpwire.MLNX_EXT_PORT_INFO: self._set_ext_port_info,
            smpwire.SOURCE_LIDS: self._set_source_lids,
        }

    def state_change_trap(self) -> Packet | None:
        """Note that a port changed; gives the trap 128 for the manager, None if there is none yet."""
        self.info.port_state_change = 1
        zero = self.switch.ports[0].info
        if not zero.sm_lid or not zero.lid:
            return None
        trap = self.trap(
            madwire.TRAP_LINK_STATE_CHANGE,
            madwire.NOTICE_TYPE_URGENT,
            madwire.PRODUCER_SWITCH,
            zero.lid,
            zero.lid.to_bytes(2, "big"),
        )
        return Packet(Route(zero.sm_lid, zero.lid, sl=zero.sm_sl, vl=MANAGEMENT_VL), UD, SEND, 0, 0, trap, mtu=256)

    def handle(self, port: SwitchPort, mad: bytes) -> bytes | None:
        """Answer one SMP request that arrived at `port`; None if it deserves no answer."""
        request = Smp.from_bytes(mad)
        answered = is_answered(request.method)
        checked = answered or request.method == madwire.METHOD_TRAP_REPRESS
        if checked and not self.guard.allows(request, self._now_ns()):
            port.dropped[Drop.BAD_MKEY] += 1
            return None
        if not answered:
            return None
        self.respond(port, request)
        return request.to_bytes()

    def _external(self, number: int) -> SwitchPort | None:
        return self.switch.ports[number] if number < len(self.switch.ports) else None

    def _get_node_info(self, port: SwitchPort, request: Smp) -> int:
        guid = self.switch.node_guid
        info = NodeInfo(
            base_version=1,
            class_version=1,
            node_type=smpwire.NODE_TYPE_SWITCH,
            num_ports=len(self.switch.ports) - 1,
            system_image_guid=guid,
            node_guid=guid,
            port_guid=guid,
            partition_cap=8,
            device_id=_DEVICE_ID,
            local_port_num=port.number,
            vendor_id=_VENDOR_ID,
        )
        request.data = info.to_bytes().ljust(64, b"\0")
        return STATUS_INVALID_FIELD if request.attr_mod else STATUS_OK

    def _get_node_description(self, arrival: SwitchPort, request: Smp) -> int:
        request.data = self.switch.name.encode()[:64].ljust(64, b"\0")
        return STATUS_OK

    def _get_guid_info(self, arrival: SwitchPort, request: Smp) -> int:
        request.data = self.switch.node_guid.to_bytes(8, "big").ljust(64, b"\0")
        return STATUS_INVALID_FIELD if request.attr_mod else STATUS_OK

    def _get_switch_info(self, arrival: SwitchPort, request: Smp) -> int:
        request.data = self.info.to_bytes().ljust(64, b"\0")
        return STATUS_OK

    def _set_switch_info(self, arrival: SwitchPort, request: Smp) -> int:
        info = self.info
        wanted = SwitchInfo.from_bytes(request.data)
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

    def _get_port_info(self, arrival: SwitchPort, request: Smp) -> int:
        port = self._external(port_of(request.attr_mod))
        if port is None:
            return STATUS_INVALID_FIELD
        info = PortInfo.from_bytes(port.info.to_bytes())
        # the port that this SMP came in on, not the one asked about (14.2.5.6): scanners tell the way back by it
        info.local_port_num = arrival.number
        if port.number == 0:
            info.mkey = self.guard.shown_to(request.mkey)
        request.data = info.to_bytes()
        return STATUS_OK

    def _set_port_info(self, arrival: SwitchPort, request: Smp) -> int:
        port = self._external(port_of(request.attr_mod))
        if port is None:
            return STATUS_INVALID_FIELD
        wanted = PortInfo.from_bytes(request.data)
        if not (_valid_zero(wanted) if port.number == 0 else settings_valid(port.info, wanted, request.attr_mod)):
            return STATUS_INVALID_FIELD
        _apply(port, wanted, request.attr_mod)
        return STATUS_OK

    def _get_ext_port_info(self, arrival: SwitchPort, request: Smp) -> int:
        number = request.attr_mod
        # What was set for all ports is shown for the first.
        port = self._external(1 if number == smpwire.ALL_PORTS and request.method == METHOD_SET else number)
        if port is None:
            return STATUS_INVALID_FIELD
        # The management port has no link.
        request.data = ext_port_info(port.ext_speed_enabled) if port.number else bytes(64)
        return STATUS_OK

    def _set_ext_port_info(self, arrival: SwitchPort, request: Smp) -> int:
        number = request.attr_mod
        targets = self.switch.ports[1:] if number == smpwire.ALL_PORTS else [self._external(number)]
        ports = [port for port in targets if port is not None and port.number]
        wanted = [ext_port_wanted(port.ext_speed_enabled, request.data) for port in ports]
        if not ports or None in wanted:
            return STATUS_INVALID_FIELD
        for port, enabled in zip(ports, wanted, strict=True):
            port.ext_speed_enabled = enabled or 0
        return STATUS_OK

    def _get_pkey_table(self, arrival: SwitchPort, request: Smp) -> int:
        port = self._external(request.attr_mod >> 16)
        if port is None or request.attr_mod & 0xFFFF:
            return STATUS_INVALID_FIELD
        # DEVIATION: the switch does not enforce partitions; its table holds the default P_Key only.
        request.data = b"\xff\xff".ljust(64, b"\0")
        return STATUS_OK

    def _sl_to_vl(self, request: Smp) -> tuple[int, SwitchPort] | None:
        """Port of arrival and port of departure that the modifier names."""
        port_in, port_out = request.attr_mod >> 8 & 0xFF, self._external(request.attr_mod & 0xFF)
        return None if port_out is None or port_in >= len(self.switch.ports) else (port_in, port_out)

    def _get_sl_to_vl(self, arrival: SwitchPort, request: Smp) -> int:
        ports = self._sl_to_vl(request)
        if ports is None:
            return STATUS_INVALID_FIELD
        request.data = pack_sl_to_vl(ports[1].sl_to_vl.get(ports[0], DEFAULT_SL_TO_VL))
        return STATUS_OK

    def _set_sl_to_vl(self, arrival: SwitchPort, request: Smp) -> int:
        ports = self._sl_to_vl(request)
        if ports is None:
            return STATUS_INVALID_FIELD
        ports[1].set_lanes(ports[0], bytes(unpack_sl_to_vl(request.data)))
        return STATUS_OK

    def _get_vl_arbitration(self, arrival: SwitchPort, request: Smp) -> int:
        block, port = request.attr_mod >> 16, self._external(request.attr_mod & 0xFFFF)
        if port is None or block not in (1, 3):
            return STATUS_INVALID_FIELD
        request.data = port.vl_arbitration[block]
        return STATUS_OK

    def _set_vl_arbitration(self, arrival: SwitchPort, request: Smp) -> int:
        block, port = request.attr_mod >> 16, self._external(request.attr_mod & 0xFFFF)
        if port is None or block not in (1, 3):
            return STATUS_INVALID_FIELD
        port.vl_arbitration[block] = request.data[:16].ljust(64, b"\0")
        return STATUS_OK

    def _sources(self, request: Smp) -> list[SwitchPort]:
        size = smpwire.SOURCES_PER_BLOCK
        return self.switch.ports[request.attr_mod * size : (request.attr_mod + 1) * size]

    def _get_source_lids(self, arrival: SwitchPort, request: Smp) -> int:
        ports = self._sources(request)
        request.data = smpwire.pack_sources(port.source for port in ports)
        return STATUS_OK if ports else STATUS_INVALID_FIELD

    def _set_source_lids(self, arrival: SwitchPort, request: Smp) -> int:
        for port, (lid, lmc) in zip(self._sources(request), smpwire.unpack_sources(request.data), strict=False):
            # Port 0 is this switch itself.
            if port.number:
                port.set_source(lid, lmc)
        return STATUS_OK

    def _linear_block(self, request: Smp) -> slice | None:
        start = (request.attr_mod & 0xFFFF) * smpwire.LFT_PORTS_PER_BLOCK
        return slice(start, start + smpwire.LFT_PORTS_PER_BLOCK) if start < len(self.switch.lft) else None

    def _get_linear_table(self, arrival: SwitchPort, request: Smp) -> int:
        block = self._linear_block(request)
        if block is None:
            return STATUS_INVALID_FIELD
        request.data = bytes(self.switch.lft[block])
        return STATUS_OK

    def _set_linear_table(self, arrival: SwitchPort, request: Smp) -> int:
        block = self._linear_block(request)
        if block is None:
            return STATUS_INVALID_FIELD
        self.switch.set_linear(block.start, request.data)
        return STATUS_OK

    def _multicast_block(self, request: Smp) -> tuple[range, int] | None:
        """The LIDs and the position of the ports that the modifier names."""
        block, position = request.attr_mod & 0x1FF, request.attr_mod >> 28
        first = MULTICAST_LID_FIRST + block * smpwire.MFT_MASKS_PER_BLOCK
        if first >= MULTICAST_LID_FIRST + MULTICAST_FDB_CAP or position * 16 >= len(self.switch.ports):
            return None
        return range(first, first + smpwire.MFT_MASKS_PER_BLOCK), position * 16

    def _get_multicast_table(self, arrival: SwitchPort, request: Smp) -> int:
        block = self._multicast_block(request)
        if block is None:
            return STATUS_INVALID_FIELD
        lids, shift = block
        request.data = smpwire.pack_words([self.switch.mft.get(lid, 0) >> shift & 0xFFFF for lid in lids])
        return STATUS_OK

    def _set_multicast_table(self, arrival: SwitchPort, request: Smp) -> int:
        block = self._multicast_block(request)
        if block is None:
            return STATUS_INVALID_FIELD
        mft = self.switch.mft
        lids, shift = block
        for lid, ports in zip(lids, smpwire.unpack_words(request.data), strict=True):
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
        info.operational_vls = wanted.operational_vls
    info.vl_high_limit = wanted.vl_high_limit
    info.hoq_life = wanted.hoq_life
    info.vl_stall_count = wanted.vl_stall_count
    order = link_order(port.state, wanted)
    if order == "disable":
        port.retrain(disabled=True)
    elif order == "poll":
        port.retrain(disabled=False)
    elif order == "down":
        port.retrain(port.disabled)
    elif order == "move":
        port.move(wanted.port_state)
