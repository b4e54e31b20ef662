"""B01: order inside a queue, and whether one queue waits for the other.

Both sides send to each other at once; then the sending queue of one side is stuck while its receive queue is used.
"""

from common import Endpoint, Peer, arguments, e, status_name, tell

MIX = 60
SLOT = 256


def requests(end, other):
    """Post requests of every kind and length, in an order that only their numbers tell."""
    for number in range(MIX):
        kind = (e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ)[number % 3]
        length = 1 + (number * 37) % 2000
        remote = None if kind == e.IBV_WR_SEND else (other["addr"] + 32768, other["rkey"])
        end.post_send(kind, wr_id=number, sges=[end.sge(length)], remote=remote)


def main():
    peer = Peer(arguments())
    end = Endpoint(depth=128, size=65536)
    other = peer.swap(**end.card())
    end.connect(other, min_rnr_timer=20)
    for number in range(MIX // 3):
        end.post_recv(wr_id=1000 + number, sges=[end.sge(2048, 16384)])
    peer.meet()
    requests(end, other)
    done = end.poll(MIX + MIX // 3)
    sent = [wc.wr_id for wc in done if wc.wr_id < 1000]
    received = [wc.wr_id for wc in done if wc.wr_id >= 1000]
    bad = [status_name(wc.status) for wc in done if wc.status]
    peer.meet()
    # side 0 has no receive posted: the send queue of side 1 is stuck, its receive queue is not
    stuck, arrived = 0, 0
    if peer.side == 1:
        for number in range(4):
            end.post_recv(wr_id=2000 + number)
        end.post_send(wr_id=500)
        peer.meet()
        found = end.poll(4)
        arrived = sum(wc.wr_id >= 2000 for wc in found)
        stuck = sum(wc.wr_id == 500 for wc in found)
        peer.meet()
        freed = [wc.wr_id for wc in end.poll(1)]
    else:
        peer.meet()
        for number in range(4):
            end.post_send(wr_id=600 + number)
        arrived = sum(wc.status == 0 for wc in end.poll(4))
        end.post_recv(wr_id=700)
        peer.meet()
        freed = [wc.wr_id for wc in end.poll(1)]
    peer.meet()
    tell(sent=sent, received=received, bad=bad, stuck_completed=stuck, other_queue=arrived, freed=freed)


main()
