"""The datagram engine: UD queue pairs and the management queue pairs QP0 and QP1.

A send is one packet to wherever its address vector says and is complete once it has left; what arrives is dropped, and
counted, unless partition, Q_Key and a posted receive fit (volume 1, 9.8.3). The first 40 bytes of a receive belong to
the GRH, whether there is one or not (11.4.1.2).
"""

from typing import Final

from firmware.memory import STEP_PIECES, TOO_SHORT, AccessError, PageFault, gather, gather_pieces, scatter
from firmware.model import turns
from firmware.model.budget import PACKET_BYTES
from firmware.model.capabilities import LOG_MAX_LSO
from firmware.model.counters import RX_UD_BYTES, RX_UD_PACKETS, TX_UD_BYTES, TX_UD_PACKETS, Count, QCount
from firmware.model.hca import Hca
from firmware.model.multicast import MulticastGroup
from firmware.model.objects import Waiter
from firmware.model.port import Port
from firmware.model.psn import PSN_MASK
from firmware.model.qp import ERR, INIT, RTS, ST_QP0, ST_QP1, ST_UD, Qp, Responder
from firmware.model.rings import RecvWqe, SendQueue
from firmware.model.send_wqe import LOCAL, Offload, SendWqe
from firmware.native.declarations import Stop
from firmware.programs import PRIVILEGED_QKEY
from firmware.queues import take_receive
from firmware.transport import account, completion, page_waits
from firmware.transport.cut_through import run_datagrams
from firmware.transport.lifecycle import enter_error, enter_send_error
from firmware.transport.port import (
    datagram_route,
    group_of,
    is_addressed,
    is_multicast,
    is_own,
    management_route,
    network_header,
    origin,
    pkey_at,
    transmit,
)
from firmware.transport.wqe import UNIT, WqeError, blocks_of, identity_of, parse
from vhca.hw.effects import Told
from vhca.hw.memory import DmaError
from vhca.management.partitions import pkeys_match
from vhca.wire.connectx.wqe import DatagramSegment
from vhca.wire.ipoib import checked, segment, with_checksums
from vhca.wire.mad import QP1_QKEY
from vhca.wire.packet import DEFAULT_PKEY, SEND, UD, Packet

GRH_BYTES: Final = 40
# Where a WQE's address vector begins and ends.
VECTOR_END: Final = UNIT + DatagramSegment.SIZE
MULTICAST_QPN: Final = 0xFFFFFF
SEND_BUDGET: Final = 64
# Copies of multicast datagrams that one step makes, and datagrams that may wait for theirs.
COPY_BUDGET: Final = 32
MAX_COPYING: Final = 256
# Datagrams that one queue pair keeps while pages are missing.
HELD_DATAGRAMS: Final = 64

_target = DatagramSegment.unpacker("q_key", "dqpn")


def run(hca: Hca, qp: Qp) -> None:
    """Send what is posted, a bounded number of WQEs per step."""
    sq = qp.sq
    if sq is None or qp.state != RTS or qp.requester.paging:
        return
    try:
        waiting = sq.refresh(hca.memory)
        budget = SEND_BUDGET
        if waiting and qp.service == ST_UD and hca.native is not None:
            stop = _try_train(hca, qp, sq)
            if stop == Stop.EMPTY:
                return
            if stop == Stop.BUDGET:
                hca.turns.add(turns.SEND, qp)
                return
            waiting = sq.producer - sq.consumer
            if qp.conversation is not None:
                budget = min(budget, qp.conversation.most)
        most = hca.pieces + STEP_PIECES
        while budget > 0:
            if not waiting:
                return
            if hca.pieces > most:
                break
            ctrl = sq.read_blocks(hca.memory, sq.consumer, 1)
            blocks = blocks_of(ctrl)
            if blocks > waiting:
                _fail(hca, qp, ctrl, waiting, completion.LOCAL_QP_OPERATION, "the WQE is longer than what is posted")
                return
            raw = ctrl if blocks == 1 else sq.read_blocks(hca.memory, sq.consumer, blocks)
            try:
                wqe = parse(raw, sq.consumer, qp.handle, qp.service, offloads=qp.offloads)
            except WqeError as error:
                _fail(hca, qp, ctrl, blocks, completion.LOCAL_QP_OPERATION, str(error))
                return
            if hca.watched and not qp.requester.lso_done:
                hca.out.append(Told("send", qp.handle, sq.consumer & 0xFFFF, wqe.opcode, wqe.length))
            sent = _send(hca, qp, wqe, ctrl, budget)
            if not sent:
                return
            budget -= sent
            if qp.requester.lso_done:
                break
            sq.consumer += blocks
            waiting -= blocks
            if not completion.complete_send(hca, qp, wqe):
                enter_error(hca, qp, "the send CQ is dead")
                return
    except DmaError as error:
        hca.count[Count.DMA_READ_ERRORS] += 1
        enter_send_error(hca, qp, str(error))
        completion.qp_event(hca, qp, completion.EVENT_CATASTROPHIC)
        return
    if waiting:
        hca.turns.add(turns.SEND, qp)


def _try_train(hca: Hca, qp: Qp, sq: SendQueue) -> int:
    """Let the engine in C send what goes where the next datagram goes."""
    vector = sq.read_blocks(hca.memory, sq.consumer, 1)[UNIT:VECTOR_END]
    return run_datagrams(hca, qp, vector, lambda: _packet(hca, qp, vector, b"", False, None))


def _fail(hca: Hca, qp: Qp, ctrl: bytes, blocks: int, syndrome: int, reason: str) -> None:
    """End the WQE at hand, and with it the send queue, with an error."""
    sq = qp.sq
    assert sq is not None
    opcode, _ = identity_of(ctrl)
    hca.note("wqe_error", qpn=qp.handle, index=sq.consumer & 0xFFFF, opcode=opcode, syndrome=syndrome, why=reason)
    if hca.watched:
        hca.out.append(Told("send", qp.handle, sq.consumer & 0xFFFF, opcode, why=reason))
    alive = completion.fail_send(hca, qp, sq.consumer & 0xFFFF, opcode, syndrome)
    sq.consumer += blocks
    qp.requester.lso_done = 0
    if alive:
        enter_send_error(hca, qp, reason)
    else:
        enter_error(hca, qp, "the send CQ is dead")


def resume_send(hca: Hca, waiter: Waiter, good: bool) -> None:
    """The pages of the next send have come, or will not."""
    qp: Qp = waiter.qp
    waiter.side.paging = False
    if qp.requester is waiter.side and qp.state == RTS:
        if good:
            hca.turns.add(turns.SEND, qp)
        else:
            ctrl, blocks = waiter.item
            _fail(hca, qp, ctrl, blocks, completion.LOCAL_PROTECTION, waiter.reason)


def _send(hca: Hca, qp: Qp, wqe: SendWqe, ctrl: bytes, most: int) -> int:
    """Send what a WQE asks for, `most` datagrams of it; how many they were, or 0 if there is no going on for now."""
    offload = wqe.offload
    if offload is not None and offload.mss:
        return _send_segments(hca, qp, wqe, ctrl, offload, most)
    if qp.requester.lso_done:
        _fail(hca, qp, ctrl, wqe.blocks, completion.LOCAL_QP_OPERATION, "the host has changed a large send under way")
        return 0
    if wqe.op == LOCAL:
        return 1
    if wqe.length > qp.requester.mtu:
        _fail(hca, qp, ctrl, wqe.blocks, completion.LOCAL_LENGTH, "a datagram is longer than the path MTU")
        return 0
    payload = _gather(hca, qp, wqe, ctrl, 0, wqe.length)
    if payload is None:
        return 0
    if offload is not None and (offload.l3 or offload.l4):
        payload = with_checksums(payload, offload.l3, offload.l4)
    return int(_transmit(hca, qp, wqe, ctrl, payload))


def _send_segments(hca: Hca, qp: Qp, wqe: SendWqe, ctrl: bytes, offload: Offload, most: int) -> int:
    """As :func:`_send`, for a large send (LSO), from where `lso_done` says; that is 0 again once all of it has left."""
    requester = qp.requester
    done, (l3, l4, mss, header) = requester.lso_done, offload
    if wqe.length > 1 << LOG_MAX_LSO or len(header) + min(mss, wqe.length) > requester.mtu:
        _fail(hca, qp, ctrl, wqe.blocks, completion.LOCAL_LENGTH, "an LSO, or one segment of it, is too long")
        return 0
    if done >= wqe.length or done % mss:
        # It has no data, or the host has changed it meanwhile.
        _fail(hca, qp, ctrl, wqe.blocks, completion.LOCAL_QP_OPERATION, "there is nothing to cut into segments")
        return 0
    pieces = hca.pieces + STEP_PIECES
    for sent in range(1, most + 1):
        size = min(mss, wqe.length - done)
        data = _gather(hca, qp, wqe, ctrl, done, size)
        if data is None:
            return 0
        payload = segment(header, done // mss, done, data, done + size == wqe.length)
        if not _transmit(hca, qp, wqe, ctrl, with_checksums(payload, l3, l4)):
            return 0
        done += size
        requester.lso_done = done if done < wqe.length else 0
        if not requester.lso_done or hca.pieces > pieces:
            return sent
    return most


def _gather(hca: Hca, qp: Qp, wqe: SendWqe, ctrl: bytes, offset: int, length: int) -> bytes | None:
    """So much of a WQE's data; None if that ended the send queue, or waits for pages."""
    try:
        if wqe.inline is not None:
            return wqe.inline[offset : offset + length]
        if wqe.pieces is not None:
            return gather_pieces(hca, qp, wqe.pieces, offset, length)
        return gather(hca, qp, wqe.sges, offset, length)
    except PageFault as fault:
        reason = str(fault)
        if not page_waits.hold_datagram(hca, qp, fault, ctrl, wqe.blocks):
            _fail(hca, qp, ctrl, wqe.blocks, completion.LOCAL_PROTECTION, reason)
    except AccessError as error:
        _fail(hca, qp, ctrl, wqe.blocks, completion.LOCAL_PROTECTION, str(error))
    return None


def _transmit(hca: Hca, qp: Qp, wqe: SendWqe, ctrl: bytes, payload: bytes) -> bool:
    """Build and transmit one datagram; False if that ended the send queue."""
    packet = _packet(hca, qp, wqe.raw, payload, wqe.solicited, wqe.immediate)
    if packet is None:
        _fail(hca, qp, ctrl, wqe.blocks, completion.LOCAL_QP_OPERATION, "the address vector is not an extended one")
        return False
    qp.requester.next_psn += 1
    hca.count[TX_UD_PACKETS] += 1
    hca.count[TX_UD_BYTES] += len(payload)
    if transmit(hca, qp.port, packet) and is_multicast(packet) and group_of(packet) in hca.multicast:
        # The switch sends it to the others; members on this port are served from here.
        hca.loopback.append((qp.port, packet))
    return True


def _packet(hca: Hca, qp: Qp, vector: bytes, payload: bytes, solicited: bool, immediate: int | None) -> Packet | None:
    """The packet that an address vector asks for; None if the vector is malformed."""
    q_key, dqpn = _target(vector)
    port = hca.ports[qp.port]
    source_qp = qp.handle
    if qp.service == ST_QP0:
        route = management_route(port, vector, payload)
        pkey, q_key, source_qp = DEFAULT_PKEY, 0, 0
    else:
        route = datagram_route(port, vector)
        pkey = pkey_at(port, qp.pkey_index)
        if qp.service == ST_QP1:
            source_qp = 1
        elif qp.context.deth_sqpn:
            source_qp = qp.context.deth_sqpn
        if q_key & PRIVILEGED_QKEY:
            # A Q_Key with the high bit set means: the one of the queue pair (10.2.5).
            q_key = qp.q_key
    if route is None:
        return None
    return Packet(
        route=route,
        service=UD,
        op=SEND,
        dest_qp=dqpn,
        psn=qp.requester.next_psn & PSN_MASK,
        payload=payload,
        mtu=qp.requester.mtu,
        pkey=pkey,
        solicited=solicited,
        immediate=immediate,
        qkey=q_key,
        src_qp=source_qp,
    )


def receive(hca: Hca, port_number: int, qp: Qp, packet: Packet) -> None:
    """A datagram for this queue pair."""
    if qp.state <= INIT or qp.state == ERR:
        hca.count[Count.RX_DROP_QP_STATE] += 1
        return
    port = hca.ports[port_number]
    if packet.dest_qp != MULTICAST_QPN and not is_addressed(port, packet):
        hca.count[Count.RX_DROP_GID] += 1
        return
    if qp.service != ST_QP0 and not _keys_fit(hca, port, qp, packet):
        return
    held = qp.responder.held
    if held:
        # Behind the one that waits for pages: receives complete in the order in which they were taken.
        if len(held) >= HELD_DATAGRAMS:
            hca.count[Count.RX_DROP_PAGING] += 1
        elif account.keep(hca, packet):
            held.append((port_number, packet))
        return
    try:
        recv = take_receive(hca, qp)
    except DmaError as error:
        hca.count[Count.DMA_READ_ERRORS] += 1
        completion.qp_event(hca, qp, completion.EVENT_CATASTROPHIC)
        enter_error(hca, qp, str(error))
        return
    if recv is None:
        hca.count[Count.RX_DROP_NO_RECEIVE] += 1
        qp.count(QCount.OUT_OF_BUFFER)
        if qp.service == ST_QP0:
            port.counters.vl15_dropped += 1
        elif qp.service == ST_QP1:
            port.counters.qp1_dropped += 1
        return
    _deliver(hca, port_number, qp, packet, recv)


def _keys_fit(hca: Hca, port: Port, qp: Qp, packet: Packet) -> bool:
    """Compare Q_Key and partition with those of the queue pair; QP1 is in every partition of its port (10.9.3)."""
    management = qp.service == ST_QP1
    if packet.qkey != (QP1_QKEY if management else qp.q_key):
        hca.count[Count.RX_DROP_QKEY] += 1
        port.qkey_violation(packet)
        return False
    pkeys = port.pkeys if management else (pkey_at(port, qp.pkey_index),)
    if not any(pkeys_match(packet.pkey, pkey) for pkey in pkeys):
        hca.count[Count.RX_DROP_PKEY] += 1
        port.pkey_violation(packet)
        return False
    return True


def _deliver(hca: Hca, port_number: int, qp: Qp, packet: Packet, recv: RecvWqe) -> None:
    size = GRH_BYTES + len(packet.payload)
    try:
        if sum(sge[1] for sge in recv.segments) < size:
            raise AccessError(TOO_SHORT, "the receive is shorter than GRH area and payload")
        domain = recv.srq.pd if recv.srq is not None else None
        header = network_header(packet)
        if header:
            scatter(hca, qp, recv.segments, 0, header, domain)
        scatter(hca, qp, recv.segments, GRH_BYTES, packet.payload, domain)
    except PageFault as fault:
        _not_present(hca, port_number, qp, packet, recv, fault)
        return
    except AccessError as error:
        _refuse(hca, qp, recv, error.kind == TOO_SHORT, str(error))
        return
    hca.count[RX_UD_PACKETS] += 1
    hca.count[RX_UD_BYTES] += len(packet.payload)
    immediate = packet.immediate
    alive = completion.complete_receive(
        hca,
        qp,
        recv,
        completion.RECEIVED_SEND if immediate is None else completion.RECEIVED_SEND_IMM,
        size,
        packet.pkey if immediate is None else immediate,
        packet.solicited,
        origin(hca.ports[port_number], packet),
        packet.src_qp,
        completion.GRH_IN_BUFFER if header else 0,
        checks=_checks(packet.payload) if qp.offloads else 0,
    )
    if not alive:
        enter_error(hca, qp, "the receive CQ is dead")


def _checks(payload: bytes) -> int:
    """What the completion of a datagram with IP says of its checksums."""
    l3, l4 = checked(payload)
    return (completion.L3_OK if l3 else 0) | (completion.L4_OK if l4 else 0)


def _not_present(hca: Hca, port_number: int, qp: Qp, packet: Packet, recv: RecvWqe, fault: PageFault) -> None:
    """Pages of the receive are missing: keep the datagram until they have come, and what arrives in the meantime."""
    if page_waits.hold_receive(hca, qp, fault, (port_number, packet, recv)):
        responder = qp.responder
        responder.recv = recv
        hca.budget.charge(len(packet.payload) + PACKET_BYTES)
        responder.held.append((port_number, packet))
    else:
        _refuse(hca, qp, recv, False, str(fault))


def resume_receive(hca: Hca, waiter: Waiter, good: bool) -> None:
    """The pages of a receive have come, or will not: go on with the datagrams that waited."""
    qp: Qp = waiter.qp
    responder: Responder = waiter.side
    if not page_waits.alive(qp, responder):
        return
    port_number, packet, recv = waiter.item
    responder.recv = None
    if not good:
        _refuse(hca, qp, recv, False, waiter.reason)
        return
    waiting = list(responder.held)
    account.drop_packets(hca, qp)
    _deliver(hca, port_number, qp, packet, recv)
    for number, later in waiting[1:]:
        # Those may have to wait anew; each finds its place behind the one before it.
        receive(hca, number, qp, later)


def _refuse(hca: Hca, qp: Qp, recv: RecvWqe, too_short: bool, reason: str) -> None:
    """A receive that cannot take the datagram: too short drops the packet only, a bad key ends the queue (9.9.3)."""
    if too_short and recv.srq is None and qp.rq is not None:
        qp.rq.consumer -= 1
        hca.count[Count.RX_DROP_TOO_LONG] += 1
        return
    hca.note("receive_error", qpn=qp.handle, index=recv.wqe_counter, why=reason)
    syndrome = completion.LOCAL_LENGTH if too_short else completion.LOCAL_PROTECTION
    if not completion.fail_receive(hca, qp, recv, syndrome) or not too_short:
        enter_error(hca, qp, reason)


def receive_multicast(hca: Hca, port_number: int, packet: Packet) -> None:
    """A datagram for the multicast QPN: each queue pair attached to its GID on this port gets a copy (10.5.2.1)."""
    if not is_multicast(packet):
        hca.count[Count.RX_DROP_DLID] += 1
        return
    group: MulticastGroup | None = hca.multicast.get(group_of(packet))
    if group is None:
        hca.count[Count.RX_DROP_MULTICAST_UNKNOWN] += 1
        return
    if len(hca.copies) >= MAX_COPYING:
        hca.count[Count.RX_DROP_MULTICAST_BACKLOG] += 1
        return
    hca.copies.append((port_number, packet, list(group.members)))
    if len(hca.copies) == 1:
        copy_on(hca)


def copy_on(hca: Hca) -> None:
    """Give the next members of a group their copies, a bounded number per step; datagrams stay in order."""
    port_number, packet, members = hca.copies[0]
    port = hca.ports[port_number]
    own = is_own(port, packet)
    now, members[:] = members[:COPY_BUDGET], members[COPY_BUDGET:]
    for qp in now:
        if qp.port != port_number:
            continue
        if own and packet.src_qp == qp.handle and qp.context.block_lb_mc:
            hca.count[Count.RX_MULTICAST_LOOPBACK_BLOCKED] += 1
            continue
        receive(hca, port_number, qp, packet)
    if not members:
        hca.copies.popleft()
