"""What a responder sends: acknowledgements, READ responses and answers to atomics, in PSN order (9.7.5.1).

READ responses take many steps; what comes behind them waits in `Responder.replies`, up to a NAK that ends the
connection.
"""

from typing import Final

from firmware.memory import (
    BUS,
    PIECE_COST_BYTES,
    STEP_PIECES,
    UNLIMITED,
    AccessError,
    Crowded,
    PageFault,
    remote_check,
    remote_read,
)
from firmware.model.counters import TX_BYTES, TX_PACKETS, Count, QCount
from firmware.model.hca import Hca
from firmware.model.objects import REMOTE_READ, Waiter
from firmware.model.psn import PSN_MASK
from firmware.model.qp import ST_DCT, ST_RC, ST_XRC, AtomicJob, Qp, ReadJob, Refusal, Resource, Responder
from firmware.model.segment import BURST_COST_BYTES, BURST_PACKETS, LOG_PACKET_COST, packet_count
from firmware.model.turns import REPLY
from firmware.transport import account, completion, page_waits
from firmware.transport.lifecycle import enter_error
from firmware.transport.port import pkey_at, route_over, transmit
from firmware.transport.syndromes import (
    ACK_NO_CREDITS,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
    RNR_NAK,
)
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, DC, RC, READ_REQUEST, READ_RESPONSE, XRC, Packet

READ_BUDGET: Final = 1 << 20
# READs up to this size are answered in the step of their request.
AT_ONCE_BYTES: Final = 4096
# Answers that may wait beside those of READs and atomics; a peer that keeps its limits never meets this.
SPARE_REPLIES: Final = 16
_WIRE_SERVICE: Final = {ST_RC: RC, ST_XRC: XRC, ST_DCT: DC}

EVENTS: Final = {
    NAK_INVALID_REQUEST: completion.EVENT_INVALID_REQUEST,
    NAK_REMOTE_ACCESS: completion.EVENT_ACCESS_ERROR,
    NAK_REMOTE_OPERATION: completion.EVENT_CATASTROPHIC,
}


def reply(hca: Hca, qp: Qp, packet: Packet) -> None:
    """Send an answer, behind READ responses that are still under way: answers go out in PSN order (9.7.5.1.1)."""
    replies = qp.responder.replies
    if replies:
        waiting = replies[-1]
        if isinstance(waiting, Packet) and waiting.op == packet.op == ACKNOWLEDGE and waiting.syndrome < RNR_NAK:
            # The newer one says all that the older one does.
            replies.pop()
        replies.append(packet)
    else:
        transmit(hca, qp.port, packet)


def answer_atomic(hca: Hca, qp: Qp, resource: Resource) -> None:
    """Send the result of an atomic that was just executed."""
    packet = atomic_answer(hca, qp, resource.psn, resource.original, qp.responder.msn)
    if qp.responder.replies:
        qp.responder.replies.append(AtomicJob(resource, packet))
    else:
        transmit(hca, qp.port, packet)
        resource.answered = True


def too_many(responder: Responder) -> bool:
    """As many answers wait as a conforming peer can bring about: what it sends now is dropped, and comes again.

    For each resource that is an answer, one repeated, and an ACK or NAK behind either.
    """
    return len(responder.replies) >= 4 * responder.resource_limit + SPARE_REPLIES


def answer_again(hca: Hca, qp: Qp, resource: Resource, packet: Packet) -> bool:
    """Answer a duplicate of a READ or atomic; False if it is dropped: the answers that wait are answer enough."""
    responder = qp.responder
    again = 0
    for job in responder.replies:
        if isinstance(job, ReadJob):
            again += job.again
            if job.resource is resource and _still_sends(job, packet):
                return False
        elif isinstance(job, AtomicJob):
            again += job.again
            if job.resource is resource:
                return False
    if responder.stalled or again >= responder.resource_limit:
        return False
    if packet.op == READ_REQUEST:
        job = ReadJob(resource, packet.psn, packet.va, packet.dma_length, responder.msn, again=True)
        responder.replies.append(job)
        begin(hca, qp)
    else:
        answer = atomic_answer(hca, qp, resource.psn, resource.original, responder.msn)
        if responder.replies:
            responder.replies.append(AtomicJob(resource, answer, again=True))
        else:
            transmit(hca, qp.port, answer)
    return True


def _still_sends(job: ReadJob, packet: Packet) -> bool:
    """Tell whether what `job` has not sent yet covers all that the repeated READ `packet` asks for."""
    return job.va + job.offset <= packet.va and packet.va + packet.dma_length <= job.va + job.length


def refuse(hca: Hca, qp: Qp, syndrome: int, recv_syndrome: int, event: int, reason: str) -> None:
    """Make a NAK of the request that is expected the last answer: behind it the queue pair enters ERR (9.9.3.2).

    What waits is sent first, a step's worth at a time; no further request is taken meanwhile.
    """
    responder = qp.responder
    if responder.refusing:
        return
    hca.note("request_refused", qpn=qp.handle, nak=syndrome, why=reason)
    responder.refusing = True
    nak = acknowledgement(hca, qp, responder.epsn, syndrome, responder.msn)
    responder.replies.append(Refusal(nak, recv_syndrome, event, reason))
    begin(hca, qp)


def _end(hca: Hca, qp: Qp, refusal: Refusal) -> None:
    """Send the NAK; the receive under way fails, then the queue pair enters ERR.

    An event tells what no completion can (11.6.3.3): none is due if the receive itself has an error to report.
    """
    syndrome = refusal.nak.syndrome
    hca.count[Count.NAKS] += 1
    if syndrome == NAK_REMOTE_ACCESS:
        qp.count(QCount.RESP_REMOTE_ACCESS_ERRORS)
    elif syndrome == NAK_INVALID_REQUEST:
        qp.count(QCount.RESP_REMOTE_INVALID_REQUEST)
    responder = qp.responder
    transmit(hca, qp.port, refusal.nak)
    recv = responder.recv
    if recv is not None:
        responder.recv = None
        completion.fail_receive(hca, qp, recv, refusal.recv_syndrome)
    # One NAK is the last word (9.7.5.2): what waits behind it is not sent any more.
    enter_error(hca, qp, refusal.reason)
    if recv is None or refusal.recv_syndrome == completion.FLUSHED:
        completion.qp_event(hca, qp, refusal.event)


def begin(hca: Hca, qp: Qp) -> None:
    """Send the answer that was just appended: at once if it is a short one and the only one, else in a turn.

    Requests are taken while the cable is full, and many of them fit into it: long answers to all would pile up there.
    """
    replies = qp.responder.replies
    job = replies[0]
    if len(replies) == 1 and not (isinstance(job, ReadJob) and job.length > AT_ONCE_BYTES):
        send_replies(hca, qp)
    else:
        hca.turns.add(REPLY, qp)


def send_replies(hca: Hca, qp: Qp) -> None:
    """Send answers that wait, a bounded number of bytes per step."""
    responder = qp.responder
    _send_answers(hca, qp, responder)
    if responder.charged or responder.replies:
        account.settle(hca, qp)


def _send_answers(hca: Hca, qp: Qp, responder: Responder) -> None:
    replies = responder.replies
    budget = READ_BUDGET
    while replies and not responder.stalled:
        job = replies[0]
        if isinstance(job, Refusal):
            _end(hca, qp, job)
            return
        if isinstance(job, Packet | AtomicJob):
            replies.popleft()
            if isinstance(job, AtomicJob):
                job.resource.answered = True
                job = job.packet
            transmit(hca, qp.port, job)
            continue
        if budget <= 0:
            hca.turns.add(REPLY, qp)
            return
        budget -= _send_read_burst(hca, qp, responder, job)
        if job.offset >= job.length:
            replies.popleft()
            if not job.again:
                job.resource.answered = True


def _send_read_burst(hca: Hca, qp: Qp, responder: Responder, job: ReadJob) -> int:
    """Send the next responses of a READ; bytes for the budget. If its memory has gone, the answers wait or go."""
    offset = job.offset
    log_mtu = responder.mtu.bit_length() - 1
    size = min(job.length - offset, job.burst_bytes, BURST_PACKETS << log_mtu)
    psn = job.psn + (offset >> log_mtu)
    payload = b""
    pieces = hca.pieces
    if size:
        try:
            rkey, domain = job.resource.rkey, job.resource.domain
            mkey = remote_check(hca, qp, rkey, job.va + offset, size, REMOTE_READ, domain)
            assert mkey is not None
            # A packet is never cut: it takes as many pieces as it takes.
            most = STEP_PIECES if size > responder.mtu else UNLIMITED
            payload = remote_read(hca, mkey, job.va + offset, size, most)
        except Crowded as crowded:
            job.burst_bytes = max(crowded.covered >> log_mtu, 1) << log_mtu
            return (hca.pieces - pieces) * PIECE_COST_BYTES
        except AccessError as error:
            nak = NAK_REMOTE_OPERATION if error.kind == BUS else NAK_REMOTE_ACCESS
            ahead = job.length - offset - size
            refusal = (psn, nak, job.msn)
            if not isinstance(error, PageFault) or not page_waits.hold_replies(hca, qp, error, ahead, refusal):
                _read_failed(hca, qp, refusal, str(error))
            return 0
    count = packet_count(size, log_mtu)
    packet = _answer(hca, qp, READ_RESPONSE, psn, job.msn)
    packet.payload = payload
    packet.count = count
    packet.start = not offset
    job.offset = offset + size
    packet.end = job.offset == job.length
    packet.syndrome = ACK_NO_CREDITS
    hca.count[TX_PACKETS] += count
    hca.count[TX_BYTES] += size
    transmit(hca, qp.port, packet)
    return max(size, count << LOG_PACKET_COST) + BURST_COST_BYTES + (hca.pieces - pieces) * PIECE_COST_BYTES


def resume(hca: Hca, waiter: Waiter, good: bool) -> None:
    """The pages of the READ that is answered have come, or will not."""
    qp: Qp = waiter.qp
    waiter.side.stalled = False
    if page_waits.alive(qp, waiter.side):
        if good:
            send_replies(hca, qp)
        else:
            _read_failed(hca, qp, waiter.item, waiter.reason)


def _read_failed(hca: Hca, qp: Qp, refusal: tuple[int, int, int], reason: str) -> None:
    """The memory of a READ under way has gone."""
    hca.note("read_failed", qpn=qp.handle, why=reason)
    psn, syndrome, msn = refusal
    nak = acknowledgement(hca, qp, psn, syndrome, msn)
    _end(hca, qp, Refusal(nak, completion.FLUSHED, EVENTS[nak.syndrome], reason))


def _answer(hca: Hca, qp: Qp, op: int, psn: int, msn: int) -> Packet:
    path = qp.path
    assert path is not None
    port = hca.ports[qp.port]
    return Packet(
        route_over(port, path),
        _WIRE_SERVICE[qp.service],
        op,
        qp.remote_qpn,
        psn & PSN_MASK,
        b"",
        1,
        True,
        True,
        qp.responder.mtu,
        pkey_at(port, qp.pkey_index),
        msn=msn,
    )


def acknowledgement(hca: Hca, qp: Qp, psn: int, syndrome: int, msn: int) -> Packet:
    """An ACK, or with another `syndrome` an RNR NAK or NAK."""
    packet = _answer(hca, qp, ACKNOWLEDGE, psn, msn)
    packet.syndrome = syndrome
    hca.count[TX_PACKETS] += 1
    return packet


def atomic_answer(hca: Hca, qp: Qp, psn: int, original: int, msn: int) -> Packet:
    """The answer to an atomic: the value that it found."""
    packet = _answer(hca, qp, ATOMIC_ACKNOWLEDGE, psn, msn)
    packet.syndrome = ACK_NO_CREDITS
    packet.original = original
    hca.count[TX_PACKETS] += 1
    return packet
