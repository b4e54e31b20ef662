"""Completion reporting of queue pairs: entries for what ended well, for what did not, and for what was flushed.

Writes go through :mod:`firmware.queues`; what an entry names (user index or SRQ number, WQE counter, opcode) is decided
here and nowhere else.
"""

from typing import Final

from firmware.model.counters import Count, CountOf, QCount
from firmware.model.hca import Hca
from firmware.model.hot import ANY_USER_INDEX
from firmware.model.objects import SRQ_XRC, Cq, Srq
from firmware.model.qp import ST_DCT, ST_XRC, Qp
from firmware.model.rings import RecvWqe
from firmware.model.send_wqe import SendWqe
from firmware.queues import post_event, take_receive, write_cqe
from firmware.transport import wqe as send_wqe
from vhca.hw.memory import DmaError
from vhca.wire.connectx.cqe import Cqe64, CqeFormat, CqeGrh, CqeOpcode, CqeSyndrome, ErrCqe64
from vhca.wire.connectx.eqe import EventType, QpSrqData, QueueType
from vhca.wire.connectx.wqe import CompletionMode
from vhca.wire.packet import READ_REQUEST

LOCAL_LENGTH: Final = int(CqeSyndrome.LOCAL_LENGTH_ERR)
LOCAL_QP_OPERATION: Final = int(CqeSyndrome.LOCAL_QP_OP_ERR)
LOCAL_PROTECTION: Final = int(CqeSyndrome.LOCAL_PROT_ERR)
FLUSHED: Final = int(CqeSyndrome.WR_FLUSH_ERR)
BIND: Final = int(CqeSyndrome.MW_BIND_ERR)
BAD_RESPONSE: Final = int(CqeSyndrome.BAD_RESP_ERR)
REMOTE_INVALID_REQUEST: Final = int(CqeSyndrome.REMOTE_INVAL_REQ_ERR)
REMOTE_ACCESS: Final = int(CqeSyndrome.REMOTE_ACCESS_ERR)
REMOTE_OPERATION: Final = int(CqeSyndrome.REMOTE_OP_ERR)
RETRY_EXCEEDED: Final = int(CqeSyndrome.TRANSPORT_RETRY_EXC_ERR)
RNR_RETRY_EXCEEDED: Final = int(CqeSyndrome.RNR_RETRY_EXC_ERR)

# Counters that an error completion moves beside the sum of all errors.
_SEND_COUNTERS: Final = {
    FLUSHED: QCount.REQ_CQE_FLUSH_ERROR,
    LOCAL_LENGTH: QCount.REQ_LOCAL_LENGTH_ERROR,
    LOCAL_QP_OPERATION: QCount.LOCAL_OPERATION_ERROR,
    LOCAL_PROTECTION: QCount.REQ_LOCAL_PROTECTION,
    BIND: QCount.REQ_MW_BINDING,
    BAD_RESPONSE: QCount.REQ_BAD_RESPONSE,
    REMOTE_INVALID_REQUEST: QCount.REQ_REMOTE_INVALID_REQUEST,
    REMOTE_ACCESS: QCount.REQ_REMOTE_ACCESS_ERRORS,
    REMOTE_OPERATION: QCount.REQ_REMOTE_OPERATION_ERRORS,
    RETRY_EXCEEDED: QCount.REQ_TRANSPORT_RETRIES_EXCEEDED,
    RNR_RETRY_EXCEEDED: QCount.REQ_RNR_RETRIES_EXCEEDED,
}
_RECEIVE_COUNTERS: Final = {
    FLUSHED: QCount.RESP_CQE_FLUSH_ERROR,
    LOCAL_LENGTH: QCount.RESP_LOCAL_LENGTH_ERROR,
    LOCAL_QP_OPERATION: QCount.RESP_LOCAL_QP_ERROR,
    LOCAL_PROTECTION: QCount.RESP_LOCAL_PROTECTION,
}

EVENT_CATASTROPHIC: Final = int(EventType.WQ_CATAS_ERROR)
EVENT_INVALID_REQUEST: Final = int(EventType.WQ_INVAL_REQ_ERROR)
EVENT_ACCESS_ERROR: Final = int(EventType.WQ_ACCESS_ERROR)
EVENT_ESTABLISHED: Final = int(EventType.COMM_EST)
EVENT_LAST_WQE: Final = int(EventType.SRQ_LAST_WQE)

RECEIVED_WRITE_IMM: Final = int(CqeOpcode.RESP_WR_IMM)
RECEIVED_SEND: Final = int(CqeOpcode.RESP_SEND)
RECEIVED_SEND_IMM: Final = int(CqeOpcode.RESP_SEND_IMM)
RECEIVED_SEND_INVALIDATE: Final = int(CqeOpcode.RESP_SEND_INV)
GRH_IN_BUFFER: Final = int(CqeGrh.IN_BUFFER)

# In the byte of the completion that says which checksums hold.
CHECKS_AT: Final = 0x1C
L3_OK: Final = Cqe64(l3_ok=1).to_bytes()[CHECKS_AT]
L4_OK: Final = Cqe64(l4_ok=1).to_bytes()[CHECKS_AT]

INLINE_32: Final = int(CqeFormat.INLINE_32)
INLINE_64: Final = int(CqeFormat.INLINE_64)
INLINE_SHIFT: Final = 2
ROOM_IN_FRONT: Final = 64
# qpc.cs_res and dctc.cs_res; qpc.cs_req has the same in both halves of the byte.
SCATTER_32: Final = 1
SCATTER_64: Final = 2
# Posted WQEs of a queue that are flushed in one go.
FLUSH_BUDGET: Final = 128
_ERROR_REQUESTER: Final = int(CqeOpcode.REQ_ERR)
_ERROR_RESPONDER: Final = int(CqeOpcode.RESP_ERR)
# The mode in which a completion also makes an event of an armed-for-solicited CQ.
_WITH_COMPLETION: Final = int(CompletionMode.ALWAYS)
_WITH_EVENT: Final = int(CompletionMode.ALWAYS_AND_EQE)

_sent = Cqe64.packer("srqn_uidx", "byte_cnt", "timestamp", "send_wqe_opcode", "qpn", "wqe_counter")
_received = Cqe64.packer(
    "ml_path",
    "slid",
    "grh",
    "sl",
    "rqpn",
    "srqn_uidx",
    "imm_inval_pkey",
    "byte_cnt",
    "timestamp",
    "qpn",
    "wqe_counter",
    "opcode",
    "se",
)
_failed = ErrCqe64.packer(
    "srqn_uidx", "vendor_error_syndrome", "syndrome", "send_wqe_opcode", "qpn", "wqe_counter", "opcode"
)
_event_data = QpSrqData.packer("queue_type", "qp_srq_n")


def timestamp(hca: Hca) -> int:
    """The free running clock of the card, in its own ticks."""
    return hca.now_ns * hca.info.timer_khz // 1_000_000


def complete_send(hca: Hca, qp: Qp, wqe: SendWqe) -> bool:
    """Report a send WQE that ended well, if it asked for it. False if the CQ is dead."""
    if wqe.ce < _WITH_COMPLETION or qp.send_cq is None:
        return True
    index = qp.user_index
    entry = _sent(
        0 if index == ANY_USER_INDEX else index,
        wqe.length if wqe.op >= READ_REQUEST else 0,
        timestamp(hca),
        wqe.opcode,
        qp.handle,
        wqe.index,
    )
    cqe = bytearray(entry)
    if wqe.answer:
        cqe = _with_data(cqe, wqe.answer, qp.inline_read)
    return write_cqe(hca, qp.send_cq, cqe, wqe.ce == _WITH_EVENT) or _lost(hca, qp)


def _lost(hca: Hca, qp: Qp) -> bool:
    """The completion queue is dead: the queue pair that wanted to use it has no other way to tell (11.6.3.3)."""
    if not qp.cq_lost:
        qp.cq_lost = True
        qp_event(hca, qp, EVENT_CATASTROPHIC)
    return False


def inline_bytes(mode: int, cq: Cq | None) -> int:
    """How much a completion can hold beside itself: its own first half, or the half in front of it."""
    if mode == SCATTER_64 and cq is not None and cq.cqe_bytes == 128:
        return ROOM_IN_FRONT
    return 32 if mode == SCATTER_32 else 0


def _with_data(cqe: bytearray, data: bytes, room: int) -> bytearray:
    """A completion that carries data: over its own first half, or, with room for 64 bytes, in front of it."""
    if room == ROOM_IN_FRONT:
        cqe[-1] |= INLINE_64 << INLINE_SHIFT
        return bytearray(data.ljust(ROOM_IN_FRONT, b"\0")) + cqe
    cqe[: len(data)] = data
    cqe[-1] |= INLINE_32 << INLINE_SHIFT
    return cqe


def fail_send(hca: Hca, qp: Qp, index: int, opcode: int, syndrome: int) -> bool:
    """Report a send WQE that ended with an error or was flushed, whether it asked for a completion or not.

    False if the CQ is dead.
    """
    if syndrome != FLUSHED:
        hca.count_of.add(CountOf.SEND_ERRORS, syndrome)
    name = _SEND_COUNTERS.get(syndrome)
    if name is not None:
        qp.count(name)
    qp.count(QCount.REQ_CQE_ERROR)
    if qp.send_cq is None:
        return True
    user = qp.user_index
    entry = _failed(0 if user == ANY_USER_INDEX else user, 0, syndrome, opcode, qp.handle, index, _ERROR_REQUESTER)
    return write_cqe(hca, qp.send_cq, bytearray(entry), True) or _lost(hca, qp)


def receive_cq(qp: Qp, srq: Srq | None) -> Cq | None:
    """Where receives from this SRQ (or, with None, the queue pair's own) complete: an XRC SRQ has its own CQ."""
    return srq.cq if srq is not None and srq.kind == SRQ_XRC else qp.recv_cq


def _receive_user(qp: Qp, srq: Srq | None) -> int:
    """Word 0x20 of a receive completion: user index of the QP (of the SRQ for XRC), or the SRQ number."""
    index = srq.user_index if srq is not None and srq.kind == SRQ_XRC else qp.user_index
    if index != ANY_USER_INDEX:
        return index
    return srq.handle if srq is not None else 0


def complete_receive(
    hca: Hca,
    qp: Qp,
    recv: RecvWqe,
    opcode: int,
    size: int,
    extra: int,
    solicited: bool,
    origin: tuple[int, int, int],
    source_qpn: int = 0,
    grh: int = 0,
    inline: bytes = b"",
    checks: int = 0,
) -> bool:
    """Report a receive that ended well; `extra` is immediate, invalidated key or P_Key. False if the CQ is dead.

    `origin` is source LID, path bits and SL as of :func:`firmware.transport.port.origin`, `source_qpn` whose packet it
    was. `inline` are data that are not in the receive's buffers: software copies them there on seeing the completion.
    `checks`: which checksums hold, of L3_OK and L4_OK.
    """
    srq = recv.srq
    slid, path_bits, sl = origin
    entry = _received(
        path_bits,
        slid,
        grh,
        sl,
        source_qpn,
        _receive_user(qp, srq),
        extra,
        size,
        timestamp(hca),
        qp.handle,
        recv.wqe_counter,
        opcode,
        solicited,
    )
    cqe = bytearray(entry)
    cqe[CHECKS_AT] = checks
    if inline:
        cqe = _with_data(cqe, inline, qp.inline_receive)
    return _write_receive(hca, qp, srq, cqe, solicited)


def _write_receive(hca: Hca, qp: Qp, srq: Srq | None, cqe: bytearray, solicited: bool) -> bool:
    cq = receive_cq(qp, srq)
    # A receive of an XRC SRQ that was destroyed meanwhile completes nowhere.
    return cq is None or write_cqe(hca, cq, cqe, solicited) or _lost(hca, qp)


def fail_receive(hca: Hca, qp: Qp, recv: RecvWqe, syndrome: int) -> bool:
    """Report a receive that ended with an error or was flushed. False if the CQ is dead."""
    if syndrome != FLUSHED:
        hca.count_of.add(CountOf.RECEIVE_ERRORS, syndrome)
    name = _RECEIVE_COUNTERS.get(syndrome)
    if name is not None:
        qp.count(name)
    qp.count(QCount.RESP_CQE_ERROR)
    srq = recv.srq
    entry = _failed(_receive_user(qp, srq), 0, syndrome, 0, qp.handle, recv.wqe_counter, _ERROR_RESPONDER)
    return _write_receive(hca, qp, srq, bytearray(entry), True)


def qp_event(hca: Hca, qp: Qp, event_type: int) -> None:
    """Send an affiliated event of a queue pair to the asynchronous event queues; connections of targets have none."""
    if qp.service == ST_DCT:
        return
    post_event(hca, event_type, 0, _event_data(int(QueueType.QP), qp.handle))


def flush_send_queue(hca: Hca, qp: Qp, again: bool = False) -> bool:
    """Give WQEs of the send queue that are fetched or posted their flush completions, in order (10.10.2).

    A bounded number of them; True if more are left. What is posted now is flushed whatever becomes of the state
    meanwhile: `sq.flush_end` remembers how far that is. `again` goes on up to there and looks for no more, so that
    a doorbell record that is always ahead has only one ring flushed for each doorbell.
    """
    requester = qp.requester
    for wqe in requester.pending:
        fail_send(hca, qp, wqe.index, wqe.opcode, FLUSHED)
    requester.pending.clear()
    sq = qp.sq
    if sq is None:
        return False
    try:
        if not again:
            sq.refresh(hca.memory)
            sq.flush_end = sq.producer
        if _is_dead(qp.send_cq) and sq.consumer < sq.flush_end:
            hca.count[Count.CQES_LOST] += 1
            sq.consumer = sq.flush_end
        for _ in range(FLUSH_BUDGET):
            waiting = sq.flush_end - sq.consumer
            if waiting <= 0:
                return False
            ctrl = sq.read_blocks(hca.memory, sq.consumer, 1)
            opcode, _ = send_wqe.identity_of(ctrl)
            fail_send(hca, qp, sq.consumer & 0xFFFF, opcode, FLUSHED)
            requester.lso_done = 0
            sq.consumer += min(send_wqe.blocks_of(ctrl), waiting)
    except DmaError:
        hca.count[Count.DMA_READ_ERRORS] += 1
        return False
    return sq.consumer < sq.flush_end


def _is_dead(cq: Cq | None) -> bool:
    return cq is not None and cq.failed


def flush_receive_queue(hca: Hca, qp: Qp, again: bool = False) -> bool:
    """Give the receive under way and posted WQEs of an own receive queue their flush completions, in order.

    A bounded number of them; True if more are left. `again` as with :func:`flush_send_queue`.
    """
    responder = qp.responder
    recv = responder.recv
    if recv is not None:
        responder.recv = None
        fail_receive(hca, qp, recv, FLUSHED)
    more = False
    rq = qp.rq
    if qp.srq is None and rq is not None:
        try:
            if not again:
                rq.flush_end = rq.consumer + rq.waiting(hca.memory)
            if _is_dead(qp.recv_cq) and rq.consumer < rq.flush_end:
                hca.count[Count.CQES_LOST] += 1
                rq.consumer = rq.flush_end
            for _ in range(min(FLUSH_BUDGET, rq.flush_end - rq.consumer)):
                wqe = take_receive(hca, qp)
                if wqe is None:
                    break
                fail_receive(hca, qp, wqe, FLUSHED)
            else:
                more = rq.consumer < rq.flush_end
        except DmaError:
            hca.count[Count.DMA_READ_ERRORS] += 1
    if (qp.srq is not None or (qp.service == ST_XRC and qp.sq is None)) and not qp.last_wqe_reported:
        qp.last_wqe_reported = True
        qp_event(hca, qp, EVENT_LAST_WQE)
    return more
