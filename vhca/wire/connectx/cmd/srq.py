"""Commands that make and arm shared receive queues, and the send queues of raw packets."""

from vhca.layout import bits, sub, u64
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut
from vhca.wire.connectx.srq import RmpBitmask, Rmpc, Sqc, Srqc, XrcSrqc


class CreateSrqIn(CmdIn, size=0x110):
    """CREATE_SRQ input; a PAS list follows."""

    srq_context_entry: Srqc = sub(0x010, Srqc)


class CreateSrqOut(CmdOut, size=0x10):
    """CREATE_SRQ output."""

    srqn: int = bits(0x008, 23, 0)


class DestroySrqIn(CmdIn, size=0x10):
    """DESTROY_SRQ input."""

    srqn: int = bits(0x008, 23, 0)


class QuerySrqIn(CmdIn, size=0x10):
    """QUERY_SRQ input."""

    srqn: int = bits(0x008, 23, 0)


class QuerySrqOut(CmdOut, size=0x110):
    """QUERY_SRQ output; a PAS list follows."""

    srq_context_entry: Srqc = sub(0x010, Srqc)


class ArmRqIn(CmdIn, size=0x10):
    """ARM_RQ input."""

    srq_number: int = bits(0x008, 23, 0)
    lwm: int = bits(0x00C, 15, 0)


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


class CreateSqIn(CmdIn, size=0x110):
    """CREATE_SQ input; a PAS list follows."""

    ctx: Sqc = sub(0x020, Sqc)


class CreateSqOut(CmdOut, size=0x10):
    """CREATE_SQ output."""

    sqn: int = bits(0x008, 23, 0)


class ModifySqIn(CmdIn, size=0x110):
    """MODIFY_SQ input."""

    sq_state: int = bits(0x008, 31, 28)
    sqn: int = bits(0x008, 23, 0)
    modify_bitmask: int = u64(0x010)
    ctx: Sqc = sub(0x020, Sqc)


class DestroySqIn(CmdIn, size=0x10):
    """DESTROY_SQ input."""

    sqn: int = bits(0x008, 23, 0)


class QuerySqIn(CmdIn, size=0x10):
    """QUERY_SQ input."""

    sqn: int = bits(0x008, 23, 0)


class QuerySqOut(CmdOut, size=0x110):
    """QUERY_SQ output."""

    sq_context: Sqc = sub(0x020, Sqc)
