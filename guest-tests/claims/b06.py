"""B06: XRC.  Side 0 has three XRC SRQs behind two target queue pairs; side 1 reaches all from two initiators."""

import os

from common import PORT, PSN, Endpoint, Memory, Peer, arguments, e, status_name, tell
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.srq import SRQ, SrqInitAttrEx
from pyverbs.wr import SGE, RecvWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

SRQS = 3
INITIATORS = 2
INIT = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS
RTR = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
RTR_TARGET = RTR | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
RTS = e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_SQ_PSN
RTS_INITIATOR = RTS | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC


def connect(qp, lid, qpn, initiator):
    """RESET -> RTS."""
    attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=PORT)
    attr.pkey_index, attr.qp_access_flags = 0, e.IBV_ACCESS_REMOTE_WRITE
    qp.modify(attr, INIT)
    attr = QPAttr(qp_state=e.IBV_QPS_RTR)
    attr.path_mtu, attr.dest_qp_num, attr.rq_psn = e.IBV_MTU_1024, qpn, PSN
    attr.max_dest_rd_atomic, attr.min_rnr_timer = 1, 12
    attr.ah_attr = AHAttr(dlid=lid, port_num=PORT)
    qp.modify(attr, RTR if initiator else RTR_TARGET)
    attr = QPAttr(qp_state=e.IBV_QPS_RTS)
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.sq_psn, attr.max_rd_atomic = 14, 7, 7, PSN, 1
    qp.modify(attr, RTS_INITIATOR if initiator else RTS)


def target():
    """Side 0."""
    peer = Peer(arguments())
    end = Endpoint(memory=False)  # for its context and PD
    domain = XRCD(end.ctx, XRCDInitAttr(e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS, os.O_CREAT, -1))
    memory = Memory(65536)
    mr = memory.register(end.pd)
    srqs, cqs = [], []
    for number in range(SRQS):
        init = SrqInitAttrEx(max_wr=16)
        init.comp_mask = (
            e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_CQ | e.IBV_SRQ_INIT_ATTR_XRCD
        )
        cqs.append(CQ(end.ctx, 32))
        init.srq_type, init.pd, init.cq, init.xrcd = e.IBV_SRQT_XRC, end.pd, cqs[-1], domain
        srqs.append(SRQ(end.ctx, init))
        for slot in range(INITIATORS):
            offset = 4096 * (INITIATORS * number + slot)
            srqs[-1].post_recv(RecvWR(wr_id=offset, num_sge=1, sg=[SGE(memory.address + offset, 64, mr.lkey)]))
    qps = []
    for _ in range(INITIATORS):
        init = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_RECV, xrcd=domain, comp_mask=e.IBV_QP_INIT_ATTR_XRCD)
        qps.append(QPEx(end.ctx, init))
    lid = end.card()["lid"]
    other = peer.swap(qpns=[qp.qp_num for qp in qps], lid=lid, srqns=[srq.get_srq_num() for srq in srqs])
    for qp, qpn in zip(qps, other["qpns"], strict=True):
        connect(qp, other["lid"], qpn, initiator=False)
    peer.meet()
    boxes = []
    for cq in cqs:
        done = end.poll(INITIATORS, cq=cq, timeout_s=10)
        boxes.append(sorted(memory.read(6, wc.wr_id).decode() for wc in done if not wc.status))
    peer.meet()
    tell(boxes=boxes, queue_pairs=len(qps))


def initiator():
    """Side 1."""
    peer = Peer(arguments())
    end = Endpoint()
    qps = []
    for _ in range(INITIATORS):
        cap = QPCap(max_send_wr=16, max_send_sge=1, max_recv_wr=0, max_recv_sge=0)
        init = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_SEND, scq=end.cq, cap=cap, pd=end.pd, comp_mask=e.IBV_QP_INIT_ATTR_PD)
        qps.append(QPEx(end.ctx, init))
    other = peer.swap(qpns=[qp.qp_num for qp in qps], lid=end.card()["lid"])
    for qp, qpn in zip(qps, other["qpns"], strict=True):
        connect(qp, other["lid"], qpn, initiator=True)
    peer.meet()
    outcomes = []
    for number, qp in enumerate(qps):
        for srq, srqn in enumerate(other["srqns"]):
            end.memory.write(b"%d to %d" % (number, srq))
            wr = end.send_wr(sges=[end.sge(6)])
            wr.set_qp_type_xrc(srqn)
            qp.post_send(wr)
            outcomes += [status_name(wc.status) for wc in end.poll(1)] or ["nothing"]
    peer.meet()
    tell(outcomes=outcomes, queue_pairs=len(qps))


if arguments().peer.startswith("0"):
    target()
else:
    initiator()
