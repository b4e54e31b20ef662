"""Retransmission: timeouts, sequence errors and receivers that were not ready (volume 1, 9.7.5.2 and 9.7.6).

Everything from the oldest unacknowledged packet on is sent again (go-back-N). Payload is gathered anew: until its
completion a buffer belongs to the card.
"""

from typing import Final

from firmware.model import turns
from firmware.model.counters import Count, QCount
from firmware.model.hca import Hca
from firmware.model.psn import PSN_MASK
from firmware.model.qp import RTS, Qp
from firmware.model.send_wqe import PAGING
from firmware.model.timers import Timer, TimerKind
from firmware.transport import completion
from firmware.transport.retire import fail_head

INFINITE: Final = 7

# RNR NAK timer codes in ns (table 45).
RNR_DELAY_NS: Final = tuple(
    round(ms * 1_000_000)
    for ms in (
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
        2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
    )
)  # fmt: skip


def rewind(qp: Qp) -> None:
    """Start again at the oldest unacknowledged packet."""
    requester = qp.requester
    una = requester.una
    cursor = 0
    for wqe in requester.pending:
        if wqe.first < 0 or wqe.end > una:
            break
        cursor += 1
    requester.cursor = cursor
    requester.send_psn = una
    requester.reads = 0


def go_back(hca: Hca, qp: Qp) -> None:
    """Retry once more, unless the retries are used up."""
    requester = qp.requester
    if requester.una >= requester.max_psn:
        return
    if not requester.retries_left:
        fail_head(hca, qp, completion.RETRY_EXCEEDED, "the transport retries are used up")
        return
    requester.retries_left -= 1
    hca.count[Count.RETRANSMITS] += 1
    hca.note("retransmit", qpn=qp.handle, psn=requester.una & PSN_MASK, retries_left=requester.retries_left)
    if requester.ack_timer is not None:
        # What is sent again has all its time (9.7.6.1.3).
        hca.timers.cancel(requester.ack_timer)
    rewind(qp)
    hca.turns.add(turns.SEND, qp)


def go_back_once(hca: Hca, qp: Qp) -> None:
    """As :func:`go_back`, but once per lost packet: each further sign of the same loss changes nothing."""
    requester = qp.requester
    if requester.rewound_at == requester.una:
        return
    requester.rewound_at = requester.una
    go_back(hca, qp)


def ack_timeout(hca: Hca, qp: Qp) -> None:
    """The peer has been silent for too long."""
    requester = qp.requester
    if qp.state != RTS or requester.una >= requester.max_psn or requester.rnr_waiting:
        return
    if requester.pending and requester.pending[0].fault == PAGING and requester.ack_timer is not None:
        # It is this side that keeps the peer waiting.
        hca.timers.arm(requester.ack_timer, hca.now_ns + requester.timeout_ns)
        return
    qp.count(QCount.LOCAL_ACK_TIMEOUT_ERR)
    requester.rewound_at = -1
    go_back(hca, qp)


def receiver_not_ready(hca: Hca, qp: Qp, code: int) -> None:
    """The peer has no receive posted: wait as long as it says, then send the message again."""
    requester = qp.requester
    if requester.rnr_waiting:
        return
    if requester.rnr_retry != INFINITE:
        if not requester.rnr_left:
            fail_head(hca, qp, completion.RNR_RETRY_EXCEEDED, "the peer had no receive for too long")
            return
        requester.rnr_left -= 1
    qp.count(QCount.RNR_NAK_RETRY_ERR)
    requester.rnr_waiting = True
    if requester.ack_timer is not None:
        hca.timers.cancel(requester.ack_timer)
    if requester.rnr_timer is None:
        requester.rnr_timer = Timer(TimerKind.RECEIVER_NOT_READY, qp)
    hca.timers.arm(requester.rnr_timer, hca.now_ns + RNR_DELAY_NS[code])


def receiver_wait_over(hca: Hca, qp: Qp) -> None:
    """The time that the receiver asked for is over: send again."""
    qp.requester.rnr_waiting = False
    hca.count[Count.RETRANSMITS] += 1
    rewind(qp)
    hca.turns.add(turns.SEND, qp)
