"""Commands that allocate numbers: UARs, protection domains, XRC and transport domains, counters, multicast."""

from vhca.layout import bits, raw, u32
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut


class AllocUarOut(CmdOut, size=0x10):
    """ALLOC_UAR output."""

    uar: int = bits(0x008, 23, 0)


class DeallocUarIn(CmdIn, size=0x10):
    """DEALLOC_UAR input."""

    uar: int = bits(0x008, 23, 0)


class AllocPdOut(CmdOut, size=0x10):
    """ALLOC_PD output."""

    pd: int = bits(0x008, 23, 0)


class DeallocPdIn(CmdIn, size=0x10):
    """DEALLOC_PD input."""

    pd: int = bits(0x008, 23, 0)


class AllocXrcdOut(CmdOut, size=0x10):
    """ALLOC_XRCD output."""

    xrcd: int = bits(0x008, 23, 0)


class DeallocXrcdIn(CmdIn, size=0x10):
    """DEALLOC_XRCD input."""

    xrcd: int = bits(0x008, 23, 0)


class AllocTransportDomainOut(CmdOut, size=0x10):
    """ALLOC_TRANSPORT_DOMAIN output."""

    transport_domain: int = bits(0x008, 23, 0)


class DeallocTransportDomainIn(CmdIn, size=0x10):
    """DEALLOC_TRANSPORT_DOMAIN input."""

    transport_domain: int = bits(0x008, 23, 0)


class AttachToMcgIn(CmdIn, size=0x20):
    """ATTACH_TO_MCG input."""

    qpn: int = bits(0x008, 23, 0)
    multicast_gid: bytes = raw(0x010, 16)


class DetachFromMcgIn(CmdIn, size=0x20):
    """DETACH_FROM_MCG input."""

    qpn: int = bits(0x008, 23, 0)
    multicast_gid: bytes = raw(0x010, 16)


class AllocQCounterOut(CmdOut, size=0x10):
    """ALLOC_Q_COUNTER output."""

    counter_set_id: int = bits(0x008, 7, 0)


class DeallocQCounterIn(CmdIn, size=0x10):
    """DEALLOC_Q_COUNTER input."""

    counter_set_id: int = bits(0x008, 7, 0)


class QueryQCounterIn(CmdIn, size=0x20):
    """QUERY_Q_COUNTER input."""

    other_vport: int = bits(0x008, 31)
    vport_number: int = bits(0x008, 15, 0)
    clear: int = bits(0x018, 31)
    aggregate: int = bits(0x018, 30)
    counter_set_id: int = bits(0x01C, 7, 0)


class QueryQCounterOut(CmdOut, size=0x100):
    """QUERY_Q_COUNTER output."""

    rx_write_requests: int = u32(0x010)
    rx_read_requests: int = u32(0x018)
    rx_atomic_requests: int = u32(0x020)
    rx_dct_connect: int = u32(0x028)
    out_of_buffer: int = u32(0x030)
    out_of_sequence: int = u32(0x038)
    duplicate_request: int = u32(0x040)
    rnr_nak_retry_err: int = u32(0x048)
    packet_seq_err: int = u32(0x050)
    implied_nak_seq_err: int = u32(0x058)
    local_ack_timeout_err: int = u32(0x060)
    req_rnr_retries_exceeded: int = u32(0x070)
    resp_local_length_error: int = u32(0x078)
    req_local_length_error: int = u32(0x07C)
    resp_local_qp_error: int = u32(0x080)
    local_operation_error: int = u32(0x084)
    resp_local_protection: int = u32(0x088)
    req_local_protection: int = u32(0x08C)
    resp_cqe_error: int = u32(0x090)
    req_cqe_error: int = u32(0x094)
    req_mw_binding: int = u32(0x098)
    req_bad_response: int = u32(0x09C)
    req_remote_invalid_request: int = u32(0x0A0)
    resp_remote_invalid_request: int = u32(0x0A4)
    req_remote_access_errors: int = u32(0x0A8)
    resp_remote_access_errors: int = u32(0x0AC)
    req_remote_operation_errors: int = u32(0x0B0)
    req_transport_retries_exceeded: int = u32(0x0B4)
    cq_overflow: int = u32(0x0B8)
    resp_cqe_flush_error: int = u32(0x0BC)
    req_cqe_flush_error: int = u32(0x0C0)
    roce_adp_retrans: int = u32(0x0C8)
    roce_adp_retrans_to: int = u32(0x0CC)
    roce_slow_restart: int = u32(0x0D0)
    roce_slow_restart_cnps: int = u32(0x0D4)
    roce_slow_restart_trans: int = u32(0x0D8)
