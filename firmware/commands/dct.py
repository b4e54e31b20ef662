"""Targets of the dynamically connected transport: create, drain, destroy, query, arm for key violations."""

from firmware.commands.registry import Command, command, refuse
from firmware.commands.resources import allocate, find, free
from firmware.commands.srq import find_srq
from firmware.model.dct import Dct
from firmware.model.hca import Hca
from firmware.model.objects import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, SRQ_RMP
from firmware.queues import post_event
from firmware.transport import completion, dc
from vhca.layout import Layout
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cmd.dct import CreateDctIn, CreateDctOut, Dctc, DctIn, QueryDctOut
from vhca.wire.connectx.eqe import DctData, EventType

STATE_ACTIVE = 0
STATE_DRAINED = 2


@command(Op.CREATE_DCT, CreateDctIn, CreateDctOut.SIZE)
def create_dct(hca: Hca, request: Command[CreateDctIn]) -> Layout:
    """A target, ready to be connected to."""
    if not hca.capabilities.general.dct:
        refuse(Status.BAD_OP, "dct: not advertised")
    context = Dctc.from_bytes(request.view.dct_context_entry.to_bytes())
    pd = find(hca.pds, context.pd, request.uid)
    srq = find_srq(hca, context.srqn_xrqn, SRQ_RMP, request.uid)
    cq = find(hca.cqs, context.cqn, request.uid)
    port = hca.ports.get(context.port)
    if port is None or context.pkey_index >= len(port.pkeys):
        refuse(Status.BAD_PARAM, "dctc: no such port, or its P_Key table is shorter")
    if not 1 <= context.mtu <= 5:
        refuse(Status.BAD_PARAM, "mtu: 1 (256 bytes) to 5 (4096 bytes)")
    if context.cs_res not in (0, completion.SCATTER_64):
        refuse(Status.BAD_PARAM, "cs_res: a target has data in completions of 128 bytes only (2), or none (0)")
    if context.cs_res and not hca.capabilities.general.sctr_data_cqe:
        refuse(Status.BAD_PARAM, "cs_res: scatter to CQE is not advertised")
    counter = find(hca.q_counters, context.counter_set_id, request.uid) if context.counter_set_id else None
    target = Dct(
        uid=request.uid,
        pd=context.pd,
        srq=srq,
        cq=cq,
        port=context.port,
        pkey_index=context.pkey_index,
        mtu=128 << context.mtu,
        access_key=context.dc_access_key,
        rights=(REMOTE_READ if context.rre else 0)
        | (REMOTE_WRITE if context.rwe else 0)
        | (REMOTE_ATOMIC if context.rae else 0),
        min_rnr_nak=context.min_rnr_nak,
        user_index=context.user_index,
        counter=counter,
        inline_receive=completion.inline_bytes(context.cs_res, cq),
        context=context.to_bytes(),
    )
    out = CreateDctOut()
    out.dctn = allocate(hca.dcts, target)
    for obj in (pd, srq, cq):
        obj.refs += 1
    return out


@command(Op.DRAIN_DCT, DctIn)
def drain_dct(hca: Hca, request: Command[DctIn]) -> bytes:
    """End all connections of a target and take no more; an event says that this is done."""
    target = find(hca.dcts, request.view.dctn, request.uid)
    dc.drain(hca, target)
    post_event(hca, EventType.DCT_DRAINED, 0, DctData(dctn=target.handle).to_bytes())
    return bytes(16)


@command(Op.DESTROY_DCT, DctIn)
def destroy_dct(hca: Hca, request: Command[DctIn]) -> bytes:
    """End a target, drained or not."""
    target = find(hca.dcts, request.view.dctn, request.uid)
    dc.drain(hca, target)
    free(hca.dcts, target.handle, request.uid)
    for obj in (hca.pds.get(target.pd), target.srq, target.cq):
        if obj is not None:
            obj.refs -= 1
    return bytes(16)


@command(Op.QUERY_DCT, DctIn, QueryDctOut.SIZE)
def query_dct(hca: Hca, request: Command[DctIn]) -> Layout:
    """Context of a target with its state and the number of wrong keys."""
    target = find(hca.dcts, request.view.dctn, request.uid)
    context = Dctc.from_bytes(target.context)
    context.state = STATE_DRAINED if target.drained else STATE_ACTIVE
    context.dc_access_key_violation_count = target.key_violations & 0xFFFFFFFF
    out = QueryDctOut()
    out.dct_context_entry = context
    return out


@command(Op.ARM_DCT_FOR_KEY_VIOLATION, DctIn)
def arm_dct(hca: Hca, request: Command[DctIn]) -> bytes:
    """Ask for an event at the next wrong key."""
    find(hca.dcts, request.view.dctn, request.uid).armed = True
    return bytes(16)
