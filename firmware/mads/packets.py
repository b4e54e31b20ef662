"""Management datagrams on the wire: the packets that QP0 and QP1 send for the agents (13.5, 14.2.2 of volume 1)."""

from firmware.mads.port import ManagedPort
from vhca.management.packets import gmp_reply
from vhca.wire import mad as madwire
from vhca.wire.packet import DEFAULT_PKEY, MANAGEMENT_VL, PERMISSIVE_LID, SEND, UD, Packet, Route


def smp_packet(mad: bytes, dlid: int, slid: int, psn: int = 0, sl: int = 0) -> Packet:
    """An SMP on its way: QP0 to QP0 on VL 15, Q_Key 0."""
    return Packet(
        route=Route(dlid, slid, sl, MANAGEMENT_VL),
        service=UD,
        op=SEND,
        dest_qp=0,
        psn=psn,
        payload=mad,
        mtu=256,
        pkey=DEFAULT_PKEY,
    )


def reply_packet(request: Packet, mad: bytes, slid: int) -> Packet:
    """The packet that carries the agent's answer `mad` back to where `request` came from.

    `slid` is the port's own LID. Directed routes answer with permissive LIDs unless the request came by LID: because
    its route ends in a LID-routed part, or has no directed part. On QP1 the answer goes to the QP that asked, with the
    P_Key, SL and (swapped) GRH of the request.
    """
    if request.dest_qp == 0:
        dlid = request.route.slid
        if mad[1] == madwire.CLASS_SUBN_DR:
            answer = madwire.Smp.from_bytes(mad)
            # Hops were walked by port number up to here: so they are on the way back.
            if answer.dr_dlid == PERMISSIVE_LID and (answer.hop_count or answer.dr_slid == PERMISSIVE_LID):
                dlid = slid = PERMISSIVE_LID
        return smp_packet(mad, dlid, slid or PERMISSIVE_LID, request.psn)
    return gmp_reply(request, mad, slid)


def trap_packet(port: ManagedPort, mad: bytes) -> Packet:
    """The packet that carries a trap from `port` to its subnet manager."""
    return smp_packet(mad, port.sm_lid, port.lid, sl=port.info.sm_sl)
