"""D04: WRITE_WITH_IMM with a receive posted, and without one."""

from common import Endpoint, Peer, arguments, describe, e, tell

IMMEDIATE = 0x1234ABCD
TEXT = b"written with imm"
AREA = 8192


def main():
    peer = Peer(arguments())
    end = Endpoint()
    other = peer.swap(**end.card())
    end.connect(other, min_rnr_timer=12, rnr_retry=2)
    if peer.side == 0:
        end.memory.write(b"\xee" * 64)
        end.post_recv(wr_id=77)
        peer.meet()
        peer.meet()
        done = [describe(wc) for wc in end.poll(1)]
        peer.meet()
        extra = len(end.poll(1, timeout_s=0.2))
        tell(
            done=done,
            extra=extra,
            written=end.memory.read(len(TEXT), AREA).decode("latin-1"),
            buffer_untouched=end.memory.read(64) == b"\xee" * 64,
        )
        return
    place = (other["addr"] + AREA, other["rkey"])
    end.memory.write(TEXT)
    peer.meet()
    how = {"sges": [end.sge(len(TEXT))], "remote": place, "imm": IMMEDIATE}
    end.post_send(e.IBV_WR_RDMA_WRITE_WITH_IMM, **how)
    first = end.outcome()
    peer.meet()
    end.post_send(e.IBV_WR_RDMA_WRITE, sges=how["sges"], remote=place)
    plain = end.outcome()
    end.post_send(e.IBV_WR_RDMA_WRITE_WITH_IMM, **how)
    without = end.outcome()
    peer.meet()
    tell(first=first, plain=plain, without=without, immediate=IMMEDIATE, text=TEXT.decode())


main()
