"""A queue pair: where requester, responder and completer meet.

The first part is what the commands set; the second part belongs to the transport engines.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from firmware.objects import Cq, HcaObject, QCounter, Srq
from vhca.wire.connectx.qpc import Qpc

if TYPE_CHECKING:
    from firmware.queues import RecvQueue, SendQueue

# qpc.st: service types
ST_RC = 0
ST_UC = 1
ST_UD = 2
ST_XRC = 3
ST_QP0 = 7
ST_QP1 = 8
ST_REG_UMR = 0xC

# qpc.state
RST = 0
INIT = 1
RTR = 2
RTS = 3
SQER = 4
SQD = 5
ERR = 6
SQ_DRAINING = 7


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
    sq: "SendQueue | None" = None
    rq: "RecvQueue | None" = None
    counter: QCounter | None = None
    port: int = 1
    user_index: int = 0xFFFFFF
