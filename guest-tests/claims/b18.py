"""B18: side 1 takes its queue pair from RESET to RTS while the one of side 0 stays where it is."""

import time

from common import Endpoint, Peer, arguments, tell


def main():
    peer = Peer(arguments())
    end = Endpoint()
    other = peer.swap(**end.card())
    states = [end.state()]
    if peer.side == 0:
        peer.meet()
        states.append(end.state())
        end.to_init()
        states.append(end.state())
        peer.meet()
        peer.meet()  # side 1 has sent
        states.append(end.state())
        end.to_rtr(other)
        states.append(end.state())
        end.to_rts()
        states.append(end.state())
        time.sleep(0.5)
        peer.meet()
    else:
        for step in (end.to_init, lambda: end.to_rtr(other), lambda: end.to_rts(retry_cnt=1, timeout=8)):
            step()
            states.append(end.state())
        time.sleep(0.5)
        peer.meet()
        peer.meet()
        end.post_send(wr_id=1)
        states.append(end.outcome())
        states.append(end.state())
        peer.meet()
        peer.meet()
    tell(states=states)


main()
