"""D02: SEND_WITH_IMM with and without data: where the 32 bits arrive."""

from common import Endpoint, Peer, arguments, describe, e, tell

IMMEDIATE = 0xC0FFEE42
TEXT = b"data only"


def main():
    peer = Peer(arguments())
    end = Endpoint()
    other = peer.swap(**end.card())
    end.connect(other)
    if peer.side == 0:
        end.memory.write(b"\xee" * 512)
        for slot in range(3):
            end.post_recv(wr_id=128 * slot, sges=[end.sge(128, 128 * slot)])
        peer.meet()
        peer.meet()
        done = [describe(wc) for wc in end.poll(3)]
        buffers = [end.memory.read(128, 128 * slot).rstrip(b"\xee").decode("latin-1") for slot in range(3)]
        tell(done=done, buffers=buffers, flag=int(e.IBV_WC_WITH_IMM))
        return
    peer.meet()
    end.memory.write(TEXT)
    end.post_send(e.IBV_WR_SEND_WITH_IMM, sges=[end.sge(len(TEXT))], imm=IMMEDIATE)
    end.post_send(e.IBV_WR_SEND_WITH_IMM, sges=[end.sge(0)], imm=IMMEDIATE + 1)
    end.post_send(e.IBV_WR_SEND, sges=[end.sge(len(TEXT))])
    outcomes = [end.outcome() for _ in range(3)]
    peer.meet()
    tell(outcomes=outcomes, immediate=IMMEDIATE, text=TEXT.decode())


main()
