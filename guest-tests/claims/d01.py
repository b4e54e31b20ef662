"""D01: a SEND to a peer that posts no receive; then one that posts it late."""

from common import Endpoint, Peer, arguments, tell


def main():
    peer = Peer(arguments())
    end = Endpoint()
    other = peer.swap(**end.card())
    end.connect(other, min_rnr_timer=12, rnr_retry=3)
    peer.meet()
    if peer.side == 0:
        peer.meet()
        nothing = len(end.poll(1, timeout_s=0.2))
        state = end.state()
        end.to_state("RESET")
        end.connect(other, min_rnr_timer=20)
        end.post_recv()
        peer.meet()
        tell(nothing=nothing, state=state, received=len(end.poll(1)))
        return
    end.post_send(wr_id=1)
    end.post_send(wr_id=2)
    outcomes = [end.outcome(), end.outcome()]
    state = end.state()
    peer.meet()
    end.to_state("RESET")
    end.connect(other)
    peer.meet()
    end.post_send(wr_id=3)
    tell(outcomes=outcomes, state=state, with_receive=end.outcome())


main()
