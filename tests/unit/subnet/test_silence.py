"""A part of the subnet that is gone without a word: the manager does not wait for each of its nodes and ports."""

from random import Random
from typing import Any

import pytest

from tests.unit.fabric.bench import Bench, Turns
from vhca.fabric import shapes
from vhca.fabric.fabric import Fabric
from vhca.fabric.faults import Fault
from vhca.management.fair_queue import CallSoon
from vhca.sim.clock import VirtualClock
from vhca.subnet.discovery import Discovery, Probe
from vhca.subnet.manager import LIGHT_SWEEP_NS
from vhca.subnet.partitions import Partitions
from vhca.subnet.topology import Node, NodePort, Topology
from vhca.subnet.transactions import RESPONSE_TIMEOUT_NS, RETRIES, Request, Transactions, Work
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_GET, Smp
from vhca.wire.packet import Packet

STAR = shapes.star(2, 68)


class Racks(Bench):
    """A star of switches with simulated hosts; behind the cable `trunk` is another rack."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.clock = VirtualClock(1)
        self.fabric = Fabric(self.turns.call_soon, self.clock, topology=STAR, random=Random(1), num_ports=36)
        self.cards = []
        self.turns.run(10_000_000)
        self.manager = self.fabric.manager
        own = self.fabric.switch.name
        self.trunk = next(str(end) for cable in STAR.cables for end in (cable.a, cable.b) if end.node == own
                          and {cable.a.node, cable.b.node} <= {node.name for node in STAR.switches})  # fmt: skip
        assert len(self.manager.topology.nodes) == len(STAR.nodes)

    def cut(self) -> None:
        """The network between the racks is gone; the link does not know yet."""
        self.fabric.add_fault(self.trunk, Fault("drop", management=True))

    def forgotten_within(self, seconds: float) -> float | None:
        """Time until the manager knows that there is nobody behind the trunk; None if it takes longer."""
        began_ns = self.clock.now_ns()
        while self.clock.now_ns() - began_ns < seconds * 1e9:
            if self.manager.settled and len(self.manager.topology.nodes) < len(STAR.nodes) - 1:
                return (self.clock.now_ns() - began_ns) / 1e9
            self.pass_time(0.1)
        return None


def test_a_rack_that_is_gone_is_forgotten_soon_though_a_light_sweep_was_under_way() -> None:
    racks = Racks()
    before = racks.fabric.counters().get("sm.light_sweeps", 0)
    racks.cut()
    while racks.fabric.counters().get("sm.light_sweeps", 0) == before:
        racks.pass_time(0.1)
    racks.pass_time(0.5)
    racks.fabric.link_down(racks.trunk)
    assert racks.forgotten_within(5) is not None


def test_a_rack_that_is_gone_is_forgotten_soon_though_a_heavy_sweep_was_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    racks = Racks()
    heavy = racks.fabric.counters()["sm.heavy_sweeps"]
    rounds = 0
    next_hops = Discovery._next_hops

    def cut_amid_the_walk(topology: Topology, fresh: list[tuple[Node, int]]) -> list[Probe]:
        nonlocal rounds
        rounds += 1
        if rounds == 2:  # its switch is found, and its hosts are to be
            racks.cut()
        return next_hops(topology, fresh)

    monkeypatch.setattr(Discovery, "_next_hops", staticmethod(cut_amid_the_walk))
    racks.manager.sweep()
    racks.pass_time(2)  # as long as racks wait for each other
    assert racks.fabric.counters()["sm.heavy_sweeps"] == heavy
    racks.fabric.link_down(racks.trunk)
    assert racks.forgotten_within(1.5) is not None


def test_a_sweep_is_cut_short_once_and_not_for_ever() -> None:
    """Whoever stays silent and sends traps does not keep the others from being found."""
    bench = Bench(9)
    bench.run()
    for card in bench.cards[:8]:
        card.silent = True
    manager = bench.fabric.manager
    late = bench.add_card()
    for _ in range(40):
        manager.sweep()
        bench.pass_time(0.25)
    assert late.state == smpwire.PORT_ACTIVE
    assert manager.topology.by_lid(late.lid) is not None


def test_a_sweep_looks_at_a_bounded_number_of_ports_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the subnet is: whoever sends traps makes the manager sweep."""
    racks = Racks()
    monkeypatch.setattr("vhca.subnet.topology.PORTS_PER_PIECE", 8)
    looked = {"_table": 0, "lids": 0}
    table, lids = Partitions._table, vars(NodePort)["lids"].fget

    def counted(self: Partitions, *arguments: Any) -> list[int]:
        looked["_table"] += 1
        return table(self, *arguments)

    def counted_lids(self: NodePort) -> range:
        looked["lids"] += 1
        return range(lids(self).start, lids(self).stop)

    monkeypatch.setattr(Partitions, "_table", counted)
    monkeypatch.setattr(NodePort, "lids", property(counted_lids))
    racks.manager.sweep()
    most = dict.fromkeys(looked, 0)
    while racks.turns._queue:
        before = dict(looked)
        racks.turns.one()
        most = {name: max(most[name], number - before[name]) for name, number in looked.items()}
    ports = len(STAR.nodes)
    assert looked["_table"] == ports
    assert looked["lids"] >= 2 * ports, "to find them by LID, and to find ways to them"
    assert most["_table"] <= 8
    assert most["lids"] <= 2 * 8


def transactions(clock: VirtualClock, send: list[Packet], soon: CallSoon) -> Transactions:
    return Transactions(send.append, clock.now_ns, soon, Random(1))


def test_who_stays_silent_is_not_asked_for_the_rest_of_a_list() -> None:
    clock, sent = VirtualClock(1), list[Packet]()
    asking = transactions(clock, sent, lambda fn: fn())
    answers: list[list[Smp | None]] = []

    def work() -> Work:
        for _ in range(2):
            answers.append((yield [Request(METHOD_GET, smpwire.PORT_INFO, n, (1,)) for n in range(1000)]))

    asking.start(work())
    took = 0
    while (deadline := asking.next_deadline()) is not None:
        took = max(took, deadline)
        clock.advance(deadline - clock.now_ns())
        asking.run_timers(clock.now_ns())
    assert [len(each) for each in answers] == [1000, 1000]
    assert not any(any(each) for each in answers)
    assert asking.timeouts == 2 * 8, "as many as are under way at once; in the next list it is asked again"
    assert took <= 2 * (RETRIES + 1) * RESPONSE_TIMEOUT_NS + 1


def test_light_sweeps_that_take_long_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(3)
    bench.run()
    manager = bench.fabric.manager
    # The manager's requests wait behind a work that takes its time.
    manager.transactions.start(_slow())
    bench.pass_time(5 * LIGHT_SWEEP_NS / 1e9)
    assert len(manager.transactions._works) == 2
    assert bench.fabric.counters()["sm.light_sweeps"] == 1
    bench.pass_time(60)
    assert bench.fabric.counters()["sm.light_sweeps"] > 1


def _slow() -> Work:
    for _ in range(60):
        yield [Request(METHOD_GET, smpwire.PORT_INFO, 0, (35,))]
