"""E01: eight queue pairs of side 0 on one SRQ; side 1 sends over them in a random order."""

import random

from common import Endpoint, Peer, arguments, status_name, tell
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR

QPS, MESSAGES, SLOT = 8, 48, 256


def main():
    peer = Peer(arguments())
    end = Endpoint(depth=128)
    if peer.side == 0:
        srq = SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=64)))
        end = Endpoint(ctx=end.ctx, pd=end.pd, depth=128, srq=srq)
        for slot in range(MESSAGES):
            srq.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[end.sge(SLOT, SLOT * slot)]))
    qps = [end.qp, *(end.new_qp() for _ in range(QPS - 1))]
    other = peer.swap(**end.card(qpns=[qp.qp_num for qp in qps]))
    for qp, qpn in zip(qps, other["qpns"], strict=True):
        end.connect({**other, "qpn": qpn}, qp)
    peer.meet()
    if peer.side == 0:
        peer.meet()
        done = end.poll(MESSAGES)
        tell(
            slots=[wc.wr_id for wc in done],
            senders=[[qp.qp_num for qp in qps].index(wc.qp_num) for wc in done],
            texts=[end.memory.read(wc.byte_len, SLOT * wc.wr_id).decode("latin-1") for wc in done],
            bad=[status_name(wc.status) for wc in done if wc.status],
        )
        return
    chance = random.Random(5)
    order = [chance.randrange(QPS) for _ in range(MESSAGES)]
    texts = []
    for number, which in enumerate(order):
        texts.append(f"{number} over {which}")
        end.memory.write(texts[-1].encode())
        end.post_send(qp=qps[which], sges=[end.sge(len(texts[-1]))])
        end.outcome()
    peer.meet()
    tell(order=order, texts=texts)


main()
