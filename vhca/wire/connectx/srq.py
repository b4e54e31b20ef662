"""Shared receive queues: the three contexts that hold one, and the work queue description inside an RMP.

Under ISSI 1 a basic SRQ is an RMP, and XRC SRQs have their own context; `Srqc` is the ISSI 0 form. Their
numbers share one 24-bit namespace.
"""

from enum import IntEnum

from vhca.layout import Layout, bits, sub, u32, u64


class Wq(Layout, size=192):
    """Work queue ring of an RMP, RQ or SQ (manual: wq); its PAS list follows."""

    wq_type: int = bits(0x000, 31, 28)
    wq_signature: int = bits(0x000, 27)
    end_padding_mode: int = bits(0x000, 26, 25)
    cd_slave: int = bits(0x000, 24)
    hds_skip_first_sge: int = bits(0x004, 31)
    log2_hds_buf_size: int = bits(0x004, 30, 28)
    page_offset: int = bits(0x004, 20, 16)
    lwm: int = bits(0x004, 15, 0)
    pd: int = bits(0x008, 23, 0)
    uar_page: int = bits(0x00C, 23, 0)
    dbr_addr: int = u64(0x010)
    hw_counter: int = u32(0x018)
    sw_counter: int = u32(0x01C)
    log_wq_stride: int = bits(0x020, 19, 16)
    log_wq_pg_sz: int = bits(0x020, 12, 8)
    log_wq_sz: int = bits(0x020, 4, 0)
    dbr_umem_valid: int = bits(0x024, 31)
    wq_umem_valid: int = bits(0x024, 30)
    log_hairpin_num_packets: int = bits(0x024, 28, 24)
    log_hairpin_data_sz: int = bits(0x024, 20, 16)
    log_wqe_num_of_strides: int = bits(0x024, 11, 8)
    two_byte_shift_en: int = bits(0x024, 7)
    log_wqe_stride_size: int = bits(0x024, 2, 0)
    dbr_umem_id: int = u32(0x028)
    wq_umem_id: int = u32(0x02C)
    wq_umem_offset: int = u64(0x030)
    headers_mkey: int = u32(0x038)
    shampo_enable: int = bits(0x03C, 31)
    shampo_mode: int = bits(0x03C, 29, 28)
    log_reservation_size: int = bits(0x03C, 26, 24)
    log_max_num_of_packets_per_reservation: int = bits(0x03C, 18, 16)
    log_headers_entry_size: int = bits(0x03C, 9, 8)
    log_headers_buffer_entry_num: int = bits(0x03C, 3, 0)


class XrcSrqc(Layout, size=64):
    """XRC shared receive queue context (manual: xrc_srqc)."""

    state: int = bits(0x000, 31, 28)
    log_xrc_srq_size: int = bits(0x000, 27, 24)
    wq_signature: int = bits(0x004, 31)
    cont_srq: int = bits(0x004, 30)
    rlky: int = bits(0x004, 28)
    basic_cyclic_rcv_wqe: int = bits(0x004, 27)
    log_rq_stride: int = bits(0x004, 26, 24)
    xrcd: int = bits(0x004, 23, 0)
    page_offset: int = bits(0x008, 31, 26)
    dbr_umem_valid: int = bits(0x008, 24)
    cqn: int = bits(0x008, 23, 0)
    user_index_equal_xrc_srqn: int = bits(0x010, 31)
    log_page_size: int = bits(0x010, 29, 24)
    user_index: int = bits(0x010, 23, 0)
    pd: int = bits(0x018, 23, 0)
    lwm: int = bits(0x01C, 31, 16)
    wqe_cnt: int = bits(0x01C, 15, 0)
    db_record_addr_h: int = u32(0x028)
    db_record_addr_l: int = bits(0x02C, 31, 2)


class Rmpc(Layout, size=240):
    """Receive memory pool context: a basic SRQ (manual: rmpc)."""

    state: int = bits(0x000, 23, 20)
    basic_cyclic_rcv_wqe: int = bits(0x004, 31)
    wq: Wq = sub(0x030, Wq)


class RmpBitmask(Layout, size=8):
    """Which fields MODIFY_RMP changes (manual: rmp_bitmask)."""

    lwm: int = bits(0x004, 0)


class RmpState(IntEnum):
    """Codes of `Rmpc.state`."""

    RST = 0
    RDY = 1
    ERR = 3


class SrqState(IntEnum):
    """Codes of `Srqc.state` and `XrcSrqc.state`."""

    GOOD = 0
    ERROR = 1


class WqType(IntEnum):
    """Codes of `Wq.wq_type`."""

    LINKED_LIST = 0
    CYCLIC = 1
    LINKED_LIST_STRIDING_RQ = 2
    CYCLIC_STRIDING_RQ = 3
