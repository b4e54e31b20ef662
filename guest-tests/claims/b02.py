"""B02: the numbers of many queue pairs of several processes, and whom a number reaches."""

import os
import subprocess
import sys

from common import Endpoint, Peer, arguments, tell

MANY = 300


def numbers(count):
    """QP numbers of a context of this process."""
    first = Endpoint(depth=4, memory=False)
    qps = [first.qp, *(first.new_qp() for _ in range(count - 1))]
    return first, qps, [qp.qp_num for qp in qps]


def main():
    options = arguments(("--child", {"action": "store_true"}))
    if options.child:
        kept = numbers(MANY)
        print(*kept[2], flush=True)
        sys.stdin.readline()
        return
    child = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    theirs = [int(word) for word in child.stdout.readline().split()]
    kept = numbers(MANY)
    peer = Peer(options)
    if peer.side == 0:
        one = Endpoint()
        two = Endpoint(ctx=one.ctx, pd=one.pd)
        other = peer.swap(first=one.card(), second=two.card())
        for end in (one, two):
            end.connect(other)
            end.post_recv()
        peer.meet()
        got = {"second": len(two.poll(1)), "first": len(one.poll(1, timeout_s=1.0))}
        peer.meet()
        tell(mine=kept[2], theirs=theirs, got=got, second=two.qp.qp_num)
    else:
        end = Endpoint()
        other = peer.swap(**end.card())
        end.connect(other["second"])
        peer.meet()
        end.post_send()
        outcome = end.outcome()
        peer.meet()
        tell(mine=kept[2], theirs=theirs, outcome=outcome)
    child.communicate("\n")


main()
