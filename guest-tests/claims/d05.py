"""D05: both guests count in the same words of side 0 at the same time, by atomics and, as a contrast, without them.

Word 0: fetch-and-add. Word 1: compare-and-swap until it succeeds. Word 2: READ, add one, WRITE.
"""

import time

from common import Endpoint, Peer, arguments, connect_pair, e, tell

ROUNDS = 150


def word(end, offset):
    return int.from_bytes(end.memory.read(8, offset), "little")


def add(end, address, rkey):
    """One fetch-and-add of 1; what was there before."""
    wr = end.send_wr(e.IBV_WR_ATOMIC_FETCH_AND_ADD, sges=[end.sge(8, 64)])
    wr.set_wr_atomic(rkey, address, 1)
    end.qp.post_send(wr)
    assert end.outcome() == "SUCCESS"
    return word(end, 64)


def swap(end, address, rkey, guess):
    """Compare-and-swap of guess by guess + 1; what was there before."""
    wr = end.send_wr(e.IBV_WR_ATOMIC_CMP_AND_SWP, sges=[end.sge(8, 64)])
    wr.set_wr_atomic(rkey, address, guess, guess + 1)
    end.qp.post_send(wr)
    assert end.outcome() == "SUCCESS"
    return word(end, 64)


def unprotected(end, address, rkey):
    """Read, add one, write."""
    end.post_send(e.IBV_WR_RDMA_READ, sges=[end.sge(8, 64)], remote=(address, rkey))
    assert end.outcome() == "SUCCESS"
    end.memory.write((word(end, 64) + 1).to_bytes(8, "little"), 64)
    end.post_send(e.IBV_WR_RDMA_WRITE, sges=[end.sge(8, 64)], remote=(address, rkey))
    assert end.outcome() == "SUCCESS"


def count(end, address, rkey, peer):
    """All three ways, each begun together with the other side."""
    seen = {}
    for way in ("add", "swap", "plain"):
        peer.meet()
        begun = time.monotonic()
        if way == "add":
            seen["fetched"] = [add(end, address, rkey) for _ in range(ROUNDS)]
        elif way == "swap":
            seen["failed_swaps"], guess = 0, 0
            for _ in range(ROUNDS):
                while (before := swap(end, address + 8, rkey, guess)) != guess:
                    guess = before
                    seen["failed_swaps"] += 1
                guess += 1
        else:
            for _ in range(ROUNDS):
                unprotected(end, address + 16, rkey)
        seen["seconds_" + way] = time.monotonic() - begun
    peer.meet()
    return seen


def main():
    peer = Peer(arguments())
    if peer.side == 1:
        end = Endpoint()
        other = peer.swap(**end.card())
        end.connect(other)
        peer.meet()
        tell(**count(end, other["addr"], other["rkey"], peer), rounds=ROUNDS)
        return
    held = Endpoint()  # the words, reached from the other guest
    other = peer.swap(**held.card())
    held.connect(other)
    local = Endpoint(ctx=held.ctx, pd=held.pd)  # side 0's own requester, through its own card
    back = Endpoint(ctx=held.ctx, pd=held.pd)
    connect_pair(local, back)
    peer.meet()
    seen = count(local, held.memory.address, held.mr.rkey, peer)
    tell(**seen, added=word(held, 0), swapped=word(held, 8), plain=word(held, 16))


main()
