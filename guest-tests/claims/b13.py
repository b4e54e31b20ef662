"""B13: RTS -> SQD with work in the send queue, on whatever device is named."""

from common import Endpoint, QPAttr, arguments, connect_pair, e, error_of, open_device, say, status_name, tell

PENDING = 8


def main():
    options = arguments(("--gid", {"type": int, "default": -1}))
    context = open_device()
    first = Endpoint(ctx=context)
    second = Endpoint(ctx=context, pd=first.pd)
    if options.gid >= 0:
        ethernet(first, second, options.gid)
    else:
        connect_pair(first, second, min_rnr_timer=20)
    for number in range(PENDING):
        first.post_send(wr_id=number)
    before = len(first.poll(1, timeout_s=0.3))
    plain = error_of(first.to_state, "SQD")
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    attr.en_sqd_async_notify = 1
    notify = None
    if plain:
        notify = error_of(first.qp.modify, attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
    state = first.state()
    say("state after the attempt:", state)
    for _ in range(PENDING):
        second.post_recv()
    done = [(wc.wr_id, status_name(wc.status)) for wc in first.poll(PENDING, timeout_s=10)]
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    attr.min_rnr_timer = 5
    changed = error_of(first.qp.modify, attr, e.IBV_QP_STATE | e.IBV_QP_MIN_RNR_TIMER)
    tell(before=before, plain=plain, notify=notify, state=state, done=done, changed=changed, back=first.state())


def ethernet(first, second, gid_index):
    """Connect over a device whose addresses are GIDs only."""
    from pyverbs.addr import AHAttr, GlobalRoute

    for end, other in ((first, second), (second, first)):
        end.to_init()
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        attr.path_mtu, attr.dest_qp_num, attr.rq_psn = e.IBV_MTU_1024, other.qp.qp_num, 0x1000
        attr.max_dest_rd_atomic, attr.min_rnr_timer = 1, 20
        route = GlobalRoute(dgid=first.ctx.query_gid(1, gid_index), sgid_index=gid_index, hop_limit=64)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        end.qp.modify(attr, mask | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
        end.to_rts(max_rd_atomic=1)


main()
