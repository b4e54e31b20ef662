"""The transport engine's ways in: a send doorbell, a packet from the wire, and a turn to go on with what is left.

Everything that is wrong before a queue pair is found or before its service can answer is a counted, named drop.
"""

from collections.abc import Callable
from typing import Any, Final

from firmware import page_faults, queues
from firmware.model import turns
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.objects import Waiter, WaitKind
from firmware.model.port import Port
from firmware.model.qp import ERR, RTS, SQER, ST_DCI, ST_QP0, ST_QP1, ST_RC, ST_REG_UMR, ST_UC, ST_UD, ST_XRC, Qp
from firmware.model.timers import TimerKind
from firmware.transport import connected, dc, replies, requester, responder, retry, ud
from firmware.transport.completion import flush_send_queue
from firmware.transport.page_waits import resume_send
from firmware.transport.port import accepts, accepts_management, on_management_lane
from firmware.transport.teardown import flush, flush_poll
from vhca.management.subnet import SMP_CLASSES
from vhca.wire.ib import MAX_PAYLOAD_BYTES
from vhca.wire.mad import MAD_BYTES
from vhca.wire.packet import DC, RC, SEND, UC, UD, XRC, Packet

_WIRE_SERVICE: Final = {ST_RC: RC, ST_UC: UC, ST_UD: UD, ST_XRC: XRC, ST_QP0: UD, ST_QP1: UD, ST_DCI: DC}

_ENGINES: Final[dict[int, Callable[[Hca, Qp], bool | None]]] = {
    ST_RC: requester.run,
    ST_XRC: requester.run,
    ST_DCI: requester.run,
    ST_UC: requester.run,
    ST_REG_UMR: requester.run,
    ST_UD: ud.run,
    ST_QP0: ud.run,
    ST_QP1: ud.run,
}


_EXPIRED: Final[dict[TimerKind, Callable[[Hca, Any], None]]] = {
    TimerKind.ACKNOWLEDGE: retry.ack_timeout,
    TimerKind.RECEIVER_NOT_READY: retry.receiver_wait_over,
    TimerKind.FLUSH: lambda hca, _: flush_poll(hca),
    TimerKind.MODERATION: queues.held_long_enough,
    TimerKind.COMPRESSION: queues.end_session,
    TimerKind.PAGES_REFUSED: lambda hca, wanted: _tell(hca, page_faults.end(wanted), True),
}

_RESUME: Final[dict[WaitKind, Callable[[Hca, Waiter, bool], None]]] = {
    WaitKind.SEND: resume_send,
    WaitKind.SEND_AGAIN: resume_send,
    WaitKind.DATAGRAM: ud.resume_send,
    WaitKind.REQUEST: responder.resume,
    WaitKind.READ: replies.resume,
    WaitKind.RECEIVE: ud.resume_receive,
}


def run_timers(hca: Hca, most: int = 1 << 30) -> bool:
    """Do what is due, `most` timers' worth, earliest first; False if fewer were, or the heap had enough of a step."""
    for _ in range(most):
        timer = hca.timers.due(hca.now_ns)
        if timer is None:
            return False
        _EXPIRED[timer.kind](hca, timer.owner)
    return True


def page_fault_answered(hca: Hca, token: int, good: bool) -> bool:
    """The host answered a page fault: whoever waits goes on, or fails; False if there is no such fault."""
    known, waiter = page_faults.answered(hca, token, good)
    _tell(hca, waiter, good)
    return known


def _tell(hca: Hca, waiter: Waiter | None, good: bool) -> None:
    if waiter is not None:
        _RESUME[waiter.kind](hca, waiter, good)


def find(hca: Hca, qpn: int) -> Qp | None:
    """The queue pair that a doorbell is for."""
    native = hca.native
    if native is not None and hca.rung != qpn:
        # With thousands of them, what it takes to find it and to serve it is in no cache.
        native.warm(qpn)
        hca.rung = qpn
    return hca.qps.get(qpn)


def ring(hca: Hca, qp: Qp, at_once: bool = False) -> None:
    """The host rang for the send queue of `qp`: execute, flush or leave what is posted, by the state (10.3.1).

    It has a turn of its own: a host may ring many queues at once. With `at_once`, a little may be done right now.
    """
    if at_once and not (hca.turns or hca.copies) and requester.run_at_once(hca, qp):
        return
    if qp.state in (RTS, ERR, SQER):
        hca.turns.add(turns.SEND, qp)
    else:
        # The ring is looked at again on the way into RTS.
        hca.count[Count.DOORBELLS_EARLY] += 1


def turn(hca: Hca) -> bool:
    """One piece of the work that waits on this card; harmless if there is none. True if it was trains and no more."""
    if hca.copies:
        hca.stir()
        ud.copy_on(hca)
    taken = hca.turns.take()
    if taken is None:
        return False
    work, qp = taken
    if work == turns.SEND:
        return _send(hca, qp)
    if work == turns.REPLY:
        replies.send_replies(hca, qp)
    elif work == turns.STORE:
        connected.store_on(hca, qp)
    else:
        flush(hca, qp, again=True)
    return False


def _send(hca: Hca, qp: Qp) -> bool:
    if qp.state == RTS:
        sq = qp.sq
        if sq is not None and sq.consumer < sq.flush_end and flush_send_queue(hca, qp, again=True):
            # What was posted before the error that the queue has come back from is still being flushed.
            hca.turns.add(turns.SEND, qp)
            return False
        return _ENGINES[qp.service](hca, qp) is True
    if qp.state in (ERR, SQER):
        flush(hca, qp)
    return False


def packet_in(hca: Hca, port_number: int, packet: Packet) -> None:
    """A packet or burst arrived at a port. Never raises for anything a peer sent."""
    port = hca.ports.get(port_number)
    if port is None or not packet.good:
        hca.count[Count.RX_DROP_CRC if port is not None else Count.RX_DROP_PORT] += 1
        return
    qpn = packet.dest_qp
    if qpn <= 1:
        _management(hca, port, port_number, packet)
        return
    if not port.active:
        hca.count[Count.RX_DROP_PORT_INACTIVE] += 1
        return
    if qpn == ud.MULTICAST_QPN:
        if not _is_datagram(packet):
            hca.count[Count.RX_DROP_MALFORMED] += 1
            return
        ud.receive_multicast(hca, port_number, packet)
        return
    qp = hca.qps.get(qpn)
    if qp is None and packet.service == DC:
        dc.receive(hca, port, port_number, packet)
        return
    if qp is None:
        hca.count[Count.RX_DROP_UNKNOWN_QP] += 1
        return
    service = qp.service
    if packet.service != _WIRE_SERVICE.get(service) or qp.port != port_number or service in (ST_QP0, ST_QP1):
        hca.count[Count.RX_DROP_SERVICE] += 1
        return
    if service == ST_UD:
        if not _is_datagram(packet):
            hca.count[Count.RX_DROP_MALFORMED] += 1
        elif accepts(port, packet):
            ud.receive(hca, port_number, qp, packet)
        else:
            hca.count[Count.RX_DROP_DLID] += 1
        return
    connected.receive(hca, port, qp, packet)


def _is_datagram(packet: Packet) -> bool:
    """A datagram is one whole SEND, with or without immediate data (9.8.3)."""
    return (
        packet.service == UD
        and packet.op == SEND
        and packet.count == 1
        and packet.start
        and packet.end
        and packet.invalidate_rkey is None
        and len(packet.payload) <= MAX_PAYLOAD_BYTES
    )


def _management(hca: Hca, port: Port, number: int, packet: Packet) -> None:
    """A packet for QP0 or QP1: the card's own agent first, then the host's queue pair (13.5.1)."""
    if not _is_datagram(packet) or len(packet.payload) != MAD_BYTES:
        hca.count[Count.RX_DROP_MALFORMED] += 1
        return
    if not accepts_management(port, packet):
        hca.count[Count.RX_DROP_DLID] += 1
        return
    if packet.dest_qp == 0:
        if not on_management_lane(packet) or packet.payload[1] not in SMP_CLASSES:
            hca.count[Count.RX_DROP_SMP] += 1
            return
        if hca.chip.management.smp_in(number, packet):
            return
    elif not port.active or on_management_lane(packet):
        hca.count[Count.RX_DROP_PORT_INACTIVE] += 1
        return
    qp = hca.special_qps.get((number, packet.dest_qp))
    if qp is None:
        if not hca.chip.management.unattended(number, packet):
            hca.count[Count.RX_DROP_NO_MANAGEMENT_QP] += 1
            if packet.dest_qp == 0:
                port.counters.vl15_dropped += 1
        return
    ud.receive(hca, number, qp, packet)
