"""Management datagrams on the wire: the packets that QP0 and QP1 send for the agents (13.5, 14.2.2 of volume 1)."""

from collections.abc import Sequence

from firmware.mads.port import ManagedPort
from vhca.management.packets import gmp_reply, smp_packet, smp_reply
from vhca.wire.packet import DEFAULT_PKEY, Packet


def reply_packet(request: Packet, mad: bytes, slid: int, pkeys: Sequence[int] = (DEFAULT_PKEY,)) -> Packet:
    """The packet that carries the agent's answer `mad` back to where `request` came from.

    `slid` is the port's LID, `pkeys` its P_Key table.
    """
    return smp_reply(request, mad, slid) if request.dest_qp == 0 else gmp_reply(request, mad, slid, pkeys)


def trap_packet(port: ManagedPort, mad: bytes) -> Packet:
    """The packet that carries a trap from `port` to its subnet manager."""
    return smp_packet(mad, port.sm_lid, port.lid, sl=port.info.sm_sl)
