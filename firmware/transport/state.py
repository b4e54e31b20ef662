"""The life cycle of a queue pair, as a table: which command leads from where to where, and what it must carry.

:func:`apply` is the only way in for commands and :func:`change` the only place that changes a state. Attributes that a
transition requires are taken from the command's context always, optional ones only if the command flags them (volume 1,
10.3.1 and 11.2.5.2).
"""

from dataclasses import dataclass
from itertools import islice
from typing import Final

from firmware import paging
from firmware.model.budget import RESOURCE_BYTES
from firmware.model.hca import Hca
from firmware.model.objects import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from firmware.model.port import Port
from firmware.model.qp import (
    ERR,
    INIT,
    RST,
    RTR,
    RTS,
    SQ_DRAINING,
    SQD,
    SQER,
    ST_DCI,
    ST_QP0,
    ST_QP1,
    ST_RC,
    ST_REG_UMR,
    ST_UC,
    ST_UD,
    ST_XRC,
    STATE_NAMES,
    Path,
    Qp,
    Requester,
    Responder,
)
from firmware.model.segment import burst_limit
from firmware.model.timers import Timer, TimerKind
from firmware.model.turns import FLUSH, SEND
from firmware.programs import may_have_qkey, may_name
from firmware.transport import account
from firmware.transport.completion import flush_receive_queue, flush_send_queue
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.qpc import Ads, OptParam, Qpc
from vhca.wire.packet import MULTICAST_LID_FIRST, Grh

CONNECTED: Final = (ST_RC, ST_UC, ST_XRC)
RELIABLE: Final = (ST_RC, ST_XRC, ST_DCI)

FLUSH_PERIOD_NS: Final = 2_000_000
# Queue pairs that one poll looks at, and effects after which it leaves the others for the next poll.
FLUSH_QPS: Final = 256
FLUSH_EFFECTS: Final = 256
MIN_LOG_MTU: Final = 7

# DEVIATION: an ACK timeout of T may fire anywhere up to 4 T (9.7.6.1.3). A software card takes all of that, and at
# least this long, since its peer may be waiting for its turn on the processor.
TIMEOUT_FACTOR: Final = 4
TIMEOUT_FLOOR_NS: Final = 50_000_000


def _mask(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


_RIGHTS = (OptParam.RRE, OptParam.RAE, OptParam.RWE)
_COUNTER = _mask(OptParam.COUNTER_SET_ID)
_ALT = OptParam.ALT_ADDR_PATH


def _optional(reliable: int, unreliable: int, datagram: int) -> dict[int, int]:
    return {ST_RC: reliable, ST_XRC: reliable, ST_DCI: reliable, ST_UC: unreliable, ST_UD: datagram}


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: states it may start from, state it ends in, and the optional attributes by service type."""

    sources: tuple[int, ...]
    target: int
    optional: dict[int, int]


_RTS_OPTIONAL = _optional(
    _mask(_ALT, *_RIGHTS, OptParam.PM_STATE, OptParam.RNR_TIMEOUT),
    _mask(_ALT, OptParam.RWE, OptParam.PM_STATE),
    _mask(OptParam.Q_KEY),
)
_RECOVERY_OPTIONAL = _optional(_mask(*_RIGHTS, OptParam.RNR_TIMEOUT), _mask(OptParam.RWE), _mask(OptParam.Q_KEY))
_ANY_STATE = (RST, INIT, RTR, RTS, SQER, SQD, ERR, SQ_DRAINING)

TRANSITIONS: Final[dict[int, Transition]] = {
    Op.RST2INIT_QP: Transition((RST,), INIT, {}),
    Op.INIT2INIT_QP: Transition(
        (INIT,),
        INIT,
        _optional(
            _mask(*_RIGHTS, OptParam.PKEY_INDEX, OptParam.PRI_PORT),
            _mask(OptParam.RWE, OptParam.PKEY_INDEX, OptParam.PRI_PORT),
            _mask(OptParam.PKEY_INDEX, OptParam.Q_KEY, OptParam.PRI_PORT),
        ),
    ),
    Op.INIT2RTR_QP: Transition(
        (INIT,),
        RTR,
        _optional(
            _mask(_ALT, *_RIGHTS, OptParam.PKEY_INDEX),
            _mask(_ALT, OptParam.RWE, OptParam.PKEY_INDEX),
            _mask(OptParam.PKEY_INDEX, OptParam.Q_KEY),
        ),
    ),
    Op.RTR2RTS_QP: Transition((RTR,), RTS, _RTS_OPTIONAL),
    Op.RTS2RTS_QP: Transition((RTS,), RTS, _RTS_OPTIONAL),
    Op.SQERR2RTS_QP: Transition((SQER,), RTS, _RECOVERY_OPTIONAL),
    Op.SQD_RTS_QP: Transition((SQD,), RTS, _RECOVERY_OPTIONAL),
    Op.QP_2ERR: Transition(_ANY_STATE, ERR, {}),
    Op.QP_2RST: Transition(_ANY_STATE, RST, {}),
}

# Attributes of the context that each optional bit stands for.
OPTIONAL_FIELDS: Final[dict[int, tuple[str, ...]]] = {
    OptParam.RRE: ("rre",),
    OptParam.RAE: ("rae", "atomic_mode"),
    OptParam.RWE: ("rwe",),
    OptParam.PKEY_INDEX: ("primary_address_path.pkey_index",),
    OptParam.Q_KEY: ("q_key",),
    OptParam.RNR_TIMEOUT: ("min_rnr_nak",),
    OptParam.PM_STATE: ("pm_state",),
    OptParam.PRI_PORT: ("primary_address_path.vhca_port_num",),
    OptParam.COUNTER_SET_ID: ("counter_set_id",),
}

_PATH_FIELDS: Final = tuple(
    f"primary_address_path.{name}"
    for name in (
        "fl",
        "grh",
        "mlid",
        "rlid",
        "src_addr_index",
        "stat_rate",
        "hop_limit",
        "tclass",
        "flow_label",
        "rgid_rip",
        "sl",
    )
)


def _required(op: int, service: int) -> tuple[str, ...]:
    """Attributes that a transition takes from the command whatever its mask says."""
    if op == Op.RST2INIT_QP:
        fields: tuple[str, ...] = (
            "primary_address_path.pkey_index",
            "primary_address_path.vhca_port_num",
            "counter_set_id",
            "log_ack_req_freq",
            "pm_state",
        )
        if service in CONNECTED:
            return (*fields, "rre", "rwe", "rae", "atomic_mode")
        return (*fields, "q_key", "pd") if service == ST_REG_UMR else (*fields, "q_key")
    if op == Op.INIT2RTR_QP:
        if service in (ST_RC, ST_XRC):
            return ("mtu", "log_msg_max", "remote_qpn", "next_rcv_psn", "log_rra_max", "min_rnr_nak", *_PATH_FIELDS)
        if service == ST_UC:
            return ("mtu", "log_msg_max", "remote_qpn", "next_rcv_psn", *_PATH_FIELDS)
        return ("mtu", "log_msg_max")
    if op == Op.RTR2RTS_QP:
        if service in RELIABLE:
            return (
                "retry_count",
                "rnr_retry",
                "next_send_psn",
                "log_sra_max",
                "log_ack_req_freq",
                "primary_address_path.ack_timeout",
            )
        return ("next_send_psn",)
    return ()


def apply(hca: Hca, qp: Qp, opcode: int, opt_param_mask: int, qpc: Qpc) -> int:
    """Carry out a transition command; returns the command status (0: done; otherwise nothing has changed).

    BAD_QP_STATE (0x10): not from this state; BAD_PARAM (0x03): an attribute or the mask is wrong; BAD_RES (0x05): a
    named object does not exist. :func:`last_reason` tells more.
    """
    row = TRANSITIONS.get(opcode)
    if row is None or qp.state not in row.sources:
        return _refuse(qp, Status.BAD_QP_STATE, "the queue pair is not in a state that this command starts from")
    if row.target == RST:
        reset(hca, qp)
        return Status.OK
    if row.target == ERR:
        enter_error(hca, qp, "2ERR_QP")
        return Status.OK
    allowed = row.optional.get(qp.service, 0) | _COUNTER
    if opt_param_mask & ~allowed:
        return _refuse(qp, Status.BAD_PARAM, "opt_param_mask flags an attribute that this transition cannot carry")
    context = Qpc.from_bytes(qp.context.to_bytes())
    names = list(_required(opcode, qp.service))
    for bit, fields in OPTIONAL_FIELDS.items():
        if opt_param_mask >> bit & 1:
            names += fields
    for name in names:
        _copy(context, qpc, name)
    if opt_param_mask >> _ALT & 1:
        context.secondary_address_path = qpc.secondary_address_path
    status = _check(hca, qp, opcode, context)
    if status:
        return status
    if opcode == Op.INIT2RTR_QP and qp.service in (ST_RC, ST_XRC):
        resources = RESOURCE_BYTES << context.log_rra_max
        if not hca.budget.take(resources):
            return _refuse(qp, Status.LIM_ERR, "the memory of this card is used up")
        qp.responder.resource_bytes = resources
    qp.context = context
    _take_over(hca, qp, opcode, context)
    change(hca, qp, row.target, Op(opcode).name)
    if row.target == RTS:
        run_soon(hca, qp)
    return Status.OK


def last_reason(qp: Qp) -> str:
    """Why the last transition of this queue pair was refused."""
    return qp.refusal


def _refuse(qp: Qp, status: Status, reason: str) -> int:
    qp.refusal = reason
    return status


def _copy(target: Qpc, source: Qpc, name: str) -> None:
    if "." in name:
        _, field = name.split(".")
        setattr(target.primary_address_path, field, getattr(source.primary_address_path, field))
    else:
        setattr(target, name, getattr(source, name))


def _check(hca: Hca, qp: Qp, opcode: int, context: Qpc) -> int:
    """Validate the attributes as they would be after the transition."""
    path = context.primary_address_path
    if qp.service != ST_REG_UMR:
        port = hca.ports.get(path.vhca_port_num)
        if port is None:
            return _refuse(qp, Status.BAD_PARAM, "primary_address_path.vhca_port_num: no such port")
        if qp.service != ST_QP0 and path.pkey_index >= len(port.pkeys):
            return _refuse(qp, Status.BAD_PARAM, "primary_address_path.pkey_index: the table is shorter")
    counter = hca.q_counters.get(context.counter_set_id)
    if context.counter_set_id and (counter is None or not may_name(qp.uid, counter)):
        return _refuse(qp, Status.BAD_RES, "counter_set_id: no such counter set, or that of another user context")
    if not may_have_qkey(hca, qp.uid, context.q_key):
        return _refuse(qp, Status.BAD_PARAM, "q_key: privileged, and the user context is not")
    if opcode == Op.RST2INIT_QP and qp.service in (ST_QP0, ST_QP1) and hca.special_qps.get(_place(qp, path)):
        return _refuse(qp, Status.BAD_PARAM, "st: another queue pair serves this number of the port")
    if opcode == Op.INIT2RTR_QP:
        if not 1 <= context.mtu <= 5:
            return _refuse(qp, Status.BAD_PARAM, "mtu: 1 (256 bytes) to 5 (4096 bytes)")
        if context.log_msg_max > hca.capabilities.general.log_max_msg:
            return _refuse(qp, Status.BAD_PARAM, "log_msg_max exceeds log_max_msg")
        if qp.service in CONNECTED and path.rlid >= MULTICAST_LID_FIRST:
            return _refuse(qp, Status.BAD_PARAM, "primary_address_path.rlid: not a unicast LID")
        if qp.service in CONNECTED and path.grh and path.src_addr_index >= len(port_of(hca, path.vhca_port_num).gids):
            return _refuse(qp, Status.BAD_PARAM, "primary_address_path.src_addr_index: the table is shorter")
    return Status.OK


def _place(qp: Qp, path: Ads) -> tuple[int, int]:
    """Port and number that a management queue pair serves."""
    return path.vhca_port_num, 0 if qp.service == ST_QP0 else 1


def port_of(hca: Hca, number: int) -> Port:
    """The port with this number, which must exist."""
    return hca.ports[number]


def _take_over(hca: Hca, qp: Qp, opcode: int, context: Qpc) -> None:
    """Bring checked attributes into the form that the engines use."""
    path = context.primary_address_path
    requester, responder = qp.requester, qp.responder
    qp.port = path.vhca_port_num or 1
    qp.pkey_index = path.pkey_index
    qp.q_key = context.q_key
    qp.min_rnr_nak = context.min_rnr_nak
    qp.remote_rights = (
        (REMOTE_READ if context.rre else 0)
        | (REMOTE_WRITE if context.rwe else 0)
        | (REMOTE_ATOMIC if context.rae else 0)
    )
    qp.counter = hca.q_counters.get(context.counter_set_id) if context.counter_set_id else None
    if opcode == Op.RST2INIT_QP:
        if qp.service == ST_REG_UMR:
            qp.pd = context.pd
        elif qp.service in (ST_QP0, ST_QP1):
            hca.special_qps[_place(qp, path)] = qp
    elif opcode == Op.INIT2RTR_QP:
        requester.log_mtu = MIN_LOG_MTU + context.mtu
        requester.mtu = responder.mtu = 1 << requester.log_mtu
        requester.burst_most = requester.burst_bytes = burst_limit(requester.log_mtu)
        requester.message_max = 1 << context.log_msg_max
        qp.remote_qpn = context.remote_qpn
        responder.epsn = context.next_rcv_psn
        responder.resource_limit = 1 << context.log_rra_max
        if qp.service in CONNECTED:
            qp.path = _path(hca, qp.port, context)
    elif opcode == Op.RTR2RTS_QP:
        requester.next_psn = requester.send_psn = requester.una = requester.max_psn = context.next_send_psn
        requester.read_limit = 1 << context.log_sra_max
        requester.retry_count = requester.retries_left = context.retry_count
        requester.rnr_retry = requester.rnr_left = context.rnr_retry
        exponent = path.ack_timeout
        requester.timeout_ns = max(TIMEOUT_FACTOR * (4096 << exponent), TIMEOUT_FLOOR_NS) if exponent else 0


def _path(hca: Hca, number: int, context: Qpc) -> Path:
    ads = context.primary_address_path
    grh = None
    if ads.grh:
        sgid = hca.ports[number].gids[ads.src_addr_index]
        grh = Grh(sgid, ads.rgid_rip, ads.tclass, ads.flow_label, ads.hop_limit)
    return Path(dlid=ads.rlid, sl=ads.sl, mlid=ads.mlid, source_gid_index=ads.src_addr_index, grh=grh)


def change(hca: Hca, qp: Qp, state: int, why: str) -> None:
    """The one place that changes a queue pair's state."""
    if hca.trace is not None and state != qp.state:
        hca.trace("qp_state", {"qpn": qp.handle, "from": STATE_NAMES[qp.state], "to": STATE_NAMES[state], "why": why})
    qp.state = state
    qp.context.state = state


def live_context(qp: Qp) -> Qpc:
    """The context as QUERY_QP gives it: what was set, with the state, PSNs and counters of this moment."""
    context = Qpc.from_bytes(qp.context.to_bytes())
    requester, responder = qp.requester, qp.responder
    context.state = qp.state
    context.next_send_psn = requester.next_psn & 0xFFFFFF
    context.last_acked_psn = (requester.una - 1) & 0xFFFFFF
    context.ssn = requester.ssn & 0xFFFFFF
    context.next_rcv_psn = responder.epsn & 0xFFFFFF
    context.rmsn = responder.msn & 0xFFFFFF
    context.cur_retry_count = requester.retries_left
    context.cur_rnr_retry = requester.rnr_left
    if qp.sq is not None:
        context.hw_sq_wqebb_counter = qp.sq.consumer & 0xFFFF
        context.sw_sq_wqebb_counter = qp.sq.producer & 0xFFFF
    if qp.rq is not None:
        context.hw_rq_counter = qp.rq.consumer & 0xFFFF
    return context


def reset(hca: Hca, qp: Qp) -> None:
    """2RST: queues, PSNs and everything under way are gone; no completion follows."""
    _stop(hca, qp)
    account.close(hca, qp)
    change(hca, qp, RST, "2RST_QP")
    qp.requester = Requester()
    qp.responder = Responder()
    qp.last_wqe_reported = qp.cq_lost = False
    qp.path = None
    if qp.sq is not None:
        qp.sq.reset()
    if qp.rq is not None:
        qp.rq.reset()


def destroy(hca: Hca, qp: Qp) -> None:
    """Take a queue pair out of every table and timer of the transport; the caller removes the object itself."""
    reset(hca, qp)


def _stop(hca: Hca, qp: Qp) -> None:
    requester = qp.requester
    for timer in (requester.ack_timer, requester.rnr_timer):
        hca.timers.drop(timer)
    requester.ack_timer = requester.rnr_timer = None
    paging.abandon(qp.page_requests)
    qp.turns = 0
    for place in [place for place, special in hca.special_qps.items() if special is qp]:
        del hca.special_qps[place]
    hca.flushing.pop(qp.handle, None)


def enter_error(hca: Hca, qp: Qp, why: str) -> None:
    """Into ERR, from a command or by the device itself: both queues are flushed, and again at every later post.

    Sends show by their doorbell. Receives show in their doorbell record only, so it is polled while the state lasts.
    """
    first = qp.state != ERR
    requester = qp.requester
    for timer in (requester.ack_timer, requester.rnr_timer):
        if timer is not None:
            hca.timers.cancel(timer)
    qp.turns = 0
    change(hca, qp, ERR, why)
    if first:
        qp.responder.replies.clear()
        account.drop_packets(hca, qp)
        requester.rnr_waiting = False
    flush(hca, qp)
    if qp.rq is not None and qp.srq is None and qp.handle not in hca.flushing:
        if not hca.flushing:
            _arm_flush_timer(hca)
        hca.flushing[qp.handle] = qp


def flush(hca: Hca, qp: Qp, again: bool = False) -> None:
    """Give what is posted its flush completions, some now and the rest in turns; nothing if the state has changed."""
    more = qp.state in (ERR, SQER) and flush_send_queue(hca, qp, again)
    if qp.state == ERR and flush_receive_queue(hca, qp, again):
        more = True
    account.settle(hca, qp)
    if more:
        hca.turns.add(FLUSH, qp)


def enter_send_error(hca: Hca, qp: Qp, why: str) -> None:
    """The send queue failed: unreliable services stop sending only (SQER), reliable ones enter ERR (10.3.1.6)."""
    if qp.service in RELIABLE or qp.service == ST_REG_UMR:
        enter_error(hca, qp, why)
        return
    change(hca, qp, SQER, why)
    flush(hca, qp)
    # What was numbered but never sent has no place on the wire: the next message follows the last packet sent.
    requester = qp.requester
    requester.next_psn = requester.una = requester.max_psn = requester.send_psn


def _arm_flush_timer(hca: Hca) -> None:
    if hca.flush_timer is None:
        hca.flush_timer = Timer(TimerKind.FLUSH, None)
    hca.timers.arm(hca.flush_timer, hca.now_ns + FLUSH_PERIOD_NS)


def flush_poll(hca: Hca) -> None:
    """Look for receives posted to queue pairs in ERR: the host tells by the doorbell record alone."""
    flushing = hca.flushing
    written = len(hca.out)
    for handle in list(islice(flushing, FLUSH_QPS)):
        qp = flushing.pop(handle)
        if qp.state == ERR:
            if flush_receive_queue(hca, qp):
                hca.turns.add(FLUSH, qp)
            # Behind all others, so that each has its turn.
            flushing[handle] = qp
            if len(hca.out) - written > FLUSH_EFFECTS:
                break
    if hca.flushing:
        _arm_flush_timer(hca)


def run_soon(hca: Hca, qp: Qp) -> None:
    """Let the send engine go on in a turn of its own, after the effects of this step are carried out."""
    hca.turns.add(SEND, qp)
