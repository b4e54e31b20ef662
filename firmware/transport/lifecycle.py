"""The life cycle of a queue pair: one table, (state, cause) to the state that follows.

A cause is a command of the driver, or an event in the device. Each row says which attributes of the command's context
the transition requires (they are taken whatever the command's mask says), which are optional (taken if the mask flags
them) for which service, what is checked, and what the device does on the way (volume 1, 10.3.1 and 11.2.5.2). Nothing
else changes a state: :func:`apply` is the way in for commands, :func:`happen` for events. `docs/qp-states.md` is made
from this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from firmware.model.counters import Count
from firmware.model.hca import Hca
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
    ST_DCT,
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
from firmware.model.turns import SEND
from firmware.transport import attributes, teardown
from firmware.transport.attributes import CONNECTED_SERVICES, Check
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.qpc import OptParam, Qpc

RELIABLE: Final = (ST_RC, ST_XRC, ST_DCI)
UNRELIABLE: Final = (ST_UC, ST_UD, ST_QP0, ST_QP1)
EVERY: Final = (ST_RC, ST_UC, ST_UD, ST_XRC, ST_DCI, ST_QP0, ST_QP1, ST_REG_UMR)
"""Services that CREATE_QP offers. The target's side of a DC connection (ST_DCT) is no queue pair of the host's."""

STATES: Final = (RST, INIT, RTR, RTS, SQER, SQD, ERR, SQ_DRAINING)
# No row leads to SQD or SQ_DRAINING: only a command RTS2SQD would, and the driver's interface has none. Rows that start
# there are therefore never used; they say what the commands that it does have for these states would do.


class Attribute(Enum):
    """What a transition may carry: fields of the context, and the bit of the mask that flags it, if there is one."""

    REMOTE_READ = ("rre",), OptParam.RRE
    REMOTE_WRITE = ("rwe",), OptParam.RWE
    REMOTE_ATOMIC = ("rae", "atomic_mode"), OptParam.RAE
    PKEY_INDEX = ("primary_address_path.pkey_index",), OptParam.PKEY_INDEX
    PORT = ("primary_address_path.vhca_port_num",), OptParam.PRI_PORT
    Q_KEY = ("q_key",), OptParam.Q_KEY
    MIN_RNR_TIMER = ("min_rnr_nak",), OptParam.RNR_TIMEOUT
    PATH_MIGRATION = ("pm_state",), OptParam.PM_STATE
    ALTERNATE_PATH = ("secondary_address_path",), OptParam.ALT_ADDR_PATH
    COUNTER_SET = ("counter_set_id",), OptParam.COUNTER_SET_ID
    ACK_REQUEST_FREQUENCY = ("log_ack_req_freq",), None
    PROTECTION_DOMAIN = ("pd",), None
    PATH = (
        tuple(
            f"primary_address_path.{name}"
            for name in (
                "fl", "grh", "mlid", "rlid", "src_addr_index", "stat_rate", "hop_limit", "tclass", "flow_label",
                "rgid_rip", "sl",
            )
        ),
        None,
    )  # fmt: skip
    PATH_MTU = ("mtu",), None
    MESSAGE_MAX = ("log_msg_max",), None
    REMOTE_QPN = ("remote_qpn",), None
    RECEIVE_PSN = ("next_rcv_psn",), None
    SEND_PSN = ("next_send_psn",), None
    RESPONDER_RESOURCES = ("log_rra_max",), None
    INITIATOR_DEPTH = ("log_sra_max",), None
    RETRY_COUNT = ("retry_count",), None
    RNR_RETRY = ("rnr_retry",), None
    ACK_TIMEOUT = ("primary_address_path.ack_timeout",), None

    def __init__(self, fields: tuple[str, ...], flag: OptParam | None) -> None:
        self.fields = fields
        self.flag = flag


class QpEvent(Enum):
    """What befalls a queue pair without a command."""

    SEND_ERROR = "a work request of the send queue failed"
    ERROR = "the queue pair cannot go on"
    CONNECT = "the first request of a DC connection arrived"
    DISCONNECT = "a DC connection is over"


Services = tuple[int, ...]
Attributes = Mapping[Attribute, Services]
Step = Callable[[Hca, Qp], None]


@dataclass(frozen=True, slots=True)
class Transition:
    """One row. `before` is done in the old state, with the new context in `qp.context`; `after` in the new state."""

    source: int
    cause: Op | QpEvent
    target: int
    services: Services = EVERY
    required: Attributes = field(default_factory=dict)
    optional: Attributes = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()

    def allowed(self, service: int) -> int:
        """The bits of the mask that a command may set for this service."""
        flags = [attr.flag for attr, services in self.optional.items() if service in services]
        return sum(1 << flag for flag in flags if flag is not None)

    def carried(self, service: int, mask: int) -> list[str]:
        """Fields of the context that a command with this mask sets; those of an address path with their path."""
        taken = [attr for attr, services in self.required.items() if service in services]
        taken += [attr for attr in self.optional if attr.flag is not None and mask >> attr.flag & 1]
        return [name for attr in taken for name in attr.fields]


# Services whose attributes a live queue pair may change; the driver flags nothing for the others.
_FLEXIBLE: Final = (*RELIABLE, ST_UC, ST_UD)
_RIGHTS: Final[Attributes] = {
    Attribute.REMOTE_READ: RELIABLE,
    Attribute.REMOTE_WRITE: (*RELIABLE, ST_UC),
    Attribute.REMOTE_ATOMIC: RELIABLE,
}
_COUNTER: Final[Attributes] = {Attribute.COUNTER_SET: EVERY}
_ALTERNATE: Final[Attributes] = {Attribute.ALTERNATE_PATH: (*RELIABLE, ST_UC)}
_ONCE_CONNECTED: Final[Attributes] = {
    **_RIGHTS,
    **_COUNTER,
    **_ALTERNATE,
    Attribute.Q_KEY: (ST_UD,),
    Attribute.PATH_MIGRATION: (*RELIABLE, ST_UC),
    Attribute.MIN_RNR_TIMER: RELIABLE,
}
_RECOVERY: Final[Attributes] = {
    **_RIGHTS,
    **_COUNTER,
    Attribute.Q_KEY: (ST_UD,),
    Attribute.MIN_RNR_TIMER: RELIABLE,
}


def go_on(hca: Hca, qp: Qp) -> None:
    """Look at the send queue, in a turn of its own."""
    hca.turns.add(SEND, qp)


TRANSITIONS: Final = (
    Transition(
        RST,
        Op.RST2INIT_QP,
        INIT,
        required={
            Attribute.PKEY_INDEX: EVERY,
            Attribute.PORT: EVERY,
            Attribute.COUNTER_SET: EVERY,
            Attribute.ACK_REQUEST_FREQUENCY: EVERY,
            Attribute.PATH_MIGRATION: EVERY,
            Attribute.REMOTE_READ: CONNECTED_SERVICES,
            Attribute.REMOTE_WRITE: CONNECTED_SERVICES,
            Attribute.REMOTE_ATOMIC: CONNECTED_SERVICES,
            Attribute.Q_KEY: (ST_UD, ST_DCI, ST_QP0, ST_QP1, ST_REG_UMR),
            Attribute.PROTECTION_DOMAIN: (ST_REG_UMR,),
        },
        optional=_COUNTER,
        checks=(*attributes.COMMON_CHECKS, attributes.SERVED_CHECK),
        before=(attributes.take_common, attributes.take_place),
    ),
    Transition(
        INIT,
        Op.INIT2INIT_QP,
        INIT,
        optional={
            **_RIGHTS,
            **_COUNTER,
            Attribute.PKEY_INDEX: _FLEXIBLE,
            Attribute.PORT: _FLEXIBLE,
            Attribute.Q_KEY: (ST_UD,),
        },
        checks=attributes.COMMON_CHECKS,
        before=(attributes.take_common,),
    ),
    Transition(
        INIT,
        Op.INIT2RTR_QP,
        RTR,
        required={
            Attribute.PATH_MTU: EVERY,
            Attribute.MESSAGE_MAX: EVERY,
            Attribute.PATH: CONNECTED_SERVICES,
            Attribute.REMOTE_QPN: CONNECTED_SERVICES,
            Attribute.RECEIVE_PSN: CONNECTED_SERVICES,
            Attribute.RESPONDER_RESOURCES: (ST_RC, ST_XRC),
            Attribute.MIN_RNR_TIMER: (ST_RC, ST_XRC),
        },
        optional={
            **_RIGHTS,
            **_COUNTER,
            **_ALTERNATE,
            Attribute.PKEY_INDEX: _FLEXIBLE,
            Attribute.Q_KEY: (ST_UD,),
        },
        checks=(*attributes.COMMON_CHECKS, *attributes.CONNECTION_CHECKS),
        before=(attributes.take_common, attributes.take_connection),
    ),
    Transition(
        RTR,
        Op.RTR2RTS_QP,
        RTS,
        required={
            Attribute.SEND_PSN: EVERY,
            Attribute.ACK_TIMEOUT: RELIABLE,
            Attribute.RETRY_COUNT: RELIABLE,
            Attribute.RNR_RETRY: RELIABLE,
            Attribute.INITIATOR_DEPTH: RELIABLE,
            Attribute.ACK_REQUEST_FREQUENCY: RELIABLE,
        },
        optional=_ONCE_CONNECTED,
        checks=attributes.COMMON_CHECKS,
        before=(attributes.take_common, attributes.take_send_side),
        after=(go_on,),
    ),
    Transition(
        RTS,
        Op.RTS2RTS_QP,
        RTS,
        optional=_ONCE_CONNECTED,
        checks=attributes.COMMON_CHECKS,
        before=(attributes.take_common,),
        after=(go_on,),
    ),
    # SQER is left by command, and entered by the device when a send of an unreliable service fails (10.3.1.6).
    *(
        Transition(
            source,
            command,
            RTS,
            optional=_RECOVERY,
            checks=attributes.COMMON_CHECKS,
            before=(attributes.take_common,),
            after=(go_on,),
        )
        for source, command in ((SQER, Op.SQERR2RTS_QP), (SQD, Op.SQD_RTS_QP))
    ),
    Transition(
        RTS,
        QpEvent.SEND_ERROR,
        SQER,
        UNRELIABLE,
        after=(teardown.flush_posted, teardown.take_numbers_back),
    ),
    Transition(
        RTS,
        QpEvent.SEND_ERROR,
        ERR,
        (*RELIABLE, ST_REG_UMR),
        before=(teardown.stop,),
        after=(teardown.drop_answers, teardown.flush_posted, teardown.watch_receives),
    ),
    *(
        Transition(
            source,
            cause,
            ERR,
            services,
            before=(teardown.stop,),
            after=(teardown.drop_answers, teardown.flush_posted, teardown.watch_receives),
        )
        for cause, services, sources in (
            (Op.QP_2ERR, EVERY, (RST, INIT, RTR, RTS, SQER, SQD, SQ_DRAINING)),
            (QpEvent.ERROR, EVERY, (RTR, RTS, SQER)),
            (QpEvent.ERROR, (ST_DCT,), (RTS,)),
        )
        for source in sources
    ),
    # In ERR already: what has been posted since is flushed.
    *(
        Transition(
            ERR,
            cause,
            ERR,
            services,
            before=(teardown.stop,),
            after=(teardown.flush_posted, teardown.watch_receives),
        )
        for cause, services in ((Op.QP_2ERR, EVERY), (QpEvent.ERROR, EVERY), (QpEvent.ERROR, (ST_DCT,)))
    ),
    *(
        Transition(source, Op.QP_2RST, RST, before=(teardown.forget, teardown.abandon), after=(teardown.make_anew,))
        for source in STATES
    ),
    Transition(RST, QpEvent.CONNECT, RTS, (ST_DCT,)),
    *(
        Transition(
            source,
            QpEvent.DISCONNECT,
            ERR,
            (ST_DCT,),
            before=(teardown.abandon,),
            after=(teardown.flush_receives,),
        )
        for source in (RTS, ERR)
    ),
)
"""All that can happen to the state of a queue pair."""

_ROWS: Final = {(row.source, row.cause, service): row for row in TRANSITIONS for service in row.services}


def find(state: int, cause: Op | QpEvent, service: int) -> Transition | None:
    """The row for a queue pair of this service in this state, None if `cause` leads nowhere from there."""
    return _ROWS.get((state, cause, service))


def apply(hca: Hca, qp: Qp, command: Op, opt_param_mask: int, qpc: Qpc) -> Status:
    """Carry out a transition command; returns the command status (OK: done; otherwise nothing has changed).

    BAD_QP_STATE (0x10): not from this state; BAD_PARAM (0x03): an attribute or the mask is wrong; BAD_RES (0x05): a
    named object does not exist; LIM_ERR (0x08): no memory is left. `qp.refusal` tells more.
    """
    row = find(qp.state, command, qp.service)
    if row is None:
        qp.refusal = "the queue pair is not in a state that this command starts from"
        return Status.BAD_QP_STATE
    if opt_param_mask & ~row.allowed(qp.service):
        qp.refusal = "opt_param_mask flags an attribute that this transition cannot carry"
        return Status.BAD_PARAM
    context = Qpc.from_bytes(qp.context.to_bytes())
    for name in row.carried(qp.service, opt_param_mask):
        _copy(context, qpc, name)
    for check in row.checks:
        if check.fails(hca, qp, context):
            qp.refusal = check.reason
            return check.status
    qp.context = context
    _carry_out(hca, qp, row, command.name)
    return Status.OK


def happen(hca: Hca, qp: Qp, event: QpEvent, why: str = "") -> None:
    """Carry out the transition that an event in the device causes; the trace has `why`, or what the event is.

    In a state that has no row for it nothing happens but a count: no guest stops the card by what nobody thought of.
    """
    row = find(qp.state, event, qp.service)
    if row is None:
        hca.count[Count.QP_EVENTS_WITHOUT_ROW] += 1
        hca.note("qp_event", qpn=qp.handle, event=event.name, state=STATE_NAMES[qp.state], why=why)
        return
    _carry_out(hca, qp, row, why or event.value)


def enter_error(hca: Hca, qp: Qp, why: str) -> None:
    """The queue pair cannot go on: into ERR."""
    happen(hca, qp, QpEvent.ERROR, why)


def enter_send_error(hca: Hca, qp: Qp, why: str) -> None:
    """A work request of the send queue failed: into SQER or ERR, by the service."""
    happen(hca, qp, QpEvent.SEND_ERROR, why)


def reset(hca: Hca, qp: Qp) -> None:
    """Take a queue pair out of every table and timer of the transport, as 2RST_QP does, before it is destroyed."""
    row = find(qp.state, Op.QP_2RST, qp.service)
    assert row is not None
    _carry_out(hca, qp, row, Op.DESTROY_QP.name)


def _carry_out(hca: Hca, qp: Qp, row: Transition, why: str) -> None:
    qp.transitions = qp.transitions + 1 & 0xFFFFFFFF
    for step in row.before:
        step(hca, qp)
    if hca.trace is not None and row.target != row.source:
        names = STATE_NAMES[row.source], STATE_NAMES[row.target]
        hca.trace("qp_state", {"qpn": qp.handle, "from": names[0], "to": names[1], "why": why})
    qp.state = row.target
    for step in row.after:
        step(hca, qp)


def _copy(target: Qpc, source: Qpc, name: str) -> None:
    path, _, part = name.rpartition(".")
    if path:
        setattr(getattr(target, path), part, getattr(getattr(source, path), part))
    else:
        setattr(target, name, getattr(source, name))
