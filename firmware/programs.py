"""What a program in the guest may ask of the card: commands that carry the number of its user context (DevX).

The kernel marks such a command and makes its queues and doorbell records lie in user memory objects; everything else in
it is the program's own choice. So what the kernel would not do for a program through verbs, the card must not do for it
here: these are the rules that are about the sender, not about the command. Commands that the kernel sends for a program
carry the same number, and must pass.
"""

from typing import Final

from firmware.model.hca import Hca
from firmware.model.ledger import HcaObject
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.devx import CAP_RAW_TX
from vhca.wire.connectx.qpc import Qpc, ServiceType

# The kernel in its role of sharing out: objects of this user (event queues, counters) are everybody's.
SHARED_UID: Final = 0xFFFF
# The high bit makes a Q_Key a privileged one (10.2.5).
PRIVILEGED_QKEY: Final = 1 << 31

# The services of a kernel: management, and a queue that moves keys between domains.
_KERNEL_SERVICES: Final = (ServiceType.QP0, ServiceType.QP1, ServiceType.REG_UMR)

_MAY_SEND: Final = frozenset(
    {
        Op.QUERY_HCA_CAP,
        Op.QUERY_ADAPTER,
        Op.QUERY_ISSI,
        Op.QUERY_HCA_VPORT_CONTEXT,
        Op.QUERY_VPORT_STATE,
        Op.QUERY_LAG,
        Op.NOP,
        Op.ALLOC_UAR,
        Op.DEALLOC_UAR,
        Op.ALLOC_PD,
        Op.DEALLOC_PD,
        Op.ALLOC_XRCD,
        Op.DEALLOC_XRCD,
        Op.ALLOC_TRANSPORT_DOMAIN,
        Op.DEALLOC_TRANSPORT_DOMAIN,
        Op.ALLOC_Q_COUNTER,
        Op.DEALLOC_Q_COUNTER,
        Op.QUERY_Q_COUNTER,
        Op.CREATE_UMEM,
        Op.DESTROY_UMEM,
        Op.CREATE_MKEY,
        Op.QUERY_MKEY,
        Op.DESTROY_MKEY,
        Op.CREATE_CQ,
        Op.MODIFY_CQ,
        Op.QUERY_CQ,
        Op.DESTROY_CQ,
        Op.CREATE_QP,
        Op.RST2INIT_QP,
        Op.INIT2INIT_QP,
        Op.INIT2RTR_QP,
        Op.RTR2RTS_QP,
        Op.RTS2RTS_QP,
        Op.SQERR2RTS_QP,
        Op.SQD_RTS_QP,
        Op.QP_2ERR,
        Op.QP_2RST,
        Op.QUERY_QP,
        Op.DESTROY_QP,
        Op.ATTACH_TO_MCG,
        Op.DETACH_FROM_MCG,
        Op.CREATE_RMP,
        Op.MODIFY_RMP,
        Op.QUERY_RMP,
        Op.DESTROY_RMP,
        Op.CREATE_XRC_SRQ,
        Op.ARM_XRC_SRQ,
        Op.QUERY_XRC_SRQ,
        Op.DESTROY_XRC_SRQ,
        Op.CREATE_DCT,
        Op.DRAIN_DCT,
        Op.QUERY_DCT,
        Op.ARM_DCT_FOR_KEY_VIOLATION,
        Op.DESTROY_DCT,
        Op.CREATE_GENERAL_OBJECT,
        Op.DESTROY_GENERAL_OBJECT,
    }
)


def is_program(uid: int) -> bool:
    """Is this the number of a user context, not of the kernel in one of its roles?"""
    return uid not in (0, SHARED_UID)


def may_name(uid: int, obj: HcaObject) -> bool:
    """May a command of this user name this object? A program its own and what the kernel shares, the kernel all."""
    return not is_program(uid) or obj.uid in (uid, SHARED_UID)


def refused_command(hca: Hca, opcode: int, uid: int) -> str:
    """Why a user context may not send this command, or an empty string."""
    if not is_program(uid):
        return ""
    if hca.uctxs.get(uid) is None:
        return "uid: no such user context"
    return "" if opcode in _MAY_SEND else "uid: this command is the kernel's alone"


def refused_queue_pair(uid: int, context: Qpc) -> str:
    """Why a user context may not have a queue pair with this context, or an empty string.

    Fast registration and the reserved key (`fre`, `rlky`) are taken out instead of refused: they are of use only with
    bus addresses, of which a program has none.
    """
    if not is_program(uid):
        return ""
    if context.st in _KERNEL_SERVICES:
        return "qpc.st: management and registration queue pairs are the kernel's"
    if context.deth_sqpn:
        return "qpc.deth_sqpn: only the kernel sends under another queue pair's number"
    context.fre = context.rlky = 0
    return ""


def may_have_qkey(hca: Hca, uid: int, q_key: int) -> bool:
    """May a queue pair of this user context have this Q_Key? A privileged one is for those who may send anything."""
    if not q_key & PRIVILEGED_QKEY or not is_program(uid):
        return True
    owner = hca.uctxs.get(uid)
    return owner is not None and bool(owner.caps & CAP_RAW_TX)
