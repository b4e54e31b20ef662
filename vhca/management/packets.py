"""The packets that carry answers of agents on QP1 (13.5.1 of volume 1)."""

from vhca.wire import mad as madwire
from vhca.wire.packet import SEND, UD, Grh, Packet


def gmp_reply(request: Packet, mad: bytes, slid: int) -> Packet:
    """The packet that carries `mad` from `slid` back to the queue pair that sent `request`.

    P_Key, SL and (swapped) GRH are those of the request.
    """
    grh = request.grh
    return Packet(
        dlid=request.slid,
        slid=slid,
        service=UD,
        op=SEND,
        dest_qp=request.src_qp,
        psn=request.psn,
        payload=mad,
        mtu=256,
        sl=request.sl,
        grh=None if grh is None else Grh(grh.dgid, grh.sgid, grh.tclass, grh.flow_label, 0xFF),
        pkey=request.pkey,
        qkey=madwire.QP1_QKEY,
        src_qp=1,
    )
