"""Attributes of subnet management: what a manager may read and set in a node (14.2.5 of volume 1).

Each is the start of an SMP's 64 data bytes. The index part of an attribute (port, block) is in the SMP's attribute
modifier; helpers below take it apart.
"""

from collections.abc import Iterable
from struct import pack, unpack_from
from typing import Final

from vhca.layout import Layout, bits, u8, u16, u32, u64

NODE_DESCRIPTION: Final = 0x0010
NODE_INFO: Final = 0x0011
SWITCH_INFO: Final = 0x0012
GUID_INFO: Final = 0x0014
PORT_INFO: Final = 0x0015
P_KEY_TABLE: Final = 0x0016
SL_TO_VL: Final = 0x0017
VL_ARBITRATION: Final = 0x0018
LINEAR_FORWARDING_TABLE: Final = 0x0019
MULTICAST_FORWARDING_TABLE: Final = 0x001B
SM_INFO: Final = 0x0020
VENDOR_DIAG: Final = 0x0030
MLNX_EXT_PORT_INFO: Final = 0xFF90
# Attributes of a vendor begin at 0xFF00: this one is of our switch, see :func:`pack_sources`.
SOURCE_LIDS: Final = 0xFF30

NODE_TYPE_CA: Final = 1
NODE_TYPE_SWITCH: Final = 2

# PortInfo.PortState
PORT_NOP: Final = 0
PORT_DOWN: Final = 1
PORT_INIT: Final = 2
PORT_ARMED: Final = 3
PORT_ACTIVE: Final = 4
# PortInfo.PortPhysicalState
PHYS_SLEEP: Final = 1
PHYS_POLLING: Final = 2
PHYS_DISABLED: Final = 3
PHYS_LINK_UP: Final = 5

# PortInfo.CapabilityMask
CAP_IS_SM: Final = 1 << 1
CAP_NOTICE: Final = 1 << 2
CAP_TRAP: Final = 1 << 3
CAP_AUTOMATIC_MIGRATION: Final = 1 << 5
CAP_SL_MAPPING: Final = 1 << 6
CAP_SYSTEM_IMAGE_GUID: Final = 1 << 11
CAP_SWITCH_PKEY_TRAP: Final = 1 << 12
CAP_EXTENDED_SPEEDS: Final = 1 << 14
CAP_MASK2: Final = 1 << 15
CAP_COMMUNICATION_MANAGEMENT: Final = 1 << 16
CAP_CAPABILITY_MASK_NOTICE: Final = 1 << 22
CAP_CLIENT_REREGISTRATION: Final = 1 << 25
CAP_OTHER_LOCAL_CHANGES_NOTICE: Final = 1 << 26
CAP_MULTICAST_FDB_TOP: Final = 1 << 30

# PortInfo.CapabilityMask2
CAP2_LINK_WIDTH_2X: Final = 1 << 4
CAP2_HDR: Final = 1 << 5
CAP2_NDR: Final = 1 << 10
CAP2_EXTENDED_SPEEDS_2: Final = 1 << 11
CAP2_XDR: Final = 1 << 12

WIDTH_1X: Final = 1
WIDTH_4X: Final = 2
WIDTH_8X: Final = 4
WIDTH_12X: Final = 8
WIDTH_2X: Final = 16
SPEED_SDR: Final = 1
SPEED_DDR: Final = 2
SPEED_QDR: Final = 4
SPEED_EXT_FDR: Final = 1
SPEED_EXT_EDR: Final = 2
SPEED_EXT_HDR: Final = 4
SPEED_EXT_NDR: Final = 8
# LinkSpeedExt*2
SPEED_EXT2_XDR: Final = 1

# MTU codes: 1 is 256 bytes, 5 is 4096.
MTU_2048: Final = 4
MTU_4096: Final = 5
VL_CAP_4: Final = 3
RATE_100_GBPS: Final = 16

# LinkSpeedExtEnabled: none of them; all that are supported (0 changes nothing).
SPEED_EXT_NONE: Final = 30
SPEED_EXT_ALL: Final = 31
# Attribute modifier of PortInfo: the port, and whether the sender knows extended speeds.
PORT_INFO_PORT: Final = 0xFF
PORT_INFO_EXTENDED_SPEEDS: Final = 1 << 31
ALL_PORTS: Final = 255

DEFAULT_GID_PREFIX: Final = 0xFE80000000000000
P_KEYS_PER_BLOCK: Final = 32
GUIDS_PER_BLOCK: Final = 8
LFT_PORTS_PER_BLOCK: Final = 64
MFT_MASKS_PER_BLOCK: Final = 32
NO_PORT: Final = 255
SOURCES_PER_BLOCK: Final = 16


class NodeInfo(Layout, size=40):
    """What kind of node this is (14.2.5.3)."""

    base_version: int = u8(0)
    class_version: int = u8(1)
    node_type: int = u8(2)
    num_ports: int = u8(3)
    system_image_guid: int = u64(4)
    node_guid: int = u64(12)
    port_guid: int = u64(20)
    partition_cap: int = u16(28)
    device_id: int = u16(30)
    revision: int = u32(32)
    local_port_num: int = bits(36, 31, 24)
    vendor_id: int = bits(36, 23, 0)


class SwitchInfo(Layout, size=20):
    """What a switch can do and how it forwards (14.2.5.4)."""

    linear_fdb_cap: int = u16(0)
    random_fdb_cap: int = u16(2)
    multicast_fdb_cap: int = u16(4)
    linear_fdb_top: int = u16(6)
    default_port: int = u8(8)
    default_multicast_primary_port: int = u8(9)
    default_multicast_not_primary_port: int = u8(10)
    life_time_value: int = bits(8, 7, 3)
    port_state_change: int = bits(8, 2)
    optimized_sl_to_vl: int = bits(8, 1, 0)
    lids_per_port: int = u16(12)
    partition_enforcement_cap: int = u16(14)
    inbound_enforcement_cap: int = bits(16, 31)
    outbound_enforcement_cap: int = bits(16, 30)
    filter_raw_inbound_cap: int = bits(16, 29)
    filter_raw_outbound_cap: int = bits(16, 28)
    enhanced_port0: int = bits(16, 27)
    multicast_fdb_top: int = u16(18)


class PortInfo(Layout, size=64):
    """Everything about a port (14.2.5.6)."""

    mkey: int = u64(0)
    gid_prefix: int = u64(8)
    lid: int = u16(16)
    sm_lid: int = u16(18)
    capability_mask: int = u32(20)
    diag_code: int = u16(24)
    mkey_lease_period: int = u16(26)
    local_port_num: int = u8(28)
    link_width_enabled: int = u8(29)
    link_width_supported: int = u8(30)
    link_width_active: int = u8(31)
    link_speed_supported: int = bits(32, 31, 28)
    port_state: int = bits(32, 27, 24)
    port_physical_state: int = bits(32, 23, 20)
    link_down_default_state: int = bits(32, 19, 16)
    mkey_protect_bits: int = bits(32, 15, 14)
    lmc: int = bits(32, 10, 8)
    link_speed_active: int = bits(32, 7, 4)
    link_speed_enabled: int = bits(32, 3, 0)
    neighbor_mtu: int = bits(36, 31, 28)
    sm_sl: int = bits(36, 27, 24)
    vl_cap: int = bits(36, 23, 20)
    init_type: int = bits(36, 19, 16)
    vl_high_limit: int = u8(38)
    vl_arbitration_high_cap: int = u8(39)
    vl_arbitration_low_cap: int = u8(40)
    init_type_reply: int = bits(40, 23, 20)
    mtu_cap: int = bits(40, 19, 16)
    vl_stall_count: int = bits(40, 15, 13)
    hoq_life: int = bits(40, 12, 8)
    operational_vls: int = bits(40, 7, 4)
    partition_enforcement_inbound: int = bits(40, 3)
    partition_enforcement_outbound: int = bits(40, 2)
    filter_raw_inbound: int = bits(40, 1)
    filter_raw_outbound: int = bits(40, 0)
    mkey_violations: int = u16(44)
    pkey_violations: int = u16(46)
    qkey_violations: int = u16(48)
    guid_cap: int = u8(50)
    client_reregister: int = bits(48, 7)
    multicast_pkey_trap_suppression: int = bits(48, 6, 5)
    subnet_timeout: int = bits(48, 4, 0)
    resp_time_value: int = bits(52, 28, 24)
    local_phy_errors: int = bits(52, 23, 20)
    overrun_errors: int = bits(52, 19, 16)
    max_credit_hint: int = u16(54)
    link_speed_ext_active2: int = bits(56, 30, 29)
    link_speed_ext_supported2: int = bits(56, 28, 27)
    link_speed_ext_enabled2: int = bits(56, 26, 24)
    link_round_trip_latency: int = bits(56, 23, 0)
    capability_mask2: int = u16(60)
    link_speed_ext_active: int = bits(60, 15, 12)
    link_speed_ext_supported: int = bits(60, 11, 8)
    link_speed_ext_enabled: int = bits(60, 4, 0)


class SmInfo(Layout, size=24):
    """Who the subnet manager of a port is, and in which state (14.2.5.13)."""

    guid: int = u64(0)
    sm_key: int = u64(8)
    act_count: int = u32(16)
    priority: int = bits(20, 31, 28)
    sm_state: int = bits(20, 27, 24)


class MlnxExtPortInfo(Layout, size=64):
    """Of one vendor: the 40 Gbit/s of 4X FDR10 lanes, which PortInfo has no code for. The modifier is the port.

    A Set changes `link_speed_enabled` if `state_change_enable` has the same bit.
    """

    state_change_enable: int = u8(3)
    link_speed_supported: int = u8(7)
    link_speed_enabled: int = u8(11)
    link_speed_active: int = u8(15)


SPEED_FDR10: Final = 1

# SMInfo.SMState
SM_STATE_NOTACTIVE: Final = 0
SM_STATE_DISCOVERING: Final = 1
SM_STATE_STANDBY: Final = 2
SM_STATE_MASTER: Final = 3
# Attribute modifier of Set(SMInfo): what one manager orders another one to do (14.4.1).
SM_HANDOVER: Final = 1
SM_ACKNOWLEDGE: Final = 2
SM_DISABLE: Final = 3
SM_STANDBY: Final = 4
SM_DISCOVER: Final = 5


def pack_words(values: list[int] | tuple[int, ...]) -> bytes:
    """A table of 16-bit words as attribute data (P_Keys, multicast port masks)."""
    return pack(f">{len(values)}H", *values)


def unpack_words(data: bytes) -> list[int]:
    """The 16-bit words of attribute data."""
    return list(unpack_from(f">{len(data) >> 1}H", data))


def pack_guids(values: list[int] | tuple[int, ...]) -> bytes:
    """GUIDs as attribute data."""
    return pack(f">{len(values)}Q", *values)


def unpack_guids(data: bytes) -> list[int]:
    """The GUIDs of attribute data."""
    return list(unpack_from(f">{len(data) >> 3}Q", data))


def mtu_code(size: int) -> int:
    """The code of an MTU of 256 to 4096 bytes, a power of two."""
    return size.bit_length() - 8


def mtu_bytes(code: int) -> int:
    """Bytes of an MTU code 1..5."""
    return 128 << code


def pack_sources(sources: Iterable[tuple[int, int]]) -> bytes:
    """A block of SourceLids: (LID, LMC) of what hangs on each of 16 ports; LID 0 for a port that may send as anybody.

    The attribute modifier is the number of the block: ports `16 * block` and up.
    """
    return b"".join(lid.to_bytes(2, "big") + bytes((lmc, 0)) for lid, lmc in sources).ljust(64, b"\0")


def unpack_sources(data: bytes) -> list[tuple[int, int]]:
    """(LID, LMC) of the 16 ports of a block of SourceLids."""
    return [(int.from_bytes(data[at : at + 2], "big"), data[at + 2] & 7) for at in range(0, 64, 4)]
