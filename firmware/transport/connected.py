"""The receive side's front door for connected services: is this packet from the peer, over the right path (9.6.1)?"""

from typing import Final

from firmware.model.counters import RX_PACKETS, Count
from firmware.model.hca import Hca
from firmware.model.port import Port
from firmware.model.qp import ERR, INIT, ST_DCI, ST_UC, ST_XRC, Path, Qp
from firmware.transport import backlog, completer, responder, unreliable
from firmware.transport.port import FULL_MEMBER, gid_at, gids_match, is_own_lid, pkey_at, pkeys_match
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, READ_RESPONSE, Grh, Packet

_RESPONSES: Final = (ACKNOWLEDGE, READ_RESPONSE, ATOMIC_ACKNOWLEDGE)


def receive(hca: Hca, port: Port, qp: Qp, packet: Packet) -> None:
    """A request or response for a connected queue pair; what does not belong to its connection is dropped."""
    state = qp.state
    if state <= INIT or state == ERR:
        hca.count[Count.RX_DROP_QP_STATE] += 1
        return
    path = qp.path
    if path is None or packet.slid != path.dlid or not is_own_lid(port, packet.dlid):
        hca.count[Count.RX_DROP_PATH] += 1
        return
    pkey = pkey_at(port, qp.pkey_index)
    if (packet.pkey != pkey or pkey <= FULL_MEMBER) and not pkeys_match(packet.pkey, pkey):
        hca.count[Count.RX_DROP_PKEY] += 1
        port.pkey_violation()
        return
    if (path.grh is not None or packet.grh is not None) and not _same_route(port, path, packet.grh):
        hca.count[Count.RX_DROP_GID] += 1
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


def _same_route(port: Port, path: Path, grh: Grh | None) -> bool:
    """Both directions of a connection have a GRH or none has; each names the other's ends (9.6.1.3)."""
    expected = path.grh
    if expected is None or grh is None:
        return False
    return gids_match(grh.sgid, expected.dgid) and gids_match(grh.dgid, gid_at(port, path.source_gid_index))
