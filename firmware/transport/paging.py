"""What queue pairs do while a page is missing: they wait for the host, and nothing else stops.

A requester keeps the WQE at its place in the queue; a response that cannot be stored is dropped and asked for again. A
responder answers RNR NAK to what it cannot store, and holds READ responses back. A datagram that cannot be stored is
kept. Volume 1 knows no missing pages: to a peer all this looks like a receiver that is not ready, or a slow one.
"""

from collections.abc import Callable
from typing import Final

from firmware import paging
from firmware.memory import PageFault
from firmware.model.hca import Hca
from firmware.model.objects import Resume
from firmware.model.qp import ERR, RST, RTS, Qp, Responder
from firmware.model.send_wqe import PAGING, SendWqe
from firmware.transport import completion
from firmware.transport.retire import retire
from firmware.transport.retry import RNR_DELAY_NS, rewind
from firmware.transport.state import run_soon

# The host takes a while, and a short RNR timer would only use up the peer's retries: ask for 2.56 ms at least (the
# queue pair's own value is a minimum, 9.7.5.2.8).
RNR_CODE: Final = 16


def hold_send(hca: Hca, qp: Qp, wqe: SendWqe, fault: PageFault, ahead_bytes: int, again: bool = False) -> None:
    """Let a WQE of a connected queue pair wait for local pages; `again`: a response to it must come once more."""
    requester = qp.requester

    def resume(good: bool) -> None:
        if good:
            wqe.fault = 0
        else:
            wqe.fault = completion.LOCAL_PROTECTION
            wqe.reason = str(fault)
        if qp.requester is not requester or qp.state != RTS:
            return
        if good and again:
            requester.rewound_at = -1
            rewind(qp)
        retire(hca, qp, requester)
        if qp.state == RTS:
            run_soon(hca, qp)

    wqe.fault = PAGING
    if not _request(hca, qp, fault, ahead_bytes, resume):
        wqe.fault = completion.LOCAL_PROTECTION
        wqe.reason = str(fault)
        if again:
            retire(hca, qp, requester)


def hold_datagram(hca: Hca, qp: Qp, fault: PageFault, refuse: Callable[[], None]) -> bool:
    """Stop a datagram queue until the pages of its next send have come; False if that is in vain."""
    requester = qp.requester

    def resume(good: bool) -> None:
        requester.paging = False
        if qp.requester is requester and qp.state == RTS:
            if good:
                run_soon(hca, qp)
            else:
                refuse()

    requester.paging = _request(hca, qp, fault, 0, resume)
    return requester.paging


def hold_request(hca: Hca, qp: Qp, fault: PageFault, ahead_bytes: int, refuse: Callable[[], None]) -> bool:
    """Ask for the pages that a request needs, once; False if that is in vain. `refuse` is called if none come."""
    responder = qp.responder
    if responder.paging:
        return True

    def resume(good: bool) -> None:
        responder.paging = False
        if not good and alive(qp, responder):
            refuse()

    responder.paging = _request(hca, qp, fault, ahead_bytes, resume)
    return responder.paging


def hold_replies(hca: Hca, qp: Qp, fault: PageFault, ahead_bytes: int, go_on: Callable[[], None],
                 refuse: Callable[[], None]) -> bool:  # fmt: skip
    """Keep replies back until the pages of the first one have come; False if that is in vain."""
    responder = qp.responder

    def resume(good: bool) -> None:
        responder.stalled = False
        if alive(qp, responder):
            if good:
                go_on()
            else:
                refuse()

    responder.stalled = _request(hca, qp, fault, ahead_bytes, resume)
    return responder.stalled


def _request(hca: Hca, qp: Qp, fault: PageFault, ahead_bytes: int, resume: Resume) -> bool:
    """Ask, and let the queue pair know what it waits for, so that it can go before the host has answered."""
    wanted = paging.request(hca, fault, ahead_bytes, resume)
    if wanted is None:
        return False
    qp.page_requests = [other for other in qp.page_requests if not paging.is_over(other)]
    qp.page_requests.append(wanted)
    return True


def receiver_code(qp: Qp) -> int:
    """The RNR timer code of a responder that waits for pages."""
    code = qp.min_rnr_nak
    return code if RNR_DELAY_NS[code] > RNR_DELAY_NS[RNR_CODE] else RNR_CODE


def alive(qp: Qp, responder: Responder) -> bool:
    """Is this still the receive side that the fault belongs to?"""
    return qp.responder is responder and qp.state not in (RST, ERR)
