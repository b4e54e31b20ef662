"""The responder of reliable connections: executes requests in PSN order and answers every one of them.

The order of the checks is that of volume 1, 9.7.4.1: PSN, opcode sequence, opcode support, resources, key, length; each
request calls the steps in that order (tests/scenario/test_order_of_checks.py). What
a peer does wrong is answered with a NAK and, where the book says so, takes the queue pair into ERR with an event.
"""

from firmware.memory import (
    BUS,
    STEP_PIECES,
    TOO_SHORT,
    UNLIMITED,
    AccessError,
    Crowded,
    PageFault,
    check_scatter,
    remote_check,
    remote_read,
    remote_write,
    scatter,
)
from firmware.model.counters import RX_BYTES, Count, QCount
from firmware.model.hca import Hca
from firmware.model.hot import NO_MESSAGE
from firmware.model.objects import ANY_QPN, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, SRQ_XRC, Srq, Waiter
from firmware.model.psn import PSN_HALF, PSN_MASK
from firmware.model.qp import ERR, RTR, ST_XRC, Qp, ReadJob, Resource, Responder
from firmware.model.rings import RecvWqe
from firmware.model.segment import MESSAGE_BYTES_MAX, packet_count, well_formed
from firmware.queues import take_receive, take_shared_receive
from firmware.transport import account, backlog, completion, page_waits
from firmware.transport.lifecycle import enter_error
from firmware.transport.port import origin
from firmware.transport.replies import (
    EVENTS,
    acknowledgement,
    answer_again,
    answer_atomic,
    begin,
    refuse,
    reply,
    too_many,
)
from firmware.transport.syndromes import (
    ACK_NO_CREDITS,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
    NAK_SEQUENCE,
    RNR_NAK,
)
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


class RequestError(Exception):
    """A request is refused with a NAK; `recv_syndrome` is the error of a receive that was under way.

    The host is told by an event: `wrong_access` if what the request asks for is wrong and not its opcode.
    """

    def __init__(
        self, nak: int, reason: str, recv_syndrome: int = completion.FLUSHED, wrong_access: bool = False
    ) -> None:
        super().__init__(reason)
        self.nak = nak
        self.recv_syndrome = recv_syndrome
        self.event = completion.EVENT_ACCESS_ERROR if wrong_access else EVENTS[nak]


def request(hca: Hca, qp: Qp, packet: Packet) -> None:
    """A request packet or burst for the receive side of `qp`."""
    responder = qp.responder
    if responder.replies:
        if responder.refusing or too_many(responder):
            hca.count[Count.RX_DROP_REFUSED if responder.refusing else Count.RX_DROP_REPLIES] += 1
            return
        account.settle(hca, qp)
        if hca.budget.full:
            hca.count[Count.RX_DROP_CARD_MEMORY] += 1
            return
    # check_psn (9.7.4.1.2)
    ahead = (packet.psn - responder.epsn) & PSN_MASK
    if ahead:
        if ahead < PSN_HALF:
            _out_of_sequence(hca, qp, responder)
            return
        behind = PSN_MASK + 1 - ahead
        if packet.op > WRITE or packet.count <= behind:
            _duplicate(hca, qp, responder, packet)
            return
        # The first packets of the burst were executed already; the rest is new.
        packet = cut(packet, behind)
        hca.count[Count.RX_DUPLICATE_REQUESTS] += 1
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
        _refuse(hca, qp, error)
    except Crowded as crowded:
        request(hca, qp, backlog.first_part(hca, qp, packet, crowded.covered))
    except PageFault as fault:
        _not_present(hca, qp, responder, packet, fault)
    except AccessError as error:
        nak = NAK_REMOTE_OPERATION if error.kind == BUS else NAK_REMOTE_ACCESS
        _refuse(hca, qp, RequestError(nak, str(error)))
    except DmaError as error:
        hca.count[Count.DMA_READ_ERRORS] += 1
        _refuse(hca, qp, RequestError(NAK_REMOTE_OPERATION, str(error)))


def _out_of_sequence(hca: Hca, qp: Qp, responder: Responder) -> None:
    """A packet is missing: say once which one is expected (9.7.5.2.3)."""
    hca.count[Count.RX_OUT_OF_SEQUENCE] += 1
    qp.count(QCount.OUT_OF_SEQUENCE)
    if not responder.nak_sent:
        responder.nak_sent = True
        hca.count[Count.NAKS] += 1
        reply(hca, qp, acknowledgement(hca, qp, responder.epsn, NAK_SEQUENCE, responder.msn))


def _duplicate(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> None:
    """A request that was executed already (9.7.5.1.4): acknowledge it again, or give the same answer again."""
    hca.count[Count.RX_DUPLICATE_REQUESTS] += 1
    qp.count(QCount.DUPLICATE_REQUEST)
    op = packet.op
    if op <= WRITE:
        reply(hca, qp, acknowledgement(hca, qp, responder.epsn - 1, ACK_NO_CREDITS, responder.msn))
        return
    resource = _original(responder, packet)
    if resource is None or not answer_again(hca, qp, resource, packet):
        hca.count[Count.RX_DROP_STALE_DUPLICATE] += 1


def _original(responder: Responder, packet: Packet) -> Resource | None:
    """The READ or atomic that `packet` repeats; None if there was none, or what it asks for is no part of it.

    The newest is looked at first: an old one may have the same number, a whole lap of PSNs ago.
    """
    for resource in reversed(responder.resources):
        into = (packet.psn - resource.psn) & PSN_MASK
        if into >= resource.count:
            continue
        skipped = into * responder.mtu
        if (
            packet.op == resource.op
            and packet.rkey == resource.rkey
            and packet.va == resource.va + skipped
            and (packet.op != READ_REQUEST or packet.dma_length <= resource.length - skipped)
        ):
            return resource
        break
    return None


# The steps of a request's validation, in the order of the book; each request goes through them in that order.


def _check_sequence(responder: Responder, packet: Packet) -> None:
    """Opcode sequence (9.7.4.1.3): a message starts when none is under way, and goes on with its own operation."""
    if packet.start:
        if responder.op != NO_MESSAGE:
            raise RequestError(NAK_INVALID_REQUEST, "a new message starts inside another one")
    elif responder.op != packet.op:
        raise RequestError(NAK_INVALID_REQUEST, "a packet continues a message that has not started")
    if not well_formed(packet, responder.mtu):
        raise RequestError(
            NAK_INVALID_REQUEST, "the payload does not fit the place of the packet in its message", wrong_access=True
        )


def _check_single(responder: Responder, packet: Packet) -> None:
    """Opcode sequence of READs and atomics: each is a message of one packet."""
    if responder.op != NO_MESSAGE:
        raise RequestError(NAK_INVALID_REQUEST, "a READ or atomic inside another message")
    if not (packet.start and packet.end) or packet.count != 1 or packet.payload:
        raise RequestError(NAK_INVALID_REQUEST, "a READ or atomic is one packet without payload")


def _unsupported(reason: str) -> RequestError:
    """Opcode support (9.7.4.1.4): this kind of remote access is not enabled on the queue pair."""
    return RequestError(NAK_INVALID_REQUEST, reason)


def _check_receive(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> bool:
    """Resources (9.7.4.1.5): the receive of a message; False if there is none, and the peer was asked to wait."""
    # One that was taken before its pages were found missing serves the message that comes again.
    if responder.recv is None:
        responder.recv = _take(hca, qp, packet)
        if responder.recv is None:
            _not_ready(hca, qp, responder, packet)
            return False
    return True


def _check_resources(responder: Responder) -> None:
    """Resources: a peer may have so many READs and atomics outstanding as was agreed on (9.4.4), not counting answered.

    Answers leave in order, so that the oldest resource is free first.
    """
    resources = responder.resources
    if len(resources) >= responder.resource_limit and not resources[0].answered:
        raise RequestError(
            NAK_INVALID_REQUEST, "more READs and atomics outstanding than there are resources for", wrong_access=True
        )


def _wrong_length(reason: str) -> RequestError:
    """Length (9.7.4.1.7), behind the check of the key, which looks at the whole range (9.7.4.1.6)."""
    return RequestError(NAK_INVALID_REQUEST, reason, wrong_access=True)


def _write(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> None:
    """RDMA WRITE, with or without immediate data (9.7.4.1, 9.4.2)."""
    payload = packet.payload
    size = len(payload)
    end = packet.end
    immediate = packet.immediate
    takes_receive = end and immediate is not None
    _check_sequence(responder, packet)
    if packet.start:
        offset, length, va = 0, packet.dma_length, packet.va
        if not qp.remote_rights & REMOTE_WRITE:
            raise _unsupported("RDMA WRITE is not enabled")
    else:
        offset, length, va = responder.offset, responder.length, responder.va
    if takes_receive and not _check_receive(hca, qp, responder, packet):
        return
    if packet.start:
        mkey = remote_check(hca, qp, packet.rkey, va, length, REMOTE_WRITE, responder.domain)
        if length > MESSAGE_BYTES_MAX:
            raise _wrong_length("RETH.dma_length is above 2**31")
        responder.rkey = packet.rkey
    else:
        mkey = responder.mkey
    if offset + size > length or (end and offset + size != length):
        raise _wrong_length("more or less data than RETH.dma_length says")
    if size:
        if offset:
            # The key may have been destroyed, invalidated or registered anew since the message began.
            mkey = remote_check(hca, qp, responder.rkey, va + offset, size, REMOTE_WRITE, responder.domain)
        assert mkey is not None
        remote_write(hca, mkey, va + offset, payload, STEP_PIECES if packet.count > 1 else UNLIMITED)
    hca.count[RX_BYTES] += size
    responder.epsn = (packet.psn + packet.count) & PSN_MASK
    if not end:
        responder.op = WRITE
        responder.mkey = mkey
        responder.offset = offset + size
        responder.length = length
        responder.va = va
    else:
        recv = None
        if takes_receive:
            # A receive that a SEND holds, whose pages were missing, is not this message's.
            recv, responder.recv = responder.recv, None
        responder.op = NO_MESSAGE
        responder.mkey = None
        responder.msn = responder.msn + 1 & PSN_MASK
        if qp.counter is not None:
            qp.count(QCount.RX_WRITE_REQUESTS)
        if takes_receive:
            assert recv is not None
            assert immediate is not None
            _complete(hca, qp, recv, completion.RECEIVED_WRITE_IMM, length, immediate, packet)
    if packet.ack_req and qp.state != ERR:
        reply(hca, qp, acknowledgement(hca, qp, packet.psn + packet.count - 1, ACK_NO_CREDITS, responder.msn))


def _send(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> None:
    """SEND, with immediate data or a key to invalidate (9.4.1)."""
    _check_sequence(responder, packet)
    if packet.start:
        if not _check_receive(hca, qp, responder, packet):
            return
        responder.offset = 0
    recv = responder.recv
    if recv is None:
        raise RequestError(NAK_INVALID_REQUEST, "a packet continues a message that has not started")
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
            scatter(hca, qp, recv.segments, offset, payload, pd, STEP_PIECES if packet.count > 1 else UNLIMITED)
    except (PageFault, Crowded):
        raise
    except AccessError as error:
        if error.kind == TOO_SHORT:
            raise RequestError(NAK_INVALID_REQUEST, str(error), completion.LOCAL_LENGTH) from None
        raise RequestError(NAK_REMOTE_OPERATION, str(error), completion.LOCAL_PROTECTION) from None
    hca.count[RX_BYTES] += size
    responder.op = SEND
    responder.offset = offset + size
    if packet.end:
        _finish_send(hca, qp, responder, recv, packet, inline)
    responder.epsn = (packet.psn + packet.count) & PSN_MASK
    if packet.ack_req and qp.state != ERR:
        reply(hca, qp, acknowledgement(hca, qp, packet.psn + packet.count - 1, ACK_NO_CREDITS, responder.msn))


def _finish_send(hca: Hca, qp: Qp, responder: Responder, recv: RecvWqe, packet: Packet, inline: bytes) -> None:
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


def invalidate(hca: Hca, qp: Qp, rkey: int) -> None:
    """The peer takes a key back that was given to it (9.4.1.1); raises RequestError if it may not.

    DEVIATION: a NAK tells the peer at once; by the book the receive alone has the error, and the peer gets no answer.
    """
    mkey = hca.mkeys.get(rkey >> 8)
    if (
        mkey is None
        or mkey.variant != rkey & 0xFF
        or mkey.free
        or not mkey.remote_invalidate
        or mkey.pd != (qp.pd if qp.responder.domain is None else qp.responder.domain)
        or mkey.qpn not in (ANY_QPN, qp.handle)
    ):
        if hca.history is not None and (mkey is None or mkey.variant != rkey & 0xFF or mkey.free):
            hca.history.refused_key(hca.now_ns, rkey, mkey, f"SEND_INV of the peer of QP {qp.handle:#x}")
        raise RequestError(NAK_REMOTE_ACCESS, "SEND with invalidate names a key that it may not invalidate")
    mkey.free = True
    if hca.history is not None:
        hca.history.key_changed(hca.now_ns, mkey, mkey.variant, False, f"SEND_INV of the peer of QP {qp.handle:#x}")
    hca.count[Count.REMOTE_INVALIDATES] += 1


def _complete(
    hca: Hca, qp: Qp, recv: RecvWqe, opcode: int, size: int, extra: int, packet: Packet, inline: bytes = b""
) -> None:
    alive = completion.complete_receive(
        hca,
        qp,
        recv,
        opcode,
        size,
        extra,
        packet.solicited,
        origin=origin(hca.ports[qp.port], packet),
        source_qpn=qp.remote_qpn,
        grh=0,
        inline=inline,
    )
    if not alive:
        enter_error(hca, qp, "the receive CQ is dead")


def _take(hca: Hca, qp: Qp, packet: Packet) -> RecvWqe | None:
    """The receive WQE of a message; for XRC from the SRQ that the packet names."""
    if qp.service != ST_XRC:
        return take_receive(hca, qp)
    return take_shared_receive(hca, _shared_queue(hca, qp, packet))


def _shared_queue(hca: Hca, qp: Qp, packet: Packet) -> Srq:
    """The SRQ that an XRC request names: it must belong to the XRC domain of the target."""
    srq = hca.srqs.get(packet.xrc_srqn)
    if srq is None or srq.kind != SRQ_XRC or srq.xrcd != qp.context.xrcd:
        raise RequestError(NAK_INVALID_REQUEST, "XRCETH names no shared receive queue of this domain")
    return srq


def _not_ready(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> None:
    """No receive is posted: ask the peer to wait (9.7.5.2.8). What follows is dropped until it comes again."""
    qp.count(QCount.OUT_OF_BUFFER)
    _ask_to_wait(hca, qp, responder, packet, qp.min_rnr_nak)


def _ask_to_wait(hca: Hca, qp: Qp, responder: Responder, packet: Packet, code: int) -> None:
    responder.nak_sent = True
    hca.count[Count.RNR_NAKS] += 1
    reply(hca, qp, acknowledgement(hca, qp, packet.psn, RNR_NAK | code, responder.msn))


def _not_present(hca: Hca, qp: Qp, responder: Responder, packet: Packet, fault: PageFault) -> None:
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
    if page_waits.hold_request(hca, qp, fault, ahead, (error.nak, error.recv_syndrome, error.event)):
        _ask_to_wait(hca, qp, responder, packet, page_waits.receiver_code(qp))
    else:
        _refuse(hca, qp, error)


def resume(hca: Hca, waiter: Waiter, good: bool) -> None:
    """The pages of a request have come, or will not; if they have, the peer sends it again."""
    qp: Qp = waiter.qp
    waiter.side.paging = False
    if not good and page_waits.alive(qp, waiter.side):
        nak, recv_syndrome, event = waiter.item
        refuse(hca, qp, nak, recv_syndrome, event, waiter.reason)


def _read(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> None:
    """RDMA READ: the answer is data (9.4.3)."""
    length = packet.dma_length
    va, rkey, domain = packet.va, packet.rkey, responder.domain
    _check_single(responder, packet)
    if not qp.remote_rights & REMOTE_READ:
        raise _unsupported("RDMA READ is not enabled")
    _check_resources(responder)
    remote_check(hca, qp, rkey, va, length, REMOTE_READ, domain)
    if length > MESSAGE_BYTES_MAX:
        raise _wrong_length("RETH.dma_length is above 2**31")
    count = packet_count(length, responder.mtu.bit_length() - 1)
    responder.epsn = (packet.psn + count) & PSN_MASK
    responder.msn = responder.msn + 1 & PSN_MASK
    qp.count(QCount.RX_READ_REQUESTS)
    resource = Resource(packet.psn, count, READ_REQUEST, va, rkey, length, domain=domain)
    _remember(responder, resource)
    responder.replies.append(ReadJob(resource, packet.psn, va, length, responder.msn))
    begin(hca, qp)


def _remember(responder: Responder, resource: Resource) -> None:
    resources = responder.resources
    resources.append(resource)
    while len(resources) > responder.resource_limit:
        del resources[0]


def _atomic(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> None:
    """Compare-and-swap or fetch-and-add on 8 bytes of host memory, in host order (9.4.5)."""
    va = packet.va
    _check_single(responder, packet)
    if not qp.remote_rights & REMOTE_ATOMIC:
        raise _unsupported("atomics are not enabled")
    _check_resources(responder)
    mkey = remote_check(hca, qp, packet.rkey, va, 8, REMOTE_ATOMIC, responder.domain)
    assert mkey is not None
    if va & 7:
        raise _wrong_length("the address of an atomic is a multiple of 8")
    original = int.from_bytes(remote_read(hca, mkey, va, 8), "little")
    if packet.op == FETCH_ADD:
        value = (original + packet.swap_add) & 0xFFFFFFFFFFFFFFFF
    else:
        value = packet.swap_add if original == packet.compare else original
    if value != original:
        remote_write(hca, mkey, va, value.to_bytes(8, "little"))
    responder.epsn = (packet.psn + 1) & PSN_MASK
    responder.msn = responder.msn + 1 & PSN_MASK
    qp.count(QCount.RX_ATOMIC_REQUESTS)
    resource = Resource(packet.psn, 1, packet.op, va, packet.rkey, original=original)
    _remember(responder, resource)
    answer_atomic(hca, qp, resource)


def _refuse(hca: Hca, qp: Qp, error: RequestError) -> None:
    refuse(hca, qp, error.nak, error.recv_syndrome, error.event, str(error))
