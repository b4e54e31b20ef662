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


class Rst2initQpOut(CmdOut, size=0x10):
    """RST2INIT transition output."""

    ece: int = u32(0x00C)


class Init2initQpIn(CmdIn, size=0x110):
    """INIT2INIT transition input."""

    qpn: int = bits(0x008, 23, 0)
    opt_param_mask: int = u32(0x010)
    ece: int = u32(0x014)
    qpc: Qpc = sub(0x018, Qpc)


class Init2initQpOut(CmdOut, size=0x10):
    """INIT2INIT transition output."""

    ece: int = u32(0x00C)


class Init2rtrQpIn(CmdIn, size=0x110):
    """INIT2RTR transition input."""

    qpn: int = bits(0x008, 23, 0)
    opt_param_mask: int = u32(0x010)
    ece: int = u32(0x014)
    qpc: Qpc = sub(0x018, Qpc)


class Init2rtrQpOut(CmdOut, size=0x10):
    """INIT2RTR transition output."""

    ece: int = u32(0x00C)


class Rtr2rtsQpIn(CmdIn, size=0x110):
    """RTR2RTS transition input."""

    qpn: int = bits(0x008, 23, 0)
    opt_param_mask: int = u32(0x010)
    ece: int = u32(0x014)
    qpc: Qpc = sub(0x018, Qpc)


class Rtr2rtsQpOut(CmdOut, size=0x10):
    """RTR2RTS transition output."""

    ece: int = u32(0x00C)


class Rts2rtsQpIn(CmdIn, size=0x110):
    """RTS2RTS transition input."""

    qpn: int = bits(0x008, 23, 0)
    opt_param_mask: int = u32(0x010)
    ece: int = u32(0x014)
    qpc: Qpc = sub(0x018, Qpc)


class Rts2rtsQpOut(CmdOut, size=0x10):
    """RTS2RTS transition output."""

    ece: int = u32(0x00C)


class Sqerr2rtsQpIn(CmdIn, size=0x110):
    """SQERR2RTS transition input."""

    qpn: int = bits(0x008, 23, 0)
    opt_param_mask: int = u32(0x010)
    qpc: Qpc = sub(0x018, Qpc)


class Sqd2rtsQpIn(CmdIn, size=0x110):
    """SQD2RTS transition input."""

    qpn: int = bits(0x008, 23, 0)
    opt_param_mask: int = u32(0x010)
    qpc: Qpc = sub(0x018, Qpc)


class Qp2errIn(CmdIn, size=0x10):
    """2ERR transition input."""

    qpn: int = bits(0x008, 23, 0)


class Qp2rstIn(CmdIn, size=0x10):
    """2RST transition input."""

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
