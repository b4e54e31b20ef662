"""Adds 1 to a remote counter N times over a reliable connection; the counter must read N, each old value once.

Run it in two guests with `--peer 0:PORT` (holds the counter) and `--peer 1:PORT` (adds). Needs
guest-tests/claims/common.py beside it or on PYTHONPATH. Ends with status 0 and one JSON line.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "claims"))

from common import Endpoint, Peer, arguments, e, status_name, tell

DEPTH = 8


def adder(end, other, rounds):
    """Post in batches; the old values come back in order."""
    statuses = {}
    olds = []
    for first in range(0, rounds, DEPTH):
        batch = min(DEPTH, rounds - first)
        for slot in range(batch):
            wr = end.send_wr(e.IBV_WR_ATOMIC_FETCH_AND_ADD, wr_id=slot, sges=[end.sge(8, 64 + 8 * slot)])
            wr.set_wr_atomic(other["rkey"], other["addr"], 1)
            end.qp.post_send(wr)
        for wc in end.poll(batch, timeout_s=60):
            name = status_name(wc.status)
            statuses[name] = statuses.get(name, 0) + 1
        olds += [int.from_bytes(end.memory.read(8, 64 + 8 * slot), "little") for slot in range(batch)]
    return statuses, olds


def main():
    """Both sides."""
    options = arguments(("--rounds", {"type": int, "default": 200}))
    peer = Peer(options)
    end = Endpoint(depth=64)
    end.memory.write(bytes(8), 0)
    other = peer.swap(**end.card())
    end.connect(other)
    peer.meet()
    if peer.side == 1:
        statuses, olds = adder(end, other, options.rounds)
        peer.meet()
        tell(statuses=statuses, in_order=olds == list(range(options.rounds)))
        return 0 if olds == list(range(options.rounds)) else 1
    peer.meet()
    value = int.from_bytes(end.memory.read(8, 0), "little")
    tell(counter=value)
    return 0 if value == options.rounds else 1


if __name__ == "__main__":
    sys.exit(main())
