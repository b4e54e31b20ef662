"""D03: side 1 writes to and reads from side 0; then again while the whole guest of side 0 stands still.

The second part waits for a file that the host makes once it has stopped the other machine.
"""

import os
import time

from common import Endpoint, Peer, arguments, e, tell

ROUNDS = 50
WRITTEN, READ = 8192, 16384
READY, GO, DONE = "/tmp/d03.ready", "/tmp/d03.go", "/tmp/d03.done"


def interrupts():
    """Interrupts of the card so far, of its completion vectors and of all."""
    total, completions = 0, 0
    with open("/proc/interrupts") as lines:
        for line in lines:
            if "mlx5" in line:
                count = sum(int(word) for word in line.split()[1:] if word.isdigit())
                total += count
                completions += count if "comp" in line else 0
    return {"all": total, "completions": completions}


def exchange(end, other, text):
    """ROUNDS writes and reads; statuses that were not SUCCESS and what was read."""
    end.memory.write(text)
    bad = []
    for _ in range(ROUNDS):
        end.post_send(e.IBV_WR_RDMA_WRITE, sges=[end.sge(len(text))], remote=(other["addr"] + WRITTEN, other["rkey"]))
        end.post_send(e.IBV_WR_RDMA_READ, sges=[end.sge(6, 4096)], remote=(other["addr"] + READ, other["rkey"]))
        bad += [status for status in (end.outcome(), end.outcome()) if status != "SUCCESS"]
    return bad, end.memory.read(6, 4096).decode("latin-1")


def main():
    peer = Peer(arguments())
    end = Endpoint(channel=True)
    other = peer.swap(**end.card())
    end.connect(other)
    if peer.side == 0:
        end.cq.req_notify()
        end.memory.write(b"secret", READ)
        before = interrupts()
        cpu = time.process_time()
        peer.meet()
        peer.meet()
        cpu = time.process_time() - cpu
        after = interrupts()
        seen = {
            "interrupts": {name: after[name] - before[name] for name in after},
            "completions": len(end.poll(1, timeout_s=0)),
            "written": end.memory.read(5, WRITTEN).decode("latin-1"),
            "cpu_s": cpu,
        }
        peer.meet()
        peer.meet()
        tell(**seen, written_stopped=end.memory.read(5, WRITTEN).decode("latin-1"))
        return
    peer.meet()
    bad, data = exchange(end, other, b"first")
    peer.meet()
    peer.meet()
    open(READY, "w").close()
    deadline = time.monotonic() + 60
    while not os.path.exists(GO):
        if time.monotonic() > deadline:
            raise SystemExit("the host does not say that the other machine stands still")
        time.sleep(0.05)
    bad_stopped, data_stopped = exchange(end, other, b"later")
    open(DONE, "w").close()
    peer.meet()
    tell(rounds=ROUNDS, bad=bad, data=data, bad_stopped=bad_stopped, data_stopped=data_stopped)


main()
