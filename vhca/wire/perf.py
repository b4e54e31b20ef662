"""Attributes of performance management: a port's counters as a monitor reads them (16.1.3 of volume 1).

`*_data` counts 32-bit words of whole packets without their start and end markers and VCRC.
"""

from typing import Final

from vhca.layout import Layout, bits, raw, u8, u16, u32, u64

PORT_SAMPLES_CONTROL: Final = 0x0010
PORT_SAMPLES_RESULT: Final = 0x0011
PORT_COUNTERS: Final = 0x0012
PORT_RCV_ERROR_DETAILS: Final = 0x0015
PORT_XMIT_DISCARD_DETAILS: Final = 0x0016
PORT_OP_RCV_COUNTERS: Final = 0x0017
PORT_FLOW_CTL_COUNTERS: Final = 0x0018
PORT_VL_OP_PACKETS: Final = 0x0019
PORT_VL_OP_DATA: Final = 0x001A
PORT_VL_XMIT_FLOW_CTL_UPDATE_ERRORS: Final = 0x001B
PORT_VL_XMIT_WAIT_COUNTERS: Final = 0x001C
PORT_COUNTERS_EXTENDED: Final = 0x001D
PORT_SAMPLES_RESULT_EXTENDED: Final = 0x001E
PORT_EXT_SPEEDS_COUNTERS: Final = 0x001F
SW_PORT_VL_CONGESTION: Final = 0x0030
PORT_RCV_CON_CTRL: Final = 0x0031
PORT_SL_RCV_FECN: Final = 0x0032
PORT_SL_RCV_BECN: Final = 0x0033
PORT_XMIT_CON_CTRL: Final = 0x0034
PORT_VL_XMIT_TIME_CONG: Final = 0x0035
PORT_XMIT_DATA_SL: Final = 0x0036
PORT_RCV_DATA_SL: Final = 0x0037

# ClassPortInfo.CapabilityMask and CapabilityMask2
CAP_ALL_PORT_SELECT: Final = 1 << 8
CAP_EXTENDED_WIDTH: Final = 1 << 9
CAP_SAMPLES_ONLY: Final = 1 << 11
CAP_XMIT_WAIT: Final = 1 << 12
CAP_QP1_DROPPED: Final = 1 << 15
CAP2_EXTENDED_ERRORS: Final = 1 << 1
ALL_PORTS: Final = 255


class PortCounters(Layout, size=44):
    """The mandatory counters; they stick at their largest value (16.1.3.5)."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    symbol_errors: int = u16(4)
    link_error_recovery: int = u8(6)
    link_downed: int = u8(7)
    rcv_errors: int = u16(8)
    rcv_remote_physical_errors: int = u16(10)
    rcv_switch_relay_errors: int = u16(12)
    xmit_discards: int = u16(14)
    xmit_constraint_errors: int = u8(16)
    rcv_constraint_errors: int = u8(17)
    counter_select2: int = u8(18)
    local_link_integrity_errors: int = bits(16, 7, 4)
    excessive_buffer_overruns: int = bits(16, 3, 0)
    qp1_dropped: int = u16(20)
    vl15_dropped: int = u16(22)
    xmit_data: int = u32(24)
    rcv_data: int = u32(28)
    xmit_pkts: int = u32(32)
    rcv_pkts: int = u32(36)
    xmit_wait: int = u32(40)


class PortCountersExtended(Layout, size=192):
    """The 64-bit counters; they wrap (16.1.4.11). Those from `symbol_errors` on go with CAP2_EXTENDED_ERRORS."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    counter_select2: int = u32(4)
    xmit_data: int = u64(8)
    rcv_data: int = u64(16)
    xmit_pkts: int = u64(24)
    rcv_pkts: int = u64(32)
    unicast_xmit_pkts: int = u64(40)
    unicast_rcv_pkts: int = u64(48)
    multicast_xmit_pkts: int = u64(56)
    multicast_rcv_pkts: int = u64(64)
    symbol_errors: int = u64(72)
    link_error_recovery: int = u64(80)
    link_downed: int = u64(88)
    rcv_errors: int = u64(96)
    rcv_remote_physical_errors: int = u64(104)
    rcv_switch_relay_errors: int = u64(112)
    xmit_discards: int = u64(120)
    xmit_constraint_errors: int = u64(128)
    rcv_constraint_errors: int = u64(136)
    local_link_integrity_errors: int = u64(144)
    excessive_buffer_overruns: int = u64(152)
    vl15_dropped: int = u64(160)
    xmit_wait: int = u64(168)
    qp1_dropped: int = u64(176)


class PortRcvErrorDetails(Layout, size=16):
    """Why packets that arrived were errors (16.1.4.1)."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    local_physical_errors: int = u16(4)
    malformed_errors: int = u16(6)
    buffer_overrun_errors: int = u16(8)
    dlid_mapping_errors: int = u16(10)
    vl_mapping_errors: int = u16(12)
    looping_errors: int = u16(14)


class PortXmitDiscardDetails(Layout, size=12):
    """Why packets were discarded at a port of departure (16.1.4.2)."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    inactive_discards: int = u16(4)
    mtu_discards: int = u16(6)
    lifetime_discards: int = u16(8)
    hoq_discards: int = u16(10)


class PairOfCounters(Layout, size=12):
    """The form of attributes that have two counters of 32 bits."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    first: int = u32(4)
    second: int = u32(8)


class LaneWords(Layout, size=68):
    """The form of attributes that have a counter of 32 bits for each of 16 lanes or service levels."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    counters: bytes = raw(4, 64)


class LaneHalves(Layout, size=36):
    """The form of attributes that have a counter of 16 bits for each of 16 lanes."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    counters: bytes = raw(4, 32)


class LaneErrors(Layout, size=8):
    """PortVLXmitFlowCtlUpdateErrors: two bits for each of 16 lanes (16.1.4.7)."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    counters: int = u32(4)


class PortExtSpeedsCounters(Layout, size=152):
    """Errors of the coding of extended speeds: lanes have twelve counters of each kind (16.1.4.13)."""

    port_select: int = u8(1)
    counter_select: int = u64(8)
    sync_header_errors: int = u16(16)
    unknown_blocks: int = u16(18)
    error_detections: bytes = raw(20, 24)
    correctable_blocks: bytes = raw(44, 48)
    uncorrectable_blocks: bytes = raw(92, 48)


class PortSamplesControl(Layout, size=80):
    """A measurement for a while: what is counted, from when, for how long, in ticks (16.1.3.2)."""

    op_code: int = u8(0)
    port_select: int = u8(1)
    tick: int = u8(2)
    counter_width: int = bits(0, 2, 0)
    counter_mask0: int = bits(4, 29, 27)
    counter_masks_1_9: int = bits(4, 26, 0)
    counter_masks_10_14: int = bits(8, 30, 16)
    sample_mechanisms: int = u8(10)
    sample_status: int = bits(8, 1, 0)
    option_mask: int = u64(12)
    vendor_mask: int = u64(20)
    sample_start: int = u32(28)
    sample_interval: int = u32(32)
    tag: int = u16(36)
    counter_select: bytes = raw(38, 30)
    samples_only_option_mask: int = u64(72)


class PortSamplesResult(Layout, size=64):
    """What a measurement counted, in the order of CounterSelect (16.1.3.3)."""

    tag: int = u16(0)
    sample_status: int = bits(0, 1, 0)
    counters: bytes = raw(4, 60)


class PortSamplesResultExtended(Layout, size=128):
    """The same in 64 bits (16.1.4.12)."""

    tag: int = u16(0)
    sample_status: int = bits(0, 1, 0)
    extended_width: int = bits(4, 31, 30)
    counters: bytes = raw(8, 120)


SAMPLE_DONE: Final = 0
SAMPLE_STARTED: Final = 1
SAMPLE_RUNNING: Final = 2
SAMPLE_COUNTERS: Final = 15

# Counters by bit of CounterSelect and CounterSelect2, from bit 0 on.
COUNTER_SELECT: Final = (
    "symbol_errors",
    "link_error_recovery",
    "link_downed",
    "rcv_errors",
    "rcv_remote_physical_errors",
    "rcv_switch_relay_errors",
    "xmit_discards",
    "xmit_constraint_errors",
    "rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overruns",
    "vl15_dropped",
    "xmit_data",
    "rcv_data",
    "xmit_pkts",
    "rcv_pkts",
)
COUNTER_SELECT2: Final = ("xmit_wait", "qp1_dropped")
COUNTER_SELECT_EXTENDED: Final = (
    "xmit_data",
    "rcv_data",
    "xmit_pkts",
    "rcv_pkts",
    "unicast_xmit_pkts",
    "unicast_rcv_pkts",
    "multicast_xmit_pkts",
    "multicast_rcv_pkts",
)
COUNTER_SELECT2_EXTENDED: Final = (*COUNTER_SELECT[:12], *COUNTER_SELECT2)
