"""What queue pairs do while a page is missing: they wait for the host, and nothing else stops.

A requester keeps the WQE at its place in the queue; a response that cannot be stored is dropped and asked for again. A
responder answers RNR NAK to what it cannot store, and holds READ responses back. A datagram that cannot be stored is
kept. Volume 1 knows no missing pages: to a peer all this looks like a receiver that is not ready, or a slow one.
"""

from typing import Final

from firmware import page_faults
from firmware.memory import PageFault
from firmware.model import turns
from firmware.model.hca import Hca
from firmware.model.objects import Waiter, WaitKind
from firmware.model.qp import ERR, RST, RTS, Qp, Requester, Responder
from firmware.model.rings import RecvWqe
from firmware.model.send_wqe import PAGING, SendWqe
from firmware.transport import completion
from firmware.transport.retire import retire
from firmware.transport.retry import RNR_DELAY_NS, rewind
from vhca.wire.packet import Packet

# The host takes a while, and a short RNR timer would only use up the peer's retries: ask for 2.56 ms at least (the
# queue pair's own value is a minimum, 9.7.5.2.8).
RNR_CODE: Final = 16


def hold_send(hca: Hca, qp: Qp, wqe: SendWqe, fault: PageFault, ahead_bytes: int, again: bool = False) -> None:
    """Let a WQE of a connected queue pair wait for local pages; `again`: a response to it must come once more."""
    requester = qp.requester
    kind = WaitKind.SEND_AGAIN if again else WaitKind.SEND
    wqe.fault = PAGING
    if not _request(hca, fault, ahead_bytes, Waiter(kind, qp, requester, wqe, str(fault))):
        wqe.fault = completion.LOCAL_PROTECTION
        wqe.reason = str(fault)
        if again:
            retire(hca, qp, requester)


def resume_send(hca: Hca, waiter: Waiter, good: bool) -> None:
    """The pages of :func:`hold_send` have come, or will not."""
    qp: Qp = waiter.qp
    wqe: SendWqe = waiter.item
    requester: Requester = waiter.side
    if good:
        wqe.fault = 0
    else:
        wqe.fault = completion.LOCAL_PROTECTION
        wqe.reason = waiter.reason
    if qp.requester is not requester or qp.state != RTS:
        return
    if good and waiter.kind == WaitKind.SEND_AGAIN:
        requester.rewound_at = -1
        rewind(qp)
    retire(hca, qp, requester)
    if qp.state == RTS:
        hca.turns.add(turns.SEND, qp)


def hold_datagram(hca: Hca, qp: Qp, fault: PageFault, ctrl: bytes, blocks: int) -> bool:
    """Stop a datagram queue until the pages of its next send have come; False if that is in vain."""
    requester = qp.requester
    requester.paging = _request(hca, fault, 0, Waiter(WaitKind.DATAGRAM, qp, requester, (ctrl, blocks), str(fault)))
    return requester.paging


def hold_request(hca: Hca, qp: Qp, fault: PageFault, ahead_bytes: int, refusal: tuple[int, int, int]) -> bool:
    """Ask for the pages that a request needs, once; False if that is in vain. `refusal` is sent if none come."""
    responder = qp.responder
    if not responder.paging:
        waiter = Waiter(WaitKind.REQUEST, qp, responder, refusal, str(fault))
        responder.paging = _request(hca, fault, ahead_bytes, waiter)
    return responder.paging


def hold_replies(hca: Hca, qp: Qp, fault: PageFault, ahead_bytes: int, refusal: tuple[int, int, int]) -> bool:
    """Keep replies back until the pages of the READ that is answered have come; False if that is in vain."""
    responder = qp.responder
    responder.stalled = _request(hca, fault, ahead_bytes, Waiter(WaitKind.READ, qp, responder, refusal, str(fault)))
    return responder.stalled


def hold_receive(hca: Hca, qp: Qp, fault: PageFault, arrival: tuple[int, Packet, RecvWqe]) -> bool:
    """Ask for the pages of the receive that a datagram has taken; False if that is in vain."""
    return _request(hca, fault, 0, Waiter(WaitKind.RECEIVE, qp, qp.responder, arrival, str(fault)))


def _request(hca: Hca, fault: PageFault, ahead_bytes: int, waiter: Waiter) -> bool:
    """Ask, and let the queue pair know what it waits for, so that it can go before the host has answered."""
    wanted = page_faults.request(hca, fault, ahead_bytes, waiter)
    if wanted is None:
        return False
    qp: Qp = waiter.qp
    qp.page_requests = [other for other in qp.page_requests if not page_faults.is_over(other)]
    qp.page_requests.append(wanted)
    return True


def receiver_code(qp: Qp) -> int:
    """The RNR timer code of a responder that waits for pages."""
    code = qp.min_rnr_nak
    return code if RNR_DELAY_NS[code] > RNR_DELAY_NS[RNR_CODE] else RNR_CODE


def alive(qp: Qp, responder: Responder) -> bool:
    """Is this still the receive side that the fault belongs to?"""
    return qp.responder is responder and qp.state not in (RST, ERR)
