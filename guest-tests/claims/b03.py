"""B03: every operation of a reliable connection, content compared, over whatever the cable does.

Side 1 requests; side 0 only holds memory and receives.
"""

import hashlib

from common import Endpoint, Peer, QPAttr, arguments, e, error_of, say, status_name, tell

ROUNDS = 12
LENGTH = 5000
COUNTER = 0
AREA = 4096
SWAPPED = 64


def pattern(number):
    """Bytes that belong to one round."""
    return hashlib.shake_128(str(number).encode()).digest(LENGTH)


def requester(peer, end, other):
    """Send, write, read back and count, in every round."""
    wrong = []
    statuses = {}
    for number in range(ROUNDS):
        end.memory.write(pattern(number), AREA)
        data = [end.sge(LENGTH, AREA)]
        back = [end.sge(LENGTH, 2 * AREA + LENGTH)]
        place = (other["addr"] + AREA + number * 8192, other["rkey"])
        end.post_send(e.IBV_WR_SEND, wr_id=1, sges=data)
        end.post_send(e.IBV_WR_RDMA_WRITE, wr_id=2, sges=data, remote=place)
        end.post_send(e.IBV_WR_RDMA_READ, wr_id=3, sges=back, remote=place)
        add = end.send_wr(e.IBV_WR_ATOMIC_FETCH_AND_ADD, wr_id=4, sges=[end.sge(8, 16)])
        add.set_wr_atomic(other["rkey"], other["addr"] + COUNTER, 3)
        end.qp.post_send(add)
        swap = end.send_wr(e.IBV_WR_ATOMIC_CMP_AND_SWP, wr_id=5, sges=[end.sge(8, 32)])
        swap.set_wr_atomic(other["rkey"], other["addr"] + SWAPPED, number, number + 1)
        end.qp.post_send(swap)
        done = end.poll(5, timeout_s=60)
        for wc in done:
            statuses[status_name(wc.status)] = statuses.get(status_name(wc.status), 0) + 1
        if [wc.wr_id for wc in done] != [1, 2, 3, 4, 5]:
            wrong.append(f"round {number}: completions {[wc.wr_id for wc in done]}")
        if end.memory.read(LENGTH, 2 * AREA + LENGTH) != pattern(number):
            wrong.append(f"round {number}: read back other bytes")
        if int.from_bytes(end.memory.read(8, 16), "little") != 3 * number:
            wrong.append(f"round {number}: fetch-and-add returned something else")
        if int.from_bytes(end.memory.read(8, 32), "little") != number:
            wrong.append(f"round {number}: compare-and-swap returned something else")
    peer.meet()
    again = QPAttr(qp_state=e.IBV_QPS_RTS)
    again.dest_qp_num = other["qpn"] + 1
    second = error_of(end.qp.modify, again, e.IBV_QP_STATE | e.IBV_QP_DEST_QPN)
    tell(statuses=statuses, wrong=wrong, second_peer=second)


def responder(peer, end):
    """Look at what arrived."""
    wrong = []
    for number in range(ROUNDS):
        end.post_recv(wr_id=number, sges=[end.sge(LENGTH, 200_000 + number * 8192)])
    peer.meet()
    peer.meet()
    done = end.poll(ROUNDS)
    if [wc.wr_id for wc in done] != list(range(ROUNDS)) or any(wc.status for wc in done):
        wrong.append(f"receives: {[(wc.wr_id, status_name(wc.status)) for wc in done]}")
    for number in range(ROUNDS):
        if end.memory.read(LENGTH, 200_000 + number * 8192) != pattern(number):
            wrong.append(f"message {number} has other bytes")
        if end.memory.read(LENGTH, AREA + number * 8192) != pattern(number):
            wrong.append(f"write {number} has other bytes")
    counter = int.from_bytes(end.memory.read(8, COUNTER), "little")
    swapped = int.from_bytes(end.memory.read(8, SWAPPED), "little")
    say("counter", counter, "swapped", swapped)
    tell(wrong=wrong, counter=counter, swapped=swapped, extra=len(end.poll(1, timeout_s=0.5)))


def main():
    peer = Peer(arguments())
    end = Endpoint(size=400_000)
    other = peer.swap(**end.card())
    end.connect(other, retry_cnt=7, timeout=8, max_rd_atomic=4)
    if peer.side == 0:
        responder(peer, end)
    else:
        peer.meet()
        requester(peer, end, other)


main()
