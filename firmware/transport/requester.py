"""The requester: executes send WQEs in order and keeps as many packets in flight as the window allows.

It serves RC, XRC and UC queue pairs and the registration queue. WQEs that were fetched wait in `pending` until the
completer retires them; a WQE that cannot be executed waits there with its fault for its turn, so that completions stay
in order (volume 1, 10.8.5). A step is bounded: what is left goes on in a step of its own.
"""

from typing import Final

from firmware.memory import (
    PIECE_COST_BYTES,
    STEP_PIECES,
    UNLIMITED,
    AccessError,
    Crowded,
    PageFault,
    gather,
    gather_pieces,
)
from firmware.model import turns
from firmware.model.counters import TX_BYTES, TX_PACKETS, Count
from firmware.model.hca import Hca
from firmware.model.psn import PSN_MASK
from firmware.model.qp import RTS, ST_DCI, ST_RC, ST_UC, ST_XRC, Qp, Requester
from firmware.model.rings import SendQueue
from firmware.model.segment import (
    ASK_PACKETS,
    BURST_COST_BYTES,
    BYTE_BUDGET,
    LOG_PACKET_COST,
    WQE_BUDGET,
    packet_count,
)
from firmware.model.send_wqe import LOCAL, SendWqe
from firmware.model.timers import Timer, TimerKind
from firmware.native.declarations import Stop
from firmware.transport import account, completion, cut_through, dc, page_waits, umr
from firmware.transport.lifecycle import enter_send_error
from firmware.transport.port import LOOPBACK, WIRE, discard, egress, pkey_at, route_over
from firmware.transport.retire import retire
from firmware.transport.wqe import UMR, WqeError, blocks_of, identity_of, parse
from vhca.hw.effects import Told, Transmit
from vhca.hw.memory import DmaError
from vhca.wire.connectx.wqe import FenceMode
from vhca.wire.packet import COMPARE_SWAP, DC, RC, READ_REQUEST, UC, XRC, Packet

# What may be outstanding: bytes, counted as packets of full size, but at least so many packets. Of an unreliable
# connection nothing is.
WINDOW_BYTES: Final = 2 << 20
WINDOW_PACKETS: Final = 512
MAX_PACKETS: Final = (1 << 23) - 1
# WQEs that are fetched and not completed: an acknowledgement, or an error, may end all of them in one step.
MAX_PENDING: Final = 512
# ctrl.fm from here on waits for earlier READs and atomics.
FENCE: Final = int(FenceMode.FENCE)

_BY_TRAIN: Final = (ST_RC, ST_UC)
_WIRE_SERVICE: Final = {ST_RC: RC, ST_XRC: XRC, ST_UC: UC, ST_DCI: DC}


def run_at_once(hca: Hca, qp: Qp) -> bool:
    """As :func:`run`, in the step of a doorbell: True if a short train did all that there was to do."""
    if qp.service not in _BY_TRAIN or qp.state != RTS or hca.native is None:
        return False
    return cut_through.run_at_once(hca, qp)


def run(hca: Hca, qp: Qp) -> bool:
    """Send what is posted and may be sent; called for a doorbell, an acknowledgement, a timer.

    True if trains did all that there was to do.
    """
    sq = qp.sq
    requester = qp.requester
    if sq is None or qp.state != RTS or requester.rnr_waiting:
        return False
    if qp.service in _BY_TRAIN and not requester.pending and hca.native is not None:
        stop = cut_through.run(hca, qp)
        if stop == Stop.EMPTY:
            return True
        if stop == Stop.BUDGET:
            hca.turns.add(turns.SEND, qp)
            return True
    try:
        sq.refresh(hca.memory)
        _look_up_path(hca, qp, requester)
        _drain(hca, qp, requester, sq)
    except DmaError as error:
        _queue_lost(hca, qp, error)
        return False
    account.settle(hca, qp)
    last = requester.last_sent
    if last is not None:
        # One request for an acknowledgement covers everything that this step sent (9.7.5.1.2).
        last.ack_req = qp.service != ST_UC
        requester.last_sent = None
        requester.since_ack_req = 0
    if requester.timeout_ns and requester.una < requester.send_psn:
        timer = requester.ack_timer
        if timer is None:
            timer = requester.ack_timer = Timer(TimerKind.ACKNOWLEDGE, qp)
        if timer.deadline_ns is None:
            hca.timers.arm(timer, hca.now_ns + requester.timeout_ns)
    return False


def _look_up_path(hca: Hca, qp: Qp, requester: Requester) -> None:
    """Look at port and path once for all packets of this step."""
    path = qp.path
    if path is not None:
        port = hca.ports[qp.port]
        requester.route = route = route_over(port, path)
        requester.pkey = pkey_at(port, qp.pkey_index)
        requester.egress = egress(port, route)


def _queue_lost(hca: Hca, qp: Qp, error: DmaError) -> None:
    """The send queue itself cannot be read: there is no WQE to complete, so an event tells (11.6.3.3)."""
    hca.count[Count.DMA_READ_ERRORS] += 1
    enter_send_error(hca, qp, str(error))
    completion.qp_event(hca, qp, completion.EVENT_CATASTROPHIC)


def _drain(hca: Hca, qp: Qp, requester: Requester, sq: SendQueue) -> None:
    pending = requester.pending
    budget_of_card = hca.budget
    window = MAX_PACKETS if qp.service == ST_UC else max(WINDOW_BYTES >> requester.log_mtu, WINDOW_PACKETS)
    budget = BYTE_BUDGET
    for _ in range(WQE_BUDGET):
        if requester.cursor < len(pending):
            wqe = pending[requester.cursor]
        elif len(pending) >= MAX_PENDING or (pending and budget_of_card.used >= budget_of_card.limit):
            return
        else:
            shared = qp.conversation
            if shared is not None:
                if shared.taken >= shared.most:
                    if not pending:
                        hca.turns.add(turns.SEND, qp)
                    return
                shared.taken += 1
            fetched = _fetch(hca, qp, sq)
            if fetched is None:
                return
            wqe = fetched
            pending.append(wqe)
        if wqe.fault:
            # Its error is reported once everything before it is complete.
            retire(hca, qp, requester)
            return
        if wqe.first < 0:
            # What has its numbers has kept to these limits, and is sent again within them.
            if not _may_start(requester, wqe):
                return
            if wqe.raw and qp.service == ST_DCI:
                connection = dc.connect(hca, qp, requester, wqe)
                if connection == dc.WAIT:
                    return
                if connection == dc.CONNECTED:
                    _look_up_path(hca, qp, requester)
            if not wqe.fault and not _start(requester, wqe):
                return
            if wqe.fault:
                continue
        if wqe.op == LOCAL:
            budget -= _execute_local(hca, qp, requester, wqe)
            if qp.state != RTS:
                return
            if budget <= 0:
                break
            continue
        while requester.send_psn < wqe.end:
            if requester.send_psn - requester.una >= window:
                return
            if budget <= 0:
                hca.turns.add(turns.SEND, qp)
                return
            sent = _send_burst(hca, qp, requester, wqe)
            if sent < 0:
                break
            budget -= sent
        else:
            requester.cursor += 1
            if qp.service == ST_UC:
                requester.una = requester.send_psn
                retire(hca, qp, requester)
                if qp.state != RTS:
                    return
    hca.turns.add(turns.SEND, qp)


def _fetch(hca: Hca, qp: Qp, sq: SendQueue) -> SendWqe | None:
    """Take the next WQE out of the ring; None if it is empty. A malformed one comes back with its fault."""
    consumer = sq.consumer
    waiting = sq.producer - consumer
    if waiting <= 0:
        return None
    raw, at = sq.peek(hca.memory)
    blocks = blocks_of(raw, at)
    try:
        if blocks > waiting:
            raise WqeError("the WQE is longer than what is posted")
        if at + (blocks << 6) > len(raw):
            raw, at = sq.read_blocks(hca.memory, consumer, blocks), 0
        wqe = parse(raw, consumer, qp.handle, qp.service, at)
    except WqeError as error:
        wqe = SendWqe(consumer & 0xFFFF, identity_of(raw, at)[0], blocks)
        _fault(hca, qp, wqe, completion.LOCAL_QP_OPERATION, str(error))
        blocks = min(blocks, waiting)
    sq.consumer = consumer + blocks
    if hca.watched:
        hca.out.append(Told("send", qp.handle, consumer & 0xFFFF, wqe.opcode, wqe.length, why=wqe.reason))
    return wqe


def _fault(hca: Hca, qp: Qp, wqe: SendWqe, syndrome: int, reason: str) -> None:
    wqe.fault = syndrome
    wqe.reason = reason
    hca.note("wqe_error", qpn=qp.handle, index=wqe.index, opcode=wqe.opcode, syndrome=syndrome, why=reason)


def _may_start(requester: Requester, wqe: SendWqe) -> bool:
    """Fences wait for earlier READs and atomics (10.8.3.3); of those only so many may be outstanding (9.4.4)."""
    reads = requester.reads
    if not reads:
        return True
    if wqe.fence >= FENCE:
        return False
    return wqe.op < READ_REQUEST or wqe.op == LOCAL or reads < requester.read_limit


def _start(requester: Requester, wqe: SendWqe) -> bool:
    """Give the WQE its packet sequence numbers; False if it has to wait for acknowledgements.

    Outstanding numbers never take more than half the circle: old and new ones could not be told apart (9.7.2).
    """
    first = requester.next_psn
    if wqe.op == LOCAL:
        wqe.first = wqe.end = first
        return True
    count = 1 if wqe.op >= COMPARE_SWAP else packet_count(wqe.length, requester.log_mtu)
    if wqe.length > requester.message_max:
        wqe.fault = completion.LOCAL_LENGTH
        wqe.reason = "the message is longer than log_msg_max allows"
        return True
    if first + count - requester.una > MAX_PACKETS:
        return False
    wqe.first = first
    wqe.end = requester.next_psn = first + count
    requester.ssn += 1
    return True


def _execute_local(hca: Hca, qp: Qp, requester: Requester, wqe: SendWqe) -> int:
    """NOP and registration are executed inside the card, in their turn; returns bytes for the budget."""
    cost = 0
    if not wqe.done:
        if wqe.opcode == UMR:
            try:
                cost = umr.execute(hca, qp, wqe)
            except PageFault as fault:
                page_waits.hold_send(hca, qp, wqe, fault, 0)
                return cost
            except umr.UmrError as error:
                _fault(hca, qp, wqe, error.syndrome, str(error))
                return cost
        wqe.done = True
    requester.cursor += 1
    if wqe.end <= requester.una:
        retire(hca, qp, requester)
    return cost


def _send_burst(hca: Hca, qp: Qp, requester: Requester, wqe: SendWqe) -> int:
    """Send packets of `wqe` from `send_psn` on; returns bytes for the budget, -1 if the WQE is at fault."""
    psn = requester.send_psn
    offset = (psn - wqe.first) << requester.log_mtu
    route = requester.route
    assert route is not None
    op = wqe.op
    size = wqe.length - offset
    end = True
    pieces = hca.pieces
    if op >= READ_REQUEST:
        payload = b""
        count = 1
        cost = BURST_COST_BYTES
        requester.send_psn = wqe.end
        requester.reads += 1
    else:
        if size > requester.burst_bytes:
            end = False
            size = requester.burst_bytes
            count = size >> requester.log_mtu
        else:
            count = wqe.end - psn
        inline = wqe.inline
        if inline is not None:
            payload = inline if not offset and end else inline[offset : offset + size]
        elif size:
            # A packet is never cut: it takes as many pieces as it takes.
            most = STEP_PIECES if count > 1 else UNLIMITED
            try:
                if wqe.pieces is None:
                    payload = gather(hca, qp, wqe.sges, offset, size, most)
                else:
                    payload = gather_pieces(hca, qp, wqe.pieces, offset, size, most)
            except Crowded as crowded:
                requester.burst_bytes = max(crowded.covered >> requester.log_mtu, 1) << requester.log_mtu
                return (hca.pieces - pieces) * PIECE_COST_BYTES
            except PageFault as fault:
                page_waits.hold_send(hca, qp, wqe, fault, wqe.length - offset - size if len(wqe.sges) == 1 else 0)
                return -1
            except AccessError as error:
                _fault(hca, qp, wqe, completion.LOCAL_PROTECTION, str(error))
                return -1
        else:
            payload = b""
        packets = count << LOG_PACKET_COST
        cost = (size if size > packets else packets) + BURST_COST_BYTES
        if hca.pieces != pieces:
            cost += (hca.pieces - pieces) * PIECE_COST_BYTES
        requester.send_psn = psn + count
        if end:
            requester.burst_bytes = requester.burst_most
    packet = Packet(
        route,
        _WIRE_SERVICE[qp.service],
        op,
        qp.remote_qpn,
        psn & PSN_MASK,
        payload,
        count,
        not offset or op >= READ_REQUEST,
        end,
        requester.mtu,
        requester.pkey,
        wqe.solicited and end,
        False,
        True,
        False,
        False,
        wqe.va + offset if op >= READ_REQUEST else wqe.va,
        wqe.rkey,
        size if op == READ_REQUEST else wqe.length,
        wqe.swap_add,
        wqe.compare,
        wqe.immediate,
        wqe.invalidate,
    )
    if wqe.xrc_srqn:
        packet.xrc_srqn = wqe.xrc_srqn
    elif wqe.raw:
        dc.address(qp, requester, packet)
    if requester.send_psn > requester.max_psn:
        requester.max_psn = requester.send_psn
    requester.since_ack_req += count
    if requester.since_ack_req >= ASK_PACKETS:
        packet.ack_req = True
        requester.since_ack_req = 0
        requester.last_sent = None
    else:
        requester.last_sent = packet
    counters = hca.count
    counters[TX_PACKETS] += count
    counters[TX_BYTES] += len(payload)
    if requester.egress == WIRE:
        hca.out.append(Transmit(qp.port, packet))
    elif requester.egress == LOOPBACK:
        hca.loopback.append((qp.port, packet))
    else:
        discard(hca, hca.ports[qp.port], packet)
    return cost
