"""A queue pair: where requester, responder and completer meet.

The first part is what the commands set; the second part belongs to the transport engines and is made anew by every
reset of the queue pair. PSNs of a :class:`Requester` are free running, those of a :class:`Responder` are as on the wire
(see :mod:`firmware.model.psn`).
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from firmware.model.counters import QCount
from firmware.model.graveyard import Grave
from firmware.model.objects import ANY_USER_INDEX, Cq, HcaObject, Mkey, PageRequest, QCounter, Srq
from firmware.model.rings import RecvQueue, RecvWqe, SendQueue
from firmware.model.segment import BURST_BYTES
from firmware.model.send_wqe import SendWqe
from firmware.model.timers import Timer
from vhca.wire.connectx.qpc import Qpc, QpState, ServiceType
from vhca.wire.packet import Grh, Packet, Route

# qpc.st: service types
ST_RC: Final = int(ServiceType.RC)
ST_UC: Final = int(ServiceType.UC)
ST_UD: Final = int(ServiceType.UD)
ST_XRC: Final = int(ServiceType.XRC)
ST_DCI: Final = int(ServiceType.DCI)
# One connection of a DC target; such a queue pair is in no table.
ST_DCT: Final = int(ServiceType.DCT)
ST_QP0: Final = int(ServiceType.QP0)
ST_QP1: Final = int(ServiceType.QP1)
ST_REG_UMR: Final = int(ServiceType.REG_UMR)

# qpc.state
RST: Final = int(QpState.RST)
INIT: Final = int(QpState.INIT)
RTR: Final = int(QpState.RTR)
RTS: Final = int(QpState.RTS)
SQER: Final = int(QpState.SQER)
SQD: Final = int(QpState.SQD)
ERR: Final = int(QpState.ERR)
SQ_DRAINING: Final = int(QpState.SQ_DRAINING)

STATE_NAMES: Final = tuple(state.name for state in QpState)


@dataclass(slots=True)
class Path:
    """Where the packets of a connected queue pair go; `mlid` are the source path bits, `grh` a template or None.

    `route` is what :func:`firmware.transport.port.route_over` made of it.
    """

    dlid: int
    sl: int = 0
    mlid: int = 0
    source_gid_index: int = 0
    grh: Grh | None = None
    route: Route | None = None


@dataclass(slots=True, eq=False)
class Requester:
    """Send side of a queue pair.

    `pending` holds the WQEs that were fetched and are not completed, oldest first; those before `cursor` are sent as
    far as they can be, the one at `cursor` is sent up to `send_psn`. `una` is the oldest PSN that is not acknowledged,
    `max_psn` the one behind the newest that was ever sent (a retry moves `send_psn` back).
    """

    mtu: int = 256
    log_mtu: int = 8
    message_max: int = 1 << 30
    read_limit: int = 1
    timeout_ns: int = 0
    retry_count: int = 0
    rnr_retry: int = 0
    pending: deque[SendWqe] = field(default_factory=deque)
    cursor: int = 0
    next_psn: int = 0
    send_psn: int = 0
    una: int = 0
    max_psn: int = 0
    ssn: int = 0
    reads: int = 0
    retries_left: int = 0
    rnr_left: int = 0
    rnr_waiting: bool = False
    rewound_at: int = -1
    unasked: int = 0
    # The longest burst, and that of the message at hand: less than usual if its memory is in many pieces.
    burst_most: int = BURST_BYTES
    burst_bytes: int = BURST_BYTES
    last_sent: Packet | None = None
    # What every packet of the step under way has in common: route, P_Key, where it leaves.
    route: Route | None = None
    pkey: int = 0
    egress: int = 0
    # Of a DC initiator: address vector, access key, number and first PSN of its connection.
    target: bytes = b""
    access_key: int = 0
    connection: int = 0
    connection_psn: int = 0
    # A datagram that is to be sent waits for pages.
    paging: bool = False
    ack_timer: Timer | None = None
    rnr_timer: Timer | None = None
    # How many of `pending` the card's budget counts.
    charged: int = 0


@dataclass(slots=True)
class Resource:
    """A READ or atomic that was executed, kept to answer a duplicate of it (9.4.4, 9.4.5).

    It is in use until its answer has left: so many requests a peer may have outstanding. Answering a duplicate takes
    nothing more.
    """

    psn: int
    count: int
    op: int
    va: int
    rkey: int
    length: int = 0
    original: int = 0
    domain: int | None = None
    answered: bool = False


@dataclass(slots=True, eq=False)
class ReadJob:
    """READ responses that are still to be sent: `length` bytes from `va` on, the first with number `psn`."""

    resource: Resource
    psn: int
    va: int
    length: int
    msn: int
    again: bool = False
    offset: int = 0
    # As of a requester.
    burst_bytes: int = BURST_BYTES


@dataclass(slots=True, eq=False)
class AtomicJob:
    """The answer to an atomic that waits behind other answers."""

    resource: Resource
    packet: Packet
    again: bool = False


@dataclass(slots=True, eq=False)
class Refusal:
    """The last answer of a responder: a NAK that ends the connection, how the receive under way ends, the event."""

    nak: Packet
    recv_syndrome: int
    event: int
    reason: str


@dataclass(slots=True, eq=False)
class Responder:
    """Receive side of a connected queue pair.

    `op` is the operation of the message under way (-1: none); `recv` its receive WQE, `offset` the bytes that arrived.
    `replies` holds answers that wait behind a READ response under way; with `refusing` the last one ends the
    connection, and no request is taken any more. `domain` is the protection domain of the
    request at hand if it is not that of the queue pair: an XRC target accesses memory for the SRQ that a packet names.
    While pages are missing, `paging` is set if requests cannot be stored, `stalled` if replies cannot be sent, and
    `held` are datagrams, each with its port, that wait to be stored.
    """

    mtu: int = 256
    epsn: int = 0
    msn: int = 0
    nak_sent: bool = False
    established: bool = False
    op: int = -1
    offset: int = 0
    va: int = 0
    rkey: int = 0
    length: int = 0
    mkey: Mkey | None = None
    domain: int | None = None
    recv: RecvWqe | None = None
    resource_limit: int = 1
    # Bytes that the card's budget counts for `resources`, and how many of `replies` it counts.
    resource_bytes: int = 0
    charged: int = 0
    resources: list[Resource] = field(default_factory=list)
    replies: deque[ReadJob | AtomicJob | Refusal | Packet] = field(default_factory=deque)
    refusing: bool = False
    paging: bool = False
    stalled: bool = False
    held: list[tuple[int, Packet]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Qp(HcaObject):
    """One queue pair; `handle` is the QPN, `context` what CREATE and the transitions set, as QUERY_QP returns it."""

    service: int = field(kw_only=True)
    context: Qpc = field(kw_only=True)
    pd: int = 0
    state: int = RST
    send_cq: Cq | None = None
    recv_cq: Cq | None = None
    srq: Srq | None = None
    sq: SendQueue | None = None
    rq: RecvQueue | None = None
    counter: QCounter | None = None
    port: int = 1
    user_index: int = ANY_USER_INDEX
    # Data up to so many bytes are put into the completion instead of memory: of receives; of READs and atomics.
    inline_receive: int = 0
    inline_read: int = 0

    # What the transitions set, in the form that the engines use.
    remote_qpn: int = 0
    pkey_index: int = 0
    q_key: int = 0
    remote_rights: int = 0
    min_rnr_nak: int = 0
    path: Path | None = None
    requester: Requester = field(default_factory=Requester)
    responder: Responder = field(default_factory=Responder)
    # Packets that wait behind a burst which is stored in parts (:mod:`firmware.transport.backlog`).
    backlog: deque[Packet] | None = None
    # Requests for missing pages that this queue pair waits for.
    page_requests: list[PageRequest] = field(default_factory=list)
    # The kinds of work for which it stands in the card's line (:mod:`firmware.model.turns`).
    turns: int = 0
    last_wqe_reported: bool = False
    # The host knows that a completion of this queue pair could not be written.
    cq_lost: bool = False
    # The card's registration queue may use and change keys of every protection domain.
    exempt_from_pd: bool = False
    # Why the last transition was refused, for the trace and the command's syndrome.
    refusal: str = ""

    def __post_init__(self) -> None:
        self.exempt_from_pd = self.service == ST_REG_UMR

    def let_go(self) -> tuple[Grave, ...]:
        """See :class:`firmware.model.objects.HcaObject`."""
        requester = self.requester
        requester.ack_timer = requester.rnr_timer = None
        for wanted in self.page_requests:
            wanted.waiter = None
        return requester.pending, self.responder.resources, self.responder.replies

    def count(self, name: QCount) -> None:
        """Count one in the attached counter set, if there is one."""
        if self.counter is not None:
            self.counter.values[name] += 1
