"""B15: what a queue pair in ERR does with work, and which ways lead out of it."""

from common import STATES, Endpoint, QPAttr, connect_pair, e, error_of, status_name, tell

ALL = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS


def finished(end, count, timeout_s=3.0):
    return sorted((wc.wr_id, status_name(wc.status)) for wc in end.poll(count, timeout_s=timeout_s))


first = Endpoint()
second = Endpoint(ctx=first.ctx, pd=first.pd)
connect_pair(first, second, min_rnr_timer=20)
for number in range(3):
    first.post_send(wr_id=number)  # no receive is there: they stay
    first.post_recv(wr_id=100 + number)
before = finished(first, 1, timeout_s=0.5)
first.to_state("ERR")
flushed = finished(first, 6)
first.post_send(wr_id=10)
first.post_recv(wr_id=110)
later = finished(first, 2)
ways = {}
for state in STATES[1:6]:
    attr = QPAttr(qp_state=getattr(e, "IBV_QPS_" + state), port_num=1)
    masks = {"state alone": e.IBV_QP_STATE, "with attributes": ALL}
    for name, mask in masks.items():
        ways[f"{state}, {name}"] = error_of(first.qp.modify, attr, mask)
stays = first.state()
reset = error_of(first.to_state, "RESET")
after = first.state()
second.to_state("RESET")
connect_pair(first, second)
second.post_recv(wr_id=200)
first.post_send(wr_id=20)
tell(
    before=before,
    flushed=flushed,
    later=later,
    ways=ways,
    stays=stays,
    reset=reset,
    after=after,
    again=finished(first, 1),
)
