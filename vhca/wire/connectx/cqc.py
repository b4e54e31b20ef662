"""Completion queue context: where a CQ's ring lies, how far it got, and which EQ it reports to."""

from enum import IntEnum

from vhca.layout import Layout, bits, u32, u64


class Cqc(Layout, size=64):
    """Completion queue context (manual: cqc)."""

    status: int = bits(0x000, 31, 28)
    dbr_umem_valid: int = bits(0x000, 25)
    apu_cq: int = bits(0x000, 24)
    cqe_sz: int = bits(0x000, 23, 21)
    cc: int = bits(0x000, 20)
    scqe_break_moderation_en: int = bits(0x000, 18)
    oi: int = bits(0x000, 17)
    cq_period_mode: int = bits(0x000, 16, 15)
    cqe_comp_en: int = bits(0x000, 14)
    mini_cqe_res_format: int = bits(0x000, 13, 12)
    st: int = bits(0x000, 11, 8)
    cqe_compression_layout: int = bits(0x000, 1, 0)
    dbr_umem_id: int = u32(0x004)
    page_offset: int = bits(0x008, 11, 6)
    log_cq_size: int = bits(0x00C, 28, 24)
    uar_page: int = bits(0x00C, 23, 0)
    cq_period: int = bits(0x010, 27, 16)
    cq_max_count: int = bits(0x010, 15, 0)
    c_eqn_or_apu_element: int = u32(0x014)
    log_page_size: int = bits(0x018, 28, 24)
    last_notified_index: int = bits(0x020, 23, 0)
    last_solicit_index: int = bits(0x024, 23, 0)
    consumer_counter: int = bits(0x028, 23, 0)
    producer_counter: int = bits(0x02C, 23, 0)
    dbr_addr: int = u64(0x038)


class CqArmState(IntEnum):
    """Codes of `Cqc.st`, the notification state."""

    NOT_ARMED = 0x0
    SOLICITED_ARMED = 0x6
    ARMED = 0x9
    FIRED = 0xA
    ALWAYS_ARMED = 0xB


class CqStatus(IntEnum):
    """Codes of `Cqc.status`."""

    OK = 0x0
    OVERFLOW = 0x9
    WRITE_FAIL = 0xA


class CqeSize(IntEnum):
    """Codes of `Cqc.cqe_sz`."""

    BYTES_64 = 0
    BYTES_128 = 1
    BYTES_128_STRIDE = 2


class CqModifyField(IntEnum):
    """Bit numbers of the field select of MODIFY_CQ with `op_mod` 0."""

    CQ_PERIOD = 0
    CQ_MAX_COUNT = 1
    OI = 2
    CQ_PERIOD_MODE = 4


class CqResizeField(IntEnum):
    """Bit numbers of the field select of MODIFY_CQ with `op_mod` 1 (resize)."""

    LOG_CQ_SIZE = 0
    PAGE_OFFSET = 1
    LOG_PAGE_SIZE = 2
