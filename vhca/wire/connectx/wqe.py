"""Work queue elements: what software puts into a send or receive queue, segment by segment.

A send WQE is a control segment and the segments its opcode asks for, in units of 16 bytes; it occupies whole
64-byte basic blocks. A receive WQE is a list of data segments, behind a `NextSegment` in a shared queue.
"""

from enum import IntEnum
from typing import Final

from vhca.layout import Layout, bits, raw, u8, u16, u32, u64
from vhca.wire.connectx.mkey import Klm, Mkc

BASIC_BLOCK_SIZE: Final = 64
"""Bytes of one send WQE basic block (BB)."""

SEGMENT_UNIT: Final = 16
"""Bytes of one unit of `CtrlSegment.ds`."""


class WqeOpcode(IntEnum):
    """`CtrlSegment.opcode`."""

    NOP = 0x00
    SEND_INVAL = 0x01
    RDMA_WRITE = 0x08
    RDMA_WRITE_IMM = 0x09
    SEND = 0x0A
    SEND_IMM = 0x0B
    LSO = 0x0E
    RDMA_READ = 0x10
    ATOMIC_CS = 0x11
    ATOMIC_FA = 0x12
    ATOMIC_MASKED_CS = 0x14
    ATOMIC_MASKED_FA = 0x15
    BIND_MW = 0x18
    CONFIG_CMD = 0x1F
    SET_PSV = 0x20
    GET_PSV = 0x21
    CHECK_PSV = 0x22
    DUMP = 0x23
    UMR = 0x25
    RGET_PSV = 0x26
    RCHECK_PSV = 0x27
    ENHANCED_MPSW = 0x29
    FLOW_TBL_ACCESS = 0x2C
    ACCESS_ASO = 0x2D


class CompletionMode(IntEnum):
    """`CtrlSegment.ce`: when the WQE produces a CQE."""

    ON_ERROR = 0
    ON_FIRST_ERROR = 1
    ALWAYS = 2
    ALWAYS_AND_EQE = 3


class FenceMode(IntEnum):
    """`CtrlSegment.fm`: what the WQE waits for."""

    NONE = 0
    INITIATOR_SMALL = 1
    FENCE = 2
    STRONG_ORDERING = 3
    SMALL_AND_FENCE = 4


class CtrlSegment(Layout, size=16):
    """First segment of every send WQE; `imm` is immediate data, a key to invalidate or the key of a UMR."""

    opmod: int = bits(0x000, 31, 24)
    wqe_index: int = bits(0x000, 23, 8)
    opcode: int = bits(0x000, 7, 0)
    qpn: int = bits(0x004, 31, 8)
    ds: int = bits(0x004, 5, 0)
    signature: int = bits(0x008, 31, 24)
    dci_stream_id: int = bits(0x008, 23, 8)
    fm: int = bits(0x008, 7, 5)
    ce: int = bits(0x008, 3, 2)
    se: int = bits(0x008, 1)
    imm: int = u32(0x00C)


class RaddrSegment(Layout, size=16):
    """Where an RDMA operation or atomic goes in the peer's memory."""

    raddr: int = u64(0x000)
    rkey: int = u32(0x008)


class XrcSegment(Layout, size=16):
    """The remote shared receive queue of an XRC send; software may leave the rest undefined."""

    xrc_srqn: int = bits(0x000, 23, 0)


class AtomicSegment(Layout, size=16):
    """Operands of compare-and-swap (`swap_add`, `compare`) and fetch-and-add (`swap_add`)."""

    swap_add: int = u64(0x000)
    compare: int = u64(0x008)


class DatagramSegment(Layout, size=48):
    """Address vector of a datagram; `rlid` is the UDP source port under RoCE."""

    q_key: int = u32(0x000)
    ext: int = bits(0x008, 31)
    dqpn: int = bits(0x008, 23, 0)
    stat_rate: int = bits(0x00C, 31, 28)
    sl: int = bits(0x00C, 27, 24)
    fl: int = bits(0x00C, 23)
    mlid: int = bits(0x00C, 22, 16)
    rlid: int = bits(0x00C, 15, 0)
    rmac: bytes = raw(0x014, 6)
    tclass: int = u8(0x01A)
    hop_limit: int = u8(0x01B)
    grh: int = bits(0x01C, 30)
    src_addr_index: int = bits(0x01C, 27, 20)
    flow_label: int = bits(0x01C, 19, 0)
    rgid: bytes = raw(0x020, 16)


class EthPad(Layout, size=16):
    """Nothing; it stands between address vector and `EthSegment`."""


class EthSegment(Layout, size=16):
    """Offloads for the packets of a work request, of queue pairs with `Qpc.ulp_stateless_offload_mode`.

    `l3_csum`, `l4_csum`: put the checksums of IP, and of TCP or UDP, into each packet. Of a large send (LSO),
    `inline_hdr_sz` is the length in bytes of the headers, which begin in the last two bytes of this segment and go on
    behind it, up to the next unit; every packet gets `mss` bytes of data, or what is left.
    """

    l4_csum: int = bits(0x004, 31)
    l3_csum: int = bits(0x004, 30)
    mss: int = u16(0x006)
    inline_hdr_sz: int = u16(0x00C)
    inline_hdr_start: bytes = raw(0x00E, 2)


class DataSegment(Layout, size=16):
    """Scatter or gather entry; `byte_count` 0 stands for 2**31 bytes."""

    byte_count: int = u32(0x000)
    lkey: int = u32(0x004)
    addr: int = u64(0x008)


class InlineSegment(Layout, size=4):
    """Header of data inside the WQE; it stands where a data segment would, and `inline` tells them apart."""

    inline: int = bits(0x000, 31)
    byte_count: int = bits(0x000, 9, 0)


INLINE_FLAG: Final = 1 << 31
"""In the first word of a segment: inline data follow, not a pointer."""


class NextSegment(Layout, size=16):
    """First segment of a WQE in a linked list (shared receive queues)."""

    next_wqe_index: int = u16(0x002)
    signature: int = u8(0x004)


class UmrCtrlSegment(Layout, size=48):
    """Which parts of a memory key a UMR changes, and how much translation it brings.

    With `translation_offset_en` the words `xlt_offset` (low) and `xlt_offset_47_16` say where it goes.
    """

    inline: int = bits(0x000, 31)
    check_free: int = bits(0x000, 30, 29)
    translation_offset_en: int = bits(0x000, 28)
    check_qpn: int = bits(0x000, 27)
    xlt_octowords: int = u16(0x004)
    xlt_offset: int = u16(0x006)
    mkey_mask: int = u64(0x008)
    xlt_offset_47_16: int = u32(0x010)


class UmrCheckFree(IntEnum):
    """`UmrCtrlSegment.check_free`: what state of the key makes the UMR fail."""

    NO_CHECK = 0
    FAIL_IF_NOT_FREE = 1
    FAIL_IF_FREE = 2


class MkeyMask(IntEnum):
    """Bit numbers of `UmrCtrlSegment.mkey_mask`: the fields taken from the memory-key segment."""

    LEN = 0
    PAGE_SIZE = 1
    START_ADDR = 6
    PD = 7
    EN_RINVAL = 8
    EN_SIGERR = 9
    BSF_EN = 12
    KEY = 13
    QPN = 14
    LR = 17
    LW = 18
    RR = 19
    RW = 20
    A = 21
    SMALL_FENCE = 23
    RELAXED_ORDERING_WRITE = 25
    FREE = 29
    PAGE_SIZE_5 = 42
    RELAXED_ORDERING_READ = 47


UmrMkeySegment = Mkc
"""The memory-key segment of a UMR is laid out as the memory key context."""

UmrKlm = Klm
"""Entry of an inline translation list; the list is padded to a multiple of 64 bytes."""

INVALID_LKEY: Final = 0x100
"""`lkey` of the zero-length data segment that ends a scatter list early."""
