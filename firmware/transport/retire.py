"""The end of send WQEs: completed in order when they are done, or with the error that was waiting for their turn."""

from firmware.model.hca import Hca
from firmware.model.qp import Qp, Requester
from firmware.model.send_wqe import LOCAL, PAGING
from firmware.transport import completion
from firmware.transport.lifecycle import enter_error, enter_send_error


def retire(hca: Hca, qp: Qp, requester: Requester) -> None:
    """Complete, in order, every WQE at the head that is done; then a fault that has reached the head."""
    pending = requester.pending
    una = requester.una
    while pending:
        wqe = pending[0]
        if wqe.fault:
            if wqe.first <= una and wqe.fault != PAGING:
                fail_head(hca, qp, wqe.fault, wqe.reason)
            return
        if wqe.first < 0 or wqe.end > una or (wqe.op == LOCAL and not wqe.done):
            return
        pending.popleft()
        if requester.cursor:
            requester.cursor -= 1
        if not completion.complete_send(hca, qp, wqe):
            enter_error(hca, qp, "the send CQ is dead")
            return


def fail_head(hca: Hca, qp: Qp, syndrome: int, reason: str) -> None:
    """The oldest WQE ends with an error, and the send queue with it."""
    requester = qp.requester
    wqe = requester.pending.popleft()
    if requester.cursor:
        requester.cursor -= 1
    hca.note("send_error", qpn=qp.handle, index=wqe.index, opcode=wqe.opcode, syndrome=syndrome, why=reason)
    if completion.fail_send(hca, qp, wqe.index, wqe.opcode, syndrome):
        enter_send_error(hca, qp, reason)
    else:
        enter_error(hca, qp, "the send CQ is dead")
