"""Commands that make and change event queues, completion queues and memory keys."""

from vhca.layout import bits, raw, sub, u32, u64
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut
from vhca.wire.connectx.cqc import Cqc
from vhca.wire.connectx.eqc import Eqc
from vhca.wire.connectx.mkey import Mkc


class CreateEqIn(CmdIn, size=0x110):
    """CREATE_EQ input; a PAS list follows."""

    eq_context_entry: Eqc = sub(0x010, Eqc)
    event_bitmask: bytes = raw(0x058, 32)


class CreateEqOut(CmdOut, size=0x10):
    """CREATE_EQ output."""

    eq_number: int = bits(0x008, 7, 0)


class DestroyEqIn(CmdIn, size=0x10):
    """DESTROY_EQ input."""

    eq_number: int = bits(0x008, 7, 0)


class QueryEqIn(CmdIn, size=0x10):
    """QUERY_EQ input."""

    eq_number: int = bits(0x008, 7, 0)


class QueryEqOut(CmdOut, size=0x110):
    """QUERY_EQ output; a PAS list follows."""

    eq_context_entry: Eqc = sub(0x010, Eqc)
    event_bitmask: int = u64(0x058)


class CreateCqIn(CmdIn, size=0x110):
    """CREATE_CQ input; a PAS list follows."""

    cq_context: Cqc = sub(0x010, Cqc)
    cq_umem_offset: int = u64(0x050)
    cq_umem_id: int = u32(0x058)
    cq_umem_valid: int = bits(0x05C, 31)


class CreateCqOut(CmdOut, size=0x10):
    """CREATE_CQ output."""

    cqn: int = bits(0x008, 23, 0)


class DestroyCqIn(CmdIn, size=0x10):
    """DESTROY_CQ input."""

    cqn: int = bits(0x008, 23, 0)


class QueryCqIn(CmdIn, size=0x10):
    """QUERY_CQ input."""

    cqn: int = bits(0x008, 23, 0)


class QueryCqOut(CmdOut, size=0x110):
    """QUERY_CQ output; a PAS list follows."""

    cq_context: Cqc = sub(0x010, Cqc)


class ModifyCqIn(CmdIn, size=0x110):
    """MODIFY_CQ input; a PAS list follows."""

    cqn: int = bits(0x008, 23, 0)
    modify_field_select_resize_field_select: int = u32(0x00C)
    cq_context: Cqc = sub(0x010, Cqc)
    cq_umem_offset: int = u64(0x050)
    cq_umem_id: int = u32(0x058)
    cq_umem_valid: int = bits(0x05C, 31)


class CreateMkeyIn(CmdIn, size=0x110):
    """CREATE_MKEY input; translation entries follow."""

    pg_access: int = bits(0x00C, 31)
    mkey_umem_valid: int = bits(0x00C, 30)
    data_direct: int = bits(0x00C, 29)
    memory_key_mkey_entry: Mkc = sub(0x010, Mkc)
    translations_octword_actual_size: int = u32(0x060)
    mkey_umem_id: int = u32(0x064)
    mkey_umem_offset: int = u64(0x068)


class CreateMkeyOut(CmdOut, size=0x10):
    """CREATE_MKEY output."""

    mkey_index: int = bits(0x008, 23, 0)


class DestroyMkeyIn(CmdIn, size=0x10):
    """DESTROY_MKEY input."""

    mkey_index: int = bits(0x008, 23, 0)


class QueryMkeyIn(CmdIn, size=0x10):
    """QUERY_MKEY input."""

    mkey_index: int = bits(0x008, 23, 0)
    pg_access: int = bits(0x00C, 31)


class QueryMkeyOut(CmdOut, size=0x130):
    """QUERY_MKEY output."""

    memory_key_mkey_entry: Mkc = sub(0x010, Mkc)
    bsf0_klm0_pas_mtt0_1: bytes = raw(0x110, 16)
    bsf1_klm1_pas_mtt2_3: bytes = raw(0x120, 16)
