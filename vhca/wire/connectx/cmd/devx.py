"""Commands of user contexts: open and close one, register memory for its queues, and general objects.

Of a general object the field `op_mod` is the type.
"""

from vhca.layout import Layout, bits, sub, u32
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut
from vhca.wire.connectx.devx import Uctx, Umem


class CreateUctxIn(CmdIn, size=0x40):
    """CREATE_UCTX input."""

    uctx: Uctx = sub(0x010, Uctx)


class CreateUctxOut(CmdOut, size=0x10):
    """CREATE_UCTX output."""

    uid: int = bits(0x008, 15, 0)


class DestroyUctxIn(Layout, size=0x10):
    """DESTROY_UCTX input."""

    opcode: int = bits(0x000, 31, 16)
    op_mod: int = bits(0x004, 15, 0)
    uid: int = bits(0x008, 15, 0)


class GeneralObjectIn(Layout, size=0x10):
    """Header of the commands on general objects; the object itself follows where there is one."""

    opcode: int = bits(0x000, 31, 16)
    uid: int = bits(0x000, 15, 0)
    vhca_tunnel_id: int = bits(0x004, 31, 16)
    op_mod: int = bits(0x004, 15, 0)
    obj_id: int = u32(0x008)
    log_obj_range: int = bits(0x00C, 28, 24)


class GeneralObjectOut(CmdOut, size=0x10):
    """Output of CREATE_GENERAL_OBJECT."""

    obj_id: int = u32(0x008)


class CreateUmemIn(CmdIn, size=0x30):
    """CREATE_UMEM input; an MTT list follows."""

    umem: Umem = sub(0x010, Umem)


class CreateUmemOut(CmdOut, size=0x10):
    """CREATE_UMEM output."""

    umem_id: int = bits(0x008, 23, 0)


class DestroyUmemIn(CmdIn, size=0x10):
    """DESTROY_UMEM input."""

    umem_id: int = bits(0x008, 23, 0)
