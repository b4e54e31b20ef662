"""Event queues and completion queues: create, destroy, query, modify."""

from typing import Final, TypeVar

from firmware.commands.registry import Command, command, refuse
from firmware.commands.resources import allocate, charge, find, free
from firmware.commands.umem import hold_umems, queue_buffer, record_addr, release_umems, umem_buffer
from firmware.model.hca import Hca
from firmware.model.objects import INDEX_MASK, Cq, Eq, Session
from firmware.model.queue_buffer import QueueBuffer
from firmware.queues import end_session, refresh_consumer, write_cqe_entry
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cqc import Cqc, CqeSize, CqModifyField, CqResizeField, CqStatus
from vhca.wire.connectx.cqe import Cqe64, CqeOpcode, MiniFormat
from vhca.wire.connectx.eqc import EqArmState

T = TypeVar("T", cmd.CreateCqIn, cmd.ModifyCqIn)

EQE_BYTES = 64
# What a compressing queue keeps: a title and its session, and the objects around them.
SESSION_BYTES: Final = 2048
CQE_BYTES: Final[dict[int, int]] = {CqeSize.BYTES_64: 64, CqeSize.BYTES_128: 128, CqeSize.BYTES_128_STRIDE: 128}
CQE_128_PADDED: Final = int(CqeSize.BYTES_128_STRIDE)

MODIFY_PERIOD: Final = 1 << CqModifyField.CQ_PERIOD
MODIFY_COUNT: Final = 1 << CqModifyField.CQ_MAX_COUNT
MODIFY_OVERRUN_IGNORE: Final = 1 << CqModifyField.OI
OP_MOD_RESIZE: Final = 1
RESIZE_FIELDS: Final = sum(1 << field for field in CqResizeField)


@command(Op.CREATE_EQ, cmd.CreateEqIn)
def create_eq(hca: Hca, request: Command[cmd.CreateEqIn]) -> Layout:
    """An event queue on one MSI-X vector."""
    context = request.view.eq_context_entry
    log_size = context.log_eq_size
    if log_size > hca.capabilities.general.log_max_eq_sz:
        refuse(Status.LIM_ERR, "log_eq_size exceeds log_max_eq_sz")
    if context.intr >= hca.info.msix_vectors:
        refuse(Status.BAD_PARAM, "intr: no such MSI-X vector")
    find(hca.uars, context.uar_page, request.uid)
    eq = Eq(
        uid=request.uid,
        buffer=queue_buffer(request.tail, context.log_page_size, context.page_offset, EQE_BYTES << log_size),
        log_size=log_size,
        vector=context.intr,
        event_mask=int.from_bytes(request.view.event_bitmask[:8], "big"),
        uar=context.uar_page,
    )
    out = cmd.CreateEqOut()
    out.eq_number = allocate(hca.eqs, eq, eq.buffer.list_bytes)
    return out


@command(Op.DESTROY_EQ, cmd.DestroyEqIn)
def destroy_eq(hca: Hca, request: Command[cmd.DestroyEqIn]) -> bytes:
    """End an event queue; CQs that report to it are in the way."""
    free(hca.eqs, request.view.eq_number, request.uid)
    return bytes(16)


@command(Op.QUERY_EQ, cmd.QueryEqIn, cmd.QueryEqOut.SIZE)
def query_eq(hca: Hca, request: Command[cmd.QueryEqIn]) -> Layout:
    """Context of an event queue with its live indices."""
    eq = find(hca.eqs, request.view.eq_number, request.uid)
    out = cmd.QueryEqOut()
    context = out.eq_context_entry
    context.st = int(EqArmState.ARMED) if eq.armed else int(EqArmState.FIRED)
    context.log_eq_size = eq.log_size
    context.uar_page = eq.uar
    context.intr = eq.vector
    context.consumer_counter = eq.consumer & INDEX_MASK
    context.producer_counter = eq.producer & INDEX_MASK
    out.event_bitmask = eq.event_mask
    return out


@command(Op.CREATE_CQ, cmd.CreateCqIn)
def create_cq(hca: Hca, request: Command[cmd.CreateCqIn]) -> Layout:
    """A completion queue that reports to one event queue."""
    context = request.view.cq_context
    caps = hca.capabilities.general
    if context.log_cq_size > caps.log_max_cq_sz:
        refuse(Status.LIM_ERR, "log_cq_size exceeds log_max_cq_sz")
    if context.cqe_sz not in CQE_BYTES:
        refuse(Status.BAD_PARAM, "cqe_sz: 0 for 64, 1 for 128, 2 for padded 128 bytes")
    if context.cqe_sz == CQE_128_PADDED and not caps.cqe_128_always:
        refuse(Status.BAD_PARAM, "cqe_sz: padding is not advertised")
    if context.cc:
        refuse(Status.BAD_PARAM, "cc: collapsed queues are not advertised")
    if context.cqe_comp_en:
        _check_compression(hca, context)
    if context.oi and not caps.cq_oi:
        refuse(Status.BAD_PARAM, "oi: overrun ignore is not advertised")
    eq = find(hca.eqs, context.c_eqn_or_apu_element, request.uid)
    cqe_bytes = CQE_BYTES[context.cqe_sz]
    cq = Cq(
        uid=request.uid,
        eq=eq,
        buffer=_cq_buffer(hca, request, context, cqe_bytes),
        log_size=context.log_cq_size,
        cqe_bytes=cqe_bytes,
        padded=context.cqe_sz == CQE_128_PADDED,
        dbr_addr=record_addr(hca, context.dbr_umem_valid, context.dbr_umem_id, context.dbr_addr, request.uid),
        overrun_ignore=bool(context.oi),
        uar=context.uar_page,
        period_us=context.cq_period,
        max_count=context.cq_max_count,
        compressing=bool(context.cqe_comp_en),
    )
    if cq.compressing and cqe_bytes == Cqe64.SIZE:
        # Completions of 128 bytes each stand for themselves: a card need not compress.
        cq.session = Session()
    out = cmd.CreateCqOut()
    out.cqn = allocate(hca.cqs, cq, cq.buffer.list_bytes + (SESSION_BYTES if cq.compressing else 0))
    eq.refs += 1
    ring = request.view.cq_umem_id if request.view.cq_umem_valid else None
    hold_umems(hca, cq, ring, context.dbr_umem_id if context.dbr_umem_valid else None)
    return out


def _check_compression(hca: Hca, context: Cqc) -> None:
    caps = hca.capabilities.general
    if not (caps.cqe_compression if context.cqe_sz == CqeSize.BYTES_64 else caps.cqe_compression_128):
        refuse(Status.BAD_PARAM, "cqe_comp_en: not advertised for entries of this size")
    if context.mini_cqe_res_format not in set(MiniFormat) or context.cqe_compression_layout:
        refuse(Status.BAD_PARAM, "mini_cqe_res_format, cqe_compression_layout: no such form")
    if context.mini_cqe_res_format == MiniFormat.CHECKSUM_STRIDE and not caps.mini_cqe_resp_stride_index:
        refuse(Status.BAD_PARAM, "mini_cqe_res_format: stride indexes are not advertised")


@command(Op.DESTROY_CQ, cmd.DestroyCqIn)
def destroy_cq(hca: Hca, request: Command[cmd.DestroyCqIn]) -> bytes:
    """End a completion queue; QPs and SRQs that complete to it are in the way."""
    cq = find(hca.cqs, request.view.cqn, request.uid)
    free(hca.cqs, cq.handle, request.uid)
    hca.timers.drop(cq.moderation)
    cq.moderation = None
    if cq.session is not None:
        hca.timers.drop(cq.session.timer)
        cq.session = None
    cq.eq.refs -= 1
    release_umems(cq)
    return bytes(16)


@command(Op.QUERY_CQ, cmd.QueryCqIn, cmd.QueryCqOut.SIZE)
def query_cq(hca: Hca, request: Command[cmd.QueryCqIn]) -> Layout:
    """Context of a completion queue with its live indices."""
    cq = find(hca.cqs, request.view.cqn, request.uid)
    out = cmd.QueryCqOut()
    context = out.cq_context
    context.status = CqStatus.OVERFLOW if cq.failed else CqStatus.OK
    context.cqe_sz = CQE_128_PADDED if cq.padded else int(cq.cqe_bytes == 128)
    context.oi = int(cq.overrun_ignore)
    context.cqe_comp_en = int(cq.compressing)
    context.st = cq.arm_state
    context.log_cq_size = cq.log_size
    context.uar_page = cq.uar
    context.c_eqn_or_apu_element = cq.eq.handle
    context.cq_period = cq.period_us
    context.cq_max_count = cq.max_count
    context.last_notified_index = cq.notified & INDEX_MASK
    context.last_solicit_index = max(cq.last_solicited, 0) & INDEX_MASK
    context.consumer_counter = cq.consumer & INDEX_MASK
    context.producer_counter = cq.producer & INDEX_MASK
    context.dbr_addr = cq.dbr_addr
    return out


@command(Op.MODIFY_CQ, cmd.ModifyCqIn)
def modify_cq(hca: Hca, request: Command[cmd.ModifyCqIn]) -> bytes:
    """Moderation (op_mod 0) or a new buffer (op_mod 1) for a completion queue."""
    cq = find(hca.cqs, request.view.cqn, request.uid)
    if request.op_mod == OP_MOD_RESIZE:
        _resize(hca, cq, request)
        return bytes(16)
    if request.op_mod != 0:
        refuse(Status.BAD_PARAM, "op_mod: 0 modifies, 1 resizes a completion queue")
    select = request.view.modify_field_select_resize_field_select
    if select & ~(MODIFY_PERIOD | MODIFY_COUNT | MODIFY_OVERRUN_IGNORE):
        refuse(Status.BAD_PARAM, "modify_field_select: unknown field")
    if select & (MODIFY_PERIOD | MODIFY_COUNT) and not hca.capabilities.general.cq_moderation:
        refuse(Status.BAD_OP, "cq_moderation is not advertised")
    context = request.view.cq_context
    if select & MODIFY_PERIOD:
        cq.period_us = context.cq_period
    if select & MODIFY_COUNT:
        cq.max_count = context.cq_max_count
    if select & MODIFY_OVERRUN_IGNORE:
        cq.overrun_ignore = bool(context.oi)
    return bytes(16)


def _resize(hca: Hca, cq: Cq, request: Command[cmd.ModifyCqIn]) -> None:
    """The last entry of the old buffer says that the next one is in the new buffer; unread ones must fit there."""
    caps = hca.capabilities.general
    if not caps.cq_resize:
        refuse(Status.BAD_OP, "cq_resize is not advertised")
    context = request.view.cq_context
    if request.view.modify_field_select_resize_field_select != RESIZE_FIELDS:
        refuse(Status.BAD_PARAM, "resize_field_select: size, page offset and page size belong together")
    if context.log_cq_size > caps.log_max_cq_sz:
        refuse(Status.LIM_ERR, "log_cq_size exceeds log_max_cq_sz")
    if context.cqe_sz != (CQE_128_PADDED if cq.padded else int(cq.cqe_bytes == 128)):
        refuse(Status.BAD_PARAM, "cqe_sz: the size of an entry cannot change")
    if cq.failed:
        refuse(Status.BAD_RES_STATE, "cq: in error")
    end_session(hca, cq)
    refresh_consumer(hca, cq)
    unread = cq.producer - cq.consumer
    if unread >= 1 << cq.log_size or unread + 1 > 1 << context.log_cq_size:
        refuse(Status.BAD_SIZE_OUTS_CQES, "log_cq_size: too many unread entries")
    buffer = _cq_buffer(hca, request, context, cq.cqe_bytes)
    charge(hca.budget, buffer.list_bytes)
    hca.budget.give(cq.buffer.list_bytes)
    cq.charged += buffer.list_bytes - cq.buffer.list_bytes
    marker = bytearray(Cqe64(opcode=CqeOpcode.RESIZE_CQ).to_bytes())
    write_cqe_entry(hca, cq, marker)
    cq.buffer = buffer
    cq.linear = buffer.linear_at(0)
    cq.log_size = context.log_cq_size
    record = cq.umems[1]
    ring = request.view.cq_umem_id if request.view.cq_umem_valid else None
    hold_umems(hca, cq, ring, None if record is None else record.handle)


def _cq_buffer(hca: Hca, request: Command[T], context: Cqc, cqe_bytes: int) -> QueueBuffer:
    size_bytes = cqe_bytes << context.log_cq_size
    view = request.view
    if view.cq_umem_valid:
        return umem_buffer(hca, view.cq_umem_id, view.cq_umem_offset, size_bytes, request.uid)
    return queue_buffer(request.tail, context.log_page_size, context.page_offset, size_bytes)
