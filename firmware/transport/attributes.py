"""Attributes of a queue pair on their way from a command's context into the engines: checked, taken over, given back.

The checks and steps here are named by the rows of :mod:`firmware.transport.lifecycle`, which says when each is due.
A check sees the context as it would be after the transition; a step of taking over reads `qp.context`, which is that
context by then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from firmware.model.budget import RESOURCE_BYTES
from firmware.model.hca import Hca
from firmware.model.objects import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from firmware.model.psn import PSN_MASK
from firmware.model.qp import ST_QP0, ST_QP1, ST_RC, ST_REG_UMR, ST_UC, ST_XRC, Qp
from firmware.model.segment import burst_limit
from firmware.programs import may_have_qkey, may_name
from firmware.transport.port import has_source, is_unicast, path_of
from vhca.wire.connectx.cmd import Status
from vhca.wire.connectx.qpc import Ads, Qpc

# Services whose path is an attribute; that of a DC initiator comes with each work request.
CONNECTED_SERVICES: Final = (ST_RC, ST_UC, ST_XRC)

MIN_LOG_MTU: Final = 7
# qpc.mtu: 256 to 4096 bytes
MTU_CODES: Final = range(1, 6)

# DEVIATION: an ACK timeout of T may fire anywhere up to 4 T (9.7.6.1.3). Of a short one a software card takes all of
# that, and at least 50 ms, since its peer may be waiting for its turn on the processor; of a long one no more than T.
TIMEOUT_FACTOR: Final = 4
TIMEOUT_PATIENCE_NS: Final = 300_000_000
TIMEOUT_FLOOR_NS: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that may be wrong: `fails` tells, `status` and `reason` are the answer to the command."""

    status: Status
    reason: str
    fails: Callable[[Hca, Qp, Qpc], bool]


def _no_port(hca: Hca, qp: Qp, context: Qpc) -> bool:
    return qp.service != ST_REG_UMR and context.primary_address_path.vhca_port_num not in hca.ports


def _no_pkey(hca: Hca, qp: Qp, context: Qpc) -> bool:
    path = context.primary_address_path
    return qp.service not in (ST_REG_UMR, ST_QP0) and path.pkey_index >= len(hca.ports[path.vhca_port_num].pkeys)


def _no_counter(hca: Hca, qp: Qp, context: Qpc) -> bool:
    if not context.counter_set_id:
        return False
    counter = hca.q_counters.get(context.counter_set_id)
    return counter is None or not may_name(qp.uid, counter)


def _is_served(hca: Hca, qp: Qp, context: Qpc) -> bool:
    return qp.service in (ST_QP0, ST_QP1) and _management_number(qp, context.primary_address_path) in hca.special_qps


def _not_unicast(hca: Hca, qp: Qp, context: Qpc) -> bool:
    return qp.service in CONNECTED_SERVICES and not is_unicast(context.primary_address_path)


def _no_gid(hca: Hca, qp: Qp, context: Qpc) -> bool:
    path = context.primary_address_path
    return qp.service in CONNECTED_SERVICES and not has_source(hca.ports[path.vhca_port_num], path)


def _cannot_keep_answers(hca: Hca, qp: Qp, context: Qpc) -> bool:
    """Charge the card for the answers that the responder will keep; True if there is no memory for them."""
    if qp.service not in (ST_RC, ST_XRC):
        return False
    resources = RESOURCE_BYTES << context.log_rra_max
    if not hca.budget.take(resources):
        return True
    qp.responder.resource_bytes = resources
    return False


COMMON_CHECKS: Final = (
    Check(Status.BAD_PARAM, "primary_address_path.vhca_port_num: no such port", _no_port),
    Check(Status.BAD_PARAM, "primary_address_path.pkey_index: the table is shorter", _no_pkey),
    Check(Status.BAD_RES, "counter_set_id: no such counter set, or that of another user context", _no_counter),
    Check(
        Status.BAD_PARAM,
        "q_key: privileged, and the user context is not",
        lambda hca, qp, context: not may_have_qkey(hca, qp.uid, context.q_key),
    ),
)
"""What holds in every state that a command configures, whatever it carries."""

SERVED_CHECK: Final = Check(Status.BAD_PARAM, "st: another queue pair serves this number of the port", _is_served)

CONNECTION_CHECKS: Final = (
    Check(
        Status.BAD_PARAM,
        "mtu: 1 (256 bytes) to 5 (4096 bytes)",
        lambda hca, qp, context: context.mtu not in MTU_CODES,
    ),
    Check(
        Status.BAD_PARAM,
        "log_msg_max exceeds log_max_msg",
        lambda hca, qp, context: context.log_msg_max > hca.capabilities.general.log_max_msg,
    ),
    Check(Status.BAD_PARAM, "primary_address_path.rlid: not a unicast LID", _not_unicast),
    Check(Status.BAD_PARAM, "primary_address_path.src_addr_index: the table is shorter", _no_gid),
    # The last one, since it takes what it checks.
    Check(Status.LIM_ERR, "the memory of this card is used up", _cannot_keep_answers),
)
"""What the way into RTR asks for: the shape of messages, the path, memory for the answers to repeated requests."""


def _management_number(qp: Qp, path: Ads) -> tuple[int, int]:
    """Port and QP number, 0 or 1, that a management queue pair serves."""
    return path.vhca_port_num, 0 if qp.service == ST_QP0 else 1


def take_common(hca: Hca, qp: Qp) -> None:
    """Take over port, P_Key index, Q_Key, RNR timer, remote rights, counter set."""
    context = qp.context
    path = context.primary_address_path
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


def take_place(hca: Hca, qp: Qp) -> None:
    """Take over the domain of a registration queue; let a management queue pair serve its number of the port."""
    if qp.service == ST_REG_UMR:
        qp.pd = qp.context.pd
    elif qp.service in (ST_QP0, ST_QP1):
        hca.special_qps[_management_number(qp, qp.context.primary_address_path)] = qp


def take_connection(hca: Hca, qp: Qp) -> None:
    """Take over MTU, longest message, peer, path, first PSN to expect, requests that the peer may have outstanding."""
    context, requester, responder = qp.context, qp.requester, qp.responder
    requester.log_mtu = MIN_LOG_MTU + context.mtu
    requester.mtu = responder.mtu = 1 << requester.log_mtu
    requester.burst_most = requester.burst_bytes = burst_limit(requester.log_mtu)
    requester.message_max = 1 << context.log_msg_max
    qp.remote_qpn = context.remote_qpn
    responder.epsn = context.next_rcv_psn
    responder.resource_limit = 1 << context.log_rra_max
    if qp.service in CONNECTED_SERVICES:
        qp.path = path_of(hca.ports[qp.port], context.primary_address_path)


def take_send_side(hca: Hca, qp: Qp) -> None:
    """Take over the first PSN to send, READs and atomics under way at once, retries, ACK timeout."""
    context, requester = qp.context, qp.requester
    requester.next_psn = requester.send_psn = requester.una = requester.max_psn = context.next_send_psn
    requester.read_limit = 1 << context.log_sra_max
    requester.retry_count = requester.retries_left = context.retry_count
    requester.rnr_retry = requester.rnr_left = context.rnr_retry
    exponent = context.primary_address_path.ack_timeout
    requester.timeout_ns = ack_timeout_ns(exponent)


def ack_timeout_ns(exponent: int) -> int:
    """How long to wait for an acknowledge, if the attribute says `exponent`; 0: for ever."""
    if not exponent:
        return 0
    asked_ns = 4096 << exponent
    return max(asked_ns, min(TIMEOUT_FACTOR * asked_ns, TIMEOUT_PATIENCE_NS), TIMEOUT_FLOOR_NS)


def live_context(qp: Qp) -> Qpc:
    """The context as QUERY_QP gives it: what was set, with the state, PSNs and counters of this moment."""
    context = Qpc.from_bytes(qp.context.to_bytes())
    requester, responder = qp.requester, qp.responder
    context.state = qp.state
    context.next_send_psn = requester.next_psn & PSN_MASK
    context.last_acked_psn = (requester.una - 1) & PSN_MASK
    context.ssn = requester.ssn & PSN_MASK
    context.next_rcv_psn = responder.epsn
    context.rmsn = responder.msn
    context.cur_retry_count = requester.retries_left
    context.cur_rnr_retry = requester.rnr_left
    if qp.sq is not None:
        context.hw_sq_wqebb_counter = qp.sq.consumer & 0xFFFF
        context.sw_sq_wqebb_counter = qp.sq.producer & 0xFFFF
    if qp.rq is not None:
        context.hw_rq_counter = qp.rq.consumer & 0xFFFF
    return context
