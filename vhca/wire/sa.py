"""Records of subnet administration: the fabric as a database (15.2.5 of volume 1).

`COMPONENTS` of each record gives the bit of the component mask for each field, so that a query compares exactly what it
names. In table answers a record occupies a whole number of 8-byte words (:func:`stride_bytes`).
"""

from typing import Final

from vhca.layout import Layout, bits, raw, sub, u8, u16, u32, u64
from vhca.wire.mad import InformInfo
from vhca.wire.smp import NodeInfo, PortInfo, SmInfo, SwitchInfo

NODE_RECORD: Final = 0x0011
PORT_INFO_RECORD: Final = 0x0012
SL_TO_VL_RECORD: Final = 0x0013
SWITCH_INFO_RECORD: Final = 0x0014
LINEAR_TABLE_RECORD: Final = 0x0015
MULTICAST_TABLE_RECORD: Final = 0x0017
SM_INFO_RECORD: Final = 0x0018
LINK_RECORD: Final = 0x0020
GUID_INFO_RECORD: Final = 0x0030
SERVICE_RECORD: Final = 0x0031
P_KEY_TABLE_RECORD: Final = 0x0033
PATH_RECORD: Final = 0x0035
VL_ARBITRATION_RECORD: Final = 0x0036
MC_MEMBER_RECORD: Final = 0x0038
TRACE_RECORD: Final = 0x0039
MULTI_PATH_RECORD: Final = 0x003A
INFORM_INFO_RECORD: Final = 0x00F3

# Selectors of MTU, rate and life time: what a query wants of the path or group.
SELECT_GREATER: Final = 0
SELECT_LESS: Final = 1
SELECT_EXACTLY: Final = 2
SELECT_BEST: Final = 3

JOIN_FULL: Final = 1
JOIN_NON: Final = 2
JOIN_SEND_ONLY_NON: Final = 4
JOIN_SEND_ONLY_FULL: Final = 8

# ClassPortInfo of the SA
CAP_OPTIONAL_RECORDS: Final = 1 << 8
CAP_MULTICAST: Final = 1 << 9
CAP_MULTI_PATH: Final = 1 << 10
CAP_PORT_INFO_MASK_MATCH: Final = 1 << 13
CAP2_SEND_ONLY_FULL_MEMBER: Final = 1 << 12


class NodeRecord(Layout, size=108):
    """A node by the LID of one of its ports."""

    lid: int = u16(0)
    info: NodeInfo = sub(4, NodeInfo)
    description: bytes = raw(44, 64)


# Component of CapabilityMask, and the attribute modifier by which a query wants at least its bits (1.2 errata).
PORT_INFO_CAPABILITY_MASK: Final = 1 << 7
PORT_INFO_MASK_MATCH: Final = 1 << 31


class PortInfoRecord(Layout, size=68):
    """A port's PortInfo."""

    lid: int = u16(0)
    port_num: int = u8(2)
    options: int = u8(3)
    info: PortInfo = sub(4, PortInfo)


class SwitchInfoRecord(Layout, size=24):
    """A switch's SwitchInfo."""

    lid: int = u16(0)
    info: SwitchInfo = sub(4, SwitchInfo)


class SmInfoRecord(Layout, size=28):
    """A subnet manager."""

    lid: int = u16(0)
    info: SmInfo = sub(4, SmInfo)


class LinkRecord(Layout, size=8):
    """A cable, seen from one end."""

    from_lid: int = u16(0)
    from_port: int = u8(2)
    to_port: int = u8(3)
    to_lid: int = u16(4)


class GuidInfoRecord(Layout, size=72):
    """A block of a port's GUIDs."""

    lid: int = u16(0)
    block: int = u8(2)
    guids: bytes = raw(8, 64)


class PKeyTableRecord(Layout, size=72):
    """A block of a port's P_Keys."""

    lid: int = u16(0)
    block: int = u16(2)
    port_num: int = u8(4)
    pkeys: bytes = raw(8, 64)


class SlToVlRecord(Layout, size=16):
    """Lanes of 16 service levels, from a port of a switch to another one; of an adapter both are 0."""

    lid: int = u16(0)
    in_port: int = u8(2)
    out_port: int = u8(3)
    lanes: bytes = raw(8, 8)


class VlArbitrationRecord(Layout, size=72):
    """A block of a port's table of weights: 1 and 2 of low, 3 and 4 of high priority."""

    lid: int = u16(0)
    port_num: int = u8(2)
    block: int = u8(3)
    weights: bytes = raw(8, 64)


class LinearTableRecord(Layout, size=72):
    """A block of a switch's linear forwarding table: ports of 64 LIDs."""

    lid: int = u16(0)
    block: int = u16(2)
    ports: bytes = raw(8, 64)


class MulticastTableRecord(Layout, size=72):
    """A block of a switch's multicast forwarding table: 16 ports from 16 times `position` on, of 32 LIDs."""

    lid: int = u16(0)
    position: int = bits(0, 15, 12)
    block: int = bits(0, 8, 0)
    masks: bytes = raw(8, 64)


class TraceRecord(Layout, size=48):
    """A node on a path, and the ports by which the path enters and leaves it (15.2.5.19)."""

    gid_prefix: int = u64(0)
    generation: int = u16(8)
    node_type: int = u8(11)
    node_guid: int = u64(12)
    chassis: int = u64(20)
    entry_guid: int = u64(28)
    exit_guid: int = u64(36)
    entry_port: int = u8(44)
    exit_port: int = u8(45)


class MultiPathRecord(Layout, size=24):
    """A question for paths between any of some ports and any of others, whose GIDs follow (15.2.5.20)."""

    raw_traffic: int = bits(0, 31)
    flow_label: int = bits(0, 27, 8)
    hop_limit: int = bits(0, 7, 0)
    tclass: int = u8(4)
    reversible: int = bits(4, 23)
    numb_path: int = bits(4, 22, 16)
    pkey: int = u16(6)
    qos_class: int = bits(8, 31, 20)
    sl: int = bits(8, 19, 16)
    mtu_selector: int = bits(8, 15, 14)
    mtu: int = bits(8, 13, 8)
    rate_selector: int = bits(8, 7, 6)
    rate: int = bits(8, 5, 0)
    life_time_selector: int = bits(12, 31, 30)
    life_time: int = bits(12, 29, 24)
    service_id_high: int = u8(13)
    independence: int = bits(12, 15, 14)
    sgid_count: int = u8(15)
    dgid_count: int = u8(16)


class PathRecord(Layout, size=64):
    """How to get from one port to another (15.2.5.16)."""

    service_id: int = u64(0)
    dgid: bytes = raw(8, 16)
    sgid: bytes = raw(24, 16)
    dlid: int = u16(40)
    slid: int = u16(42)
    raw_traffic: int = bits(44, 31)
    flow_label: int = bits(44, 27, 8)
    hop_limit: int = bits(44, 7, 0)
    tclass: int = bits(48, 31, 24)
    reversible: int = bits(48, 23)
    numb_path: int = bits(48, 22, 16)
    pkey: int = bits(48, 15, 0)
    qos_class: int = bits(52, 31, 20)
    sl: int = bits(52, 19, 16)
    mtu_selector: int = bits(52, 15, 14)
    mtu: int = bits(52, 13, 8)
    rate_selector: int = bits(52, 7, 6)
    rate: int = bits(52, 5, 0)
    life_time_selector: int = bits(56, 31, 30)
    life_time: int = bits(56, 29, 24)
    preference: int = bits(56, 23, 16)


class McMemberRecord(Layout, size=52):
    """A multicast group and one member of it (15.2.5.17)."""

    mgid: bytes = raw(0, 16)
    port_gid: bytes = raw(16, 16)
    qkey: int = u32(32)
    mlid: int = u16(36)
    mtu_selector: int = bits(36, 15, 14)
    mtu: int = bits(36, 13, 8)
    tclass: int = bits(36, 7, 0)
    pkey: int = u16(40)
    rate_selector: int = bits(40, 15, 14)
    rate: int = bits(40, 13, 8)
    life_time_selector: int = bits(40, 7, 6)
    life_time: int = bits(40, 5, 0)
    sl: int = bits(44, 31, 28)
    flow_label: int = bits(44, 27, 8)
    hop_limit: int = bits(44, 7, 0)
    scope: int = bits(48, 31, 28)
    join_state: int = bits(48, 27, 24)
    proxy_join: int = bits(48, 23)


class ServiceRecord(Layout, size=176):
    """A service that somebody offers (15.2.5.14)."""

    service_id: int = u64(0)
    gid: bytes = raw(8, 16)
    pkey: int = u16(24)
    lease_s: int = u32(28)
    key: bytes = raw(32, 16)
    name: bytes = raw(48, 64)
    data: bytes = raw(112, 64)


class InformInfoRecord(Layout, size=60):
    """A subscription, as kept by the SA."""

    subscriber_gid: bytes = raw(0, 16)
    enumeration: int = u16(16)
    inform: InformInfo = sub(24, InformInfo)


COMPONENTS: Final[dict[type[Layout], tuple[tuple[int, str], ...]]] = {
    NodeRecord: (
        (0, "lid"),
        (2, "info.base_version"),
        (3, "info.class_version"),
        (4, "info.node_type"),
        (5, "info.num_ports"),
        (6, "info.system_image_guid"),
        (7, "info.node_guid"),
        (8, "info.port_guid"),
        (9, "info.partition_cap"),
        (10, "info.device_id"),
        (11, "info.revision"),
        (12, "info.local_port_num"),
        (13, "info.vendor_id"),
        (14, "description"),
    ),
    PortInfoRecord: (
        (0, "lid"),
        (1, "port_num"),
        (4, "info.gid_prefix"),
        (5, "info.lid"),
        (6, "info.sm_lid"),
        (7, "info.capability_mask"),
        (8, "info.diag_code"),
        (9, "info.mkey_lease_period"),
        (10, "info.local_port_num"),
        (11, "info.link_width_enabled"),
        (12, "info.link_width_supported"),
        (13, "info.link_width_active"),
        (14, "info.link_speed_supported"),
        (15, "info.port_state"),
        (16, "info.port_physical_state"),
        (17, "info.link_down_default_state"),
        (18, "info.mkey_protect_bits"),
        (20, "info.lmc"),
        (21, "info.link_speed_active"),
        (22, "info.link_speed_enabled"),
        (23, "info.neighbor_mtu"),
        (24, "info.sm_sl"),
        (25, "info.vl_cap"),
        (26, "info.init_type"),
        (27, "info.vl_high_limit"),
        (28, "info.vl_arbitration_high_cap"),
        (29, "info.vl_arbitration_low_cap"),
        (30, "info.init_type_reply"),
        (31, "info.mtu_cap"),
        (32, "info.vl_stall_count"),
        (33, "info.hoq_life"),
        (34, "info.operational_vls"),
        (35, "info.partition_enforcement_inbound"),
        (36, "info.partition_enforcement_outbound"),
        (37, "info.filter_raw_inbound"),
        (38, "info.filter_raw_outbound"),
        (39, "info.mkey_violations"),
        (40, "info.pkey_violations"),
        (41, "info.qkey_violations"),
        (42, "info.guid_cap"),
        (43, "info.client_reregister"),
        (45, "info.subnet_timeout"),
        (47, "info.resp_time_value"),
        (48, "info.local_phy_errors"),
        (49, "info.overrun_errors"),
        (50, "info.max_credit_hint"),
        (52, "info.link_round_trip_latency"),
        (53, "info.capability_mask2"),
        (54, "info.link_speed_ext_active"),
        (55, "info.link_speed_ext_supported"),
        (57, "info.link_speed_ext_enabled"),
    ),
    SwitchInfoRecord: ((0, "lid"),),
    SlToVlRecord: ((0, "lid"), (1, "in_port"), (2, "out_port")),
    VlArbitrationRecord: ((0, "lid"), (1, "port_num"), (2, "block")),
    LinearTableRecord: ((0, "lid"), (1, "block")),
    MulticastTableRecord: ((0, "lid"), (1, "position"), (3, "block")),
    SmInfoRecord: (
        (0, "lid"),
        (2, "info.guid"),
        (3, "info.sm_key"),
        (4, "info.act_count"),
        (5, "info.priority"),
        (6, "info.sm_state"),
    ),
    LinkRecord: ((0, "from_lid"), (1, "from_port"), (2, "to_port"), (3, "to_lid")),
    GuidInfoRecord: ((0, "lid"), (1, "block")),
    PKeyTableRecord: ((0, "lid"), (1, "block"), (2, "port_num")),
    ServiceRecord: ((0, "service_id"), (1, "gid"), (2, "pkey"), (4, "lease_s"), (5, "key"), (6, "name")),
    McMemberRecord: (
        (0, "mgid"),
        (1, "port_gid"),
        (2, "qkey"),
        (3, "mlid"),
        (6, "tclass"),
        (7, "pkey"),
        (12, "sl"),
        (13, "flow_label"),
        (14, "hop_limit"),
        (15, "scope"),
        (17, "proxy_join"),
    ),
    InformInfoRecord: (
        (0, "subscriber_gid"),
        (1, "enumeration"),
        (3, "inform.gid"),
        (4, "inform.lid_range_begin"),
        (5, "inform.lid_range_end"),
        (7, "inform.is_generic"),
        (8, "inform.subscribe"),
        (9, "inform.type"),
        (10, "inform.trap_number"),
        (11, "inform.qpn"),
        (13, "inform.resp_time"),
        (15, "inform.producer_type"),
    ),
}
"""Component mask bits that a query can compare for equality, by record."""

# ServiceData is compared part by part: from this bit on 16 parts of 1 byte, 8 of 2, 4 of 4, 2 of 8.
SERVICE_DATA_FIRST: Final = 7
SERVICE_DATA_PARTS: Final = tuple(
    (16 * kind + size * index, size)
    for kind, (size, count) in enumerate(((1, 16), (2, 8), (4, 4), (8, 2)))
    for index in range(count)
)
GUID_INFO_FIRST: Final = 4
"""Component of the first of the eight GUIDs of a GUIDInfoRecord."""

# Component mask bits with a meaning of their own.
MC_MTU_SELECTOR: Final = 1 << 4
MC_MTU: Final = 1 << 5
MC_RATE_SELECTOR: Final = 1 << 8
MC_RATE: Final = 1 << 9
MC_LIFE_TIME_SELECTOR: Final = 1 << 10
MC_LIFE_TIME: Final = 1 << 11
MC_MGID: Final = 1 << 0
MC_PORT_GID: Final = 1 << 1
MC_QKEY: Final = 1 << 2
MC_TCLASS: Final = 1 << 6
MC_PKEY: Final = 1 << 7
MC_SL: Final = 1 << 12
MC_FLOW_LABEL: Final = 1 << 13
MC_HOP_LIMIT: Final = 1 << 14
MC_SCOPE: Final = 1 << 15
MC_JOIN_STATE: Final = 1 << 16
SERVICE_KEY: Final = 1 << 5
MULTI_PATH_PKEY: Final = 1 << 7
MULTI_PATH_SL: Final = 1 << 9
MULTI_PATH_MTU: Final = 0b11 << 10
MULTI_PATH_RATE: Final = 0b11 << 12
MULTI_PATH_SGID_COUNT: Final = 1 << 19
MULTI_PATH_DGID_COUNT: Final = 1 << 20
MULTI_PATH_NUMB_PATH: Final = 1 << 6
PATH_DGID: Final = 1 << 2
PATH_SGID: Final = 1 << 3
PATH_DLID: Final = 1 << 4
PATH_SLID: Final = 1 << 5
PATH_NUMB_PATH: Final = 1 << 12
PATH_PKEY: Final = 1 << 13
PATH_SL: Final = 1 << 15
PATH_MTU_SELECTOR: Final = 1 << 16
PATH_MTU: Final = 1 << 17
PATH_RATE_SELECTOR: Final = 1 << 18
PATH_RATE: Final = 1 << 19
PATH_LIFE_TIME_SELECTOR: Final = 1 << 20
PATH_LIFE_TIME: Final = 1 << 21


def stride_bytes(record: type[Layout]) -> int:
    """Bytes from one record to the next in a table answer."""
    return record.SIZE + (-record.SIZE & 7)
