"""E03: four queue pairs on an empty SRQ are sent to; then it is filled."""

from common import Endpoint, Peer, arguments, status_name, tell
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR

QPS = 4


def main():
    peer = Peer(arguments())
    end = Endpoint()
    if peer.side == 0:
        srq = SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=16)))
        end = Endpoint(ctx=end.ctx, pd=end.pd, srq=srq)
    qps = [end.qp, *(end.new_qp() for _ in range(QPS - 1))]
    other = peer.swap(**end.card(qpns=[qp.qp_num for qp in qps]))
    for qp, qpn in zip(qps, other["qpns"], strict=True):
        end.connect({**other, "qpn": qpn}, qp, min_rnr_timer=22)
    peer.meet()
    if peer.side == 0:
        peer.meet()
        early = len(end.poll(1, timeout_s=0.1))
        for slot in range(QPS):
            srq.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[end.sge(64, 64 * slot)]))
        done = end.poll(QPS)
        peer.meet()
        tell(early=early, received=len(done), over=len({wc.qp_num for wc in done}))
        return
    for qp in qps:
        end.post_send(qp=qp)
    waiting = len(end.poll(1, timeout_s=0.7))
    peer.meet()
    outcomes = [status_name(wc.status) for wc in end.poll(QPS)]
    peer.meet()
    tell(qpns=other["qpns"], waiting=waiting, outcomes=outcomes)


main()
