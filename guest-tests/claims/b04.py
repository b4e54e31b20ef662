"""B04: what an unreliable connection takes, and what becomes of a loss.

Side 1 sends messages 0..9 (the cable loses some), then writes, then tries what UC does not have.
"""

from common import Endpoint, Peer, arguments, e, error_of, tell
from pyverbs.qp import QPEx, QPInitAttrEx

MESSAGES = 10
LENGTH = 2500


def refused(end, other):
    """READ and atomics: at the post, or by a completion in error, or not at all."""
    results = {}
    for name in ("IBV_WR_RDMA_READ", "IBV_WR_ATOMIC_FETCH_AND_ADD", "IBV_WR_ATOMIC_CMP_AND_SWP"):
        end.connect(other)
        wr = end.send_wr(getattr(e, name), wr_id=50, sges=[end.sge(8)])
        if "ATOMIC" in name:
            wr.set_wr_atomic(other["rkey"], other["addr"], 1, 0)
        else:
            wr.set_wr_rdma(other["rkey"], other["addr"])
        at_post = error_of(end.qp.post_send, wr)
        results[name] = {"post": at_post, "completion": None if at_post else end.outcome(), "state": end.state()}
        end.to_state("RESET")
    extended = {}
    for name in ("READ", "ATOMIC_FETCH_AND_ADD", "SEND", "RDMA_WRITE"):
        flag = getattr(e, "IBV_QP_EX_WITH_" + ("RDMA_READ" if name == "READ" else name))
        init = QPInitAttrEx(
            qp_type=e.IBV_QPT_UC,
            scq=end.cq,
            rcq=end.cq,
            cap=end.cap,
            pd=end.pd,
            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=flag,
        )
        extended[name] = error_of(QPEx, end.ctx, init) or "created"
    return results, extended


def main():
    peer = Peer(arguments())
    end = Endpoint(qp_type=e.IBV_QPT_UC, size=200_000)
    other = peer.swap(**end.card())
    end.connect(other)
    if peer.side == 0:
        for number in range(MESSAGES + 1):
            end.post_recv(wr_id=number, sges=[end.sge(LENGTH, number * 4096)])
        peer.meet()
        peer.meet()
        got = [end.memory.read(1, wc.wr_id * 4096)[0] for wc in end.poll(MESSAGES, timeout_s=1.0) if not wc.status]
        peer.meet()
        written = end.memory.read(4, 190_000).decode("latin-1")
        peer.meet()
        tell(got=got, written=written, state=end.state())
        return
    peer.meet()
    outcomes = []
    for number in range(MESSAGES):
        end.memory.write(bytes([number]) * LENGTH)
        end.post_send(wr_id=number, sges=[end.sge(LENGTH)])
        outcomes.append(end.outcome())
    peer.meet()
    end.memory.write(b"wrote")
    end.post_send(e.IBV_WR_RDMA_WRITE, sges=[end.sge(4)], remote=(other["addr"] + 190_000, other["rkey"]))
    write = end.outcome()
    peer.meet()
    state = end.state()
    end.to_state("RESET")
    tried, extended = refused(end, other)
    peer.meet()
    tell(outcomes=outcomes, write=write, state=state, tried=tried, extended=extended)


main()
