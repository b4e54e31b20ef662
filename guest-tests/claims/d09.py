"""D09: what is free again when: places in the queue by polling, the buffer by the completion."""

from common import Endpoint, Peer, arguments, e, error_of, tell

DEPTH = 16
AREA = 8192


def main():
    peer = Peer(arguments())
    end = Endpoint(depth=DEPTH)
    other = peer.swap(**end.card())
    end.connect(other, min_rnr_timer=20)
    if peer.side == 0:
        peer.meet()
        peer.meet()
        written = end.memory.read(1, AREA)[0]
        peer.meet()
        peer.meet()  # side 1 has posted and then changed its buffer
        end.post_recv(sges=[end.sge(64, 4096)])
        end.poll(1)
        got = end.memory.read(6, 4096).decode("latin-1")
        peer.meet()
        tell(written=written, got=got)
        return
    # places: all requests are carried out, none is polled
    place = (other["addr"] + AREA, other["rkey"])
    peer.meet()
    taken = 0
    refusal = None
    while refusal is None and taken < 1000:
        end.memory.write(bytes([taken + 1]), taken)
        flags = e.IBV_SEND_SIGNALED if taken == DEPTH // 2 - 1 else 0
        refusal = error_of(
            end.post_send, e.IBV_WR_RDMA_WRITE, wr_id=taken, sges=[end.sge(1, taken)], remote=place, flags=flags
        )
        taken += refusal is None
    peer.meet()
    peer.meet()  # side 0 has looked: all are there
    still = error_of(end.post_send, e.IBV_WR_RDMA_WRITE, sges=[end.sge(1)], remote=place, flags=0)
    polled = [wc.wr_id for wc in end.poll(1)]
    freed = 0
    while (
        freed < 1000
        and error_of(
            end.post_send, e.IBV_WR_RDMA_WRITE, wr_id=500, sges=[end.sge(1)], remote=place, flags=e.IBV_SEND_SIGNALED
        )
        is None
    ):
        freed += 1
    end.poll(freed)
    # buffer: the peer has no receive yet; what is in the buffer when it has one is what arrives
    end.memory.write(b"before")
    end.post_send(wr_id=700, sges=[end.sge(6)])
    waiting = len(end.poll(1, timeout_s=0.3))
    end.memory.write(b"after!")
    peer.meet()
    done = len(end.poll(1))
    peer.meet()
    tell(depth=DEPTH, taken=taken, refusal=refusal, still=still, polled=polled, freed=freed, waiting=waiting, done=done)


main()
