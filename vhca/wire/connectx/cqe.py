"""Completion queue entries: how the card reports that a work request ended.

Software owns entry `n` once `opcode` is not `INVALID` and `owner` equals bit `log_cq_size` of `n`; so
the last byte must be written last. A 128-byte entry is 64 bytes of inline data in front of one of these.
"""

from enum import IntEnum

from vhca.layout import Layout, bits, u8, u16, u32, u64


class CqeOpcode(IntEnum):
    """`Cqe64.opcode`."""

    REQ = 0x0
    RESP_WR_IMM = 0x1
    RESP_SEND = 0x2
    RESP_SEND_IMM = 0x3
    RESP_SEND_INV = 0x4
    RESIZE_CQ = 0x5
    SIG_ERR = 0xC
    REQ_ERR = 0xD
    RESP_ERR = 0xE
    INVALID = 0xF


class CqeSyndrome(IntEnum):
    """`ErrCqe64.syndrome`."""

    LOCAL_LENGTH_ERR = 0x01
    LOCAL_QP_OP_ERR = 0x02
    LOCAL_PROT_ERR = 0x04
    WR_FLUSH_ERR = 0x05
    MW_BIND_ERR = 0x06
    BAD_RESP_ERR = 0x10
    LOCAL_ACCESS_ERR = 0x11
    REMOTE_INVAL_REQ_ERR = 0x12
    REMOTE_ACCESS_ERR = 0x13
    REMOTE_OP_ERR = 0x14
    TRANSPORT_RETRY_EXC_ERR = 0x15
    RNR_RETRY_EXC_ERR = 0x16
    REMOTE_ABORTED_ERR = 0x22


class CqeGrh(IntEnum):
    """`Cqe64.grh`: whether the packet had a GRH, and where it is."""

    NONE = 0
    IN_BUFFER = 1
    IN_CQE = 2


class CqeFormat(IntEnum):
    """`Cqe64.inline_format`: where scattered data are, if not in the buffer."""

    NO_INLINE = 0
    INLINE_32 = 1
    INLINE_64 = 2
    COMPRESSED = 3


class Cqe64(Layout, size=64):
    """Completion without error.

    `srqn_uidx` is the user index of the QP or SRQ with CQE version 1, and the SRQ number with version 0 and for
    objects whose user index is 0xffffff. `imm_inval_pkey` is immediate data, the invalidated key, or the P_Key
    in the low half of the word.
    """

    wqe_id: int = u16(0x002)
    ml_path: int = u8(0x011)
    slid: int = u16(0x016)
    grh: int = bits(0x018, 29, 28)
    sl: int = bits(0x018, 27, 24)
    rqpn: int = bits(0x018, 23, 0)
    l4_ok: int = bits(0x01C, 26)
    l3_ok: int = bits(0x01C, 25)
    l2_ok: int = bits(0x01C, 24)
    l4_l3_hdr_type: int = bits(0x01C, 23, 16)
    vlan_info: int = bits(0x01C, 15, 0)
    srqn_uidx: int = u32(0x020)
    imm_inval_pkey: int = u32(0x024)
    byte_cnt: int = u32(0x02C)
    timestamp: int = u64(0x030)
    send_wqe_opcode: int = bits(0x038, 31, 24)
    qpn: int = bits(0x038, 23, 0)
    wqe_counter: int = bits(0x03C, 31, 16)
    signature: int = bits(0x03C, 15, 8)
    opcode: int = bits(0x03C, 7, 4)
    inline_format: int = bits(0x03C, 3, 2)
    se: int = bits(0x03C, 1)
    owner: int = bits(0x03C, 0)


class MiniFormat(IntEnum):
    """`Cqc.mini_cqe_res_format`: what a `MiniCqe` says beside its length."""

    HASH = 0
    CHECKSUM = 1
    CHECKSUM_STRIDE = 3


MINI_CQES: int = 8
"""In one array of 64 bytes."""


class MiniCqe(Layout, size=8):
    """One completion of a compressed session (`CqeFormat.COMPRESSED`).

    The session begins with a `Cqe64`, the title, whose `byte_cnt` is the number of its completions. All of them are as
    the title is, with WQE counters that count up from its own. Their `MiniCqe` stand in arrays: the first array in the
    entry behind the title, the one of completion 8, 16, ... in the entry that this one would have. Other entries of the
    session are not written; software takes over their ownership. `result` is a hash, or checksum and stride.
    """

    result: int = u32(0x000)
    byte_cnt: int = u32(0x004)


class ErrCqe64(Layout, size=64):
    """Completion with error (opcodes `REQ_ERR` and `RESP_ERR`)."""

    srqn_uidx: int = u32(0x020)
    hw_error_syndrome: int = u8(0x034)
    hw_syndrome_type: int = u8(0x035)
    vendor_error_syndrome: int = u8(0x036)
    syndrome: int = u8(0x037)
    send_wqe_opcode: int = bits(0x038, 31, 24)
    qpn: int = bits(0x038, 23, 0)
    wqe_counter: int = bits(0x03C, 31, 16)
    signature: int = bits(0x03C, 15, 8)
    opcode: int = bits(0x03C, 7, 4)
    inline_format: int = bits(0x03C, 3, 2)
    se: int = bits(0x03C, 1)
    owner: int = bits(0x03C, 0)
