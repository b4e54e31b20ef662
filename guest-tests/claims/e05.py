"""E05: side 0 takes many connections, with an SRQ or with a receive queue each, and says what that takes.

Side 1 opens as many and sends one message over each. Nothing is counted before the device is open.
"""

import time

from common import Endpoint, Memory, Peer, arguments, say, status_name, tell, vm_kib
from pyverbs.cq import CQ
from pyverbs.qp import QPCap
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR

BATCH = 250


def meminfo(*names):
    found = {}
    with open("/proc/meminfo") as lines:
        for line in lines:
            name, value = line.split(":")
            if name in names:
                found[name] = int(value.split()[0])
    return found


def figures():
    """KiB: of the process, and of the whole machine."""
    system = meminfo("MemAvailable", "Slab", "SUnreclaim")
    return {"VmPin": vm_kib("VmPin"), "VmRSS": vm_kib("VmRSS"), **system}


def main():
    options = arguments(
        ("--count", {"type": int, "required": True}),
        ("--mode", {"choices": ("srq", "own"), "required": True}),
        ("--pool", {"type": int, "default": 4096}),
        ("--each", {"type": int, "default": 16}),
        ("--buffer", {"type": int, "default": 4096}),
    )
    peer = Peer(options)
    end = Endpoint(depth=4, sge=1)
    end.cq = CQ(end.ctx, 4 * max(options.count, options.pool))
    server = peer.side == 0
    own = options.each if server and options.mode == "own" else 1
    end.cap = QPCap(max_send_wr=1, max_recv_wr=own, max_send_sge=1, max_recv_sge=1)
    before = figures()
    begun = time.monotonic()
    memory, mr, srq, total = None, None, None, 0
    if server:
        total = options.pool if options.mode == "srq" else options.count * options.each
        memory = Memory(total * options.buffer)
        mr = memory.register(end.pd)
        with_buffers = figures()
        if options.mode == "srq":
            end.srq = srq = SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=options.pool)))
    qps = []
    for number in range(options.count):
        if number % BATCH == 0:
            peer.meet()  # the two sides keep in step
        qps.append(end.new_qp())
    created_s = time.monotonic() - begun
    other = peer.swap(**end.card(qpns=[qp.qp_num for qp in qps]))
    slots = iter(range(total))

    def receive(post, count):
        for _ in range(count):
            slot = next(slots)
            sge = SGE(memory.address + slot * options.buffer, options.buffer, mr.lkey)
            post(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    if srq is not None:
        receive(srq.post_recv, total)
    for number, (qp, qpn) in enumerate(zip(qps, other["qpns"], strict=True)):
        if number % BATCH == 0:
            peer.meet()
        end.to_init(qp)
        end.to_rtr({**other, "qpn": qpn}, qp, min_rnr_timer=20, max_dest_rd_atomic=1)
        if not server:  # the server only receives
            end.to_rts(qp, max_rd_atomic=1)
        elif srq is None:
            receive(qp.post_recv, options.each)
    ready_s = time.monotonic() - begun
    after = figures()
    say(f"{options.count} queue pairs created in {created_s:.1f} s, connected after {ready_s:.1f} s")
    peer.meet()
    got, bad = set(), []
    for start in range(0, options.count, BATCH):
        part = qps[start : start + BATCH]
        if server:
            for wc in end.poll(len(part), timeout_s=60):
                got.add(wc.qp_num)
                bad += [status_name(wc.status)] if wc.status else []
                if srq is not None:
                    sge = SGE(memory.address + wc.wr_id * options.buffer, options.buffer, mr.lkey)
                    srq.post_recv(RecvWR(wr_id=wc.wr_id, num_sge=1, sg=[sge]))
        else:
            for qp in part:
                end.post_send(qp=qp)
            bad += [status_name(wc.status) for wc in end.poll(len(part), timeout_s=60) if wc.status]
        peer.meet()
    grown = {name: after[name] - before[name] for name in after}
    buffers = with_buffers["VmPin"] - before["VmPin"] if server else 0
    tell(
        grown=grown,
        buffers_pinned=buffers,
        reached=len(got),
        bad=bad[:5],
        created_s=created_s,
        ready_s=ready_s,
        buffers=total,
    )


main()
