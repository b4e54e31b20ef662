"""The subnet management agent of a node's ports: what is the same for cards, switches and simulated hosts.

One set of rules for the attributes that every port has; a node says what is its own by the methods that raise
NotImplementedError here, and adds rows of its own. Guarantees that a Set is done as a whole or not at all.
"""

from typing import Final, TypeVar

from vhca.management import partitions
from vhca.management.agent import SubnetAgent, pack_sl_to_vl, unpack_sl_to_vl
from vhca.management.performance import PortCounters
from vhca.management.port_state import PortState
from vhca.management.subnet import ext_port_info, ext_port_wanted, is_answered, port_of
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import STATUS_INVALID_FIELD, STATUS_OK, Smp
from vhca.wire.notices import DIRECTED, PATH_TRUNCATED, KeyDetails, MKeyDetails, PortErrorDetails
from vhca.wire.packet import PERMISSIVE_LID, Packet
from vhca.wire.smp import NodeInfo, PortInfo

P = TypeVar("P", bound=PortState)

# Blocks of VLArbitration by the high half of the modifier (14.2.5.9): tables of up to 32 entries have one each.
_LOW: Final = 1
_HIGH: Final = 3
_MOST: Final = 0xFFFF
# Hops of a return path that trap 256 has room for.
_PATH_ROOM: Final = 30
_NO_KEY: Final = bytes(8)
# Where PortInfo has what an answer changes in it.
_AT: Final = {field.name: field for field in PortInfo.fields()}
_LOCAL_PORT_AT: Final = _AT["local_port_num"].offset
_REREGISTER_AT, _REREGISTER_BIT = divmod(_AT["client_reregister"].start, 8)
_REREGISTER: Final = 0x80 >> _REREGISTER_BIT
_NODE_INFO: Final = NodeInfo.packer(
    "base_version",
    "class_version",
    "node_type",
    "num_ports",
    "system_image_guid",
    "node_guid",
    "port_guid",
    "partition_cap",
    "device_id",
    "revision",
    "local_port_num",
    "vendor_id",
)


def node_info(
    *,
    node_type: int,
    num_ports: int,
    guids: tuple[int, int, int],
    partition_cap: int,
    device_id: int,
    local_port_num: int,
    vendor_id: int,
    revision: int = 0,
) -> bytes:
    """NodeInfo as 64 bytes; `guids`: of system image, node and port."""
    kind = partition_cap, device_id, revision
    return _NODE_INFO(1, 1, node_type, num_ports, *guids, *kind, local_port_num, vendor_id).ljust(64, b"\0")


class PortAgent(SubnetAgent[P]):
    """Agent of one node, or of many alike."""

    def __init__(self) -> None:
        super().__init__()
        self.readers = {
            smpwire.NODE_DESCRIPTION: self._read_node_description,
            smpwire.NODE_INFO: self._read_node_info,
            smpwire.GUID_INFO: self._read_guid_info,
            smpwire.PORT_INFO: self._read_port_info,
            smpwire.P_KEY_TABLE: self._read_pkey_table,
            smpwire.SL_TO_VL: self._read_sl_to_vl,
            smpwire.VL_ARBITRATION: self._read_vl_arbitration,
            smpwire.MLNX_EXT_PORT_INFO: self._read_ext_port_info,
            madwire.ATTR_NOTICE: self._read_notice,
        }
        self.writers = {
            smpwire.PORT_INFO: self.write_port_info,
            smpwire.P_KEY_TABLE: self._write_pkey_table,
            smpwire.SL_TO_VL: self._write_sl_to_vl,
            smpwire.VL_ARBITRATION: self._write_vl_arbitration,
            smpwire.MLNX_EXT_PORT_INFO: self._write_ext_port_info,
            madwire.ATTR_NOTICE: self._write_notice,
        }

    # What a node says of itself

    def describe(self, port: P) -> bytes:
        """NodeDescription, 64 bytes."""
        raise NotImplementedError

    def identify(self, port: P) -> bytes:
        """NodeInfo as seen at the port of arrival, 64 bytes."""
        raise NotImplementedError

    def selected(self, port: P, number: int) -> P | None:
        """The port that a modifier with `number` names in a request that arrived at `port`."""
        raise NotImplementedError

    def speaker(self, port: P) -> P:
        """The port whose notices and whose LID are meant where a request arrived at `port`: port 0 of a switch."""
        return port

    def write_port_info(self, port: P, modifier: int, data: bytes) -> int:
        """Set(PortInfo)."""
        raise NotImplementedError

    def pkey_port(self, port: P, modifier: int) -> P | None:
        """The port that the high half of P_KeyTable's modifier names: of end nodes, the port of arrival."""
        return port

    def lanes(self, port: P, modifier: int) -> bytes | None:
        """SL to VL, 16 lanes, by SLtoVLMappingTable's modifier."""
        return port.lanes

    def set_lanes(self, port: P, modifier: int, lanes: bytes) -> bool:
        """Take over SL to VL; False if the modifier names no table."""
        port.lanes = lanes
        return True

    def weights_port(self, port: P, modifier: int) -> P | None:
        """The port that the low half of VLArbitration's modifier names: of end nodes, the port of arrival."""
        return port

    def ext_ports(self, port: P, number: int) -> list[P]:
        """The ports that MlnxExtPortInfo's modifier names."""
        target = self.selected(port, number)
        return [] if target is None else [target]

    def pkeys_changed(self, port: P) -> None:
        """The P_Key table of a port is another one."""

    def guids_changed(self, port: P) -> None:
        """The GUID table of a port is another one."""

    # Requests

    def admit(self, port: P, request: Smp, now_ns: int, source: int) -> bool:
        """Compare the M_Key of a request from LID `source`; one that is not to be served has its trap (14.2.4.1).

        What repeats a trap ends with a TrapRepress that is admitted.
        """
        answered = is_answered(request.method)
        if not answered and request.method != madwire.METHOD_TRAP_REPRESS:
            return True
        if not port.guard.allows(request, now_ns):
            self._bad_mkey(port, request, now_ns, source)
            return False
        if not answered:
            self.speaker(port).notices.repress(request.tid)
        return True

    def _bad_mkey(self, port: P, request: Smp, now_ns: int, source: int) -> None:
        speaker = self.speaker(port)
        details = MKeyDetails(
            lid=source,
            method=request.method,
            attr_id=request.attr_id,
            attr_mod=request.attr_mod,
            mkey=request.mkey,
        )
        if request.mgmt_class == madwire.CLASS_SUBN_DR:
            hops = min(request.hop_count, _PATH_ROOM)
            details.dr_slid = request.dr_slid
            details.hops = DIRECTED | hops | (PATH_TRUNCATED if request.hop_count > hops else 0)
            details.return_path = request.return_path[1 : 1 + hops].ljust(_PATH_ROOM, b"\0")
        speaker.notices.post(madwire.TRAP_BAD_MKEY, self.producer, details, now_ns)

    producer: int = madwire.PRODUCER_CA
    """ProducerType of its notices."""

    def keys_fit(self, port: P, packet: Packet, now_ns: int) -> bool:
        """Compare the keys of a packet for QP1 of a port without a host; a wrong one is counted and told (10.9.4)."""
        info = port.info
        if not any(partitions.pkeys_match(packet.pkey, key) for key in port.pkeys):
            info.pkey_violations = min(info.pkey_violations + 1, _MOST)
            trap, key = madwire.TRAP_BAD_PKEY, packet.pkey
        elif packet.qkey != madwire.QP1_QKEY:
            info.qkey_violations = min(info.qkey_violations + 1, _MOST)
            trap, key = madwire.TRAP_BAD_QKEY, packet.qkey
        else:
            return True
        if may_tell(port):
            port.notices.post(trap, self.producer, key_details(key, packet), now_ns)
        return False

    def traps(self, port: P, now_ns: int) -> list[bytes]:
        """The SMPs with traps that a port sends to its manager now; none without one (13.4.9)."""
        if not len(port.notices):
            return []
        info = port.info
        if not may_tell(port):
            port.notices.clear()
            return []
        return port.notices.due(now_ns, info.lid, info.subnet_timeout)

    # Attributes

    def shown(self, port: P, attribute: int, modifier: int, mkey: int, data: bytes) -> bytes | None:
        """See :class:`vhca.management.agent.SubnetAgent`."""
        if attribute == smpwire.MLNX_EXT_PORT_INFO:
            # What was set for several is shown for the first; they cannot be read together.
            return _ext_port_info(self.ext_ports(port, modifier)[0])
        found = super().shown(port, attribute, modifier, mkey, data)
        if attribute == smpwire.PORT_INFO and found is not None and data[_REREGISTER_AT] & _REREGISTER:
            # This bit is echoed.
            changed = bytearray(found)
            changed[_REREGISTER_AT] |= _REREGISTER
            return bytes(changed)
        return found

    def _read_node_description(self, port: P, modifier: int, mkey: int) -> bytes | None:
        return None if modifier else self.describe(port)

    def _read_node_info(self, port: P, modifier: int, mkey: int) -> bytes | None:
        return None if modifier else self.identify(port)

    def _read_guid_info(self, port: P, modifier: int, mkey: int) -> bytes | None:
        return None if modifier else smpwire.pack_guids(self.speaker(port).guids).ljust(64, b"\0")

    def write_guid_info(self, port: P, modifier: int, data: bytes) -> int:
        """Set(GUIDInfo), a row of end nodes: alias GUIDs; entry 0 is burnt in (14.2.5.5)."""
        if modifier:
            return STATUS_INVALID_FIELD
        guids = (port.guids[0], *smpwire.unpack_guids(data)[1 : port.info.guid_cap])
        if guids != port.guids:
            port.guids = guids
            self.guids_changed(port)
        return STATUS_OK

    def _read_port_info(self, port: P, modifier: int, mkey: int) -> bytes | None:
        target = self.selected(port, port_of(modifier))
        if target is None:
            return None
        found = bytearray(target.info)
        # The port that this SMP came in on, not the one asked about (14.2.5.6): scanners tell the way back by it.
        found[_LOCAL_PORT_AT] = port.number
        if found[:8] != _NO_KEY:
            found[:8] = target.guard.shown_to(mkey).to_bytes(8, "big")
        return bytes(found)

    def _read_pkey_table(self, port: P, modifier: int, mkey: int) -> bytes | None:
        target = self.pkey_port(port, modifier >> 16)
        return None if target is None else partitions.block_of(target.pkeys, modifier & 0xFFFF)

    def _write_pkey_table(self, port: P, modifier: int, data: bytes) -> int:
        target = self.pkey_port(port, modifier >> 16)
        if target is None:
            return STATUS_INVALID_FIELD
        table = partitions.with_block(target.pkeys, modifier & 0xFFFF, data)
        if table is None:
            return STATUS_INVALID_FIELD
        if table != target.pkeys:
            target.pkeys = table
            self.pkeys_changed(target)
        return STATUS_OK

    def _read_sl_to_vl(self, port: P, modifier: int, mkey: int) -> bytes | None:
        lanes = self.lanes(port, modifier)
        return None if lanes is None else pack_sl_to_vl(lanes)

    def _write_sl_to_vl(self, port: P, modifier: int, data: bytes) -> int:
        done = self.set_lanes(port, modifier, bytes(unpack_sl_to_vl(data)))
        return STATUS_OK if done else STATUS_INVALID_FIELD

    def _read_vl_arbitration(self, port: P, modifier: int, mkey: int) -> bytes | None:
        target, block = self.weights_port(port, modifier & 0xFFFF), modifier >> 16
        if target is None or block not in (_LOW, _HIGH):
            return None
        return target.weights[block == _HIGH].ljust(64, b"\0")

    def _write_vl_arbitration(self, port: P, modifier: int, data: bytes) -> int:
        target, block = self.weights_port(port, modifier & 0xFFFF), modifier >> 16
        if target is None or block not in (_LOW, _HIGH):
            return STATUS_INVALID_FIELD
        low, high = target.weights
        info = target.info
        if block == _LOW:
            low = data[: 2 * info.vl_arbitration_low_cap]
        else:
            high = data[: 2 * info.vl_arbitration_high_cap]
        target.weights = (low, high)
        return STATUS_OK

    def _read_ext_port_info(self, port: P, modifier: int, mkey: int) -> bytes | None:
        targets = self.ext_ports(port, modifier)
        return _ext_port_info(targets[0]) if len(targets) == 1 else None

    def _write_ext_port_info(self, port: P, modifier: int, data: bytes) -> int:
        targets = self.ext_ports(port, modifier)
        wanted = [ext_port_wanted(target.ext_speed_enabled, data) for target in targets]
        if not targets or None in wanted:
            return STATUS_INVALID_FIELD
        for target, enabled in zip(targets, wanted, strict=True):
            target.ext_speed_enabled = enabled or 0
        return STATUS_OK

    def _read_notice(self, port: P, modifier: int, mkey: int) -> bytes | None:
        speaker = self.speaker(port)
        return None if modifier else speaker.notices.first(speaker.info.lid)

    def _write_notice(self, port: P, modifier: int, data: bytes) -> int:
        speaker = self.speaker(port)
        if modifier or not speaker.notices.take(data, speaker.info.lid):
            return STATUS_INVALID_FIELD
        return STATUS_OK


def _ext_port_info(port: PortState) -> bytes:
    return ext_port_info(port.ext_speed_enabled, port.ext_speed_active)


def key_details(key: int, packet: Packet) -> KeyDetails:
    """What traps 257 and 258 tell of a packet that came with a wrong `key`."""
    route = packet.route
    details = KeyDetails(
        lid1=route.slid,
        lid2=route.dlid,
        key=key,
        sl=route.sl,
        qp1=packet.src_qp,
        qp2=packet.dest_qp,
    )
    if route.grh is not None:
        details.gid1, details.gid2 = route.grh.sgid, route.grh.dgid
    return details


def may_tell(port: PortState) -> bool:
    """Tell whether a port has a manager that hears of what happens here."""
    info = port.info
    return (
        info.port_state >= smpwire.PORT_ARMED
        and 0 < info.lid < PERMISSIVE_LID
        and 0 < info.sm_lid < PERMISSIVE_LID
        and bool(info.capability_mask & smpwire.CAP_TRAP)
    )


def damaged_arrived(port: PortState, counters: PortCounters, packet: Packet, good: int, now_ns: int) -> bool:
    """Count a damaged packet at an end node's port, after `good` undamaged ones; True if the manager is to hear of it.

    That is trap 129, for the want of link integrity.
    """
    counters.rcv_errors += packet.count
    counters.local_physical_errors += packet.count
    if not port.damaged(packet.count, good):
        return False
    counters.local_link_integrity_errors += 1
    if not may_tell(port):
        return False
    details = PortErrorDetails(lid=port.info.lid, port=port.number)
    port.notices.post(madwire.TRAP_LINK_INTEGRITY, madwire.PRODUCER_CA, details, now_ns)
    return True
