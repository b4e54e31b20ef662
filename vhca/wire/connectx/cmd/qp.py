"""Commands that make a queue pair and walk it through its states."""

from vhca.layout import bits, sub, u32, u64
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut
from vhca.wire.connectx.qpc import Qpc


class CreateQpIn(CmdIn, size=0x110):
    """CREATE_QP input; a PAS list follows."""

    qpc_ext: int = bits(0x008, 31)
    input_qpn: int = bits(0x008, 23, 0)
    opt_param_mask: int = u32(0x010)
    ece: int = u32(0x014)
    qpc: Qpc = sub(0x018, Qpc)
    wq_umem_offset: int = u64(0x100)
    wq_umem_id: int = u32(0x108)
    wq_umem_valid: int = bits(0x10C, 31)


class CreateQpOut(CmdOut, size=0x10):
    """CREATE_QP output."""

    qpn: int = bits(0x008, 23, 0)
    ece: int = u32(0x00C)


class DestroyQpIn(CmdIn, size=0x10):
    """DESTROY_QP input."""

    qpn: int = bits(0x008, 23, 0)


class Rst2initQpIn(CmdIn, size=0x110):
    """RST2INIT transition input."""

    qpn: int = bits(0x008, 23, 0)
    opt_param_mask: int = u32(0x010)
    ece: int = u32(0x014)
    qpc: Qpc = sub(0x018, Qpc)


class Qp2errIn(CmdIn, size=0x10):
    """2ERR transition input."""

    qpn: int = bits(0x008, 23, 0)


class QueryQpIn(CmdIn, size=0x10):
    """QUERY_QP input."""

    qpc_ext: int = bits(0x008, 31)
    qpn: int = bits(0x008, 23, 0)


class QueryQpOut(CmdOut, size=0x110):
    """QUERY_QP output; a PAS list follows."""

    opt_param_mask: int = u32(0x010)
    ece: int = u32(0x014)
    qpc: Qpc = sub(0x018, Qpc)
