"""SMPs of the manager inside go there and back at once: nothing that anybody can count or see is different."""

from random import Random
from typing import Any

import pytest

from tests.unit.fabric.bench import Card, Turns
from vhca.fabric import shapes
from vhca.fabric.express import Express
from vhca.fabric.fabric import Fabric
from vhca.fabric.faults import Fault
from vhca.sim.clock import VirtualClock
from vhca.wire.packet import Packet


class Stage:
    """A fat tree of 16 hosts, two of whose places cards have; counts turns."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.clock = VirtualClock(1)
        self.taken = 0
        tree = shapes.fat_tree(16, radix=4, levels=3)
        self.fabric = Fabric(self._call_soon, self.clock, topology=tree, random=Random(1))
        self.cards = [Card(self.fabric, f"h{n}", 0x1000 + n, self.clock.now_ns) for n in (0, 15)]

    def _call_soon(self, fn: Any) -> None:
        self.taken += 1
        self.turns.call_soon(fn)

    def sweep(self) -> None:
        self.turns.run(1 << 22)
        self.fabric.manager.sweep()
        self.turns.run(1 << 22)

    def seen(self) -> dict[str, Any]:
        """Counters and PortInfo of all ports, by name, and the tables of switches."""
        plant = self.fabric.plant
        assert plant is not None
        self.fabric.wires.settle()
        found: dict[str, Any] = {}
        for switch in self.fabric.switches.values():
            found[switch.name] = bytes(switch.lft[:64]), dict(switch.mft), switch.agent.info.to_bytes()
            for port in switch.ports:
                found[f"{switch.name}/{port.number}"] = _numbers(port.counters), port.info.to_bytes(), port.pkeys
        for host in plant.hosts.values():
            for end in host.ports.values():
                found[f"{host.node.name}/{end.number}"] = _numbers(end.counters), end.info.to_bytes(), end.pkeys
        return found


def _numbers(counters: object) -> dict[str, int]:
    names = (name for name in dir(counters) if not name.startswith("_"))
    return {name: value for name in names if isinstance(value := getattr(counters, name), int)}


def test_a_sweep_leaves_all_as_if_each_hop_took_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Stage()
    quick.sweep()
    monkeypatch.setattr(Express, "ask_with_key", lambda _self, _mad: None)
    slow = Stage()
    slow.sweep()
    assert quick.fabric.active()
    assert slow.fabric.active()
    assert quick.seen() == slow.seen()
    assert quick.fabric.manager.transactions.asked == slow.fabric.manager.transactions.asked
    assert quick.taken < slow.taken / 2


def test_who_listens_at_a_cable_hears_everything() -> None:
    stage = Stage()
    stage.turns.run(1 << 22)
    plant = stage.fabric.plant
    assert plant is not None
    link = next(iter(plant.links.values()))
    sent: list[Packet] = []
    arrived: list[Packet] = []
    link.a.sent_taps.append(sent.append)
    link.b.arrival_taps.append(arrived.append)
    stage.fabric.manager.sweep()
    stage.turns.run(1 << 22)
    assert len(sent) == len(arrived) >= 3


def test_what_a_cable_damages_is_lost_and_asked_again() -> None:
    stage = Stage()
    rule = Fault("drop", skip=0, limit=2, management=True)
    stage.fabric.cables.add_fault("h7", rule, "both")
    stage.turns.run(1 << 22)
    assert rule.hits > 0
    while (deadline := stage.fabric.next_deadline()) is not None and not stage.fabric.manager.settled:
        stage.clock.advance(max(0, deadline - stage.clock.now_ns()))
        stage.fabric.run_timers(stage.clock.now_ns())
        stage.turns.run(1 << 22)
    assert stage.fabric.plant is not None
    assert stage.fabric.plant.lid("h7")
