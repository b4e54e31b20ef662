"""What the transport sees of a port: addresses, tables and whether it is active; and where packets leave it.

The port's owner (subnet management agent, commands) provides an object of this shape as `hca.ports[number]`; numbers
start at 1. The transport only reads it, at each use, because a subnet manager may change it at any time.
"""

from dataclasses import replace
from typing import Final

from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.port import Port
from firmware.model.qp import Path
from vhca.hw.effects import Transmit
from vhca.wire.packet import MULTICAST_LID_FIRST, PERMISSIVE_LID, Grh, Packet

FULL_MEMBER: Final = 0x8000
DEFAULT_PKEY: Final = 0xFFFF
DEFAULT_GID_PREFIX: Final = bytes.fromhex("fe80000000000000")
MANAGEMENT_VL: Final = 15


def is_own_lid(port: Port, lid: int) -> bool:
    """Tell whether packets for `lid` are for this port."""
    base = port.lid
    if lid <= base:
        return lid == base != 0
    return base != 0 and lid - base < 1 << port.lmc


def path_bits(port: Port, packet: Packet) -> int:
    """Which of the port's LIDs a packet came to; 0 for multicasts."""
    return packet.dlid & (1 << port.lmc) - 1 if packet.dlid < MULTICAST_LID_FIRST else 0


def pkeys_match(one: int, other: int) -> bool:
    """Same partition and not both limited members (10.9.3)."""
    return (one ^ other) & 0x7FFF == 0 and (one | other) & FULL_MEMBER != 0 and one & 0x7FFF != 0


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
    return gid == own or (gid[:8] == DEFAULT_GID_PREFIX and gid[8:] == own[8:])


def is_own_gid(port: Port, gid: bytes) -> bool:
    """Tell whether `gid` is one of the port's."""
    return any(gids_match(gid, own) for own in port.gids)


def grh_of(port: Port, path: Path) -> Grh | None:
    """The GRH of what leaves over `path`, None if there is none; its source is what the table holds now."""
    grh = path.grh
    if grh is not None:
        sgid = gid_at(port, path.source_gid_index)
        if grh.sgid != sgid:
            grh = path.grh = replace(grh, sgid=sgid)
    return grh


CLOSED: Final = 0
WIRE: Final = 1
LOOPBACK: Final = 2


def egress(port: Port, dlid: int) -> int:
    """Where packets for a unicast LID go: nowhere while the port is not active, to the wire, or round inside."""
    if not port.active:
        return CLOSED
    return LOOPBACK if is_own_lid(port, dlid) else WIRE


def discard(hca: Hca, port: Port | None, packet: Packet) -> None:
    """Drop what cannot leave: the port is not active (PortXmitDiscards, 16.1.3.5)."""
    hca.count[Count.TX_DROP_PORT_INACTIVE] += 1
    if port is not None:
        port.counters.xmit_discards += packet.count


def transmit(hca: Hca, number: int, packet: Packet) -> bool:
    """Send `packet` out of port `number`, or back in if it is for the port itself.

    A switch never returns a packet to the port it came from, so packets for an own LID turn round inside the card:
    they go to `hca.loopback`, each to be handled as an event of its own. False if the port is not active: dropped.
    """
    port = hca.ports.get(number)
    if port is None or not (port.active or packet.vl == MANAGEMENT_VL):
        discard(hca, port, packet)
        return False
    dlid = packet.dlid
    if port.lid <= dlid < PERMISSIVE_LID and is_own_lid(port, dlid):
        hca.loopback.append((number, packet))
    else:
        hca.out.append(Transmit(number, packet))
    return True
