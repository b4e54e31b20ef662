"""The dynamically connected transport (DC): an initiator whose every work request names a target.

DC belongs to the vendor and its packets are nowhere specified, so those here are our own: reliable requests in the
range of opcodes that is left to manufacturers, with a header (:data:`vhca.wire.opcodes.DCETH`) that names initiator,
access key and connection. An initiator has one connection at a time. It ends it when a work request names another
target, once all before are acknowledged; the next one has a higher number, and its first packet makes the target's side
of it. There a connection is the receive side of a reliable queue pair, so that the rules of chapter 9 hold for it.
"""

from typing import Final

from firmware.model.budget import CONNECTION_BYTES
from firmware.model.counters import RX_PACKETS, Count
from firmware.model.dct import Dct
from firmware.model.hca import Hca
from firmware.model.port import Port
from firmware.model.psn import PSN_MASK
from firmware.model.qp import ERR, ST_DCT, Qp, Requester
from firmware.model.send_wqe import SendWqe
from firmware.queues import post_event
from firmware.transport import backlog, completion, lifecycle, responder
from firmware.transport.lifecycle import QpEvent
from firmware.transport.port import (
    accepts,
    is_addressed,
    path_back,
    path_of_vector,
    pkey_at,
    sender,
    transmit,
)
from firmware.transport.replies import acknowledgement
from firmware.transport.syndromes import NAK_REMOTE_ACCESS
from vhca.management.partitions import pkeys_match
from vhca.wire.connectx.eqe import DctData, EventType
from vhca.wire.connectx.qpc import Qpc
from vhca.wire.connectx.wqe import DatagramSegment
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, READ_RESPONSE, Packet

# Connections that one target remembers; the least recently made is forgotten first. All end in one step.
MAX_CONNECTIONS: Final = 1 << 12
# READs and atomics that a target's connection keeps answers for, as log_max_ra_res_dc says.
LOG_RESOURCES: Final = 4
CONNECTION_MASK: Final = 0xFFFFFFFF
CONNECTION_HALF: Final = 1 << 31

SAME: Final = 0
CONNECTED: Final = 1
WAIT: Final = 2

_RESPONSES: Final = (ACKNOWLEDGE, READ_RESPONSE, ATOMIC_ACKNOWLEDGE)
_target = DatagramSegment.unpacker("dqpn")


def connect(hca: Hca, qp: Qp, requester: Requester, wqe: SendWqe) -> int:
    """Make sure that initiator `qp` is connected to the target of `wqe`; WAIT while earlier requests are under way."""
    if wqe.raw == requester.target:
        return SAME
    if requester.pending[0] is not wqe:
        return WAIT
    path = path_of_vector(hca.ports[qp.port], wqe.raw)
    if path is None:
        wqe.fault = completion.LOCAL_QP_OPERATION
        wqe.reason = "the address vector is not an extended one, or its LID is not unicast"
        return SAME
    qp.path = path
    (qp.remote_qpn,) = _target(wqe.raw)
    requester.target = wqe.raw
    requester.access_key = int.from_bytes(wqe.raw[:8], "big")
    # Numbers never repeat, whatever is reset: a late packet of an old connection is known by its number.
    hca.dc_connections = requester.connection = (hca.dc_connections + 1) & CONNECTION_MASK
    requester.connection_psn = requester.next_psn & PSN_MASK
    hca.count[Count.DC_CONNECTS] += 1
    return CONNECTED


def address(qp: Qp, requester: Requester, packet: Packet) -> None:
    """Fill the header that DC requests have in addition to those of RC."""
    packet.src_qp = qp.handle
    packet.dc_key = requester.access_key
    packet.dc_connection = requester.connection
    packet.dc_psn = requester.connection_psn


def receive(hca: Hca, port: Port, port_number: int, packet: Packet) -> None:
    """A packet for a number that is no queue pair's: a request for a target, or nobody's."""
    target = hca.dcts.get(packet.dest_qp)
    if target is None or target.drained or target.port != port_number or packet.op in _RESPONSES:
        hca.count[Count.RX_DROP_UNKNOWN_QP] += 1
        return
    if not accepts(port, packet):
        hca.count[Count.RX_DROP_PATH] += 1
        return
    if not is_addressed(port, packet):
        hca.count[Count.RX_DROP_GID] += 1
        return
    if not pkeys_match(packet.pkey, pkey_at(port, target.pkey_index)):
        hca.count[Count.RX_DROP_PKEY] += 1
        port.pkey_violation(packet)
        return
    if packet.dc_key != target.access_key:
        _wrong_key(hca, target, packet)
        return
    connection = _connection(hca, target, packet)
    if connection is None or connection.state == ERR:
        hca.count[Count.RX_DROP_QP_STATE] += 1
        return
    hca.count[RX_PACKETS] += packet.count
    if connection.backlog:
        backlog.add(hca, connection, packet)
    else:
        responder.request(hca, connection, packet)


def _connection(hca: Hca, target: Dct, packet: Packet) -> Qp | None:
    """The target's side of the connection that `packet` belongs to, made at its first packet; None if it is over."""
    peer = (sender(packet), packet.src_qp)
    known = target.connections.get(peer)
    if known is not None:
        number, connection = known
        age = (number - packet.dc_connection) & CONNECTION_MASK
        if not age:
            return connection
        if age < CONNECTION_HALF:
            return None
        del target.connections[peer]
        _close(hca, connection)
    elif target.connections and (len(target.connections) >= MAX_CONNECTIONS or hca.budget.full):
        oldest = next(iter(target.connections))
        _close(hca, target.connections.pop(oldest)[1])
    connection = _new_connection(target, packet)
    lifecycle.happen(hca, connection, QpEvent.CONNECT)
    connection.charged = CONNECTION_BYTES
    # A target has one connection at least, or nobody could ever reach it.
    hca.budget.charge(CONNECTION_BYTES)
    target.connections[peer] = (packet.dc_connection, connection)
    hca.count[Count.DC_ACCEPTS] += 1
    return connection


def _new_connection(target: Dct, packet: Packet) -> Qp:
    connection = Qp(
        handle=target.handle,
        uid=target.uid,
        service=ST_DCT,
        context=Qpc(),
        pd=target.pd,
        recv_cq=target.cq,
        srq=target.srq,
        counter=target.counter,
        port=target.port,
        user_index=target.user_index,
        inline_receive=target.inline_receive,
        remote_qpn=packet.src_qp,
        pkey_index=target.pkey_index,
        remote_rights=target.rights,
        min_rnr_nak=target.min_rnr_nak,
        path=path_back(packet),
    )
    connection.responder.mtu = target.mtu
    connection.responder.epsn = packet.dc_psn
    connection.responder.resource_limit = 1 << LOG_RESOURCES
    return connection


def _wrong_key(hca: Hca, target: Dct, packet: Packet) -> None:
    """Refuse a request that does not know the access key; tell the host if it wants to know."""
    target.key_violations += 1
    hca.count[Count.DC_KEY_VIOLATIONS] += 1
    refused = _new_connection(target, packet)
    transmit(hca, target.port, acknowledgement(hca, refused, packet.psn, NAK_REMOTE_ACCESS, 0))
    if target.armed:
        target.armed = False
        post_event(hca, EventType.DCT_KEY_VIOLATION, 0, DctData(dctn=target.handle).to_bytes())


def _close(hca: Hca, connection: Qp) -> None:
    """Forget a connection: a receive under way ends with it."""
    lifecycle.happen(hca, connection, QpEvent.DISCONNECT)
    hca.budget.give(connection.charged)


def drain(hca: Hca, target: Dct) -> None:
    """End all connections of a target, and accept no more."""
    target.drained = True
    connections = list(target.connections.values())
    target.connections.clear()
    for _, connection in connections:
        _close(hca, connection)
