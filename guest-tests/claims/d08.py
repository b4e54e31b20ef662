"""D08: side 0 announces an RNR time and posts its receive late; side 1 sends once."""

import time

from common import Endpoint, Peer, arguments, tell


def main():
    options = arguments(("--code", {"type": int, "required": True}), ("--late", {"type": float, "default": 0.0}))
    peer = Peer(options)
    end = Endpoint()
    other = peer.swap(**end.card())
    end.connect(other, min_rnr_timer=options.code, rnr_retry=7)
    peer.meet()
    if peer.side == 0:
        time.sleep(options.late)
        end.post_recv()
        tell(received=len(end.poll(1)))
        peer.meet()
        return
    end.post_send()
    outcome = end.outcome(timeout_s=60)
    peer.meet()
    tell(outcome=outcome)


main()
