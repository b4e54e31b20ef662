"""A queue pair: where requester, responder and completer meet.

The first part is what the commands set; the second part belongs to the transport engines and is made anew by every
reset of the queue pair. PSNs of a :class:`Requester` are free running, those of a :class:`Responder` are as on the wire
(see :mod:`firmware.model.psn`).
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from firmware.model.block import Scratch
from firmware.model.counters import QCount
from firmware.model.graveyard import Grave
from firmware.model.hot import QpBlock, RequesterBlock, ResponderBlock
from firmware.model.objects import Cq, Mkey, PageRequest, QCounter, Srq
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
class Requester(RequesterBlock):
    """Send side of a queue pair.

    `pending` holds the WQEs that were fetched and are not completed, oldest first; those before `cursor` are sent as
    far as they can be.
    """

    pending: deque[SendWqe] = field(default_factory=deque)
    last_sent: Packet | None = None
    # What every packet of the step under way has in common, beside `pkey` and `egress`.
    route: Route | None = None
    # Of a DC initiator: address vector and access key.
    target: bytes = b""
    access_key: int = 0
    ack_timer: Timer | None = None
    rnr_timer: Timer | None = None


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
class Responder(ResponderBlock):
    """Receive side of a connected queue pair.

    `recv` is the receive WQE of the message under way. `replies` holds answers that wait behind a READ response under
    way. `domain` is the protection domain of the request at hand if it is not that of the queue pair: an XRC target
    accesses memory for the SRQ that a packet names. While pages are missing, `held` are datagrams, each with its port,
    that wait to be stored.
    """

    mkey: Mkey | None = None
    domain: int | None = None
    recv: RecvWqe | None = None
    resources: list[Resource] = field(default_factory=list)
    replies: deque[ReadJob | AtomicJob | Refusal | Packet] = field(default_factory=deque)
    held: list[tuple[int, Packet]] = field(default_factory=list)


class Shared(Scratch):
    """How two engines share the work of a queue pair: Python has `taken` work requests since the last train.

    At `most` of them it takes no more before those under way are complete, and then a train has its try.
    """

    __slots__ = ("most", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self.most = 1


@dataclass(slots=True, eq=False, weakref_slot=True)
class Qp(QpBlock):
    """One queue pair; `handle` is the QPN, `context` what CREATE and the transitions set, as QUERY_QP returns it."""

    context: Qpc = field(kw_only=True)
    send_cq: Cq | None = None
    recv_cq: Cq | None = None
    srq: Srq | None = None
    sq: SendQueue | None = None
    rq: RecvQueue | None = None
    counter: QCounter | None = None
    path: Path | None = None
    requester: Requester = field(default_factory=Requester)
    responder: Responder = field(default_factory=Responder)
    # Packets that wait behind a burst which is stored in parts (:mod:`firmware.transport.backlog`).
    backlog: deque[Packet] | None = None
    # Requests for missing pages that this queue pair waits for.
    page_requests: list[PageRequest] = field(default_factory=list)
    # What the engine in C knows of this connection.
    conversation: Shared | None = None
    # Why the last transition was refused, for the trace and the command's syndrome.
    refusal: str = ""

    def __post_init__(self) -> None:
        self.exempt_from_pd = self.service == ST_REG_UMR

    def let_go(self) -> tuple[Grave, ...]:
        """See :class:`firmware.model.objects.HcaObject`."""
        requester = self.requester
        requester.ack_timer = requester.rnr_timer = None
        self.conversation = None
        for wanted in self.page_requests:
            wanted.waiter = None
        return requester.pending, self.responder.resources, self.responder.replies

    def count(self, name: QCount) -> None:
        """Count one in the attached counter set, if there is one."""
        if self.counter is not None:
            self.counter.values[name] += 1
