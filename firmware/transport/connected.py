"""The receive side's front door for connected services: is this packet from the peer, over the right path (9.6.1)?"""

from typing import Final

from firmware.model.counters import RX_PACKETS, Count
from firmware.model.hca import Hca
from firmware.model.port import Port
from firmware.model.qp import ERR, INIT, ST_DCI, ST_UC, ST_XRC, Qp
from firmware.transport import backlog, completer, responder, unreliable
from firmware.transport.port import pkey_at, stranger
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, READ_RESPONSE, Packet

_RESPONSES: Final = (ACKNOWLEDGE, READ_RESPONSE, ATOMIC_ACKNOWLEDGE)


def receive(hca: Hca, port: Port, qp: Qp, packet: Packet) -> None:
    """A request or response for a connected queue pair; what does not belong to its connection is dropped."""
    state = qp.state
    if state <= INIT or state == ERR:
        hca.count[Count.RX_DROP_QP_STATE] += 1
        return
    path = qp.path
    reason = Count.RX_DROP_PATH if path is None else stranger(port, path, pkey_at(port, qp.pkey_index), packet)
    if reason is not None:
        hca.count[reason] += 1
        if reason == Count.RX_DROP_PKEY:
            port.pkey_violation(packet)
        return
    hca.count[RX_PACKETS] += packet.count
    if qp.backlog:
        backlog.add(hca, qp, packet)
    else:
        _dispatch(hca, qp, packet)


def store_on(hca: Hca, qp: Qp) -> None:
    """Go on with what waits behind a burst that is stored in parts."""
    packet = backlog.take(hca, qp)
    if packet is not None:
        _dispatch(hca, qp, packet)


def _dispatch(hca: Hca, qp: Qp, packet: Packet) -> None:
    if packet.op in _RESPONSES:
        completer.response(hca, qp, packet)
    elif qp.service == ST_UC:
        unreliable.request(hca, qp, packet)
    elif qp.service == ST_XRC and qp.sq is not None:
        hca.count[Count.RX_DROP_XRC_INITIATOR] += 1
    elif qp.service == ST_DCI:
        hca.count[Count.RX_DROP_DC_INITIATOR] += 1
    else:
        responder.request(hca, qp, packet)
