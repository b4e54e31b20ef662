"""An SMP that goes through at once does what one does that is handed from port to port: a fabric of each kind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.unit.fabric.bench import Turns
from tests.unit.fabric.test_user_mads import Program
from vhca.fabric import express, shapes
from vhca.fabric.express import Express
from vhca.fabric.fabric import Fabric
from vhca.fabric.faults import Fault
from vhca.fabric.topology import Topology
from vhca.fabric.user_mads import UserMads
from vhca.sim.clock import VirtualClock
from vhca.wire import mad as m
from vhca.wire import smp as w
from vhca.wire.mad import Smp
from vhca.wire.packet import PERMISSIVE_LID
from vhca.wire.smp import PortInfo

TREE = shapes.fat_tree(8, radix=4, levels=2)
ATTRIBUTES = (
    w.NODE_INFO, w.NODE_DESCRIPTION, w.SWITCH_INFO, w.GUID_INFO, w.PORT_INFO, w.P_KEY_TABLE, w.SL_TO_VL,
    w.VL_ARBITRATION, w.LINEAR_FORWARDING_TABLE, w.MULTICAST_FORWARDING_TABLE, w.SM_INFO, w.MLNX_EXT_PORT_INFO,
    w.SOURCE_LIDS, m.ATTR_NOTICE, 0x1234,
)  # fmt: skip


class World:
    """A fabric that is up, with a program at its first host."""

    def __init__(self, topology: Topology, mkey: int | None) -> None:
        self.turns, self.clock = Turns(), VirtualClock(1)
        self.fabric = Fabric(self.turns.call_soon, self.clock, topology=topology, random=Random(1), mkey=mkey)
        self.node: UserMads = self.fabric.tool_node("")
        self.turns.run(1 << 30)
        self.program = Program(self.node)
        self.seen = 0  # by a tap

    def listen(self, _: object) -> None:
        self.seen += 1

    def pass_time(self, ns: int) -> None:
        end = self.clock.now_ns() + ns
        while (deadline := self.fabric.next_deadline()) is not None and deadline <= end:
            self.clock.advance(max(0, deadline - self.clock.now_ns()))
            self.fabric.run_timers(self.clock.now_ns())
            self.turns.run(1 << 30)
        self.clock.advance(end - self.clock.now_ns())

    def state(self) -> dict[str, Any]:
        """Everything that can be told apart: tables, PortInfo, counters and drops of every port."""
        self.fabric.wires.settle()
        plant = self.fabric.plant
        assert plant is not None
        found: dict[str, Any] = {}
        for name, switch in self.fabric.switches.items():
            found[name] = (bytes(switch.lft), dict(switch.mft), switch.agent.info.to_bytes())
            for port in switch.ports:
                found[f"{name}/{port.number}"] = (
                    port.info.to_bytes(), port.counters, dict(port.dropped), port.sl_to_vl, port.source, port.pkeys,
                    port.weights, port.lanes, port.guids, port.ext_speed_enabled, port.state, port.disabled,
                    len(port.notices),
                )  # fmt: skip
        for name, host in plant.hosts.items():
            for number, end in host.ports.items():
                found[f"{name}/{number}"] = (
                    end.info.to_bytes(), end.counters, end.pkeys, end.weights, end.lanes, end.guids,
                    end.ext_speed_enabled, end.disabled, len(end.notices),
                )  # fmt: skip
        return found


Step = Callable[[World], None]


def some_smp(random: Random, topology: Topology) -> Step:
    """A request of a manager, or of somebody who tries things."""
    path = tuple(random.choice((1, 1, 2, 3, 4, 0, 9)) if hop else 1 for hop in range(random.randint(0, 5)))
    method = random.choice((m.METHOD_GET, m.METHOD_GET, m.METHOD_SET, m.METHOD_SET, m.METHOD_TRAP_REPRESS, 0x12, 0x81))
    attribute = random.choice(ATTRIBUTES)
    modifier = random.choice((0, 0, 1, 2, 3, 4, 0x10000, 0x10001, 0x30001, 0x80000001, random.getrandbits(32)))
    if random.random() < 0.5:
        path, method = path[:2], random.choice((m.METHOD_GET, m.METHOD_SET))
    fields: dict[str, Any] = {
        "method": method,
        "attr_mod": modifier,
        "data": some_data(random, attribute),
        "mkey": random.choice((0, 0, 0, 0, 0, 0, 0, 1, 0x1234)),
        "return_path": random.randbytes(64) if random.random() < 0.1 else bytes(64),
        "class_version": random.choice((1, 1, 1, 1, 2)),
    }
    if random.random() < 0.1:
        fields[random.choice(("hop_pointer", "hop_count", "status", "dr_slid", "dr_dlid"))] = random.randint(0, 70)

    def step(world: World) -> None:
        program = world.program
        program.send(program.smp(attribute, path, **fields))

    return step


def some_data(random: Random, attribute: int) -> bytes:
    if attribute != w.PORT_INFO:
        return random.choice((bytes(64), random.randbytes(64)))
    info = PortInfo(
        mkey=random.choice((0, 0, 0, 1)),
        lid=random.randint(0, 12),
        sm_lid=random.choice((1, 2, PERMISSIVE_LID)),
        gid_prefix=w.DEFAULT_GID_PREFIX,
        port_state=random.choice((*(0, 2, 3, 4) * 8, 1)),
        port_physical_state=random.choice((*(0,) * 30, 2, 3)),
        neighbor_mtu=random.choice((0, 4, 5, 6)),
        operational_vls=random.choice((0, 1, 2, 3, 4)),
        mkey_protect_bits=random.choice((0, 1, 2)),
        link_width_enabled=random.choice((0, 2, 255)),
        link_speed_enabled=random.choice((0, 7, 15)),
        mkey_violations=random.choice((0, 1)),
        client_reregister=random.choice((0, 0, 1)),
    )
    return info.to_bytes()


def some_event(random: Random, topology: Topology) -> Step:
    """Something that happens to a cable, or time that passes."""
    own = next(iter(topology.ends(topology.hosts[0])))[2]
    cable = random.choice([cable for cable in topology.cables if cable is not own])
    end = str(cable.a)
    kind = random.choice(("down", "up", "tap", "fault", "repair", "time", "heal", "heal"))

    def step(world: World) -> None:
        fabric = world.fabric
        if kind == "down":
            fabric.link_down(end)
        elif kind == "up":
            fabric.link_up(end)
        elif kind == "tap":
            taps = fabric.cables.end(end).sent_taps
            if taps:
                taps.remove(taps[0])
            else:
                taps.append(world.listen)
        elif kind == "fault":
            fabric.add_fault(end, Fault("drop", nth=2, management=True))
        elif kind == "repair":
            fabric.clear_faults(end)
        elif kind == "heal":
            for each in topology.cables:
                fabric.link_up(str(each.a))
                fabric.clear_faults(str(each.a))
                fabric.cables.end(str(each.a)).sent_taps.clear()
            world.fabric.wires.cable_changed()
        else:
            world.pass_time(300_000_000)

    return step


@pytest.mark.parametrize("mkey", [None, 0], ids=["secret keys", "no keys"])
@pytest.mark.parametrize("seed", range(6))
def test_both_ways_do_the_same(seed: int, mkey: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    at_once, by_packets = World(TREE, mkey), World(TREE, mkey)
    monkeypatch.setattr(by_packets.node._express, "ask", lambda mad: None)
    asked = answered = 0

    def count(mad: bytes) -> bytes | None:
        nonlocal asked, answered
        answer = Express.ask(at_once.node._express, mad)
        asked += 1
        answered += bool(answer)
        return answer

    monkeypatch.setattr(at_once.node._express, "ask", count)
    for number in range(400):
        step = some_smp(random, TREE) if random.random() < 0.93 else some_event(random, TREE)
        for world in (at_once, by_packets):
            step(world)
            world.turns.run(1 << 30)
        assert at_once.program.got == by_packets.program.got, number
    for world in (at_once, by_packets):
        world.pass_time(2_000_000_000)
    assert at_once.program.got == by_packets.program.got
    assert at_once.seen == by_packets.seen
    one, other = at_once.state(), by_packets.state()
    differ = [(name, pair) for name in one for pair in zip(one[name], other[name], strict=True) if pair[0] != pair[1]]
    assert not differ
    assert answered > 40
    assert asked > answered


def test_a_way_is_looked_for_once_until_a_cable_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(TREE, None)
    found: list[int] = []
    walk = express._Way._walk

    def counted(*given: Any) -> Any:
        found.append(1)
        return walk(*given)

    monkeypatch.setattr(express._Way, "_walk", counted)
    for _ in range(3):
        world.program.send(world.program.smp(w.NODE_INFO, (1, 2)))
    assert len(found) == 1
    world.program.send(world.program.smp(w.PORT_INFO, (1,), method=m.METHOD_SET, data=bytes(64)))
    world.program.send(world.program.smp(w.NODE_INFO, (1, 2)))
    assert len(found) == 2  # one for each way
    world.fabric.link_down("leaf1/1")
    world.program.send(world.program.smp(w.NODE_INFO, (1, 2)))
    assert len(found) == 3


def test_ways_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(express, "MOST_WAYS", 5)
    world = World(TREE, 0)
    for number in range(64):
        world.program.send(Smp(**{**_fields(world), "initial_path": bytes((0, 1, number)).ljust(64, b"\0")}))
        assert len(world.node._express._ways) <= 5


def _fields(world: World) -> dict[str, Any]:
    smp = world.program.smp(w.NODE_INFO, (1, 1))
    return {field.name: getattr(smp, field.name) for field in Smp.fields()}
