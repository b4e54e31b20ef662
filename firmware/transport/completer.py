"""The completer: matches acknowledgements and READ responses with WQEs and retires them in order.

PSNs of responses are brought into free running form against the oldest unacknowledged one; what lies outside of what
was ever sent is a ghost and is dropped (volume 1, 9.7.5.1.1).
"""

from typing import Final

from firmware.memory import STEP_PIECES, UNLIMITED, AccessError, Crowded, PageFault, check_scatter, scatter
from firmware.model import turns
from firmware.model.counters import RX_BYTES, Count, QCount
from firmware.model.hca import Hca
from firmware.model.psn import extend
from firmware.model.qp import RTS, Qp, Requester
from firmware.model.segment import well_formed
from firmware.model.send_wqe import LOCAL
from firmware.transport import account, backlog, completion, page_waits, retry
from firmware.transport.retire import fail_head, retire
from firmware.transport.syndromes import (
    ACK,
    KIND_MASK,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
    NAK_SEQUENCE,
    RNR_NAK,
)
from vhca.wire.connectx.wqe import CompletionMode
from vhca.wire.ib import cut
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, COMPARE_SWAP, READ_REQUEST, READ_RESPONSE, Packet

# ctrl.ce from here on: the WQE has a completion, which can carry data.
WITH_COMPLETION: Final = int(CompletionMode.ALWAYS)

_FATAL: Final = {
    NAK_INVALID_REQUEST: completion.REMOTE_INVALID_REQUEST,
    NAK_REMOTE_ACCESS: completion.REMOTE_ACCESS,
    NAK_REMOTE_OPERATION: completion.REMOTE_OPERATION,
}


def response(hca: Hca, qp: Qp, packet: Packet) -> None:
    """A response packet for the send side of `qp`."""
    if qp.state != RTS:
        hca.count[Count.RX_DROP_QP_STATE] += 1
        return
    requester = qp.requester
    psn = extend(packet.psn, requester.una)
    op = packet.op
    if psn >= requester.max_psn or psn + packet.count < requester.una:
        # Not sent yet, or acknowledged long ago; an ACK of the newest acknowledged PSN is just a repeated one.
        hca.count[Count.RX_GHOST_ACKS] += 1
        return
    if op == ACKNOWLEDGE:
        _acknowledge(hca, qp, requester, packet, psn)
    elif op == READ_RESPONSE:
        _read_response(hca, qp, requester, packet, psn)
    elif op == ATOMIC_ACKNOWLEDGE:
        _atomic_response(hca, qp, requester, packet, psn)
    account.settle(hca, qp)


def _acknowledge(hca: Hca, qp: Qp, requester: Requester, packet: Packet, psn: int) -> None:
    syndrome = packet.syndrome
    kind = syndrome & KIND_MASK
    if kind == ACK and not syndrome & 0x80:
        if advance(hca, qp, requester, psn + 1):
            _go_on(hca, qp, requester)
        return
    if psn < requester.una:
        hca.count[Count.RX_GHOST_ACKS] += 1
        return
    if kind == RNR_NAK:
        hca.count[Count.RX_RNR_NAKS] += 1
        advance(hca, qp, requester, psn)
        if qp.state == RTS:
            retry.receiver_not_ready(hca, qp, syndrome & 0x1F)
        return
    if syndrome == NAK_SEQUENCE:
        hca.count[Count.RX_NAKS] += 1
        qp.count(QCount.PACKET_SEQ_ERR)
        if advance(hca, qp, requester, psn) and qp.state == RTS:
            retry.go_back(hca, qp)
        return
    fatal = _FATAL.get(syndrome)
    if fatal is None:
        hca.count[Count.RX_DROP_SYNDROME] += 1
        return
    hca.count[Count.RX_NAKS] += 1
    if advance(hca, qp, requester, psn) and requester.pending and qp.state == RTS:
        fail_head(hca, qp, fatal, "the peer refused the request")


def advance(hca: Hca, qp: Qp, requester: Requester, upto: int) -> bool:
    """Everything before PSN `upto` is acknowledged; retire what that completes.

    False if a READ or atomic before it has not got its response: that response was lost (implied NAK, 9.7.5.2.3) and
    is asked for again.
    """
    for wqe in requester.pending:
        if wqe.first < 0:
            break
        if wqe.end > upto:
            if wqe.first < upto and wqe.op >= READ_REQUEST and wqe.op != LOCAL:
                # Responses up to here, but no data came with them: they are still missing.
                upto = max(requester.una, wqe.first)
            break
        if wqe.op >= READ_REQUEST and wqe.op != LOCAL:
            # una is at the first missing response of this READ already, or at its request. One that came and waits for
            # the pages of its place is not lost, and costs no retry: it is asked for again when they are there.
            if not wqe.fault:
                qp.count(QCount.IMPLIED_NAK_SEQ_ERR)
                retry.go_back_once(hca, qp)
            return False
    if upto > requester.una:
        _progress(hca, requester, upto)
    retire(hca, qp, requester)
    return True


def _progress(hca: Hca, requester: Requester, una: int) -> None:
    """The peer moved: retries start anew, and so does the timeout of what is still outstanding."""
    requester.una = una
    if requester.send_psn < una:
        requester.send_psn = una
    requester.retries_left = requester.retry_count
    requester.rnr_left = requester.rnr_retry
    timer = requester.ack_timer
    if timer is not None:
        if una < requester.send_psn:
            hca.timers.arm(timer, hca.now_ns + requester.timeout_ns)
        else:
            hca.timers.cancel(timer)


def _go_on(hca: Hca, qp: Qp, requester: Requester) -> None:
    """Use the room that an acknowledgement or a response made.

    In a step of its own: what is sent next may read what a response has just stored.
    """
    sq = qp.sq
    if requester.cursor < len(requester.pending) or (sq is not None and sq.producer > sq.consumer):
        hca.turns.add(turns.SEND, qp)


def _read_response(hca: Hca, qp: Qp, requester: Requester, packet: Packet, psn: int) -> None:
    """Data of a READ: in order only; a gap means that earlier responses were lost."""
    una = requester.una
    if psn < una:
        if psn + packet.count <= una:
            hca.count[Count.RX_DUPLICATE_RESPONSES] += 1
            return
        packet = cut(packet, una - psn)
        psn = una
    if not advance(hca, qp, requester, psn) or qp.state != RTS:
        return
    wqe = requester.pending[0] if requester.pending else None
    if wqe is None or wqe.op != READ_REQUEST or not wqe.first <= psn < wqe.end:
        hca.count[Count.RX_GHOST_ACKS] += 1
        return
    if psn > requester.una:
        qp.count(QCount.IMPLIED_NAK_SEQ_ERR)
        retry.go_back_once(hca, qp)
        return
    if wqe.fault:
        hca.count[Count.RX_DROP_PAGING] += 1
        return
    offset = (psn - wqe.first) << requester.log_mtu
    size = len(packet.payload)
    last = psn + packet.count == wqe.end
    if (
        not well_formed(packet, requester.mtu)
        or packet.end is not last
        or (offset + size != wqe.length if last else offset + size > wqe.length)
    ):
        fail_head(hca, qp, completion.BAD_RESPONSE, "a READ response does not have the length that was asked for")
        return
    try:
        if wqe.length <= qp.inline_read and wqe.ce >= WITH_COMPLETION:
            check_scatter(hca, qp, wqe.sges, size)
            wqe.answer = bytes(packet.payload)
        else:
            most = STEP_PIECES if packet.count > 1 else UNLIMITED
            scatter(hca, qp, wqe.sges, offset, packet.payload, most=most)
    except Crowded as crowded:
        response(hca, qp, backlog.first_part(hca, qp, packet, crowded.covered))
        return
    except PageFault as fault:
        page_waits.hold_send(hca, qp, wqe, fault, wqe.length - offset - size if len(wqe.sges) == 1 else 0, again=True)
        return
    except AccessError as error:
        fail_head(hca, qp, completion.LOCAL_PROTECTION, str(error))
        return
    hca.count[RX_BYTES] += size
    _progress(hca, requester, psn + packet.count)
    if last:
        _finish_read(hca, qp, requester)


def _finish_read(hca: Hca, qp: Qp, requester: Requester) -> None:
    requester.reads = max(0, requester.reads - 1)
    retire(hca, qp, requester)
    if qp.state == RTS:
        _go_on(hca, qp, requester)


def _atomic_response(hca: Hca, qp: Qp, requester: Requester, packet: Packet, psn: int) -> None:
    """The value before an atomic; stored as the host's integer, which is little-endian."""
    if psn < requester.una:
        hca.count[Count.RX_DUPLICATE_RESPONSES] += 1
        return
    if not advance(hca, qp, requester, psn) or qp.state != RTS:
        return
    wqe = requester.pending[0] if requester.pending else None
    if wqe is None or wqe.op < COMPARE_SWAP or wqe.op == LOCAL or wqe.first != psn:
        hca.count[Count.RX_GHOST_ACKS] += 1
        return
    if wqe.fault:
        hca.count[Count.RX_DROP_PAGING] += 1
        return
    try:
        original = packet.original.to_bytes(8, "little")
        if qp.inline_read and wqe.ce >= WITH_COMPLETION:
            check_scatter(hca, qp, wqe.sges, len(original))
            wqe.answer = original
        else:
            scatter(hca, qp, wqe.sges, 0, original)
    except PageFault as fault:
        page_waits.hold_send(hca, qp, wqe, fault, 0, again=True)
        return
    except AccessError as error:
        fail_head(hca, qp, completion.LOCAL_PROTECTION, str(error))
        return
    _progress(hca, requester, psn + 1)
    _finish_read(hca, qp, requester)
