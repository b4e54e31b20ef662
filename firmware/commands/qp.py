"""Queue pairs: create, the life cycle commands, query, destroy, multicast membership."""

from typing import Final

from firmware.commands.registry import Command, command, refuse
from firmware.commands.resources import allocate, charge, find, free, note_use
from firmware.commands.umem import hold_umems, queue_buffer, record_addr, release_umems, umem_buffer
from firmware.model.budget import MULTICAST_GROUP_BYTES, MULTICAST_MEMBER_BYTES
from firmware.model.hca import Hca
from firmware.model.multicast import MulticastGroup
from firmware.model.objects import Srq
from firmware.model.qp import (
    ST_DCI,
    ST_QP0,
    ST_QP1,
    ST_RC,
    ST_REG_UMR,
    ST_UC,
    ST_UD,
    ST_XRC,
    STATE_NAMES,
    Qp,
)
from firmware.model.rings import RecordlessSendQueue, RecvQueue, SendQueue
from firmware.programs import refused_queue_pair
from firmware.transport import lifecycle
from firmware.transport.attributes import live_context
from firmware.transport.completion import SCATTER_32, SCATTER_64, inline_bytes, receive_cq
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.qpc import Qpc, RqType

SERVICES = (ST_RC, ST_UC, ST_UD, ST_XRC, ST_DCI, ST_QP0, ST_QP1, ST_REG_UMR)

RQ_REGULAR: Final = int(RqType.REGULAR)
RQ_SRQ: Final = int(RqType.SRQ_RMP_XRC_SRQ)
RQ_NONE: Final = int(RqType.ZERO_SIZE)
SQ_BLOCK_BYTES = 64
# qpc.send_dbr_mode
DOORBELL_WITHOUT_RECORD = 1
# qpc.ulp_stateless_offload_mode
OFFLOADS_BASIC = 1


@command(Op.CREATE_QP, cmd.CreateQpIn)
def create_qp(hca: Hca, request: Command[cmd.CreateQpIn]) -> Layout:
    """A queue pair in state RST."""
    view = request.view
    context = Qpc.from_bytes(view.qpc.to_bytes())
    _check_create(hca, request, context)
    qp = Qp(
        uid=request.uid,
        service=context.st,
        context=context,
        pd=context.pd,
        user_index=context.user_index,
        offloads=bool(context.ulp_stateless_offload_mode),
    )
    qp.srq = _attach_queues(hca, qp, request)
    has_sq = not context.no_sq
    # A target or receive-only QP has no send CQ, one without receives no receive CQ: the numbers may be 0.
    qp.send_cq = find(hca.cqs, context.cqn_snd, request.uid) if has_sq or context.cqn_snd else None
    qp.recv_cq = find(hca.cqs, context.cqn_rcv, request.uid) if context.rq_type != RQ_NONE or context.cqn_rcv else None
    if context.st in (ST_RC, ST_UC):
        qp.inline_receive = inline_bytes(context.cs_res, receive_cq(qp, qp.srq))
        qp.inline_read = inline_bytes(context.cs_req & 0xF, qp.send_cq)
    queue = qp.sq or qp.rq
    out = cmd.CreateQpOut()
    out.qpn = allocate(hca.qps, qp, 0 if queue is None else queue.buffer.list_bytes)
    _hold(hca, qp, +1)
    if queue is not None:
        rings = view.wq_umem_id if view.wq_umem_valid else None
        record = context.dbr_umem_id if context.dbr_umem_valid and _has_record(context) else None
        hold_umems(hca, qp, rings, record)
    return out


def _has_record(context: Qpc) -> bool:
    """Does a queue of this queue pair tell its producer by a doorbell record?"""
    return context.rq_type == RQ_REGULAR or not (context.no_sq or context.send_dbr_mode)


def _check_create(hca: Hca, request: Command[cmd.CreateQpIn], context: Qpc) -> None:
    caps = hca.capabilities.general
    if context.st not in SERVICES or (context.st == ST_DCI and not caps.dct):
        refuse(Status.BAD_PARAM, "qpc.st: this service type is not offered")
    if reason := refused_queue_pair(request.uid, context):
        refuse(Status.BAD_PARAM, reason)
    if context.wq_signature:
        refuse(Status.BAD_PARAM, "qpc.wq_signature: not offered")
    if context.st != ST_REG_UMR:
        find(hca.pds, context.pd, request.uid)
    if max(context.log_sq_size, context.log_rq_size) > caps.log_max_qp_sz:
        refuse(Status.LIM_ERR, "qpc: queue exceeds log_max_qp_sz")
    if context.rq_type not in (RQ_REGULAR, RQ_SRQ, RQ_NONE):
        refuse(Status.BAD_PARAM, "qpc.rq_type: 0 own queue, 1 SRQ, 3 none")
    if not context.no_sq:
        find(hca.uars, context.uar_page, request.uid)
    if context.cs_res or context.cs_req:
        if not caps.sctr_data_cqe:
            refuse(Status.BAD_PARAM, "qpc.cs_res, cs_req: scatter to CQE is not advertised")
        if context.cs_res not in (0, SCATTER_32, SCATTER_64) or context.cs_req not in (0, 0x11, 0x22):
            refuse(Status.BAD_PARAM, "qpc.cs_res, cs_req: no such mode")
    if context.ulp_stateless_offload_mode and (
        context.ulp_stateless_offload_mode != OFFLOADS_BASIC or context.st != ST_UD or not caps.ipoib_basic_offloads
    ):
        refuse(Status.BAD_PARAM, "qpc.ulp_stateless_offload_mode: basic offloads for UD, where they are advertised")
    if context.send_dbr_mode:
        more = hca.capabilities.general_2
        if context.send_dbr_mode != DOORBELL_WITHOUT_RECORD or not more.send_dbr_mode_no_dbr_ext:
            refuse(Status.BAD_PARAM, "qpc.send_dbr_mode: not advertised")
        if context.log_sq_size > more.log_max_send_dbr_less_qp_sq:
            refuse(Status.LIM_ERR, "qpc.log_sq_size exceeds log_max_send_dbr_less_qp_sq")
    if context.st == ST_XRC:
        find(hca.xrcds, context.xrcd, request.uid)


def _attach_queues(hca: Hca, qp: Qp, request: Command[cmd.CreateQpIn]) -> Srq | None:
    """Lay receive and send queue out over the memory given: the receive queue comes first. Returns the SRQ."""
    context, view = qp.context, request.view
    rq_bytes = 0
    log_stride = context.log_rq_stride + 4
    if context.rq_type == RQ_REGULAR:
        rq_bytes = 1 << (context.log_rq_size + log_stride)
    sq_bytes = 0 if context.no_sq else SQ_BLOCK_BYTES << context.log_sq_size
    size_bytes = rq_bytes + sq_bytes
    # The kernel sets the valid bits of a program's command itself: what no queue needs is not looked at, nor held.
    record = 0
    if _has_record(context):
        record = record_addr(hca, context.dbr_umem_valid, context.dbr_umem_id, context.dbr_addr, request.uid)
    if size_bytes:
        if view.wq_umem_valid:
            buffer = umem_buffer(hca, view.wq_umem_id, view.wq_umem_offset, size_bytes, request.uid)
        else:
            buffer = queue_buffer(request.tail, context.log_page_size, context.page_offset, size_bytes)
        if rq_bytes:
            qp.rq = RecvQueue(buffer, context.log_rq_size, log_stride, record)
        if sq_bytes:
            qp.sq = (
                RecordlessSendQueue(buffer, rq_bytes, context.log_sq_size)
                if context.send_dbr_mode
                else SendQueue(buffer, rq_bytes, context.log_sq_size, record)
            )
    # An XRC target takes the SRQ that a packet names, a DC initiator receives nothing.
    if context.rq_type == RQ_SRQ and qp.service not in (ST_XRC, ST_DCI):
        return find(hca.srqs, context.srqn_rmpn_xrqn, request.uid)
    return None


def _hold(hca: Hca, qp: Qp, delta: int) -> None:
    """Take (+1) or drop (-1) the references of a QP."""
    pd = hca.pds.get(qp.context.pd)
    if pd is not None and qp.service != ST_REG_UMR:
        pd.refs += delta
    xrcd = hca.xrcds.get(qp.context.xrcd) if qp.service == ST_XRC else None
    for obj in (qp.send_cq, qp.recv_cq, qp.srq, xrcd):
        if obj is not None:
            obj.refs += delta


def _note(hca: Hca, qp: Qp, status: Status) -> None:
    """Tell whoever keeps the lives of objects what became of a transition."""
    if hca.history is not None:
        if not status:
            hca.history.transition(qp.handle, STATE_NAMES[qp.state])
        elif status == Status.BAD_QP_STATE:
            hca.history.out_of_order(qp.handle, STATE_NAMES[qp.state])


def _transition(op: Op) -> None:
    @command(op, cmd.Rst2initQpIn)
    def handler(hca: Hca, request: Command[cmd.Rst2initQpIn]) -> bytes:
        view = request.view
        qp = find(hca.qps, view.qpn, request.uid)
        status = lifecycle.apply(hca, qp, op, view.opt_param_mask, view.qpc)
        _note(hca, qp, status)
        if status:
            refuse(status, f"{op.name}: {qp.refusal}")
        return bytes(16)


for _op in (
    Op.RST2INIT_QP,
    Op.INIT2INIT_QP,
    Op.INIT2RTR_QP,
    Op.RTR2RTS_QP,
    Op.RTS2RTS_QP,
    Op.SQERR2RTS_QP,
    Op.SQD_RTS_QP,
):
    _transition(_op)


def _plain_transition(op: Op) -> None:
    @command(op, cmd.Qp2errIn)
    def handler(hca: Hca, request: Command[cmd.Qp2errIn]) -> bytes:
        qp = find(hca.qps, request.view.qpn, request.uid)
        status = lifecycle.apply(hca, qp, op, 0, qp.context)
        _note(hca, qp, status)
        if status:
            refuse(status, f"{op.name}: {qp.refusal}")
        return bytes(16)


for _op in (Op.QP_2ERR, Op.QP_2RST):
    _plain_transition(_op)


@command(Op.QUERY_QP, cmd.QueryQpIn, cmd.QueryQpOut.SIZE)
def query_qp(hca: Hca, request: Command[cmd.QueryQpIn]) -> Layout:
    """Context of a QP with its live state, PSNs and counters."""
    if request.view.qpc_ext:
        refuse(Status.BAD_PARAM, "qpc_ext: not advertised")
    qp = find(hca.qps, request.view.qpn, request.uid)
    out = cmd.QueryQpOut()
    out.qpc = live_context(qp)
    return out


@command(Op.DESTROY_QP, cmd.DestroyQpIn)
def destroy_qp(hca: Hca, request: Command[cmd.DestroyQpIn]) -> bytes:
    """End a queue pair; members of multicast groups must be detached first."""
    qp = find(hca.qps, request.view.qpn, request.uid)
    if qp.refs:
        note_use(hca.qps, qp, request.uid)
        refuse(Status.BAD_RES_STATE, "qp: still attached to a multicast group")
    lifecycle.reset(hca, qp)
    _hold(hca, qp, -1)
    release_umems(qp)
    free(hca.qps, qp.handle, 0)
    return bytes(16)


@command(Op.ATTACH_TO_MCG, cmd.AttachToMcgIn)
def attach_to_mcg(hca: Hca, request: Command[cmd.AttachToMcgIn]) -> bytes:
    """Deliver packets for a multicast GID to this UD QP too."""
    qp = find(hca.qps, request.view.qpn, request.uid)
    if qp.service != ST_UD:
        refuse(Status.BAD_PARAM, "qpn: only UD queue pairs join multicast groups")
    gid = request.view.multicast_gid
    if gid[0] != 0xFF:
        refuse(Status.BAD_PARAM, "multicast_gid: not a multicast GID")
    caps = hca.capabilities.general
    group = hca.multicast.get(gid)
    if group is None:
        if len(hca.multicast) >= 1 << caps.log_max_mcg:
            refuse(Status.LIM_ERR, "log_max_mcg: no multicast group is left")
        charge(hca.budget, MULTICAST_GROUP_BYTES + MULTICAST_MEMBER_BYTES)
        group = hca.multicast[gid] = MulticastGroup(gid)
    elif qp not in group.members:
        if len(group.members) >= caps.max_qp_mcg:
            refuse(Status.LIM_ERR, "max_qp_mcg: the multicast group is full")
        charge(hca.budget, MULTICAST_MEMBER_BYTES)
    if qp not in group.members:
        group.members.append(qp)
        qp.refs += 1
    return bytes(16)


@command(Op.DETACH_FROM_MCG, cmd.DetachFromMcgIn)
def detach_from_mcg(hca: Hca, request: Command[cmd.DetachFromMcgIn]) -> bytes:
    """Undo an attachment."""
    qp = find(hca.qps, request.view.qpn, request.uid)
    group = hca.multicast.get(request.view.multicast_gid)
    if group is None or qp not in group.members:
        refuse(Status.BAD_PARAM, "qpn: not attached to this multicast group")
    group.members.remove(qp)
    qp.refs -= 1
    hca.budget.give(MULTICAST_MEMBER_BYTES)
    if not group.members:
        del hca.multicast[group.gid]
        hca.budget.give(MULTICAST_GROUP_BYTES)
    return bytes(16)
