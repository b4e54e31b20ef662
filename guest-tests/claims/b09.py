"""B09: how many requests and entries a queue pair takes, against what it was created with and says of itself."""

from common import PD, Endpoint, connect_pair, e, error_of, open_device, tell
from pyverbs.cq import CQ

ASKED_WR, ASKED_SGE = 16, 3


def fill(post):
    """Post until it is refused: how many went in, and with what the next one was refused."""
    for count in range(100_000):
        refusal = error_of(post)
        if refusal:
            return {"taken": count, "refusal": refusal}
    return {"taken": 100_000, "refusal": None}


def refused_size(ctx, pd, **cap):
    """Creation with more than the device can."""
    return error_of(Endpoint, ctx=ctx, pd=pd, memory=False, cq=shared_cq, **cap)


context = open_device()
domain = PD(context)
shared_cq = CQ(context, 8192)
first = Endpoint(ctx=context, pd=domain, cq=shared_cq, depth=ASKED_WR, sge=ASKED_SGE)
second = Endpoint(ctx=context, pd=domain, depth=ASKED_WR, sge=ASKED_SGE)
connect_pair(first, second)
_, init = first.qp.query(e.IBV_QP_CAP)
given = {name: getattr(init.cap, name) for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge")}
target = (second.memory.address, second.mr.rkey)


def entries(count):
    return [first.sge(4, 4 * number) for number in range(count)]


sge = {
    "send": [error_of(first.post_send, sges=entries(given["max_send_sge"] + extra)) for extra in (0, 1)],
    "recv": [error_of(first.post_recv, sges=entries(given["max_recv_sge"] + extra)) for extra in (0, 1)],
}
second.post_recv()
first.poll(1)
first.to_state("RESET")
first.connect(second.card())
send = fill(lambda: first.post_send(e.IBV_WR_RDMA_WRITE, remote=target, flags=0))
recv = fill(first.post_recv)
device = context.query_device()
beyond = {
    "max_qp_wr": [device.max_qp_wr, refused_size(context, domain, depth=device.max_qp_wr + 1)],
    "max_sge": [device.max_sge, refused_size(context, domain, sge=device.max_sge + 1)],
}
tell(asked=[ASKED_WR, ASKED_SGE], given=given, send=send, recv=recv, sge=sge, beyond=beyond)
