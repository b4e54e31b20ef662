"""The packets that carry answers of agents on QP1 (13.5.1 of volume 1)."""

from vhca.wire import mad as madwire
from vhca.wire.packet import SEND, UD, Grh, Packet, Route


def gmp_reply(request: Packet, mad: bytes, slid: int) -> Packet:
    """The packet that carries `mad` from `slid` back to the queue pair that sent `request`.

    P_Key, SL and (swapped) GRH are those of the request.
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
        pkey=request.pkey,
        qkey=madwire.QP1_QKEY,
        src_qp=1,
    )
