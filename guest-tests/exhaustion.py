"""One SEND that never gets through: says with which status it completes and what state its queue pair is in then.

Run it in two guests with `--peer 0:PORT` and `--peer 1:PORT` (sends). Without `--rnr` the fabric must lose what
side 1 sends; with it, side 0 posts no receive. Needs guest-tests/claims/common.py. Ends with one JSON line.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "claims"))

from common import Endpoint, Peer, arguments, tell


def main():
    """Both sides."""
    options = arguments(("--rnr", {"action": "store_true"}))
    peer = Peer(options)
    end = Endpoint()
    other = peer.swap(**end.card())
    end.connect(other, timeout=12, retry_cnt=2, rnr_retry=2, min_rnr_timer=12)
    if not options.rnr and peer.side == 0:
        end.post_recv()
    peer.meet()
    if peer.side == 1:
        end.post_send(wr_id=7)
        status = end.outcome(60)
        # What is posted to a queue pair in error comes back too.
        end.post_send(wr_id=8)
        tell(status=status, state=end.state(), next=end.outcome(20))
    else:
        tell(side=0)
    peer.meet()
    return 0


if __name__ == "__main__":
    sys.exit(main())
