"""What the transport sees of a port: how packets leave it, and which it accepts.

Address vectors become a :class:`vhca.wire.packet.Route` here, and nobody else in the transport reads a route: another
link layer means another such module. The port's owner (subnet management agent, commands) provides an object of the
shape of :class:`firmware.model.port.Port` as `hca.ports[number]`; numbers start at 1. It is only read, at each use,
because a subnet manager may change it at any time.
"""

from typing import Final

from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.port import Port
from firmware.model.qp import Path
from vhca.hw.effects import Transmit
from vhca.management.partitions import FULL_MEMBER, pkeys_match
from vhca.wire.connectx.qpc import Ads
from vhca.wire.connectx.wqe import DatagramSegment
from vhca.wire.ib import grh_bytes, transport_size_bytes
from vhca.wire.packet import MANAGEMENT_VL, MULTICAST_LID_FIRST, PERMISSIVE_LID, Grh, Packet, Route
from vhca.wire.smp import DEFAULT_GID_PREFIX

DEFAULT_PREFIX: Final = DEFAULT_GID_PREFIX.to_bytes(8, "big")
# Answers come from the LID that was asked; the port cuts path bits to its LMC.
MAX_PATH_BITS: Final = 0x7F

CLOSED: Final = 0
WIRE: Final = 1
LOOPBACK: Final = 2

_av = DatagramSegment.unpacker(
    "ext", "sl", "mlid", "rlid", "tclass", "hop_limit", "grh", "src_addr_index", "flow_label", "rgid"
)


# Tables


def pkey_at(port: Port, index: int) -> int:
    """The P_Key at `index`, 0 if the table has no such entry."""
    pkeys = port.pkeys
    return pkeys[index] if index < len(pkeys) else 0


def gid_at(port: Port, index: int) -> bytes:
    """The GID at `index`, all zeros if the table has no such entry."""
    gids = port.gids
    return gids[index] if index < len(gids) else bytes(16)


def gids_match(gid: bytes, own: bytes) -> bool:
    """Tell whether `gid` of a packet stands for `own`: the default prefix is good for every port (4.1.1)."""
    return gid == own or (gid[:8] == DEFAULT_PREFIX and gid[8:] == own[8:])


def is_own_lid(port: Port, lid: int) -> bool:
    """Tell whether packets for `lid` are for this port."""
    base = port.lid
    if lid <= base:
        return lid == base != 0
    return base != 0 and lid - base < 1 << port.lmc


# From an address vector to a route


def is_unicast(ads: Ads) -> bool:
    """Tell whether an address vector names one receiver."""
    return ads.rlid < MULTICAST_LID_FIRST


def has_source(port: Port, ads: Ads) -> bool:
    """Tell whether the port has the source GID that an address vector asks for, if it asks for one."""
    return not ads.grh or ads.src_addr_index < len(port.gids)


def path_of(port: Port, ads: Ads) -> Path:
    """The path of a connection, from the address vector of its context, which has been checked."""
    grh = None
    if ads.grh:
        grh = Grh(gid_at(port, ads.src_addr_index), ads.rgid_rip, ads.tclass, ads.flow_label, ads.hop_limit)
    return Path(dlid=ads.rlid, sl=ads.sl, mlid=ads.mlid, source_gid_index=ads.src_addr_index, grh=grh)


def path_of_vector(port: Port, vector: bytes) -> Path | None:
    """The path that the address vector of a work request names; None unless it is an extended one to a unicast LID."""
    extended, sl, mlid, rlid, tclass, hop_limit, has_grh, gid_index, flow_label, rgid = _av(vector)
    if not extended or rlid >= MULTICAST_LID_FIRST:
        return None
    grh = Grh(gid_at(port, gid_index), rgid, tclass, flow_label, hop_limit) if has_grh else None
    return Path(dlid=rlid, sl=sl, mlid=mlid, source_gid_index=gid_index, grh=grh)


def path_back(packet: Packet) -> Path:
    """The path to whoever sent `packet`, from the address that it was sent to."""
    dlid, slid, sl, _, grh = packet.route
    back = Grh(grh.dgid, grh.sgid, grh.tclass, grh.flow_label, grh.hop_limit) if grh is not None else None
    return Path(dlid=slid, sl=sl, mlid=dlid & MAX_PATH_BITS, grh=back)


def route_over(port: Port, path: Path) -> Route:
    """The route of what leaves over `path`: made once, and anew when LID, LMC, GID or lanes of the port are others."""
    lid = port.lid
    slid = lid | path.mlid & (1 << port.lmc) - 1 if path.mlid else lid
    vl = port.lanes[path.sl]
    route = path.route
    grh = path.grh
    if grh is not None:
        sgid = gid_at(port, path.source_gid_index)
        if grh.sgid != sgid:
            grh = path.grh = grh._replace(sgid=sgid)
            route = None
    if route is None or route.slid != slid or route.vl != vl:
        route = path.route = Route(path.dlid, slid, path.sl, vl, grh)
    return route


def datagram_route(port: Port, vector: bytes) -> Route | None:
    """The route of a datagram with this address vector; None if the vector is not an extended one."""
    extended, sl, mlid, rlid, tclass, hop_limit, has_grh, gid_index, flow_label, rgid = _av(vector)
    if not extended:
        return None
    grh = Grh(gid_at(port, gid_index), rgid, tclass, flow_label, hop_limit) if has_grh else None
    return Route(rlid, port.lid | mlid & (1 << port.lmc) - 1, sl, port.lanes[sl], grh)


def management_route(port: Port, vector: bytes, mad: bytes) -> Route | None:
    """As :func:`datagram_route` for QP0: VL 15, no GRH, SL 0 (13.5.1).

    A port without a LID sends from the permissive LID, and so does a directed route whose first leg has ports (14.2.2).
    """
    route = datagram_route(port, vector)
    if route is None:
        return None
    slid = route.slid if port.lid and not _permissive_source(mad) else PERMISSIVE_LID
    return Route(route.dlid, slid, 0, MANAGEMENT_VL)


def _permissive_source(mad: bytes) -> bool:
    return len(mad) >= 36 and mad[1] == 0x81 and mad[32] == 0xFF and mad[33] == 0xFF


def way_back(route: Route, answer: Route | None = None) -> Route:
    """The route of what comes back to the sender, as far as the fabric looks at it; like `answer`, if that is known."""
    if answer is None:
        return Route(route.slid, route.dlid, route.sl)
    return Route(route.slid, route.dlid, answer.sl, answer.vl)


# What arrives


def accepts(port: Port, packet: Packet) -> bool:
    """Tell whether a packet for one receiver was sent to this port."""
    return is_own_lid(port, packet.route.dlid)


def accepts_management(port: Port, packet: Packet) -> bool:
    """As :func:`accepts`; a directed route has no LID."""
    dlid = packet.route.dlid
    return dlid == PERMISSIVE_LID or is_own_lid(port, dlid)


def on_management_lane(packet: Packet) -> bool:
    """Tell whether a packet came on the virtual lane of subnet management, that no data uses (7.6.2)."""
    return packet.route.vl == MANAGEMENT_VL


def is_addressed(port: Port, packet: Packet) -> bool:
    """Tell whether the GID of a packet, if it has one, is one of the port's."""
    grh = packet.route.grh
    return grh is None or any(gids_match(grh.dgid, own) for own in port.gids)


def stranger(port: Port, path: Path, pkey: int, packet: Packet) -> Count | None:
    """Why a packet does not belong to the connection over `path`, whose partition is `pkey`; None if it does (9.6.1).

    The peer sent it to this port in that partition. Both directions have a GRH or none has; each names the other's
    ends (9.6.1.3).
    """
    dlid, slid, _, _, grh = packet.route
    if slid != path.dlid or (dlid != port.lid and not is_own_lid(port, dlid)) or not dlid:
        return Count.RX_DROP_PATH
    if (packet.pkey != pkey or pkey <= FULL_MEMBER) and not pkeys_match(packet.pkey, pkey):
        return Count.RX_DROP_PKEY
    expected = path.grh
    if expected is None and grh is None:
        return None
    if (
        expected is None
        or grh is None
        or not gids_match(grh.sgid, expected.dgid)
        or not gids_match(grh.dgid, gid_at(port, path.source_gid_index))
    ):
        return Count.RX_DROP_GID
    return None


def sender(packet: Packet) -> int:
    """What tells one port of the subnet from the others, of the port that `packet` came from."""
    return packet.route.slid


def is_own(port: Port, packet: Packet) -> bool:
    """Tell whether a packet was sent by this port itself."""
    return port.lid <= packet.route.slid < port.lid + (1 << port.lmc)


def origin(port: Port, packet: Packet) -> tuple[int, int, int]:
    """What a completion says about the way of a packet: source LID, path bits of the DLID (0 for multicasts), SL."""
    dlid, slid, sl, _, _ = packet.route
    return slid, dlid & (1 << port.lmc) - 1 if dlid < MULTICAST_LID_FIRST else 0, sl


def is_multicast(packet: Packet) -> bool:
    """Tell whether a packet goes to a group."""
    return packet.route.is_multicast


def group_of(packet: Packet) -> bytes:
    """The GID of the group that a packet is for; empty if it names none."""
    grh = packet.route.grh
    return grh.dgid if grh is not None else b""


def network_header(packet: Packet) -> bytes:
    """The GRH as the first 40 bytes of a receive show it; empty if there is none."""
    grh = packet.route.grh
    return grh_bytes(grh, transport_size_bytes(packet)) if grh is not None else b""


# What leaves


def egress(port: Port, route: Route) -> int:
    """Where packets for one receiver go: to the wire, or round inside.

    Nowhere while the port is not active, or for a service level that has no lane to the wire.
    """
    if not port.active:
        return CLOSED
    if is_own_lid(port, route.dlid):
        return LOOPBACK
    return WIRE if route.vl <= MANAGEMENT_VL else CLOSED


def discard(hca: Hca, port: Port | None, packet: Packet) -> None:
    """Drop what cannot leave: the port is not active, or has no lane for it (PortXmitDiscards, 16.1.3.5)."""
    hca.count[Count.TX_DROP_PORT_INACTIVE] += 1
    if port is not None:
        port.counters.xmit_discards += packet.count


def transmit(hca: Hca, number: int, packet: Packet) -> bool:
    """Send `packet` out of port `number`, or back in if it is for the port itself.

    A switch never returns a packet to the port it came from, so packets for an own LID turn round inside the card:
    they go to `hca.loopback`, each to be handled as an event of its own. False: dropped.
    """
    port = hca.ports.get(number)
    if port is None or not (port.active or packet.route.vl == MANAGEMENT_VL):
        discard(hca, port, packet)
        return False
    dlid = packet.route.dlid
    if port.lid <= dlid < PERMISSIVE_LID and is_own_lid(port, dlid):
        hca.loopback.append((number, packet))
    elif packet.route.vl > MANAGEMENT_VL:
        discard(hca, port, packet)
        return False
    else:
        hca.out.append(Transmit(number, packet))
    return True
