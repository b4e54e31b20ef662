"""The responder of reliable connections: executes requests in PSN order and answers every one of them.

The order of the checks is that of volume 1, 9.7.4.1: PSN, opcode sequence, opcode support, resources, key, length. What
a peer does wrong is answered with a NAK and, where the book says so, takes the queue pair into ERR with an event.
"""

from typing import TYPE_CHECKING, Final

from firmware.memory import (
    BUS,
    TOO_SHORT,
    AccessError,
    PageFault,
    check_scatter,
    remote_check,
    remote_read,
    remote_write,
    scatter,
)
from firmware.objects import ANY_QPN, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, SRQ_XRC, Srq
from firmware.queues import RecvWqe, take_receive, take_shared_receive
from firmware.transport import completion, paging
from firmware.transport.port import transmit
from firmware.transport.psn import HALF, PSN_MASK
from firmware.transport.qp import ERR, RTR, ST_XRC, Qp, ReadJob, Resource, Responder
from firmware.transport.replies import (
    ACK_NO_CREDITS,
    EVENTS,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
    NAK_SEQUENCE,
    RNR_NAK,
    acknowledgement,
    atomic_answer,
    outstanding,
    pump,
    reads_under_way,
    reply,
)
from firmware.transport.segment import MESSAGE_BYTES_MAX, packet_count, well_formed
from firmware.transport.state import enter_error
from vhca.hw.memory import DmaError
from vhca.wire.ib import cut
from vhca.wire.packet import (
    COMPARE_SWAP,
    FETCH_ADD,
    READ_REQUEST,
    SEND,
    WRITE,
    Packet,
)

if TYPE_CHECKING:
    from firmware.hca import Hca

NO_MESSAGE: Final = -1


class RequestError(Exception):
    """A request is refused with a NAK; `recv_syndrome` is the error of a receive that was under way."""

    def __init__(self, nak: int, reason: str, recv_syndrome: int = completion.FLUSHED) -> None:
        super().__init__(reason)
        self.nak = nak
        self.recv_syndrome = recv_syndrome


def request(hca: "Hca", qp: Qp, packet: Packet) -> None:
    """A request packet or burst for the receive side of `qp`."""
    responder = qp.responder
    # check_psn (9.7.4.1.2)
    ahead = (packet.psn - responder.epsn) & PSN_MASK
    if ahead:
        if ahead < HALF:
            _out_of_sequence(hca, qp, responder)
            return
        behind = PSN_MASK + 1 - ahead
        if packet.op > WRITE or packet.count <= behind:
            _duplicate(hca, qp, responder, packet)
            return
        # The first packets of the burst were executed already; the rest is new.
        packet = cut(packet, behind)
        hca.count["rx_duplicate_requests"] += 1
    responder.nak_sent = False
    if qp.state == RTR and not responder.established:
        responder.established = True
        completion.qp_event(hca, qp, completion.EVENT_ESTABLISHED)
    op = packet.op
    try:
        if qp.service == ST_XRC:
            responder.domain = _shared_queue(hca, qp, packet).pd
        if op == WRITE:
            _write(hca, qp, responder, packet)
        elif op == SEND:
            _send(hca, qp, responder, packet)
        elif op == READ_REQUEST:
            _read(hca, qp, responder, packet)
        elif op in (COMPARE_SWAP, FETCH_ADD):
            _atomic(hca, qp, responder, packet)
        else:
            raise RequestError(NAK_INVALID_REQUEST, "this operation is not a request")
    except RequestError as error:
        _refuse(hca, qp, responder, error)
    except PageFault as fault:
        _not_present(hca, qp, responder, packet, fault)
    except AccessError as error:
        nak = NAK_REMOTE_OPERATION if error.kind == BUS else NAK_REMOTE_ACCESS
        _refuse(hca, qp, responder, RequestError(nak, str(error)))
    except DmaError as error:
        hca.count["dma_read_errors"] += 1
        _refuse(hca, qp, responder, RequestError(NAK_REMOTE_OPERATION, str(error)))


def _out_of_sequence(hca: "Hca", qp: Qp, responder: Responder) -> None:
    """A packet is missing: say once which one is expected (9.7.5.2.3)."""
    hca.count["rx_out_of_sequence"] += 1
    qp.count("out_of_sequence")
    if not responder.nak_sent:
        responder.nak_sent = True
        hca.count["naks"] += 1
        reply(hca, qp, acknowledgement(hca, qp, responder.epsn, NAK_SEQUENCE, responder.msn))


def _duplicate(hca: "Hca", qp: Qp, responder: Responder, packet: Packet) -> None:
    """A request that was executed already (9.7.5.1.4): acknowledge it again, or give the same answer again."""
    hca.count["rx_duplicate_requests"] += 1
    qp.count("duplicate_request")
    op = packet.op
    if op <= WRITE:
        reply(hca, qp, acknowledgement(hca, qp, responder.epsn - 1, ACK_NO_CREDITS, responder.msn))
        return
    for resource in responder.resources:
        into = (packet.psn - resource.psn) & PSN_MASK
        if resource.op != op or into >= resource.count:
            continue
        if op == READ_REQUEST:
            if packet.dma_length > resource.length or responder.stalled:
                break
            if outstanding(responder) > responder.resource_limit:
                # The same question again and again: the answers that wait are answer enough.
                break
            job = ReadJob(packet.psn, packet.va, packet.rkey, packet.dma_length, responder.msn, resource.domain)
            responder.replies.append(job)
            pump(hca, qp)
        elif outstanding(responder) <= responder.resource_limit:
            reply(hca, qp, atomic_answer(hca, qp, packet.psn, resource.original, responder.msn))
        return
    hca.count["rx_drop_stale_duplicate"] += 1


def _check_sequence(qp: Qp, responder: Responder, packet: Packet) -> None:
    """check_op_seq (9.7.4.1.3): a message starts when none is under way, and goes on with its own operation."""
    if packet.start:
        if responder.op != NO_MESSAGE:
            raise RequestError(NAK_INVALID_REQUEST, "a new message starts inside another one")
    elif responder.op != packet.op:
        raise RequestError(NAK_INVALID_REQUEST, "a packet continues a message that has not started")
    if not well_formed(packet, responder.mtu):
        raise RequestError(NAK_INVALID_REQUEST, "the payload does not fit the place of the packet in its message")


def _write(hca: "Hca", qp: Qp, responder: Responder, packet: Packet) -> None:
    """RDMA WRITE, with or without immediate data (9.7.4.1, 9.4.2)."""
    _check_sequence(qp, responder, packet)
    payload = packet.payload
    size = len(payload)
    end = packet.end
    immediate = packet.immediate
    if packet.start:
        if not qp.remote_rights & REMOTE_WRITE:
            raise RequestError(NAK_INVALID_REQUEST, "RDMA WRITE is not enabled")
        mkey = remote_check(hca, qp, packet.rkey, packet.va, packet.dma_length, REMOTE_WRITE, responder.domain)
        offset = 0
        length = packet.dma_length
        va = packet.va
        responder.rkey = packet.rkey
    else:
        mkey = responder.mkey
        offset = responder.offset
        length = responder.length
        va = responder.va
    if offset + size > length or (end and offset + size != length):
        raise RequestError(NAK_INVALID_REQUEST, "more or less data than RETH.dma_length says")
    recv = None
    if end and immediate is not None:
        # One that was taken before its pages were found missing serves the message that comes again.
        recv = responder.recv or _take(hca, qp, packet)
        if recv is None:
            _not_ready(hca, qp, responder, packet)
            return
        responder.recv = recv
    if size:
        if offset:
            # The key may have been destroyed, invalidated or registered anew since the message began.
            mkey = remote_check(hca, qp, responder.rkey, va + offset, size, REMOTE_WRITE, responder.domain)
        assert mkey is not None
        remote_write(hca, mkey, va + offset, payload)
    hca.count["rx_bytes"] += size
    responder.epsn = (packet.psn + packet.count) & PSN_MASK
    if not end:
        responder.op = WRITE
        responder.mkey = mkey
        responder.offset = offset + size
        responder.length = length
        responder.va = va
    else:
        responder.op = NO_MESSAGE
        responder.mkey = None
        responder.recv = None
        responder.msn = responder.msn + 1 & PSN_MASK
        if qp.counter is not None:
            qp.count("rx_write_requests")
        if recv is not None:
            assert immediate is not None
            _complete(hca, qp, recv, completion.RECEIVED_WRITE_IMM, length, immediate, packet)
    if packet.ack_req and qp.state != ERR:
        reply(hca, qp, acknowledgement(hca, qp, packet.psn + packet.count - 1, ACK_NO_CREDITS, responder.msn))


def _send(hca: "Hca", qp: Qp, responder: Responder, packet: Packet) -> None:
    """SEND, with immediate data or a key to invalidate (9.4.1)."""
    _check_sequence(qp, responder, packet)
    if packet.start:
        recv = responder.recv or _take(hca, qp, packet)
        if recv is None:
            _not_ready(hca, qp, responder, packet)
            return
        responder.offset = 0
        responder.recv = recv
    else:
        taken = responder.recv
        if taken is None:
            raise RequestError(NAK_INVALID_REQUEST, "a packet continues a message that has not started")
        recv = taken
    offset = responder.offset
    payload = packet.payload
    size = len(payload)
    if offset + size > MESSAGE_BYTES_MAX:
        raise RequestError(NAK_INVALID_REQUEST, "no message is longer than 2**31 bytes", completion.LOCAL_LENGTH)
    inline = b""
    try:
        pd = recv.srq.pd if recv.srq is not None else None
        if size <= qp.inline_receive and packet.start and packet.end:
            check_scatter(hca, qp, recv.segments, size, pd)
            inline = bytes(payload)
        else:
            scatter(hca, qp, recv.segments, offset, payload, pd)
    except PageFault:
        raise
    except AccessError as error:
        if error.kind == TOO_SHORT:
            raise RequestError(NAK_INVALID_REQUEST, str(error), completion.LOCAL_LENGTH) from None
        raise RequestError(NAK_REMOTE_OPERATION, str(error), completion.LOCAL_PROTECTION) from None
    hca.count["rx_bytes"] += size
    responder.op = SEND
    responder.offset = offset + size
    if packet.end:
        _finish_send(hca, qp, responder, recv, packet, inline)
    responder.epsn = (packet.psn + packet.count) & PSN_MASK
    if packet.ack_req and qp.state != ERR:
        reply(hca, qp, acknowledgement(hca, qp, packet.psn + packet.count - 1, ACK_NO_CREDITS, responder.msn))


def _finish_send(hca: "Hca", qp: Qp, responder: Responder, recv: RecvWqe, packet: Packet, inline: bytes) -> None:
    opcode = completion.RECEIVED_SEND
    extra = 0
    if packet.invalidate_rkey is not None:
        extra = packet.invalidate_rkey
        opcode = completion.RECEIVED_SEND_INVALIDATE
        invalidate(hca, qp, extra)
    elif packet.immediate is not None:
        extra = packet.immediate
        opcode = completion.RECEIVED_SEND_IMM
    responder.op = NO_MESSAGE
    responder.recv = None
    responder.msn = responder.msn + 1 & PSN_MASK
    _complete(hca, qp, recv, opcode, responder.offset, extra, packet, inline)


def invalidate(hca: "Hca", qp: Qp, rkey: int) -> None:
    """The peer takes a key back that was given to it (9.4.1.1); raises RequestError if it may not."""
    mkey = hca.mkeys.get(rkey >> 8)
    if (
        mkey is None
        or mkey.variant != rkey & 0xFF
        or mkey.free
        or not mkey.remote_invalidate
        or mkey.pd != (qp.pd if qp.responder.domain is None else qp.responder.domain)
        or mkey.qpn not in (ANY_QPN, qp.handle)
    ):
        raise RequestError(NAK_REMOTE_ACCESS, "SEND with invalidate names a key that it may not invalidate")
    mkey.free = True
    hca.count["remote_invalidates"] += 1


def _complete(
    hca: "Hca", qp: Qp, recv: RecvWqe, opcode: int, size: int, extra: int, packet: Packet, inline: bytes = b""
) -> None:
    alive = completion.complete_receive(
        hca,
        qp,
        recv,
        opcode,
        size,
        extra,
        packet.solicited,
        slid=packet.slid,
        sl=packet.sl,
        source_qpn=qp.remote_qpn,
        grh=0,
        inline=inline,
    )
    if not alive:
        enter_error(hca, qp, "the receive CQ is dead")


def _take(hca: "Hca", qp: Qp, packet: Packet) -> RecvWqe | None:
    """check_resources (9.7.4.1.5): the receive WQE of a message; for XRC from the SRQ that the packet names."""
    if qp.service != ST_XRC:
        return take_receive(hca, qp)
    return take_shared_receive(hca, _shared_queue(hca, qp, packet))


def _shared_queue(hca: "Hca", qp: Qp, packet: Packet) -> Srq:
    """The SRQ that an XRC request names: it must belong to the XRC domain of the target."""
    srq = hca.srqs.get(packet.xrc_srqn)
    if srq is None or srq.kind != SRQ_XRC or srq.xrcd != qp.context.xrcd:
        raise RequestError(NAK_INVALID_REQUEST, "XRCETH names no shared receive queue of this domain")
    return srq


def _not_ready(hca: "Hca", qp: Qp, responder: Responder, packet: Packet) -> None:
    """No receive is posted: ask the peer to wait (9.7.5.2.8). What follows is dropped until it comes again."""
    qp.count("out_of_buffer")
    _ask_to_wait(hca, qp, responder, packet, qp.min_rnr_nak)


def _ask_to_wait(hca: "Hca", qp: Qp, responder: Responder, packet: Packet, code: int) -> None:
    responder.nak_sent = True
    hca.count["rnr_naks"] += 1
    reply(hca, qp, acknowledgement(hca, qp, packet.psn, RNR_NAK | code, responder.msn))


def _not_present(hca: "Hca", qp: Qp, responder: Responder, packet: Packet, fault: PageFault) -> None:
    """Pages of the request's memory are missing: ask the host for them, and the peer to come again.

    DEVIATION: the RNR NAK may answer a packet in the middle of a message, or one that needs no receive.
    """
    if packet.op == SEND:
        error = RequestError(NAK_REMOTE_OPERATION, str(fault), completion.LOCAL_PROTECTION)
    else:
        error = RequestError(NAK_REMOTE_ACCESS, str(fault))
    ahead = 0
    if packet.op == WRITE:
        length, offset = (packet.dma_length, 0) if packet.start else (responder.length, responder.offset)
        ahead = max(0, length - offset - len(packet.payload))
    if paging.hold_request(hca, qp, fault, ahead, lambda: _refuse(hca, qp, responder, error)):
        _ask_to_wait(hca, qp, responder, packet, paging.receiver_code(qp))
    else:
        _refuse(hca, qp, responder, error)


def _read(hca: "Hca", qp: Qp, responder: Responder, packet: Packet) -> None:
    """RDMA READ: the answer is data (9.4.3)."""
    _check_single(responder, packet)
    if not qp.remote_rights & REMOTE_READ:
        raise RequestError(NAK_INVALID_REQUEST, "RDMA READ is not enabled")
    length = packet.dma_length
    if length > 1 << 31:
        raise RequestError(NAK_INVALID_REQUEST, "RETH.dma_length is above 2**31")
    limit = responder.resource_limit
    if len(responder.replies) >= limit and reads_under_way(responder) >= limit:
        raise RequestError(NAK_INVALID_REQUEST, "more READs outstanding than the responder has resources for")
    remote_check(hca, qp, packet.rkey, packet.va, length, REMOTE_READ, responder.domain)
    count = packet_count(length, responder.mtu.bit_length() - 1)
    responder.epsn = (packet.psn + count) & PSN_MASK
    responder.msn = responder.msn + 1 & PSN_MASK
    qp.count("rx_read_requests")
    _remember(responder, Resource(packet.psn, count, READ_REQUEST, length, domain=responder.domain))
    responder.replies.append(ReadJob(packet.psn, packet.va, packet.rkey, length, responder.msn, responder.domain))
    pump(hca, qp)


def _check_single(responder: Responder, packet: Packet) -> None:
    if responder.op != NO_MESSAGE:
        raise RequestError(NAK_INVALID_REQUEST, "a READ or atomic inside another message")
    if not (packet.start and packet.end) or packet.count != 1 or packet.payload:
        raise RequestError(NAK_INVALID_REQUEST, "a READ or atomic is one packet without payload")


def _remember(responder: Responder, resource: Resource) -> None:
    resources = responder.resources
    resources.append(resource)
    while len(resources) > responder.resource_limit:
        resources.popleft()


def _atomic(hca: "Hca", qp: Qp, responder: Responder, packet: Packet) -> None:
    """Compare-and-swap or fetch-and-add on 8 bytes of host memory, in host order (9.4.5)."""
    _check_single(responder, packet)
    if not qp.remote_rights & REMOTE_ATOMIC:
        raise RequestError(NAK_INVALID_REQUEST, "atomics are not enabled")
    if outstanding(responder) > responder.resource_limit:
        raise RequestError(NAK_INVALID_REQUEST, "more atomics outstanding than the responder has resources for")
    va = packet.va
    if va & 7:
        raise RequestError(NAK_INVALID_REQUEST, "the address of an atomic is a multiple of 8")
    mkey = remote_check(hca, qp, packet.rkey, va, 8, REMOTE_ATOMIC, responder.domain)
    assert mkey is not None
    original = int.from_bytes(remote_read(hca, mkey, va, 8), "little")
    if packet.op == FETCH_ADD:
        value = (original + packet.swap_add) & 0xFFFFFFFFFFFFFFFF
    else:
        value = packet.swap_add if original == packet.compare else original
    if value != original:
        remote_write(hca, mkey, va, value.to_bytes(8, "little"))
    responder.epsn = (packet.psn + 1) & PSN_MASK
    responder.msn = responder.msn + 1 & PSN_MASK
    qp.count("rx_atomic_requests")
    _remember(responder, Resource(packet.psn, 1, packet.op, original=original))
    reply(hca, qp, atomic_answer(hca, qp, packet.psn, original, responder.msn))


def _refuse(hca: "Hca", qp: Qp, responder: Responder, error: RequestError) -> None:
    """Answer with a NAK and enter ERR (9.9.3.2): earlier answers go out first, the receive under way fails."""
    hca.count["naks"] += 1
    hca.note("request_refused", qpn=qp.handle, nak=error.nak, why=str(error))
    if error.nak == NAK_REMOTE_ACCESS:
        qp.count("resp_remote_access_errors")
    elif error.nak == NAK_INVALID_REQUEST:
        qp.count("resp_remote_invalid_request")
    pump(hca, qp, everything=True)
    transmit(hca, qp.port, acknowledgement(hca, qp, responder.epsn, error.nak, responder.msn))
    recv = responder.recv
    if recv is not None:
        responder.recv = None
        completion.fail_receive(hca, qp, recv, error.recv_syndrome)
    enter_error(hca, qp, str(error))
    completion.qp_event(hca, qp, EVENTS[error.nak])
