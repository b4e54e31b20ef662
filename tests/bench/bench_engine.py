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
from firmware.transport import engine
from tests.scenario.world import RTS, World, pair
from vhca.hw.effects import DmaWrite, Effect, EntryWrite, Transmit
from vhca.hw.memory import DmaError
from vhca.wire.connectx.wqe import CtrlSegment, DataSegment, RaddrSegment, WqeOpcode
from vhca.wire.packet import Packet

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


class Engine:
    """Two connected queue pairs, driven with as little harness as possible."""

    def __init__(self, size: int, opcode: int, trains: bool) -> None:
        self.trains = trains
        self.world, self.a, self.b = pair(world=World(4 << 20), mtu=5)
        for card in (self.world.a, self.world.b):
            card.hca.memory = MappedMemory(card.memory.data, card.memory.base)
            card.hca.trace = None
        self.size = size
        if trains:
            self.world.lay_rails()
        a, b = self.a, self.b
        self.local, self.remote = local, remote = a.card.alloc(max(size, 1)), b.card.alloc(max(size, 1))
        self.source, self.target = (a, b) if opcode == WqeOpcode.RDMA_WRITE else (b, a)
        self.content = bytes(index * 7 & 0xFF for index in range(size))
        self.source.card.memory.write(local if self.source is a else remote, self.content)
        lkey = a.card.register(local, size)
        rkey = b.card.register(remote, size)
        # The ring is filled once; only the control segments' indices would change, and they repeat per lap of 2**16.
        self.wqes = RaddrSegment(raddr=remote, rkey=rkey).to_bytes()
        if size:
            self.wqes += DataSegment(byte_count=size, lkey=lkey, addr=local).to_bytes()
        self.units = 1 + len(self.wqes) // 16
        self.opcode = opcode
        self.ring_mask = (1 << LOG_SQ) - 1
        self.posted = 0
        self.ctrl = CtrlSegment.packer("wqe_index", "opcode", "qpn", "ds", "ce")

    def post_batch(self) -> None:
        """Write a batch of WQEs; the last one is signalled."""
        a = self.a
        memory = a.card.hca.memory
        for number in range(BATCH):
            index = self.posted & 0xFFFF
            ce = 2 if number == BATCH - 1 else 0
            wqe = self.ctrl(index, self.opcode, a.qpn, self.units, ce)[:16] + self.wqes
            memory.write(a.sq_addr + (index & self.ring_mask) * 64, wqe)
            self.posted += 1
        memory.write(a.dbr + 4, (self.posted & 0xFFFF).to_bytes(4, "big"))
        # The host consumes completions at once.
        cq = a.send_cq.cq
        memory.write(cq.dbr_addr, (cq.producer & 0xFFFFFF).to_bytes(4, "big"))

    def run_batch(self) -> None:
        """One doorbell, and everything that follows from it."""
        hca_a, hca_b = self.world.a.hca, self.world.b.hca
        self.world.now_ns += 1000
        hca_a.now_ns = hca_b.now_ns = self.world.now_ns
        out: list[Effect] = []
        hca_a.out = out
        engine.ring(hca_a, self.a.qp)
        engine.turn(hca_a)
        to_b = self._execute(hca_a.memory, out)
        to_a: list[Packet] = []
        while to_b or to_a or hca_a.turns or hca_b.turns:
            if not to_b and not to_a:
                for hca, packets in ((hca_a, to_b), (hca_b, to_a)):
                    if hca.turns:
                        out = []
                        hca.out = out
                        engine.turn(hca)
                        packets += self._execute(hca.memory, out)
            for packet in to_b:
                out = []
                hca_b.out = out
                engine.packet_in(hca_b, 1, packet)
                to_a += self._execute(hca_b.memory, out)
            to_b = []
            for packet in to_a:
                out = []
                hca_a.out = out
                engine.packet_in(hca_a, 1, packet)
                to_b += self._execute(hca_a.memory, out)
            to_a = []

    def verify(self) -> None:
        """What was timed must be messages that arrived: no error state, no flush, every completion, the right bytes.

        A queue pair in ERR answers doorbells with flush completions, faster than any message; it must not pass for one.
        """
        a, b = self.a, self.b
        assert (a.qp.state, b.qp.state) == (RTS, RTS), "a queue pair left RTS: flushes were timed, not messages"
        requester = a.qp.requester
        packets = max(1, -(-self.size // 4096))
        assert requester.una - FIRST_PSN == self.posted * packets, "messages are missing"
        assert not requester.pending
        assert (a.card.hca.count[Count.TRAIN_MESSAGES] == self.posted) is self.trains, "the other engine was timed"
        assert a.send_cq.cq.producer == self.posted // BATCH, "completions are missing"
        assert not a.card.hca.count[Count.RETRANSMITS]
        where = self.remote if self.target is b else self.local
        assert self.target.card.memory.read(where, self.size) == self.content, "the payload did not arrive"

    @staticmethod
    def _execute(memory: object, out: list[Effect]) -> list[Packet]:
        packets = []
        for effect in out:
            kind = type(effect)
            if kind is Transmit:
                packets.append(effect.packet)  # type: ignore[union-attr]
            elif kind is DmaWrite or kind is EntryWrite:
                memory.write(effect.addr, effect.data)  # type: ignore[attr-defined,union-attr]
        return packets


def measure(name: str, size: int, opcode: int, seconds: float, trains: bool) -> Result:
    """Best of several runs, posting not counted."""
    bench = Engine(size, opcode, trains)
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
    return Result(name, size, best * 1e6, copy_us(size), call_us())


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
    args = parser.parse_args()
    BATCH = args.batch
    print(f"{BATCH} messages per doorbell, one acknowledgement and one completion for them; processor time")
    if args.profile:
        bench = Engine(64, WqeOpcode.RDMA_WRITE, args.trains)
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
        for size in (0, 64, 4096, 65536, 262144):
            print(measure("WRITE", size, WqeOpcode.RDMA_WRITE, args.seconds, trains).show())
        for size in (64, 65536):
            print(measure("READ", size, WqeOpcode.RDMA_READ, args.seconds, trains).show())


if __name__ == "__main__":
    main()
