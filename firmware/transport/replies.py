"""What a responder sends: acknowledgements, READ responses and answers to atomics, in PSN order (9.7.5.1).

READ responses take many steps; what comes behind them waits in ``Responder.replies``.
"""

from typing import TYPE_CHECKING, Final

from firmware.memory import BUS, AccessError, PageFault, remote_check, remote_read
from firmware.objects import REMOTE_READ
from firmware.timers import Timer
from firmware.transport import completion, paging
from firmware.transport.port import pkey_at, transmit
from firmware.transport.psn import PSN_MASK
from firmware.transport.qp import ST_DCT, ST_RC, ST_XRC, Qp, ReadJob, Responder
from firmware.transport.segment import BURST_BYTES, packet_count
from firmware.transport.state import enter_error
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, DC, RC, READ_RESPONSE, XRC, Packet

if TYPE_CHECKING:
    from firmware.hca import Hca

# AETH syndromes (table 43). End-to-end credits are not used: 0x1f says so in an ACK.
ACK_NO_CREDITS: Final = 0x1F
RNR_NAK: Final = 0x20
NAK_SEQUENCE: Final = 0x60
NAK_INVALID_REQUEST: Final = 0x61
NAK_REMOTE_ACCESS: Final = 0x62
NAK_REMOTE_OPERATION: Final = 0x63

READ_BUDGET: Final = 1 << 20
_WIRE_SERVICE: Final = {ST_RC: RC, ST_XRC: XRC, ST_DCT: DC}

EVENTS: Final = {
    NAK_INVALID_REQUEST: completion.EVENT_INVALID_REQUEST,
    NAK_REMOTE_ACCESS: completion.EVENT_ACCESS_ERROR,
    NAK_REMOTE_OPERATION: completion.EVENT_CATASTROPHIC,
}


def reply(hca: "Hca", qp: Qp, packet: Packet) -> None:
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


def outstanding(responder: Responder) -> int:
    """READs and atomics whose answers wait; the same ones may have been asked for again."""
    return sum(isinstance(reply, ReadJob) or reply.op != ACKNOWLEDGE for reply in responder.replies)


def reads_under_way(responder: Responder) -> int:
    """READs whose answers wait or are being sent."""
    return sum(isinstance(job, ReadJob) for job in responder.replies)


def pump(hca: "Hca", qp: Qp, everything: bool = False) -> None:
    """Send answers that wait, a bounded number of bytes per step unless `everything` is asked for."""
    responder = qp.responder
    replies = responder.replies
    budget = READ_BUDGET
    while replies and not responder.stalled:
        job = replies[0]
        if isinstance(job, Packet):
            transmit(hca, qp.port, job)
            replies.popleft()
            continue
        if budget <= 0 and not everything:
            if qp.reply_timer is None:
                qp.reply_timer = Timer(lambda now: pump(hca, qp))
            hca.timers.arm(qp.reply_timer, hca.now_ns + 1)
            return
        sent = _send_read_burst(hca, qp, responder, job)
        if sent < 0:
            return
        budget -= sent
        if job.offset >= job.length:
            replies.popleft()


def _send_read_burst(hca: "Hca", qp: Qp, responder: Responder, job: ReadJob) -> int:
    """Send the next responses of a READ; bytes for the budget, or -1 if its memory has gone."""
    offset = job.offset
    size = min(job.length - offset, BURST_BYTES)
    log_mtu = responder.mtu.bit_length() - 1
    psn = job.psn + (offset >> log_mtu)
    payload = b""
    if size:
        try:
            mkey = remote_check(hca, qp, job.rkey, job.va + offset, size, REMOTE_READ, job.domain)
            assert mkey is not None
            payload = remote_read(hca, mkey, job.va + offset, size)
        except AccessError as error:
            nak = NAK_REMOTE_OPERATION if error.kind == BUS else NAK_REMOTE_ACCESS
            reason = str(error)

            def fail() -> None:
                _read_failed(hca, qp, acknowledgement(hca, qp, psn, nak, job.msn), reason)

            ahead = job.length - offset - size
            if not isinstance(error, PageFault) or not paging.hold_replies(
                hca, qp, error, ahead, lambda: pump(hca, qp), fail
            ):
                fail()
            return -1
    count = packet_count(size, log_mtu)
    packet = _answer(hca, qp, READ_RESPONSE, psn, job.msn)
    packet.payload = payload
    packet.count = count
    packet.start = not offset
    job.offset = offset + size
    packet.end = job.offset == job.length
    packet.syndrome = ACK_NO_CREDITS
    hca.count["tx_packets"] += count
    hca.count["tx_bytes"] += size
    transmit(hca, qp.port, packet)
    return size + 256


def _read_failed(hca: "Hca", qp: Qp, nak: Packet, reason: str) -> None:
    """The memory of a READ under way has gone."""
    hca.note("read_failed", qpn=qp.handle, why=reason)
    qp.responder.replies.clear()
    transmit(hca, qp.port, nak)
    enter_error(hca, qp, reason)
    completion.qp_event(hca, qp, EVENTS[nak.syndrome])


def _answer(hca: "Hca", qp: Qp, op: int, psn: int, msn: int) -> Packet:
    path = qp.path
    assert path is not None
    port = hca.ports[qp.port]
    return Packet(
        path.dlid,
        port.lid | path.mlid & (1 << port.lmc) - 1,
        _WIRE_SERVICE[qp.service],
        op,
        qp.remote_qpn,
        psn & PSN_MASK,
        b"",
        1,
        True,
        True,
        qp.responder.mtu,
        path.sl,
        0,
        path.grh,
        pkey_at(port, qp.pkey_index),
        msn=msn,
    )


def acknowledgement(hca: "Hca", qp: Qp, psn: int, syndrome: int, msn: int) -> Packet:
    """An ACK, or with another `syndrome` an RNR NAK or NAK."""
    packet = _answer(hca, qp, ACKNOWLEDGE, psn, msn)
    packet.syndrome = syndrome
    hca.count["tx_packets"] += 1
    return packet


def atomic_answer(hca: "Hca", qp: Qp, psn: int, original: int, msn: int) -> Packet:
    """The answer to an atomic: the value that it found."""
    packet = _answer(hca, qp, ATOMIC_ACKNOWLEDGE, psn, msn)
    packet.syndrome = ACK_NO_CREDITS
    packet.original = original
    hca.count["tx_packets"] += 1
    return packet
