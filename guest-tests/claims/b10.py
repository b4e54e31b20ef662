"""B10: what can be done with a queue pair in RESET.

Side 1 sends to a queue pair of side 0 that stays in RESET; both try to post there.
"""

from common import Endpoint, Peer, arguments, e, error_of, tell


def main():
    peer = Peer(arguments())
    end = Endpoint()
    other = peer.swap(**end.card())
    if peer.side == 0:
        posted = {"send": error_of(end.post_send), "recv": error_of(end.post_recv)}
        peer.meet()
        peer.meet()
        seen = {"state": end.state(), "completions": len(end.poll(1, timeout_s=0.5))}
        # what was posted in RESET, once the queue pair sends
        end.connect(other)
        peer.meet()
        later = len(end.poll(1, timeout_s=2.0))
        end.post_send(e.IBV_WR_SEND, wr_id=7)
        new = [wc.wr_id for wc in end.poll(1)]
        peer.meet()
        tell(posted=posted, seen=seen, later=later, new=new)
    else:
        end.connect(other, retry_cnt=2, timeout=8)
        peer.meet()
        end.post_send(wr_id=5)
        outcome = end.outcome()
        end.to_state("RESET")
        end.connect(other)
        end.post_recv(wr_id=50)
        end.post_recv(wr_id=51)
        peer.meet()
        peer.meet()
        peer.meet()
        tell(outcome=outcome, received=len(end.poll(2, timeout_s=0.5)))


main()
