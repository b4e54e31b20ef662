"""Shared receive queues: RMP (an IB SRQ under ISSI 1) and XRC SRQ, in one number space."""

from firmware.commands.registry import Command, command, refuse
from firmware.commands.resources import allocate, find, free
from firmware.commands.umem import hold_umems, queue_buffer, record_addr, release_umems, umem_buffer
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.objects import SRQ_RMP, SRQ_XRC, Srq
from firmware.queues import check_limit, shared_waiting
from vhca.hw.memory import DmaError
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.srq import RmpState, SrqState, WqType

LINK_BYTES = 16
MIN_LOG_STRIDE = 5
MIN_LOG_BASIC_STRIDE = 4
MAX_LOG_STRIDE = 12
MODIFY_LWM = 1


@command(Op.CREATE_RMP, cmd.CreateRmpIn)
def create_rmp(hca: Hca, request: Command[cmd.CreateRmpIn]) -> Layout:
    """A receive memory pool: the SRQ of reliable and datagram QPs."""
    context = request.view.ctx
    wq = context.wq
    if context.state != RmpState.RDY:
        refuse(Status.BAD_PARAM, "rmpc.state: a pool is created ready (1)")
    if wq.wq_type not in (WqType.LINKED_LIST, WqType.CYCLIC):
        refuse(Status.BAD_PARAM, "wq.wq_type: a pool is a linked list or a ring")
    cyclic = wq.wq_type == WqType.CYCLIC
    # A basic WQE has no segment ahead of its scatter list; a list needs that segment for its links.
    basic = bool(context.basic_cyclic_rcv_wqe)
    if basic and not cyclic:
        refuse(Status.BAD_PARAM, "basic_cyclic_rcv_wqe: a linked list needs its links")
    if wq.wq_signature:
        refuse(Status.BAD_PARAM, "wq.wq_signature: not offered")
    _check_shape(hca, wq.log_wq_sz, wq.log_wq_stride, MIN_LOG_BASIC_STRIDE if basic else MIN_LOG_STRIDE)
    find(hca.pds, wq.pd, request.uid)
    size_bytes = 1 << (wq.log_wq_sz + wq.log_wq_stride)
    if wq.wq_umem_valid:
        buffer = umem_buffer(hca, wq.wq_umem_id, wq.wq_umem_offset, size_bytes, request.uid)
    else:
        # A pool's page offset has 5 bits; its unit is that of every queue, a 64th of the page.
        buffer = queue_buffer(request.tail, wq.log_wq_pg_sz, wq.page_offset, size_bytes)
    srq = Srq(
        uid=request.uid,
        kind=SRQ_RMP,
        buffer=buffer,
        log_size=wq.log_wq_sz,
        log_stride=wq.log_wq_stride,
        dbr_addr=record_addr(hca, wq.dbr_umem_valid, wq.dbr_umem_id, wq.dbr_addr, request.uid),
        pd=wq.pd,
        cyclic=cyclic,
        head_bytes=0 if basic else LINK_BYTES,
        limit=wq.lwm,
        context=context.to_bytes(),
    )
    out = cmd.CreateRmpOut()
    out.rmpn = _register(hca, srq)
    hold_umems(hca, srq, wq.wq_umem_id if wq.wq_umem_valid else None, wq.dbr_umem_id if wq.dbr_umem_valid else None)
    return out


@command(Op.MODIFY_RMP, cmd.ModifyRmpIn)
def modify_rmp(hca: Hca, request: Command[cmd.ModifyRmpIn]) -> bytes:
    """Arm the limit of a pool."""
    srq = find_srq(hca, request.view.rmpn, SRQ_RMP, request.uid)
    bitmask = int.from_bytes(request.view.bitmask.to_bytes(), "big")
    if bitmask & ~MODIFY_LWM:
        refuse(Status.BAD_PARAM, "bitmask: only the limit can be modified")
    if request.view.rmp_state != RmpState.RDY:
        refuse(Status.BAD_PARAM, "rmp_state: must be the pool's state, ready (1)")
    if bitmask & MODIFY_LWM:
        arm_limit(hca, srq, request.view.ctx.wq.lwm)
    return bytes(16)


@command(Op.QUERY_RMP, cmd.QueryRmpIn, cmd.QueryRmpOut.SIZE)
def query_rmp(hca: Hca, request: Command[cmd.QueryRmpIn]) -> Layout:
    """Context of a pool with its live limit."""
    srq = find_srq(hca, request.view.rmpn, SRQ_RMP, request.uid)
    out = cmd.QueryRmpOut()
    out.rmp_context = type(out.rmp_context).from_bytes(srq.context)
    out.rmp_context.wq.lwm = srq.limit
    out.rmp_context.wq.hw_counter = srq.consumed
    return out


@command(Op.DESTROY_RMP, cmd.DestroyRmpIn)
def destroy_rmp(hca: Hca, request: Command[cmd.DestroyRmpIn]) -> bytes:
    """End a pool."""
    _destroy(hca, find_srq(hca, request.view.rmpn, SRQ_RMP, request.uid))
    return bytes(16)


@command(Op.CREATE_XRC_SRQ, cmd.CreateXrcSrqIn)
def create_xrc_srq(hca: Hca, request: Command[cmd.CreateXrcSrqIn]) -> Layout:
    """An SRQ of an XRC domain, with a CQ of its own."""
    context = request.view.xrc_srq_context_entry
    log_stride = context.log_rq_stride + 4
    if request.view.xrc_srq_umem_valid or context.dbr_umem_valid or context.wq_signature:
        refuse(Status.BAD_PARAM, "xrc_srqc: user memory objects and signatures are not advertised")
    if context.basic_cyclic_rcv_wqe:
        refuse(Status.BAD_PARAM, "basic_cyclic_rcv_wqe: an SRQ is a linked list")
    _check_shape(hca, context.log_xrc_srq_size, log_stride)
    find(hca.pds, context.pd, request.uid)
    xrcd = find(hca.xrcds, context.xrcd, request.uid)
    cq = find(hca.cqs, context.cqn, request.uid)
    srq = Srq(
        uid=request.uid,
        kind=SRQ_XRC,
        buffer=queue_buffer(
            request.tail,
            context.log_page_size,
            context.page_offset,
            1 << (context.log_xrc_srq_size + log_stride),
        ),
        log_size=context.log_xrc_srq_size,
        log_stride=log_stride,
        dbr_addr=context.db_record_addr_h << 32 | context.db_record_addr_l << 2,
        pd=context.pd,
        cq=cq,
        xrcd=context.xrcd,
        user_index=context.user_index,
        limit=context.lwm,
        context=context.to_bytes(),
    )
    out = cmd.CreateXrcSrqOut()
    out.xrc_srqn = _register(hca, srq)
    xrcd.refs += 1
    cq.refs += 1
    return out


@command(Op.ARM_XRC_SRQ, cmd.ArmXrcSrqIn)
def arm_xrc_srq(hca: Hca, request: Command[cmd.ArmXrcSrqIn]) -> bytes:
    """Arm the limit of an XRC SRQ (op_mod 1)."""
    if request.op_mod != 1:
        refuse(Status.BAD_PARAM, "op_mod: 1 arms an XRC SRQ")
    arm_limit(hca, find_srq(hca, request.view.xrc_srqn, SRQ_XRC, request.uid), request.view.lwm)
    return bytes(16)


@command(Op.QUERY_XRC_SRQ, cmd.QueryXrcSrqIn, cmd.QueryXrcSrqOut.SIZE)
def query_xrc_srq(hca: Hca, request: Command[cmd.QueryXrcSrqIn]) -> Layout:
    """Context of an XRC SRQ with its live limit and state."""
    srq = find_srq(hca, request.view.xrc_srqn, SRQ_XRC, request.uid)
    out = cmd.QueryXrcSrqOut()
    context = type(out.xrc_srq_context_entry).from_bytes(srq.context)
    context.state = SrqState.ERROR if srq.failed else SrqState.GOOD
    context.lwm = srq.limit
    out.xrc_srq_context_entry = context
    return out


@command(Op.DESTROY_XRC_SRQ, cmd.DestroyXrcSrqIn)
def destroy_xrc_srq(hca: Hca, request: Command[cmd.DestroyXrcSrqIn]) -> bytes:
    """End an XRC SRQ."""
    srq = find_srq(hca, request.view.xrc_srqn, SRQ_XRC, request.uid)
    _destroy(hca, srq)
    cq = srq.cq
    # A message that has taken a receive from it may still be under way: it completes nowhere.
    srq.cq = None
    srq.failed = True
    xrcd = hca.xrcds.get(srq.xrcd)
    if xrcd is not None:
        xrcd.refs -= 1
    if cq is not None:
        cq.refs -= 1
    return bytes(16)


def arm_limit(hca: Hca, srq: Srq, limit: int) -> None:
    """Set the limit; it fires as soon as there are fewer WQEs, which may be now."""
    if limit >= 1 << srq.log_size:
        refuse(Status.BAD_PARAM, "lwm: the limit is not below the queue's size")
    srq.limit = limit
    if limit:
        try:
            check_limit(hca, srq, shared_waiting(hca, srq))
        except DmaError:
            # Whoever takes the next receive meets the same, and tells of it.
            hca.count[Count.DMA_READ_ERRORS] += 1


def find_srq(hca: Hca, number: int, kind: int, uid: int) -> Srq:
    """The SRQ of this kind with this number, or refuse."""
    srq = find(hca.srqs, number, uid)
    if srq.kind != kind:
        refuse(Status.BAD_RES, "srq: no such object of this kind")
    return srq


def _check_shape(hca: Hca, log_size: int, log_stride: int, least: int = MIN_LOG_STRIDE) -> None:
    if log_size > hca.capabilities.general.log_max_srq_sz:
        refuse(Status.LIM_ERR, "srq size exceeds log_max_srq_sz")
    if not least <= log_stride <= MAX_LOG_STRIDE:
        refuse(Status.BAD_PARAM, "srq stride: a WQE takes 32 to 4096 bytes in a linked list, from 16 on as a basic one")


def _register(hca: Hca, srq: Srq) -> int:
    number = allocate(hca.srqs, srq, srq.buffer.list_bytes)
    pd = hca.pds.get(srq.pd)
    assert pd is not None
    pd.refs += 1
    return number


def _destroy(hca: Hca, srq: Srq) -> None:
    free(hca.srqs, srq.handle, 0)
    release_umems(srq)
    pd = hca.pds.get(srq.pd)
    if pd is not None:
        pd.refs -= 1
