"""Attributes of performance management: a port's counters as a monitor reads them (16.1.3 of volume 1).

`*_data` counts 32-bit words of whole packets without their start and end markers and VCRC.
"""

from typing import Final

from vhca.layout import Layout, bits, u8, u16, u32, u64

PORT_SAMPLES_CONTROL: Final = 0x0010
PORT_SAMPLES_RESULT: Final = 0x0011
PORT_COUNTERS: Final = 0x0012
PORT_COUNTERS_EXTENDED: Final = 0x001D

CAP_ALL_PORT_SELECT: Final = 1 << 8
CAP_EXTENDED_WIDTH: Final = 1 << 9
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


class PortCountersExtended(Layout, size=72):
    """The 64-bit counters; they wrap (16.1.4.11)."""

    port_select: int = u8(1)
    counter_select: int = u16(2)
    xmit_data: int = u64(8)
    rcv_data: int = u64(16)
    xmit_pkts: int = u64(24)
    rcv_pkts: int = u64(32)
    unicast_xmit_pkts: int = u64(40)
    unicast_rcv_pkts: int = u64(48)
    multicast_xmit_pkts: int = u64(56)
    multicast_rcv_pkts: int = u64(64)


# (bit of CounterSelect, field) in the order of the book; bit 16 stands for bit 0 of CounterSelect2.
COUNTER_SELECT: Final = (
    (0, "symbol_errors"),
    (1, "link_error_recovery"),
    (2, "link_downed"),
    (3, "rcv_errors"),
    (4, "rcv_remote_physical_errors"),
    (5, "rcv_switch_relay_errors"),
    (6, "xmit_discards"),
    (7, "xmit_constraint_errors"),
    (8, "rcv_constraint_errors"),
    (9, "local_link_integrity_errors"),
    (10, "excessive_buffer_overruns"),
    (11, "vl15_dropped"),
    (12, "xmit_data"),
    (13, "rcv_data"),
    (14, "xmit_pkts"),
    (15, "rcv_pkts"),
    (16, "xmit_wait"),
)
COUNTER_SELECT_EXTENDED: Final = (
    (0, "xmit_data"),
    (1, "rcv_data"),
    (2, "xmit_pkts"),
    (3, "rcv_pkts"),
    (4, "unicast_xmit_pkts"),
    (5, "unicast_rcv_pkts"),
    (6, "multicast_xmit_pkts"),
    (7, "multicast_rcv_pkts"),
)
