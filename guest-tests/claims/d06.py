"""D06: chains of four requests whose third cannot be taken, on the send and on the receive queue."""

from common import Endpoint, connect_pair, error_of, status_name, tell
from pyverbs.wr import RecvWR, SendWR


def chain(end, kind, entries):
    """Four linked requests; the third has more entries than the queue takes."""
    following, links = None, []
    for number in (3, 2, 1, 0):
        sges = [end.sge(8, 8 * place) for place in range(entries if number == 2 else 1)]
        following = kind(wr_id=10 + number, num_sge=len(sges), sg=sges, next_wr=following)
        links.insert(0, following)
    return links


first = Endpoint(sge=2)
second = Endpoint(ctx=first.ctx, pd=first.pd, sge=2)
connect_pair(first, second)
bad_recv = RecvWR(wr_id=0, num_sge=1, sg=[second.sge()])
recv = chain(second, RecvWR, 9)
recv_refusal = error_of(second.qp.post_recv, recv[0], bad_recv)
second.post_recv(wr_id=90)
bad_send = SendWR(wr_id=0, num_sge=1, sg=[first.sge()])
send = chain(first, SendWR, 9)
send_refusal = error_of(first.qp.post_send, send[0], bad_send)
first_try = [(wc.wr_id, status_name(wc.status)) for wc in first.poll(4, timeout_s=2.0)]
first.post_send(wr_id=80)
tell(
    send_refusal=send_refusal,
    bad_send=bad_send.wr_id,
    recv_refusal=recv_refusal,
    bad_recv=bad_recv.wr_id,
    sent=first_try,
    later=[(wc.wr_id, status_name(wc.status)) for wc in first.poll(1)],
    received=[wc.wr_id for wc in second.poll(4, timeout_s=2.0)],
)
