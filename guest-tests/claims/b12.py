"""B12: a queue pair in RTR receives, answers a read, and has a send posted; then it goes to RTS."""

from common import Endpoint, Peer, arguments, e, error_of, tell


def main():
    peer = Peer(arguments())
    end = Endpoint()
    other = peer.swap(**end.card())
    end.to_init()
    end.post_recv(wr_id=100)
    end.to_rtr(other)
    if peer.side == 0:
        end.memory.write(b"answer", 1024)
        peer.meet()
        received = [wc.wr_id for wc in end.poll(1)]
        peer.meet()
        state = end.state()
        posted = error_of(end.post_send, wr_id=1, sges=[end.sge(33)])
        in_rtr = len(end.poll(1, timeout_s=1.5))
        peer.meet()
        end.to_rts()
        by_itself = [wc.wr_id for wc in end.poll(1, timeout_s=2.0)]
        end.post_send(wr_id=2, sges=[end.sge(34)])
        in_rts = [wc.wr_id for wc in end.poll(1)]
        peer.meet()
        tell(received=received, state=state, posted=posted, in_rtr=in_rtr, by_itself=by_itself, in_rts=in_rts)
    else:
        end.to_rts()
        end.post_recv(wr_id=101)
        peer.meet()
        end.post_send(wr_id=5)
        sent = end.outcome()
        end.post_send(
            e.IBV_WR_RDMA_READ, wr_id=6, sges=[end.sge(6, 2048)], remote=(other["addr"] + 1024, other["rkey"])
        )
        read = end.outcome()
        peer.meet()
        peer.meet()
        early = len(end.poll(1, timeout_s=0.2))
        peer.meet()
        late = [wc.byte_len for wc in end.poll(2, timeout_s=2.0)]
        tell(sent=sent, read=read, data=end.memory.read(6, 2048).decode("latin-1"), early=early, late=late)


main()
