"""Racks whose trunks are pipes of this process, on one clock: everything but sockets and keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from tests.unit.fabric.bench import Card, Turns
from vhca.fabric.fabric import Fabric
from vhca.fabric.topology import Topology
from vhca.sim.clock import VirtualClock
from vhca.trunk.end import Surroundings, TrunkEnd

DIGEST = b"d" * 32


class Wire:
    """One way of a connection: frames that the other end gets in a later turn, while it is not cut."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.to: Callable[[bytes], None] = lambda frame: None
        self.cut = False
        self.held = False
        self.frames: list[bytes] = []
        self._queue: deque[bytes] = deque()

    def send(self, frame: bytes) -> bool:
        if self.cut:
            return False
        self.frames.append(frame)
        self._queue.append(frame)
        self._turns.call_soon(self._pass)
        return True

    def adopt(self) -> None:
        pass

    def _pass(self) -> None:
        while self._queue and not self.held:
            frame = self._queue.popleft()
            if not self.cut:
                self.to(frame)

    def release(self) -> None:
        self.held = False
        self._pass()


class Racks:
    """A topology in parts, each a fabric of its own, with so many cards; the first has the manager."""

    def __init__(self, topology: Topology, parts: Sequence[Sequence[str]], cards: Sequence[int]) -> None:
        self.turns = Turns()
        self.clock = VirtualClock(1)
        self.fabrics = [
            Fabric(
                self.turns.call_soon,
                self.clock,
                topology=topology,
                random=Random(1),
                local=frozenset(part),
                managed=number == 0,
            )
            for number, part in enumerate(parts)
        ]
        self.cards = [
            [
                Card(fabric, f"hca{number}", 0x1000 * (1 + part) + number, self.clock.now_ns, host=host)
                for number, host in enumerate(self._hosts(topology, parts[part])[:count])
            ]
            for part, (fabric, count) in enumerate(zip(self.fabrics, cards, strict=True))
        ]
        self.ends: list[list[TrunkEnd]] = []
        self.wires: list[tuple[Wire, Wire]] = []
        self.connect()

    @staticmethod
    def _hosts(topology: Topology, part: Sequence[str]) -> list[str]:
        """Those at the switches of a part."""
        return [host.name for host in topology.hosts if any(peer.node in part for _, peer, _ in topology.ends(host))]

    def connect(self) -> None:
        """Build all trunks; of each the end in the later part calls."""
        one, *_ = self.fabrics
        for fabric in self.fabrics:
            assert fabric.plant is not None
        for cable in one.plant.topology.cables:  # type: ignore[union-attr]
            halves = [(n, f) for n, f in enumerate(self.fabrics) if cable in f.plant.trunks]  # type: ignore[union-attr]
            if len(halves) != 2:
                continue
            wires = Wire(self.turns), Wire(self.turns)
            ends = []
            for (_, fabric), wire, calls in zip(halves, wires, (False, True), strict=True):
                around = Surroundings(
                    self.turns.call_soon, fabric.call_later, self.clock.now_ns, Random(len(self.ends))
                )
                link = fabric.plant.trunks[cable]  # type: ignore[union-attr]
                ends.append(TrunkEnd(link, str(cable.a), DIGEST, calls, wire, around))
                fabric.trunks[str(cable.a)] = ends[-1]
            wires[0].to, wires[1].to = ends[1].frame_in, ends[0].frame_in
            self.ends.append(ends)
            self.wires.append(wires)
            for end in ends:
                end.start()

    def run(self) -> None:
        self.turns.run(10_000_000)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.clock.now_ns() + int(seconds * 1e9)
        self.run()
        while True:
            deadlines = [d for fabric in self.fabrics if (d := fabric.next_deadline()) is not None]
            if not deadlines or min(deadlines) > end:
                break
            self.clock.advance(max(0, min(deadlines) - self.clock.now_ns()))
            for fabric in self.fabrics:
                fabric.run_timers(self.clock.now_ns())
            self.run()
        self.clock.advance(end - self.clock.now_ns())
