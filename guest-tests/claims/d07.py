"""D07: side 1 sends one message; the cable loses some or all of what comes back."""

import time

from common import Endpoint, Peer, arguments, tell

RETRIES = 3


def main():
    peer = Peer(arguments())
    end = Endpoint()
    other = peer.swap(**end.card())
    end.connect(other, retry_cnt=RETRIES, timeout=8)
    if peer.side == 0:
        end.post_recv(wr_id=1)
        end.post_recv(wr_id=2)
        peer.meet()
        peer.meet()
        tell(received=len(end.poll(2, timeout_s=0.5)), state=end.state())
        return
    peer.meet()
    begun = time.monotonic()
    end.post_send(wr_id=5)
    outcome = end.outcome(timeout_s=60)
    seconds = time.monotonic() - begun
    state = end.state()
    flushed = None
    if state == "ERR":
        end.post_send(wr_id=6)
        flushed = end.outcome()
    peer.meet()
    tell(outcome=outcome, seconds=seconds, state=state, retries=RETRIES, flushed=flushed)


main()
