"""Event queue entries: how the card tells its driver that something happened.

Software owns entry `n` once `owner` equals bit `log_eq_size` of `n`. The 28 data bytes at 0x20 depend on
the event type; each `...Data` class below is one of their forms, and `DATA_LAYOUTS` says which.
"""

from enum import IntEnum
from types import MappingProxyType
from typing import Final

from vhca.layout import Layout, bits, raw, u8, u16, u32, u64


class EventType(IntEnum):
    """`Eqe.event_type`; the number is also the bit in an event mask."""

    COMP = 0x00
    PATH_MIG = 0x01
    COMM_EST = 0x02
    SQ_DRAINED = 0x03
    CQ_ERROR = 0x04
    WQ_CATAS_ERROR = 0x05
    PATH_MIG_FAILED = 0x07
    INTERNAL_ERROR = 0x08
    PORT_CHANGE = 0x09
    CMD = 0x0A
    PAGE_REQUEST = 0x0B
    PAGE_FAULT = 0x0C
    NIC_VPORT_CHANGE = 0x0D
    ESW_FUNCTIONS_CHANGED = 0x0E
    VHCA_STATE_CHANGE = 0x0F
    WQ_INVAL_REQ_ERROR = 0x10
    WQ_ACCESS_ERROR = 0x11
    SRQ_CATAS_ERROR = 0x12
    SRQ_LAST_WQE = 0x13
    SRQ_RQ_LIMIT = 0x14
    GPIO_EVENT = 0x15
    PORT_MODULE_EVENT = 0x16
    TEMP_WARN_EVENT = 0x17
    XRQ_ERROR = 0x18
    REMOTE_CONFIG = 0x19
    DB_BF_CONGESTION = 0x1A
    STALL_EVENT = 0x1B
    DCT_DRAINED = 0x1C
    DCT_KEY_VIOLATION = 0x1D
    FPGA_ERROR = 0x20
    FPGA_QP_ERROR = 0x21
    GENERAL_EVENT = 0x22
    MONITOR_COUNTER = 0x24
    PPS_EVENT = 0x25
    DEVICE_TRACER = 0x26
    OBJECT_CHANGE = 0x27


class PortChangeSubtype(IntEnum):
    """`Eqe.event_sub_type` of PORT_CHANGE."""

    DOWN = 1
    ACTIVE = 4
    INITIALIZED = 5
    LID = 6
    PKEY = 7
    GUID = 8
    CLIENT_REREG = 9


class PageFaultSubtype(IntEnum):
    """`Eqe.event_sub_type` of PAGE_FAULT: how the fault is described."""

    WQE = 0
    RDMA = 1
    MEMORY = 2


class QueueType(IntEnum):
    """`QpSrqData.queue_type`."""

    QP = 0
    RQ = 1
    SQ = 2
    DCT = 6


class CqErrorSyndrome(IntEnum):
    """`CqErrorData.syndrome`."""

    OVERRUN = 1
    ACCESS_VIOLATION = 2


class Eqe(Layout, size=64):
    """Event queue entry."""

    event_type: int = u8(0x001)
    event_sub_type: int = u8(0x003)
    event_data: bytes = raw(0x020, 28)
    signature: int = bits(0x03C, 15, 8)
    owner: int = bits(0x03C, 0)


class CompData(Layout, size=28):
    """A completion queue got what it was armed for."""

    cqn: int = bits(0x018, 23, 0)


class QpSrqData(Layout, size=28):
    """A QP changed, failed or drained; or an SRQ failed or went below its limit (then the number is the SRQ's)."""

    queue_type: int = bits(0x014, 31, 24)
    qp_srq_n: int = bits(0x018, 23, 0)


class CqErrorData(Layout, size=28):
    """A completion queue overran, or could not be written."""

    cqn: int = bits(0x000, 23, 0)
    syndrome: int = bits(0x008, 7, 0)


class PortChangeData(Layout, size=28):
    """A port changed; which way is in the sub-type."""

    port_num: int = bits(0x008, 31, 28)


class CmdData(Layout, size=28):
    """Commands ended: one bit per slot."""

    vector: int = u32(0x000)


class DctData(Layout, size=28):
    """A DC target drained, or was addressed with a wrong key."""

    dctn: int = bits(0x018, 23, 0)


class MemoryFaultData(Layout, size=28):
    """Pages of a memory key are missing (memory scheme of on-demand paging); page counts are in 4 KiB.

    `last`: the answer to this event resumes who waits; `post_` and `pre_demand_fault_pages` are what would be
    welcome behind and before the pages from `va` that are needed.
    """

    last: int = bits(0x000, 31)
    post_demand_fault_pages: int = bits(0x000, 15, 0)
    pre_demand_fault_pages: int = u16(0x004)
    token_47_32: int = u16(0x006)
    token_31_0: int = u32(0x008)
    demand_fault_pages: int = bits(0x00C, 31, 12)
    mkey: int = u32(0x010)
    va: int = u64(0x014)


DATA_LAYOUTS: Final = MappingProxyType(
    {
        EventType.COMP: CompData,
        EventType.PATH_MIG: QpSrqData,
        EventType.COMM_EST: QpSrqData,
        EventType.SQ_DRAINED: QpSrqData,
        EventType.CQ_ERROR: CqErrorData,
        EventType.WQ_CATAS_ERROR: QpSrqData,
        EventType.PATH_MIG_FAILED: QpSrqData,
        EventType.PORT_CHANGE: PortChangeData,
        EventType.CMD: CmdData,
        EventType.PAGE_FAULT: MemoryFaultData,
        EventType.WQ_INVAL_REQ_ERROR: QpSrqData,
        EventType.WQ_ACCESS_ERROR: QpSrqData,
        EventType.SRQ_CATAS_ERROR: QpSrqData,
        EventType.SRQ_LAST_WQE: QpSrqData,
        EventType.SRQ_RQ_LIMIT: QpSrqData,
        EventType.DCT_DRAINED: DctData,
        EventType.DCT_KEY_VIOLATION: DctData,
    }
)
"""Form of `Eqe.event_data` by event type; types that are missing carry no data that this project uses."""
