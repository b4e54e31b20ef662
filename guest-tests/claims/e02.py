"""E02: a message that is longer than the buffers of the SRQ, over one of two queue pairs."""

from common import Endpoint, Peer, arguments, status_name, tell
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR

BUFFER = 256


def main():
    peer = Peer(arguments())
    end = Endpoint()
    if peer.side == 0:
        srq = SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=16)))
        end = Endpoint(ctx=end.ctx, pd=end.pd, srq=srq)
        for slot in range(4):
            srq.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[end.sge(BUFFER, 4096 * slot)]))
    qps = [end.qp, end.new_qp()]
    other = peer.swap(**end.card(qpns=[qp.qp_num for qp in qps]))
    for qp, qpn in zip(qps, other["qpns"], strict=True):
        end.connect({**other, "qpn": qpn}, qp)
    peer.meet()
    if peer.side == 0:
        peer.meet()
        done = [(wc.wr_id, status_name(wc.status), [qp.qp_num for qp in qps].index(wc.qp_num)) for wc in end.poll(3)]
        tell(done=done, states=[end.state(qp) for qp in qps])
        return
    outcomes = []
    for which, size in ((0, BUFFER), (0, BUFFER + 1), (1, BUFFER)):
        end.post_send(qp=qps[which], sges=[end.sge(size)])
        outcomes.append(end.outcome())
    states = [end.state(qp) for qp in qps]
    peer.meet()
    tell(outcomes=outcomes, states=states)


main()
