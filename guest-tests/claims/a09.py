"""A09: ROUNDS messages to oneself, post and poll, between two calls of getppid that mark the place in a trace."""

import os

from common import Endpoint, RecvWR, SendWR, arguments, e, tell

options = arguments(("rounds", {"type": int}))
end = Endpoint()
end.connect(end.card())
receive = RecvWR(wr_id=2, num_sge=1, sg=[end.sge(64, 4096)])
send = SendWR(wr_id=1, num_sge=1, sg=[end.sge(64)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
qp, cq = end.qp, end.cq


def message():
    qp.post_recv(receive)
    qp.post_send(send)
    done = 0
    while done < 2:
        done += cq.poll(2)[0]


def interrupts():
    """Interrupts of the completion vectors so far."""
    with open("/proc/interrupts") as lines:
        return sum(int(line.split()[1]) for line in lines if "mlx5_comp" in line)


message()
before = interrupts()
os.getppid()
for _ in range(options.rounds):
    message()
os.getppid()
tell(rounds=options.rounds, pid=os.getpid(), interrupts=interrupts() - before)
