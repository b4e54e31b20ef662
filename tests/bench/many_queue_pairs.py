"""Many connections between two cards, used in random order: how much of one connection's rate is left?

Each doorbell is for another queue pair, and has a few 64-byte WRITEs behind it, the last one signalled. All queue pairs
of a card complete in one queue, as those of a server do. What is compared with is one queue pair among as few others,
with as many messages behind each doorbell.
"""

from __future__ import annotations

import gc
import random
import time

from firmware.model.counters import Count
from firmware.transport import engine
from tests.bench.two_cards import ring_and_finish
from tests.scenario.world import RTS, CompletionQueue, End, World
from vhca.wire.connectx.wqe import CtrlSegment, DataSegment, RaddrSegment, WqeOpcode

SIZE = 64
LOG_SQ = 5
# Doorbells of one measurement.
DOORBELLS = 2000
# Messages behind a doorbell; 16 are what the engine's other figures have.
BATCHES = (1, 4, 16)


class Connections:
    """`count` connections from one card to another, in the engine in C or in that in Python."""

    def __init__(self, count: int, trains: bool) -> None:
        self.batch = 1
        self.doorbells = 0
        self.world = world = World((16 << 20) + count * (9 << 10))
        for card in (world.a, world.b):
            card.hca.trace = None
            card.hca.budget.limit = 4 << 30
        if trains:
            world.lay_rails()
        self.trains = trains
        self.queues = [CompletionQueue(card, log_size=10) for card in (world.a, world.b)]
        self.source, self.target = (card.alloc(SIZE, SIZE) for card in (world.a, world.b))
        self.sets = [card.alloc_q_counter() for card in (world.a, world.b)]
        before = _resident_bytes()
        self.ends = [self._connect() for _ in range(count)]
        self.messages = 0
        self.ctrl = CtrlSegment.packer("wqe_index", "opcode", "qpn", "ds", "ce")
        world.a.memory.write(self.source, bytes(range(SIZE)))
        # Each has its first messages, so that whatever is made at first use is there.
        for end in self.ends:
            self.post(end)
            self.ring(end)
        self.bytes_each = (_resident_bytes() - before) / count
        # As while a rack runs: what is there is not looked at again (vhca/sim/collector.py).
        gc.freeze()

    def _connect(self) -> End:
        world = self.world
        near = End(world.a, cq=self.queues[0], log_sq=LOG_SQ, has_rq=False, counter_set=self.sets[0])
        far = End(world.b, cq=self.queues[1], log_sq=LOG_SQ, has_rq=False, counter_set=self.sets[1])
        near.connect(far, mtu=5)
        far.connect(near, mtu=5)
        for card in (world.a, world.b):
            card.effects.clear()
        return near

    def post(self, end: End) -> None:
        """Write a batch of WQEs and the doorbell record, and take what has completed."""
        world = self.world
        memory = world.a.memory
        for number in range(self.batch):
            index = end.sq_posted & 0xFFFF
            ce = 2 if number == self.batch - 1 else 0
            wqe = self.ctrl(index, WqeOpcode.RDMA_WRITE, end.qpn, 3, ce)[:16]
            wqe += RaddrSegment(raddr=self.target, rkey=world.b.key).to_bytes()
            wqe += DataSegment(byte_count=SIZE, lkey=world.a.key, addr=self.source).to_bytes()
            memory.write(end.sq_addr + (index & (1 << LOG_SQ) - 1) * 64, wqe)
            end.sq_posted += 1
        end.write_record()
        cq = self.queues[0].cq
        memory.write(cq.dbr_addr, (cq.producer & 0xFFFFFF).to_bytes(4, "big"))

    def ring(self, end: End) -> None:
        """One doorbell, and everything that follows from it."""
        world = self.world
        world.now_ns += 1000
        qp = engine.find(world.a.hca, end.qpn)
        assert qp is not None
        ring_and_finish(world.a.hca, world.b.hca, qp, world.now_ns)
        self.messages += self.batch
        self.doorbells += 1

    def measure(self, rounds: int, batch: int) -> float:
        """Processor time of one message in us, the least of several rounds.

        Each doorbell is for a random queue pair and has `batch` messages behind it.
        """
        self.batch = batch
        chance = random.Random(7)
        best = float("inf")
        for _ in range(rounds):
            chosen = [chance.choice(self.ends) for _ in range(DOORBELLS)]
            spent = 0.0
            for end in chosen:
                self.post(end)
                start = time.process_time()
                self.ring(end)
                spent += time.process_time() - start
            best = min(best, spent / (DOORBELLS * self.batch))
        self.verify()
        return best * 1e6

    def verify(self) -> None:
        """All messages arrived."""
        assert all(end.qp.state == RTS and not end.qp.requester.pending for end in self.ends)
        assert (self.world.a.hca.count[Count.TRAIN_MESSAGES] == self.messages) is self.trains
        assert self.queues[0].cq.producer == self.doorbells


def _resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def rows(count: int, trains: bool, batches: tuple[int, ...] = BATCHES) -> list[str]:
    """Lines of the report, for each number of messages behind a doorbell."""
    lines = []
    single, many = Connections(1, trains), Connections(count, trains)
    for batch in batches:
        one, each = single.measure(5, batch), many.measure(5, batch)
        lines.append(
            f"{count} queue pairs in random order, {batch} WRITEs of {SIZE} B per doorbell: {each:.2f} us/message, "
            f"{one / each:.2f} of one queue pair's rate; {many.bytes_each / 1024:.1f} KiB for both ends of each"
        )
    return lines
