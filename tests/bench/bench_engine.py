"""Speed of the transport engine alone: RDMA WRITEs between two cards in one process, without sockets or guests.

Prints messages and bytes per second, and ratios to two fixed reference loops on the same machine: an empty method call,
and one plain copy of the same payload between two buffers (the engine makes two: out of one card's memory, into the
other's). Ratios travel between machines, absolute numbers do not. All times are processor time of this process, so
that other work on the machine disturbs them less.

    python tests/bench/bench_engine.py [--profile] [--seconds 0.5] [--batch 16]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from dataclasses import dataclass

from firmware.model.counters import Count
from firmware.native.library import loaded
from tests.bench import many_queue_pairs
from tests.bench.two_cards import ring_and_finish
from tests.scenario.queues import TERMINATOR_KEY
from tests.scenario.world import RTS, World, pair
from vhca.hw.memory import DmaError
from vhca.wire.connectx.qpc import ServiceType
from vhca.wire.connectx.wqe import (
    AtomicSegment,
    CtrlSegment,
    DatagramSegment,
    DataSegment,
    RaddrSegment,
    WqeOpcode,
)

BATCH = 16
LOG_SQ = 6
# Where the scenarios let a requester start.
FIRST_PSN = 0xFFFFF0


class MappedMemory:
    """Memory as the board has it: one copy per access, through a mapping."""

    __slots__ = ("base", "data", "view")

    def __init__(self, data: bytearray, base: int) -> None:
        self.data = data
        self.base = base
        self.view = memoryview(data)

    def read(self, addr: int, size: int) -> bytes:
        """See :class:`vhca.hw.memory.Memory`."""
        start = addr - self.base
        if start < 0 or start + size > len(self.view):
            raise DmaError(f"{addr:#x}")
        return self.view[start : start + size].tobytes()

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """See :class:`vhca.hw.memory.Memory`."""
        start = addr - self.base
        self.view[start : start + len(data)] = data


@dataclass
class Result:
    """One line of the report."""

    name: str
    size: int
    per_message_us: float
    copy_us: float
    call_us: float

    def show(self) -> str:
        """Aligned text."""
        rate = 1e6 / self.per_message_us
        return (
            f"{self.name:<10} {self.size:>7} B  {self.per_message_us:8.2f} us/message  {rate:10.0f}/s "
            f"{rate * self.size / 1e9:7.2f} GB/s  {self.per_message_us / self.copy_us:7.1f} x copy "
            f"{self.per_message_us / self.call_us:8.0f} x call"
        )


CASES = (
    *(("WRITE", size) for size in (0, 64, 4096, 65536, 262144, 1 << 20)),
    *(("SEND", size) for size in (64, 65536)),
    *(("READ", size) for size in (64, 65536)),
    *(("ATOMIC", 8), ("DATAGRAM", 64), ("DATAGRAM", 2048)),
)
GRH_BYTES = 40
OPCODES = {
    "WRITE": WqeOpcode.RDMA_WRITE,
    "SEND": WqeOpcode.SEND,
    "READ": WqeOpcode.RDMA_READ,
    "ATOMIC": WqeOpcode.ATOMIC_FA,
    "DATAGRAM": WqeOpcode.SEND,
}


class Engine:
    """Two queue pairs that exchange one kind of message, driven with as little harness as possible."""

    def __init__(self, kind: str, size: int, trains: bool) -> None:
        self.kind = kind
        self.trains = trains
        service = ServiceType.UD if kind == "DATAGRAM" else ServiceType.RC
        self.world, self.a, self.b = pair(service, world=World(4 << 20), mtu=5)
        for card in (self.world.a, self.world.b):
            card.hca.memory = MappedMemory(card.memory.data, card.memory.base)
            card.hca.trace = None
        self.size = size
        if trains:
            self.world.lay_rails()
        a, b = self.a, self.b
        self.local, self.remote = local, remote = a.card.alloc(max(size, 8)), b.card.alloc(max(size, 8) + GRH_BYTES)
        self.receives = kind in ("SEND", "DATAGRAM")
        from_a = kind in ("WRITE", "SEND", "DATAGRAM")
        self.source, self.target = (a, b) if from_a else (b, a)
        self.content = bytes(index * 7 & 0xFF for index in range(size)) if kind != "ATOMIC" else bytes(8)
        self.source.card.memory.write(local if from_a else remote, self.content)
        lkey = a.card.register(local, max(size, 8))
        rkey = b.card.register(remote, max(size, 8) + GRH_BYTES)
        # The ring is filled once; only the control segments' indices would change, and they repeat per lap of 2**16.
        self.wqes = b""
        if kind == "DATAGRAM":
            lid = b.card.port.lid
            self.wqes += DatagramSegment(q_key=0x1234, ext=1, dqpn=b.qpn, rlid=lid).to_bytes()
        elif kind != "SEND":
            self.wqes += RaddrSegment(raddr=remote, rkey=rkey).to_bytes()
        if kind == "ATOMIC":
            self.wqes += AtomicSegment(swap_add=1).to_bytes()
        if size:
            self.wqes += DataSegment(byte_count=size, lkey=lkey, addr=local).to_bytes()
        self.receive = DataSegment(byte_count=size + GRH_BYTES, lkey=rkey, addr=remote).to_bytes()
        self.receive += DataSegment(lkey=TERMINATOR_KEY).to_bytes()
        self.units = 1 + len(self.wqes) // 16
        self.blocks = (self.units + 3) // 4
        self.opcode = OPCODES[kind]
        self.ring_mask = (1 << LOG_SQ) - 1
        self.messages = 0
        self.posted = 0
        self.ctrl = CtrlSegment.packer("wqe_index", "opcode", "qpn", "ds", "ce")

    def post_batch(self) -> None:
        """Write a batch of WQEs, the last one signalled, and the receives that they need."""
        a, b = self.a, self.b
        memory = a.card.hca.memory
        for number in range(BATCH):
            index = self.posted & 0xFFFF
            ce = 2 if number == BATCH - 1 else 0
            wqe = self.ctrl(index, self.opcode, a.qpn, self.units, ce)[:16] + self.wqes
            for at in range(self.blocks):
                slot = (index + at) & self.ring_mask
                memory.write(a.sq_addr + slot * 64, wqe[at * 64 : at * 64 + 64])
            if self.receives:
                b.card.hca.memory.write(b.rq_addr + (self.messages & self.ring_mask) * 64, self.receive)
            self.posted += self.blocks
            self.messages += 1
        memory.write(a.dbr + 4, (self.posted & 0xFFFF).to_bytes(4, "big"))
        # The hosts consume completions at once.
        for end, queue in ((a, a.send_cq), (b, b.recv_cq)):
            cq = queue.cq
            end.card.hca.memory.write(cq.dbr_addr, (cq.producer & 0xFFFFFF).to_bytes(4, "big"))
        if self.receives:
            b.card.hca.memory.write(b.dbr, (self.messages & 0xFFFF).to_bytes(4, "big"))

    def run_batch(self) -> None:
        """One doorbell, and everything that follows from it."""
        self.world.now_ns += 1000
        ring_and_finish(self.world.a.hca, self.world.b.hca, self.a.qp, self.world.now_ns)

    def verify(self) -> None:
        """What was timed must be messages that arrived: no error state, no flush, every completion, the right bytes.

        A queue pair in ERR answers doorbells with flush completions, faster than any message; it must not pass for one.
        """
        a, b = self.a, self.b
        assert (a.qp.state, b.qp.state) == (RTS, RTS), "a queue pair left RTS: flushes were timed, not messages"
        requester = a.qp.requester
        packets = max(1, -(-self.size // 4096))
        sent = requester.next_psn if self.kind == "DATAGRAM" else requester.una
        assert sent - FIRST_PSN == self.messages * packets, "messages are missing"
        assert not requester.pending
        assert (a.card.hca.count[Count.TRAIN_MESSAGES] == self.messages) is self.trains, "the other engine was timed"
        assert a.send_cq.cq.producer == self.messages // BATCH, "completions are missing"
        assert not self.receives or b.recv_cq.cq.producer == self.messages, "receives are missing"
        assert not a.card.hca.count[Count.RETRANSMITS]
        if self.kind == "ATOMIC":
            assert int.from_bytes(b.card.memory.read(self.remote, 8), "little") == self.messages
            return
        where = self.remote if self.target is b else self.local
        where += GRH_BYTES if self.kind == "DATAGRAM" else 0
        assert self.target.card.memory.read(where, self.size) == self.content, "the payload did not arrive"


def measure(kind: str, size: int, seconds: float, trains: bool) -> Result:
    """Best of several runs, posting not counted."""
    bench = Engine(kind, size, trains)
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        spent = 0.0
        for _ in range(16):
            bench.post_batch()
            start = time.process_time()
            bench.run_batch()
            spent += time.process_time() - start
        best = min(best, spent / (16 * BATCH))
    bench.verify()
    return Result(kind, size, best * 1e6, copy_us(size), call_us())


def copy_us(size: int) -> float:
    """One copy of a payload between two buffers."""
    source, target = bytearray(size or 1), memoryview(bytearray(size or 1))
    best = float("inf")
    for _ in range(20):
        start = time.process_time()
        for _ in range(100):
            target[:] = source
        best = min(best, (time.process_time() - start) / 100)
    return best * 1e6


class _Reference:
    __slots__ = ()

    def call(self) -> None:
        """Nothing."""


def call_us() -> float:
    """One empty method call."""
    reference = _Reference()
    best = float("inf")
    for _ in range(20):
        start = time.process_time()
        for _ in range(1000):
            reference.call()
        best = min(best, (time.process_time() - start) / 1000)
    return best * 1e6


def main() -> None:
    """Run all cases, or one of them under the profiler."""
    global BATCH
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="profile 64-byte writes instead")
    parser.add_argument("--trains", action="store_true", help="with --profile: the engine in C")
    parser.add_argument("--seconds", type=float, default=0.5, help="time per case")
    parser.add_argument("--batch", type=int, default=BATCH, help="messages per doorbell, the last one signalled")
    parser.add_argument("--queue-pairs", type=int, default=10_000, help="connections in random order")
    args = parser.parse_args()
    BATCH = args.batch
    print(f"{BATCH} messages per doorbell, one acknowledgement and one completion for them; processor time")
    if args.profile:
        bench = Engine("WRITE", 64, args.trains)
        profile = cProfile.Profile()
        for _ in range(500):
            bench.post_batch()
            profile.enable()
            bench.run_batch()
            profile.disable()
        bench.verify()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        return
    for trains in (False, True):
        if trains and not loaded().there:
            print(f"no engine in C: {loaded().reason}")
            return
        print("the engine in C" if trains else "the engine in Python")
        for kind, size in CASES:
            print(measure(kind, size, args.seconds, trains).show())
        for line in many_queue_pairs.rows(args.queue_pairs, trains):
            print(line, flush=True)


if __name__ == "__main__":
    main()
