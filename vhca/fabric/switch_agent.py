"""The subnet management agent inside a switch: what a manager reads and writes in it (14.2 of volume 1).

Answers datagrams only; how they travel is the switch's business. Guarantees that any 256 bytes give an answer or none,
and that a Set is done as a whole or not at all.
"""

from typing import TYPE_CHECKING, Final

from vhca.fabric.port import DEFAULT_SL_TO_VL, MANAGEMENT_VL, SwitchPort
from vhca.management.mkey import MKeyGuard
from vhca.management.refusal import response_method
from vhca.management.subnet import (
    apply_link_settings,
    ext_port_info,
    ext_port_wanted,
    is_answered,
    link_settings_valid,
    port_of,
)
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_GET, METHOD_SET, STATUS_INVALID_FIELD, STATUS_OK, Smp
from vhca.wire.packet import MULTICAST_LID_FIRST, SEND, UD, Packet
from vhca.wire.smp import NodeInfo, PortInfo, SwitchInfo

if TYPE_CHECKING:
    from vhca.fabric.switch import Switch

MULTICAST_FDB_CAP: Final = 4096
_VENDOR_ID: Final = 0x0002C9
_DEVICE_ID: Final = 0xCB20


class SwitchAgent:
    """Agent of one switch."""

    def __init__(self, switch: "Switch") -> None:
        self.switch = switch
        self.info = SwitchInfo(
            linear_fdb_cap=MULTICAST_LID_FIRST,
            multicast_fdb_cap=MULTICAST_FDB_CAP,
            life_time_value=16,
            multicast_fdb_top=MULTICAST_LID_FIRST + MULTICAST_FDB_CAP - 1,
        )
        # The key of a switch is that of its port 0 (14.2.4).
        self.guard = MKeyGuard(switch.ports[0].info)
        self._trap_tid = 0

    def state_change_trap(self) -> Packet | None:
        """Note that a port changed; gives the trap 128 for the manager, None if there is none yet."""
        self.info.port_state_change = 1
        zero = self.switch.ports[0].info
        if not zero.sm_lid or not zero.lid:
            return None
        self._trap_tid += 1
        notice = madwire.Notice(
            is_generic=1,
            type=madwire.NOTICE_TYPE_URGENT,
            producer_type=madwire.PRODUCER_SWITCH,
            trap_number=madwire.TRAP_LINK_STATE_CHANGE,
            issuer_lid=zero.lid,
            details=zero.lid.to_bytes(2, "big").ljust(54, b"\0"),
        )
        trap = Smp(
            base_version=1,
            mgmt_class=madwire.CLASS_SUBN_LID,
            class_version=1,
            method=madwire.METHOD_TRAP,
            tid=self._trap_tid,
            attr_id=madwire.ATTR_NOTICE,
            data=notice.to_bytes()[:64],
        )
        return Packet(zero.sm_lid, zero.lid, UD, SEND, 0, 0, trap.to_bytes(), mtu=256, sl=zero.sm_sl, vl=MANAGEMENT_VL)

    def handle(self, port: SwitchPort, mad: bytes) -> bytes | None:
        """Answer one SMP request that arrived at `port`; None if it deserves no answer."""
        request = Smp.from_bytes(mad)
        answered = is_answered(request.method)
        checked = answered or request.method == madwire.METHOD_TRAP_REPRESS
        if checked and not self.guard.allows(request, self.switch.now_ns()):
            port.dropped["bad_mkey"] += 1
            return None
        if not answered:
            return None
        status = self._execute(port, request)
        directed = request.mgmt_class == madwire.CLASS_SUBN_DR
        request.method = response_method(request.method)
        request.status = status | (madwire.STATUS_DIRECTION if directed else 0)
        return request.to_bytes()

    def _execute(self, port: SwitchPort, request: Smp) -> int:
        if request.base_version != madwire.BASE_VERSION or request.class_version != 1:
            return madwire.STATUS_BAD_VERSION
        if request.method not in (METHOD_GET, METHOD_SET):
            return madwire.STATUS_UNSUPPORTED_METHOD
        writing = request.method == METHOD_SET
        attr_id = request.attr_id
        if attr_id == smpwire.NODE_INFO and not writing:
            return self._node_info(port, request)
        if attr_id == smpwire.NODE_DESCRIPTION and not writing:
            request.data = self.switch.name.encode()[:64].ljust(64, b"\0")
            return STATUS_OK
        if attr_id == smpwire.SWITCH_INFO:
            return self._switch_info(request, writing)
        if attr_id == smpwire.PORT_INFO:
            return self._port_info(port, request, writing)
        if attr_id == smpwire.GUID_INFO and not writing:
            request.data = self.switch.node_guid.to_bytes(8, "big").ljust(64, b"\0")
            return STATUS_INVALID_FIELD if request.attr_mod else STATUS_OK
        if attr_id == smpwire.P_KEY_TABLE:
            return self._pkey_table(request)
        if attr_id == smpwire.SL_TO_VL:
            return self._sl_to_vl(request, writing)
        if attr_id == smpwire.VL_ARBITRATION:
            return self._vl_arbitration(request, writing)
        if attr_id == smpwire.LINEAR_FORWARDING_TABLE:
            return self._linear_table(request, writing)
        if attr_id == smpwire.MULTICAST_FORWARDING_TABLE:
            return self._multicast_table(request, writing)
        if attr_id == smpwire.MLNX_EXT_PORT_INFO:
            return self._ext_port_info(request, writing)
        if attr_id == smpwire.SOURCE_LIDS:
            return self._source_lids(request, writing)
        return madwire.STATUS_UNSUPPORTED_ATTRIBUTE

    def _external(self, number: int) -> SwitchPort | None:
        return self.switch.ports[number] if number < len(self.switch.ports) else None

    def _node_info(self, port: SwitchPort, request: Smp) -> int:
        guid = self.switch.node_guid
        request.data = (
            NodeInfo(
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
            .to_bytes()
            .ljust(64, b"\0")
        )
        return STATUS_INVALID_FIELD if request.attr_mod else STATUS_OK

    def _switch_info(self, request: Smp, writing: bool) -> int:
        info = self.info
        if writing:
            wanted = SwitchInfo.from_bytes(request.data)
            if wanted.linear_fdb_top >= info.linear_fdb_cap:
                return STATUS_INVALID_FIELD
            info.linear_fdb_top = wanted.linear_fdb_top
            info.default_port = wanted.default_port
            info.life_time_value = wanted.life_time_value
            if MULTICAST_LID_FIRST - 1 <= wanted.multicast_fdb_top < MULTICAST_LID_FIRST + MULTICAST_FDB_CAP:
                info.multicast_fdb_top = wanted.multicast_fdb_top
            if wanted.port_state_change:
                info.port_state_change = 0
        request.data = info.to_bytes().ljust(64, b"\0")
        return STATUS_OK

    def _port_info(self, arrival: SwitchPort, request: Smp, writing: bool) -> int:
        port = self._external(port_of(request.attr_mod))
        if port is None:
            return STATUS_INVALID_FIELD
        if writing:
            wanted = PortInfo.from_bytes(request.data)
            valid = _valid_zero(wanted) if port.number == 0 else _valid_external(port, wanted, request.attr_mod)
            if not valid:
                return STATUS_INVALID_FIELD
            _apply(port, wanted, request.attr_mod)
        info = PortInfo.from_bytes(port.info.to_bytes())
        # the port that this SMP came in on, not the one asked about (14.2.5.6): scanners tell the way back by it
        info.local_port_num = arrival.number
        if port.number == 0:
            info.mkey = self.guard.shown_to(request.mkey)
        request.data = info.to_bytes()
        return STATUS_OK

    def _ext_port_info(self, request: Smp, writing: bool) -> int:
        number = request.attr_mod
        targets = self.switch.ports[1:] if number == smpwire.ALL_PORTS and writing else [self._external(number)]
        ports = [port for port in targets if port is not None]
        if not ports:
            return STATUS_INVALID_FIELD
        if writing:
            wanted = [ext_port_wanted(port.ext_speed_enabled, request.data) for port in ports]
            if None in wanted or not ports[0].number:
                return STATUS_INVALID_FIELD
            for port, enabled in zip(ports, wanted, strict=True):
                port.ext_speed_enabled = enabled or 0
        # The management port has no link.
        request.data = ext_port_info(ports[0].ext_speed_enabled) if ports[0].number else bytes(64)
        return STATUS_OK

    def _pkey_table(self, request: Smp) -> int:
        port = self._external(request.attr_mod >> 16)
        if port is None or request.attr_mod & 0xFFFF:
            return STATUS_INVALID_FIELD
        # DEVIATION: the switch does not enforce partitions; its table holds the default P_Key only.
        request.data = b"\xff\xff".ljust(64, b"\0")
        return STATUS_OK

    def _sl_to_vl(self, request: Smp, writing: bool) -> int:
        port_in, port_out = request.attr_mod >> 8 & 0xFF, self._external(request.attr_mod & 0xFF)
        if port_out is None or port_in >= len(self.switch.ports):
            return STATUS_INVALID_FIELD
        if writing:
            port_out.sl_to_vl[port_in] = bytes(n for byte in request.data[:8] for n in (byte >> 4, byte & 15))
        table = port_out.sl_to_vl.get(port_in, DEFAULT_SL_TO_VL)
        request.data = bytes(table[sl] << 4 | table[sl + 1] for sl in range(0, 16, 2)).ljust(64, b"\0")
        return STATUS_OK

    def _vl_arbitration(self, request: Smp, writing: bool) -> int:
        block, port = request.attr_mod >> 16, self._external(request.attr_mod & 0xFFFF)
        if port is None or block not in (1, 3):
            return STATUS_INVALID_FIELD
        if writing:
            port.vl_arbitration[block] = request.data[:16].ljust(64, b"\0")
        request.data = port.vl_arbitration[block]
        return STATUS_OK

    def _source_lids(self, request: Smp, writing: bool) -> int:
        size = smpwire.SOURCES_PER_BLOCK
        ports = self.switch.ports[request.attr_mod * size : (request.attr_mod + 1) * size]
        if not ports:
            return STATUS_INVALID_FIELD
        if writing:
            for port, (lid, lmc) in zip(ports, smpwire.unpack_sources(request.data), strict=False):
                # Port 0 is this switch itself.
                if port.number:
                    port.set_source(lid, lmc)
        request.data = smpwire.pack_sources(port.source for port in ports)
        return STATUS_OK

    def _linear_table(self, request: Smp, writing: bool) -> int:
        start = (request.attr_mod & 0xFFFF) * smpwire.LFT_PORTS_PER_BLOCK
        if start >= len(self.switch.lft):
            return STATUS_INVALID_FIELD
        end = start + smpwire.LFT_PORTS_PER_BLOCK
        if writing:
            self.switch.lft[start:end] = request.data
        request.data = bytes(self.switch.lft[start:end])
        return STATUS_OK

    def _multicast_table(self, request: Smp, writing: bool) -> int:
        block, position = request.attr_mod & 0x1FF, request.attr_mod >> 28
        first = MULTICAST_LID_FIRST + block * smpwire.MFT_MASKS_PER_BLOCK
        if first >= MULTICAST_LID_FIRST + MULTICAST_FDB_CAP or position * 16 >= len(self.switch.ports):
            return STATUS_INVALID_FIELD
        mft = self.switch.mft
        shift = position * 16
        if writing:
            for lid, ports in enumerate(smpwire.unpack_words(request.data), first):
                mask = mft.get(lid, 0) & ~(0xFFFF << shift) | ports << shift
                if mask:
                    mft[lid] = mask
                else:
                    mft.pop(lid, None)
        words = [mft.get(lid, 0) >> shift & 0xFFFF for lid in range(first, first + smpwire.MFT_MASKS_PER_BLOCK)]
        request.data = smpwire.pack_words(words)
        return STATUS_OK


def _valid_zero(wanted: PortInfo) -> bool:
    return 0 < wanted.lid < MULTICAST_LID_FIRST and wanted.port_state <= smpwire.PORT_ACTIVE


def _valid_external(port: SwitchPort, wanted: PortInfo, attr_mod: int) -> bool:
    info = port.info
    return (
        link_settings_valid(info, wanted, attr_mod)
        and wanted.neighbor_mtu <= info.mtu_cap
        and wanted.operational_vls <= info.vl_cap
        and wanted.port_state <= smpwire.PORT_ACTIVE
        and port.may_move(wanted.port_state)
        and wanted.port_physical_state <= smpwire.PHYS_DISABLED
        and (not wanted.port_physical_state or wanted.port_state in (smpwire.PORT_NOP, smpwire.PORT_DOWN))
    )


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
    physical = wanted.port_physical_state
    if physical in (smpwire.PHYS_SLEEP, smpwire.PHYS_DISABLED):
        port.retrain(disabled=True)
    elif physical == smpwire.PHYS_POLLING:
        port.retrain(disabled=False)
    elif wanted.port_state == smpwire.PORT_DOWN:
        port.retrain(port.disabled)
    elif wanted.port_state >= smpwire.PORT_ARMED and wanted.port_state != port.state:
        port.move(wanted.port_state)
