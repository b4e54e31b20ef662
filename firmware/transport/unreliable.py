"""The responder of unreliable connections: takes messages that arrive whole, drops others without a word (9.8.2)."""

from firmware.memory import (
    STEP_PIECES,
    TOO_SHORT,
    UNLIMITED,
    AccessError,
    Crowded,
    check_scatter,
    remote_check,
    remote_write,
    scatter,
)
from firmware.model.counters import RX_BYTES, Count, QCount
from firmware.model.hca import Hca
from firmware.model.hot import NO_MESSAGE
from firmware.model.objects import REMOTE_WRITE
from firmware.model.psn import PSN_MASK
from firmware.model.qp import RTR, Qp, Responder
from firmware.model.segment import MESSAGE_BYTES_MAX, well_formed
from firmware.queues import take_receive
from firmware.transport import backlog, completion
from firmware.transport.lifecycle import enter_error
from firmware.transport.port import origin
from vhca.hw.memory import DmaError
from vhca.wire.packet import SEND, WRITE, Packet


class Dropped(Exception):
    """The message is dropped, and counted as `reason`."""

    def __init__(self, reason: Count) -> None:
        super().__init__(reason)
        self.reason = reason


def request(hca: Hca, qp: Qp, packet: Packet) -> None:
    """A request packet or burst of an unreliable connection."""
    responder = qp.responder
    if qp.state == RTR and not responder.established:
        responder.established = True
        completion.qp_event(hca, qp, completion.EVENT_ESTABLISHED)
    try:
        _check(responder, packet)
        if packet.op == SEND:
            _send(hca, qp, responder, packet)
        elif packet.op == WRITE:
            _write(hca, qp, responder, packet)
        else:
            raise Dropped(Count.RX_DROP_UC_OPCODE)
    except Crowded as crowded:
        request(hca, qp, backlog.first_part(hca, qp, packet, crowded.covered))
        return
    except Dropped as dropped:
        hca.count[dropped.reason] += 1
        responder.op = NO_MESSAGE
        responder.mkey = None
        responder.offset = 0
    except DmaError as error:
        hca.count[Count.DMA_READ_ERRORS] += 1
        enter_error(hca, qp, str(error))
        completion.qp_event(hca, qp, completion.EVENT_CATASTROPHIC)
        return
    responder.epsn = (packet.psn + packet.count) & PSN_MASK


def _check(responder: Responder, packet: Packet) -> None:
    if packet.start:
        # Whatever was under way is given up (9.8.2.2.2); a receive that it had taken serves the new message.
        # DEVIATION: also one of a shared queue, which would complete in error.
        responder.offset = 0
    elif packet.psn != responder.epsn or responder.op != packet.op:
        raise Dropped(Count.RX_DROP_UC_SEQUENCE)
    if not well_formed(packet, responder.mtu):
        raise Dropped(Count.RX_DROP_MALFORMED)


def _send(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> None:
    recv = responder.recv
    if recv is None:
        recv = take_receive(hca, qp)
        if recv is None:
            qp.count(QCount.OUT_OF_BUFFER)
            raise Dropped(Count.RX_DROP_NO_RECEIVE)
        responder.recv = recv
    payload = packet.payload
    if responder.offset + len(payload) > MESSAGE_BYTES_MAX:
        raise Dropped(Count.RX_DROP_TOO_LONG)
    inline = b""
    try:
        pd = recv.srq.pd if recv.srq is not None else None
        if len(payload) <= qp.inline_receive and packet.start and packet.end:
            check_scatter(hca, qp, recv.segments, len(payload), pd)
            inline = bytes(payload)
        else:
            most = STEP_PIECES if packet.count > 1 else UNLIMITED
            scatter(hca, qp, recv.segments, responder.offset, payload, pd, most)
    except Crowded:
        raise
    except AccessError as error:
        if error.kind == TOO_SHORT:
            raise Dropped(Count.RX_DROP_TOO_LONG) from None
        responder.recv = None
        completion.fail_receive(hca, qp, recv, completion.LOCAL_PROTECTION)
        enter_error(hca, qp, str(error))
        return
    hca.count[RX_BYTES] += len(payload)
    responder.op = SEND
    responder.offset += len(payload)
    if packet.end:
        immediate = packet.immediate
        opcode = completion.RECEIVED_SEND if immediate is None else completion.RECEIVED_SEND_IMM
        _finish(hca, qp, responder, packet, opcode, responder.offset, inline)


def _write(hca: Hca, qp: Qp, responder: Responder, packet: Packet) -> None:
    payload = packet.payload
    size = len(payload)
    if packet.start:
        if not qp.remote_rights & REMOTE_WRITE:
            raise Dropped(Count.RX_DROP_UC_RIGHTS)
        if packet.dma_length > MESSAGE_BYTES_MAX:
            raise Dropped(Count.RX_DROP_UC_LENGTH)
        try:
            responder.mkey = remote_check(hca, qp, packet.rkey, packet.va, packet.dma_length, REMOTE_WRITE)
        except AccessError:
            raise Dropped(Count.RX_DROP_UC_KEY) from None
        responder.va = packet.va
        responder.rkey = packet.rkey
        responder.length = packet.dma_length
    offset = responder.offset
    mkey = responder.mkey
    if offset + size > responder.length or (packet.end and offset + size != responder.length):
        raise Dropped(Count.RX_DROP_UC_LENGTH)
    if packet.end and packet.immediate is not None and responder.recv is None:
        responder.recv = take_receive(hca, qp)
        if responder.recv is None:
            qp.count(QCount.OUT_OF_BUFFER)
            raise Dropped(Count.RX_DROP_NO_RECEIVE)
    if size:
        try:
            if offset:
                # The key may have been destroyed, invalidated or registered anew since the message began.
                mkey = remote_check(hca, qp, responder.rkey, responder.va + offset, size, REMOTE_WRITE)
            assert mkey is not None
            most = STEP_PIECES if packet.count > 1 else UNLIMITED
            remote_write(hca, mkey, responder.va + offset, payload, most)
        except Crowded:
            raise
        except AccessError:
            raise Dropped(Count.RX_DROP_UC_KEY) from None
    hca.count[RX_BYTES] += size
    responder.op = WRITE
    responder.offset = offset + size
    if packet.end:
        qp.count(QCount.RX_WRITE_REQUESTS)
        if packet.immediate is not None:
            _finish(hca, qp, responder, packet, completion.RECEIVED_WRITE_IMM, responder.length)
        else:
            responder.op = NO_MESSAGE


def _finish(
    hca: Hca, qp: Qp, responder: Responder, packet: Packet, opcode: int, size: int, inline: bytes = b""
) -> None:
    recv = responder.recv
    assert recv is not None
    responder.recv = None
    responder.op = NO_MESSAGE
    alive = completion.complete_receive(
        hca,
        qp,
        recv,
        opcode,
        size,
        packet.immediate or 0,
        packet.solicited,
        origin=origin(hca.ports[qp.port], packet),
        source_qpn=qp.remote_qpn,
        inline=inline,
    )
    if not alive:
        enter_error(hca, qp, "the receive CQ is dead")
