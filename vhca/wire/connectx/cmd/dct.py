"""Commands for targets of the dynamically connected transport (DC), and the context that they carry."""

from vhca.layout import Layout, bits, sub, u32, u64
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut


class Dctc(Layout, size=64):
    """DC target context (manual: dctc)."""

    state: int = bits(0x000, 27, 24)
    dp_ordering_force: int = bits(0x004, 24)
    user_index: int = bits(0x004, 23, 0)
    cqn: int = bits(0x008, 23, 0)
    counter_set_id: int = bits(0x00C, 31, 24)
    atomic_mode: int = bits(0x00C, 23, 20)
    rre: int = bits(0x00C, 19)
    rwe: int = bits(0x00C, 18)
    rae: int = bits(0x00C, 17)
    cs_res: int = bits(0x010, 23, 16)
    min_rnr_nak: int = bits(0x010, 12, 8)
    srqn_xrqn: int = bits(0x014, 23, 0)
    pd: int = bits(0x018, 23, 0)
    tclass: int = bits(0x01C, 31, 24)
    flow_label: int = bits(0x01C, 19, 0)
    dc_access_key: int = u64(0x020)
    mtu: int = bits(0x028, 26, 24)
    port: int = bits(0x028, 23, 16)
    pkey_index: int = bits(0x028, 15, 0)
    my_addr_index: int = bits(0x02C, 23, 16)
    hop_limit: int = bits(0x02C, 7, 0)
    dc_access_key_violation_count: int = u32(0x030)
    ece: int = u32(0x03C)


class CreateDctIn(CmdIn, size=0x80):
    """CREATE_DCT input."""

    dct_context_entry: Dctc = sub(0x010, Dctc)


class CreateDctOut(CmdOut, size=0x10):
    """CREATE_DCT output."""

    dctn: int = bits(0x008, 23, 0)
    ece: int = u32(0x00C)


class DctIn(CmdIn, size=0x10):
    """Input of DRAIN_DCT, DESTROY_DCT, QUERY_DCT and ARM_DCT_FOR_KEY_VIOLATION: the number."""

    dctn: int = bits(0x008, 23, 0)


class QueryDctOut(CmdOut, size=0x80):
    """QUERY_DCT output."""

    dct_context_entry: Dctc = sub(0x010, Dctc)
