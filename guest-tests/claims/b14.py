"""B14: a send with a wrong lkey on an unreliable queue pair: which state follows, who goes on, and the way back.

Three rounds on fresh queue pairs, each with another way back: side 0 fails, side 1 looks on.
"""

from common import PORT, Endpoint, Peer, QPAttr, arguments, e, error_of, status_name, tell
from pyverbs.addr import AH, AHAttr

WRONG_KEY = 0x00BADB00


WAYS = ("state alone", "query, then state alone", "cur_qp_state SQE")


def main():
    options = arguments(("--type", {"default": "UD"}))
    peer = Peer(options)
    rounds = {}
    for way in WAYS:
        end = Endpoint(qp_type=getattr(e, "IBV_QPT_" + options.type))
        other = peer.swap(**end.card())
        end.connect(other)
        ah = None
        if options.type == "UD":
            ah = (AH(end.pd, attr=AHAttr(dlid=other["lid"], port_num=PORT)), other["qpn"])
        for number in range(4):
            end.post_recv(wr_id=100 + number, sges=[end.sge(128, 256 * number)])
        peer.meet()
        rounds[way] = failing(peer, end, ah, way) if peer.side == 0 else looking_on(peer, end, ah)
    tell(rounds=rounds)


def finished(end, count):
    return [(wc.wr_id, status_name(wc.status)) for wc in end.poll(count, timeout_s=2.0)]


def looking_on(peer, end, ah):
    """Side 1: send while the other side is in SQE, then wait for what it sends."""
    peer.meet()
    end.post_send(wr_id=9, ah=ah)
    sent = end.outcome()
    peer.meet()
    peer.meet()
    return {"sent": sent, "received": [status for _, status in finished(end, 1)]}


def failing(peer, end, ah, way):
    """Side 0: fail, look, receive, recover, send."""
    seen = {}
    end.post_send(wr_id=1, sges=[end.sge(64, lkey=WRONG_KEY)], ah=ah)
    end.post_send(wr_id=2, ah=ah)
    seen["first"] = finished(end, 2)
    end.post_send(wr_id=3, ah=ah)
    seen["flushed"] = finished(end, 1)
    if way.startswith("query"):
        seen["state"] = end.state()
    peer.meet()
    seen["received"] = finished(end, 1)
    peer.meet()
    attr = QPAttr(qp_state=e.IBV_QPS_RTS)
    attr.cur_qp_state = e.IBV_QPS_SQE
    mask = e.IBV_QP_STATE | (e.IBV_QP_CUR_STATE if way.startswith("cur") else 0)
    seen["back"] = error_of(end.qp.modify, attr, mask)
    seen["recovered"] = end.state()
    end.post_send(wr_id=4, ah=ah)
    seen["again"] = finished(end, 1)
    peer.meet()
    return seen


main()
