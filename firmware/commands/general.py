"""General objects: small things of user contexts that have no command of their own. The card has one kind.

A block of reserved QP numbers is for software that speaks to a connection manager without a queue pair of its own.
"""

from firmware.commands.registry import Command, command, refuse
from firmware.commands.resources import allocate, free
from firmware.model.capabilities import GENERAL_RESERVED_QPN, LOG_RESERVED_QPNS
from firmware.model.hca import Hca
from firmware.model.objects import ReservedQpns
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status


@command(Op.CREATE_GENERAL_OBJECT, cmd.GeneralObjectIn, cmd.GeneralObjectOut.SIZE)
def create_general_object(hca: Hca, request: Command[cmd.GeneralObjectIn]) -> Layout:
    """A block of reserved QP numbers; the object's number is the first of them."""
    _check_type(hca, request.op_mod)
    if request.view.log_obj_range != LOG_RESERVED_QPNS:
        refuse(Status.BAD_PARAM, "log_obj_range: a block has log_reserved_qpn_granularity numbers")
    out = cmd.GeneralObjectOut()
    out.obj_id = allocate(hca.reserved_qpns, ReservedQpns(uid=request.uid)) << LOG_RESERVED_QPNS
    return out


@command(Op.DESTROY_GENERAL_OBJECT, cmd.GeneralObjectIn)
def destroy_general_object(hca: Hca, request: Command[cmd.GeneralObjectIn]) -> bytes:
    """Give a block of reserved QP numbers back."""
    _check_type(hca, request.op_mod)
    number = request.view.obj_id
    if number & (1 << LOG_RESERVED_QPNS) - 1:
        refuse(Status.BAD_RES, "obj_id: not the first number of a block")
    free(hca.reserved_qpns, number >> LOG_RESERVED_QPNS, request.uid)
    return bytes(16)


def _check_type(hca: Hca, kind: int) -> None:
    if kind != GENERAL_RESERVED_QPN or not hca.capabilities.general.general_obj_types >> kind & 1:
        refuse(Status.BAD_PARAM, "obj_type: not in general_obj_types")
