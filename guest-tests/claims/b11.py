"""B11: receives and sends of a queue pair in INIT, and what becomes of both later."""

from common import Endpoint, Peer, arguments, error_of, status_name, tell


def main():
    peer = Peer(arguments())
    end = Endpoint()
    other = peer.swap(**end.card())
    end.to_init()
    if peer.side == 0:
        posted = {"recv": error_of(end.post_recv, wr_id=100), "send": error_of(end.post_send, wr_id=1)}
        quiet = len(end.poll(1, timeout_s=1.0))
        state = end.state()
        peer.meet()
        peer.meet()
        arrived_in_init = len(end.poll(1, timeout_s=0.5))
        end.to_rtr(other)
        peer.meet()
        received = [wc.wr_id for wc in end.poll(1)]
        end.to_rts()
        peer.meet()
        late = [(wc.wr_id, status_name(wc.status)) for wc in end.poll(1, timeout_s=2.0)]
        tell(posted=posted, quiet=quiet, state=state, arrived_in_init=arrived_in_init, received=received, late=late)
        peer.meet()
    else:
        end.to_rtr(other)
        end.to_rts(retry_cnt=2, timeout=8)
        end.post_recv(wr_id=200)
        peer.meet()
        end.post_send(wr_id=5)
        in_init = end.outcome()
        end.to_state("RESET")
        end.connect(other)
        end.post_recv(wr_id=200)
        peer.meet()
        peer.meet()
        end.post_send(wr_id=6)
        in_rtr = end.outcome()
        peer.meet()
        peer.meet()
        tell(in_init=in_init, in_rtr=in_rtr, received=len(end.poll(1, timeout_s=0.5)))


main()
