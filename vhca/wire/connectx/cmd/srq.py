"""Commands that make and arm shared receive queues, and the send queues of raw packets."""

from vhca.layout import bits, sub
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut
from vhca.wire.connectx.srq import RmpBitmask, Rmpc, XrcSrqc


class CreateXrcSrqIn(CmdIn, size=0x110):
    """CREATE_XRC_SRQ input; a PAS list follows."""

    xrc_srq_context_entry: XrcSrqc = sub(0x010, XrcSrqc)
    xrc_srq_umem_valid: int = bits(0x05C, 31)


class CreateXrcSrqOut(CmdOut, size=0x10):
    """CREATE_XRC_SRQ output."""

    xrc_srqn: int = bits(0x008, 23, 0)


class DestroyXrcSrqIn(CmdIn, size=0x10):
    """DESTROY_XRC_SRQ input."""

    xrc_srqn: int = bits(0x008, 23, 0)


class QueryXrcSrqIn(CmdIn, size=0x10):
    """QUERY_XRC_SRQ input."""

    xrc_srqn: int = bits(0x008, 23, 0)


class QueryXrcSrqOut(CmdOut, size=0x110):
    """QUERY_XRC_SRQ output; a PAS list follows."""

    xrc_srq_context_entry: XrcSrqc = sub(0x010, XrcSrqc)


class ArmXrcSrqIn(CmdIn, size=0x10):
    """ARM_XRC_SRQ input."""

    xrc_srqn: int = bits(0x008, 23, 0)
    lwm: int = bits(0x00C, 15, 0)


class CreateRmpIn(CmdIn, size=0x110):
    """CREATE_RMP input; a PAS list follows."""

    ctx: Rmpc = sub(0x020, Rmpc)


class CreateRmpOut(CmdOut, size=0x10):
    """CREATE_RMP output."""

    rmpn: int = bits(0x008, 23, 0)


class ModifyRmpIn(CmdIn, size=0x110):
    """MODIFY_RMP input."""

    rmp_state: int = bits(0x008, 31, 28)
    rmpn: int = bits(0x008, 23, 0)
    bitmask: RmpBitmask = sub(0x010, RmpBitmask)
    ctx: Rmpc = sub(0x020, Rmpc)


class DestroyRmpIn(CmdIn, size=0x10):
    """DESTROY_RMP input."""

    rmpn: int = bits(0x008, 23, 0)


class QueryRmpIn(CmdIn, size=0x10):
    """QUERY_RMP input."""

    rmpn: int = bits(0x008, 23, 0)


class QueryRmpOut(CmdOut, size=0x110):
    """QUERY_RMP output."""

    rmp_context: Rmpc = sub(0x020, Rmpc)
