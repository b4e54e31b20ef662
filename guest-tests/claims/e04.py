"""E04: a limit on an SRQ that is emptied by messages, twice: with the limit set once, and set again."""

from common import Endpoint, Peer, arguments, async_event, e, tell
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR

POSTED, LIMIT = 10, 5


def refill(end, srq, count):
    for slot in range(count):
        srq.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[end.sge(64, 64 * slot)]))


def arm(srq):
    srq.modify(SrqAttr(srq_limit=LIMIT), e.IBV_SRQ_LIMIT)


def main():
    peer = Peer(arguments())
    end = Endpoint()
    if peer.side == 0:
        srq = SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=32)))
        end = Endpoint(ctx=end.ctx, pd=end.pd, srq=srq)
        refill(end, srq, POSTED)
        arm(srq)
    other = peer.swap(**end.card())
    end.connect(other)
    peer.meet()
    if peer.side == 1:
        for _ in range(3 * POSTED):
            peer.receive()
            end.post_send()
            peer.send(outcome=end.outcome())
        tell(done=True)
        return
    seen = {"limit_set": srq.query().srq_limit}
    for name in ("first", "not_armed", "armed_again"):
        if name == "armed_again":
            arm(srq)
        events = []
        for taken in range(1, POSTED + 1):
            peer.send(x=0)
            peer.receive()
            end.poll(1)
            event = async_event(end.ctx, timeout_s=0.3)
            if event:
                events.append([event, POSTED - taken])
        seen[name] = events
        seen["limit_after_" + name] = srq.query().srq_limit
        refill(end, srq, POSTED)
    tell(**seen, limit=LIMIT)


main()
