"""Memory of the process before and after rounds of create, send and destroy on one card.

A round makes a completion queue and a reliable queue pair, brings it to RTS, sends a message that nobody answers (so
that its acknowledgement timer is armed for a long time) and destroys both. What a card keeps of that shows here.

    python -m tests.bench.bench_memory [--rounds 10000]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from firmware.model.hca import Hca
from tests.support.driver import PAGE, Driver
from vhca.layout import Layout
from vhca.wire import smp
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.wqe import CtrlSegment, RaddrSegment, WqeOpcode

RC = 0
LOG_QUEUE = 4
PEER_LID = 99
# An acknowledgement timeout of 4.096 us times 2 to this power: hours.
ACK_TIMEOUT = 31
WARM_UP = 200


@dataclass
class Queue:
    """A queue pair and its completion queue."""

    cqn: int
    qpn: int


class Rounds:
    """One card with a driver that makes queue pairs, uses them once and destroys them.

    :ivar sent: packets that left.
    """

    def __init__(self) -> None:
        self.driver = driver = Driver(4 << 20)
        driver.probe()
        self.hca: Hca = driver.board.firmware.hca  # type: ignore[attr-defined]
        self.eqn, _ = driver.create_eq(4, 0, vector=1)
        self.pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
        self.sent = 0
        self._cq_buffer = driver.alloc(PAGE)
        self._qp_buffer = driver.alloc(PAGE)
        self._record = driver.alloc(PAGE)
        driver.board.link_change(1, True)
        driver.run_deferred()
        port = self.hca.ports[1]
        port.managed.info.lid = 7
        port.managed.info.port_state = smp.PORT_ACTIVE
        port.refresh()

    def create(self) -> Queue:
        """A queue pair in RTS."""
        driver = self.driver
        # Nothing is posted yet: the card looks at the ring on the way into RTS.
        driver.memory.write(self._record, bytes(8))
        cq = cmd.CreateCqIn()
        cq.cq_context.log_cq_size = LOG_QUEUE
        cq.cq_context.c_eqn_or_apu_element = self.eqn
        cq.cq_context.uar_page = driver.uar
        cq.cq_context.dbr_addr = self._record
        cqn = cmd.CreateCqOut.from_bytes(driver.run(Op.CREATE_CQ, cq, driver.pages(self._cq_buffer, PAGE))).cqn
        view = cmd.CreateQpIn()
        context = view.qpc
        context.st, context.pd, context.uar_page = RC, self.pd, driver.uar
        context.log_sq_size = context.log_rq_size = LOG_QUEUE
        context.cqn_snd = context.cqn_rcv = cqn
        context.dbr_addr = self._record
        qpn = cmd.CreateQpOut.from_bytes(driver.run(Op.CREATE_QP, view, driver.pages(self._qp_buffer, 2 * PAGE))).qpn
        for op in (Op.RST2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP):
            driver.run(op, self._transition(qpn))
        return Queue(cqn, qpn)

    def _transition(self, qpn: int) -> Layout:
        view = cmd.Rst2initQpIn(qpn=qpn)
        context = view.qpc
        path = context.primary_address_path
        path.vhca_port_num, path.rlid, path.ack_timeout = 1, PEER_LID, ACK_TIMEOUT
        context.mtu, context.log_msg_max, context.remote_qpn, context.retry_count = 5, 30, 1000, 7
        return view

    def send(self, queue: Queue) -> None:
        """Post a WRITE without data and ring the doorbell."""
        driver = self.driver
        wqe = CtrlSegment(opcode=WqeOpcode.RDMA_WRITE, qpn=queue.qpn, ds=2).to_bytes() + RaddrSegment().to_bytes()
        driver.memory.write(self._qp_buffer + (16 << LOG_QUEUE), wqe)
        driver.memory.write(self._record + 4, (1).to_bytes(4, "big"))
        driver.bar_write((driver.uar << 12) + 0x800, bytes(4) + (queue.qpn << 8).to_bytes(4, "big"))
        self.sent += len(driver.cable.packets)
        driver.cable.packets.clear()

    def destroy(self, queue: Queue) -> None:
        """End both queues."""
        self.driver.run(Op.DESTROY_QP, cmd.DestroyQpIn(qpn=queue.qpn))
        self.driver.run(Op.DESTROY_CQ, cmd.DestroyCqIn(cqn=queue.cqn))

    def run(self, rounds: int) -> None:
        """So many times the whole life of a queue pair."""
        for _ in range(rounds):
            queue = self.create()
            self.send(queue)
            self.destroy(queue)


def resident_kib() -> int:
    """Resident memory of this process in KiB."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise LookupError("VmRSS")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000, help="rounds (default: %(default)s)")
    args = parser.parse_args()
    rounds = Rounds()
    rounds.run(WARM_UP)
    before = resident_kib()
    start = time.perf_counter()
    rounds.run(args.rounds)
    took = time.perf_counter() - start
    after = resident_kib()
    assert rounds.sent == args.rounds + WARM_UP, "messages were not sent"
    left = {kind: count for kind, count in rounds.hca.objects().items() if count}
    print(
        f"{args.rounds} rounds of create, send and destroy in {took:.1f} s: resident memory {before / 1024:.1f} MiB"
        f" before, {after / 1024:.1f} MiB after ({100 * (after - before) / before:+.1f} %); objects left: {left},"
        f" timers: {len(rounds.hca.timers)}"
    )
    if after > before * 1.1:
        raise SystemExit("memory is not given back")


if __name__ == "__main__":
    main()
