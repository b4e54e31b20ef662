"""In a guest: use a memory key behind its end, as a peer (`remote`) and for a queue pair's own memory (`local`)."""

import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
context = Context(name="mlx5_0")
lid = context.query_port(1).lid
pd = PD(context)
cq = CQ(context, 10)
kept, late = MR(pd, 4096, RIGHTS), MR(pd, 4096, RIGHTS)
key, address = late.rkey, late.buf


def made():
    """A queue pair in INIT."""
    attributes = QPAttr(port_num=1)
    attributes.qp_access_flags = RIGHTS
    return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=4)), attributes)


def connect(pair, peer):
    """To RTS."""
    attributes = QPAttr(port_num=1)
    attributes.qp_access_flags = RIGHTS
    attributes.dest_qp_num, attributes.path_mtu = peer.qp_num, e.IBV_MTU_1024
    attributes.ah_attr = AHAttr(dlid=lid, port_num=1)
    attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
    attributes.min_rnr_timer, attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 12, 14, 7, 7
    pair.to_rts(attributes)


def connected():
    """Two queue pairs, each the other's peer."""
    left, right = made(), made()
    connect(left, right)
    connect(right, left)
    return left, right


def written(pair, local, remote):
    """The status of a WRITE between two (address, key)."""
    request = SendWR(
        opcode=e.IBV_WR_RDMA_WRITE, sg=[SGE(local[0], 64, local[1])], num_sge=1, send_flags=e.IBV_SEND_SIGNALED
    )
    request.set_wr_rdma(remote[1], remote[0])
    pair.post_send(request)
    while True:
        count, completions = cq.poll(1)
        if count:
            return completions[0].status
        time.sleep(0.01)


mine = (kept.buf, kept.lkey)
(asks, answers), (sends, _) = connected(), connected()
print("before", written(asks, mine, (address, key)))
late.close()
print("remote", written(asks, mine, (address, key)))
print("local", written(sends, (address, key), (kept.buf, kept.rkey)))
print(f"key {key:#x} {answers.qp_num:#x} {sends.qp_num:#x}")
