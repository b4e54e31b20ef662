"""The packets that carry management datagrams to and from agents (13.5.1 of volume 1)."""

from collections.abc import Sequence

from vhca.management.partitions import own_form
from vhca.wire import mad as madwire
from vhca.wire.packet import DEFAULT_PKEY, MANAGEMENT_VL, PERMISSIVE_LID, SEND, UD, Grh, Packet, Route


def gmp_reply(request: Packet, mad: bytes, slid: int, pkeys: Sequence[int] = (DEFAULT_PKEY,)) -> Packet:
    """The packet that carries `mad` from `slid` back to the queue pair that sent `request`.

    SL and (swapped) GRH are those of the request; the P_Key is of its partition, as the sender's table `pkeys` has it.
    """
    there = request.route
    grh = there.grh
    return Packet(
        route=Route(
            there.slid,
            slid,
            sl=there.sl,
            grh=None if grh is None else Grh(grh.dgid, grh.sgid, grh.tclass, grh.flow_label, 0xFF),
        ),
        service=UD,
        op=SEND,
        dest_qp=request.src_qp,
        psn=request.psn,
        payload=mad,
        mtu=256,
        pkey=own_form(pkeys, request.pkey),
        qkey=madwire.QP1_QKEY,
        src_qp=1,
    )


def gmp_packet(mad: bytes, dlid: int, slid: int, dest_qp: int = 1, src_qp: int = 1) -> Packet:
    """A datagram of general services on its way, in the default partition."""
    return Packet(
        route=Route(dlid, slid),
        service=UD,
        op=SEND,
        dest_qp=dest_qp,
        psn=0,
        payload=mad,
        mtu=256,
        pkey=DEFAULT_PKEY,
        qkey=madwire.QP1_QKEY,
        src_qp=src_qp,
    )


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


def smp_reply(request: Packet, mad: bytes, slid: int) -> Packet:
    """The packet that carries the answer `mad` of an end port's agent back to where `request` came from.

    `slid` is the port's own LID. Directed routes answer with permissive LIDs unless the request came by LID: because
    its route ends in a LID-routed part, or has no directed part.
    """
    dlid = request.route.slid
    if mad[1] == madwire.CLASS_SUBN_DR:
        answer = madwire.Smp.from_bytes(mad)
        # Hops were walked by port number up to here: so they are on the way back.
        if answer.dr_dlid == PERMISSIVE_LID and (answer.hop_count or answer.dr_slid == PERMISSIVE_LID):
            dlid = slid = PERMISSIVE_LID
    return smp_packet(mad, dlid, slid or PERMISSIVE_LID, request.psn)


def is_gmp(packet: Packet) -> bool:
    """Tell whether a packet is one management datagram for QP1, whatever its keys (13.5.1)."""
    return (
        packet.service == UD
        and packet.op == SEND
        and packet.count == 1
        and packet.dest_qp == 1
        and len(packet.payload) == madwire.MAD_BYTES
    )
