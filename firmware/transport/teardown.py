"""The end of what a queue pair has under way, on its way into SQER, ERR or RST: timers, answers, completions.

The steps are named by the rows of :mod:`firmware.transport.lifecycle`. In ERR and SQER, whatever is posted is flushed:
some at once, the rest in turns, and again at every later post. Sends show by their doorbell. Receives show in their
doorbell record only, so it is polled while ERR lasts.
"""

from itertools import islice
from typing import Final

from firmware import page_faults
from firmware.model.hca import Hca
from firmware.model.qp import ERR, SQER, Qp, Requester, Responder
from firmware.model.timers import Timer, TimerKind
from firmware.model.turns import FLUSH
from firmware.transport import account
from firmware.transport.completion import flush_receive_queue, flush_send_queue

FLUSH_PERIOD_NS: Final = 2_000_000
# Queue pairs that one poll looks at, and effects after which it leaves the others for the next poll.
FLUSH_QPS: Final = 256
FLUSH_EFFECTS: Final = 256


def stop(hca: Hca, qp: Qp) -> None:
    """End timers and turns."""
    requester = qp.requester
    for timer in (requester.ack_timer, requester.rnr_timer):
        if timer is not None:
            hca.timers.cancel(timer)
    qp.turns = 0


def forget(hca: Hca, qp: Qp) -> None:
    """Take the queue pair out of timers and tables."""
    requester = qp.requester
    for timer in (requester.ack_timer, requester.rnr_timer):
        hca.timers.drop(timer)
    requester.ack_timer = requester.rnr_timer = None
    for number in [number for number, special in hca.special_qps.items() if special is qp]:
        del hca.special_qps[number]
    hca.flushing.pop(qp.handle, None)


def abandon(hca: Hca, qp: Qp) -> None:
    """Give up turns, requests for pages, and whatever waits."""
    page_faults.abandon(qp.page_requests)
    qp.turns = 0
    account.close(hca, qp)


def make_anew(hca: Hca, qp: Qp) -> None:
    """Make both sides and the rings as they were after CREATE_QP; no completion follows."""
    qp.requester = Requester()
    qp.responder = Responder()
    qp.last_wqe_reported = qp.cq_lost = False
    qp.path = None
    if qp.sq is not None:
        qp.sq.reset()
    if qp.rq is not None:
        qp.rq.reset()


def drop_answers(hca: Hca, qp: Qp) -> None:
    """Drop answers and packets that wait."""
    qp.responder.replies.clear()
    account.drop_packets(hca, qp)


def flush_posted(hca: Hca, qp: Qp) -> None:
    """Flush what is posted."""
    flush(hca, qp)


def flush_receives(hca: Hca, qp: Qp) -> None:
    """Flush the receive under way."""
    flush_receive_queue(hca, qp)


def watch_receives(hca: Hca, qp: Qp) -> None:
    """Poll the doorbell record for receives that are posted later."""
    if qp.rq is not None and qp.srq is None and qp.handle not in hca.flushing:
        if not hca.flushing:
            _arm_flush_timer(hca)
        hca.flushing[qp.handle] = qp


def take_numbers_back(hca: Hca, qp: Qp) -> None:
    """Let the next message follow the last packet sent."""
    # What was numbered but never sent has no place on the wire.
    requester = qp.requester
    requester.next_psn = requester.una = requester.max_psn = requester.send_psn


def flush(hca: Hca, qp: Qp, again: bool = False) -> None:
    """Give what is posted its flush completions, some now and the rest in turns; nothing if the state has changed."""
    more = qp.state in (ERR, SQER) and flush_send_queue(hca, qp, again)
    if qp.state == ERR and flush_receive_queue(hca, qp, again):
        more = True
    account.settle(hca, qp)
    if more:
        hca.turns.add(FLUSH, qp)


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
