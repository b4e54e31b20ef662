"""B16, B17: carry out modify_qp calls from a list, each from its own state, and say how each ended.

The list is a JSON file of {"required": {service: {state: mask}}, "cases": [[service, from, to, mask], ...]}; the
calls that share service and state come one after the other.
"""

import json
import os

from common import PORT, PSN, QKEY, STATES, Endpoint, QPAttr, arguments, e, error_of, tell
from pyverbs.addr import AH, AHAttr
from pyverbs.qp import QPCap, QPEx, QPInitAttrEx
from pyverbs.xrcd import XRCD, XRCDInitAttr

LADDER = ("INIT", "RTR", "RTS")
WRONG_KEY = 0x00BADB00


class Subject:
    """A queue pair of one service that can be brought into any state that can be reached."""

    def __init__(self, service, required):
        self.service = service
        self.required = required
        kind = "RC" if service.startswith("XRC") else service
        self.end = Endpoint(qp_type=getattr(e, "IBV_QPT_" + kind), depth=4)
        self.lid = self.end.card()["lid"]
        self.qp = self._xrc(service) if service.startswith("XRC") else self.end.qp
        self.now = "RESET"

    def _xrc(self, service):
        end = self.end
        if service == "XRC_SEND":
            cap = QPCap(max_send_wr=4, max_send_sge=1, max_recv_wr=0, max_recv_sge=0)
            mask = e.IBV_QP_INIT_ATTR_PD
            return QPEx(
                end.ctx, QPInitAttrEx(qp_type=e.IBV_QPT_XRC_SEND, scq=end.cq, cap=cap, pd=end.pd, comp_mask=mask)
            )
        flags = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
        self.domain = XRCD(end.ctx, XRCDInitAttr(flags, os.O_CREAT, -1))
        init = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_RECV, xrcd=self.domain, comp_mask=e.IBV_QP_INIT_ATTR_XRCD)
        return QPEx(end.ctx, init)

    def attributes(self, target, source):
        """A value for everything; the mask decides what counts."""
        attr = QPAttr(qp_state=getattr(e, "IBV_QPS_" + target), port_num=PORT)
        attr.cur_qp_state = getattr(e, "IBV_QPS_" + source)
        attr.qkey, attr.rq_psn, attr.sq_psn, attr.pkey_index = QKEY, PSN, PSN, 0
        attr.dest_qp_num, attr.path_mtu = self.qp.qp_num, e.IBV_MTU_1024
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.max_rd_atomic, attr.max_dest_rd_atomic = 1, 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(dlid=self.lid, port_num=PORT)
        attr.alt_ah_attr = AHAttr(dlid=self.lid, port_num=PORT)
        attr.alt_pkey_index, attr.alt_port_num, attr.alt_timeout = 0, PORT, 14
        attr.path_mig_state = e.IBV_MIG_MIGRATED
        attr.cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        return attr

    def modify(self, target, mask):
        """One call; None or the name of the errno."""
        refusal = error_of(self.qp.modify, self.attributes(target, self.now), mask)
        if refusal is None:
            self.now = target
        return refusal

    def reach(self, state):
        """Bring the queue pair into a state from wherever it is."""
        if self.now == state:
            return
        self._must("RESET", e.IBV_QP_STATE)
        if state == "ERR":
            self._must("INIT", self.required["INIT"])
            self._must("ERR", e.IBV_QP_STATE)
            return
        for step in LADDER:
            if self.now == state:
                return
            self._must(step, self.required[step])
        if state == "SQE":
            self._fail_a_send()

    def _must(self, state, mask):
        refusal = self.modify(state, mask)
        if refusal:
            raise SystemExit(f"{self.service} cannot be brought from {self.now} to {state}: {refusal}")

    def _fail_a_send(self):
        ah = None
        if self.service == "UD":
            ah = (AH(self.end.pd, attr=AHAttr(dlid=self.lid, port_num=PORT)), self.qp.qp_num)
        self.end.post_send(qp=self.qp, sges=[self.end.sge(8, lkey=WRONG_KEY)], ah=ah)
        self.end.poll(1, timeout_s=10)
        self.now = self.state()

    def state(self):
        """As the driver tells."""
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return STATES[attr.qp_state]


def main():
    options = arguments(("--cases", {"required": True}))
    with open(options.cases) as file:
        work = json.load(file)
    subjects, outcomes, moved = {}, [], []
    for service, source, target, mask in work["cases"]:
        subject = subjects.get(service)
        if subject is None:
            subject = subjects[service] = Subject(service, work["required"][service])
        subject.reach(source)
        if subject.now != source:
            outcomes.append("unreached")
            continue
        refusal = subject.modify(target, mask)
        outcomes.append(refusal)
        seen = subject.state()
        if seen != (source if refusal else target):
            moved.append([service, source, target, mask, refusal, seen])
        subject.now = seen
    tell(outcomes=outcomes, moved=moved, by_itself=by_itself())


def by_itself():
    """State of a reliable queue pair before and after a send with a wrong lkey, with no modify in between."""
    end = Endpoint()
    end.connect(end.card())
    before = end.state()
    end.post_send(sges=[end.sge(8, lkey=WRONG_KEY)])
    end.poll(1, timeout_s=10)
    return [before, end.state()]


main()
