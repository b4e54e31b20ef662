"""The headers of a packet on the cable, from local route header to extended transport headers.

Chapters 7, 8 and 9 of volume 1; XRC of annex A14. The header of the dynamically connected transport (DC) is not public:
that one is our own.
"""

from enum import IntEnum

from vhca.layout import Layout, bits, raw, u32, u64


class NextHeader(IntEnum):
    """`Lrh.lnh`: what follows the local route header (7.7.2)."""

    LOCAL = 2
    GLOBAL = 3


class AethSyndrome(IntEnum):
    """Codes of `Aeth.syndrome` (table 43); of an RNR NAK the low five bits are a timer code."""

    ACK = 0x00
    ACK_NO_CREDITS = 0x1F
    RNR_NAK = 0x20
    NAK_PSN_SEQUENCE_ERROR = 0x60
    NAK_INVALID_REQUEST = 0x61
    NAK_REMOTE_ACCESS_ERROR = 0x62
    NAK_REMOTE_OPERATIONAL_ERROR = 0x63


class Lrh(Layout, size=8):
    """Local route header (7.7); `pkt_len` in words from itself to the ICRC."""

    vl: int = bits(0x00, 31, 28)
    lver: int = bits(0x00, 27, 24)
    sl: int = bits(0x00, 23, 20)
    lnh: int = bits(0x00, 17, 16)
    dlid: int = bits(0x00, 15, 0)
    pkt_len: int = bits(0x04, 26, 16)
    slid: int = bits(0x04, 15, 0)


class GrhHeader(Layout, size=40):
    """Global route header (8.3); `pay_len` in bytes from BTH to ICRC."""

    ip_ver: int = bits(0x00, 31, 28)
    t_class: int = bits(0x00, 27, 20)
    flow_label: int = bits(0x00, 19, 0)
    pay_len: int = bits(0x04, 31, 16)
    nxt_hdr: int = bits(0x04, 15, 8)
    hop_lmt: int = bits(0x04, 7, 0)
    sgid: bytes = raw(0x08, 16)
    dgid: bytes = raw(0x18, 16)


class Bth(Layout, size=12):
    """Base transport header (9.2)."""

    opcode: int = bits(0x00, 31, 24)
    se: int = bits(0x00, 23)
    m: int = bits(0x00, 22)
    pad_cnt: int = bits(0x00, 21, 20)
    tver: int = bits(0x00, 19, 16)
    p_key: int = bits(0x00, 15, 0)
    fecn: int = bits(0x04, 31)
    becn: int = bits(0x04, 30)
    dest_qp: int = bits(0x04, 23, 0)
    ack_req: int = bits(0x08, 31)
    psn: int = bits(0x08, 23, 0)


class Xrceth(Layout, size=4):
    """XRC extended transport header (A14.3.1)."""

    xrc_srq: int = bits(0x00, 23, 0)


class Dceth(Layout, size=20):
    """Of DC requests, in the place of XRCETH and DETH: key, initiator, its connection and the first PSN of that."""

    access_key: int = u64(0x00)
    src_qp: int = bits(0x08, 23, 0)
    connection: int = u32(0x0C)
    first_psn: int = bits(0x10, 23, 0)


class Deth(Layout, size=8):
    """Datagram extended transport header (9.3.2)."""

    q_key: int = u32(0x00)
    src_qp: int = bits(0x04, 23, 0)


class Reth(Layout, size=16):
    """RDMA extended transport header (9.3.3)."""

    va: int = u64(0x00)
    r_key: int = u32(0x08)
    dma_len: int = u32(0x0C)


class AtomicEth(Layout, size=28):
    """Atomic extended transport header (9.3.4)."""

    va: int = u64(0x00)
    r_key: int = u32(0x08)
    swap_dt: int = u64(0x0C)
    cmp_dt: int = u64(0x14)


class Aeth(Layout, size=4):
    """Acknowledge extended transport header (9.3.5)."""

    syndrome: int = bits(0x00, 31, 24)
    msn: int = bits(0x00, 23, 0)


class AtomicAckEth(Layout, size=8):
    """Atomic acknowledge extended transport header (9.3.5.3)."""

    orig_rem_dt: int = u64(0x00)


class ImmDt(Layout, size=4):
    """Immediate data (9.3.6)."""

    imm_dt: int = u32(0x00)


class Ieth(Layout, size=4):
    """Invalidate extended transport header (9.3.7)."""

    r_key: int = u32(0x00)
