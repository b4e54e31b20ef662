"""What C answers at a program's socket is what Python answers: messages, states, tables and counters."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.support.smps import directed_get
from tests.unit.fabric.test_express import TREE, World, some_event, some_smp
from vhca.fabric import swift, tool_nodes
from vhca.fabric.topology import Topology
from vhca.ibsim import proto
from vhca.ibsim.counters import ToolCount
from vhca.ibsim.proto import Kind
from vhca.ibsim.session import Session
from vhca.layout import Layout
from vhca.wire import mad as m
from vhca.wire import smp as w
from vhca.wire.mad import Smp
from vhca.wire.packet import PERMISSIVE_LID
from vhca.wire.smp import PortInfo

AHEAD_NS = 10_000_000_000


class Client:
    """A program at a session's data socket; keeps the messages that it is sent."""

    def __init__(self, world: World) -> None:
        self.far, self.near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.far.setblocking(False)
        self.near.setblocking(False)
        self.session = Session(
            lambda name: world.node,
            open_data=lambda *given: True,
            send_data=lambda slot, message: self.got.append(message),
            close_data=lambda slot: None,
        )
        self.got: list[bytes] = []
        self.tid = 0x5_0000_0000
        self.at_once = 0
        self.dlid, self.numbers, self.length = PERMISSIVE_LID, (0, 0), 256
        data = struct.pack("<III32s", 1, 0, 0, b"")
        assert self.session.control(proto.CONTROL.pack(proto.MAGIC, 0, Kind.CONNECT, len(data), data), 1)

    def smp(self, attribute: int, path: tuple[int, ...] = (), **fields: Any) -> Smp:
        self.tid += 1
        return directed_get(self.tid, attribute, path, **fields)

    def send(self, smp: Smp) -> None:
        self.say(proto.DATA.pack(self.dlid, 0, *self.numbers, 0, self.length, smp.to_bytes()))

    def say(self, message: bytes) -> None:
        """Send a message, and have all taken that there is."""
        self.far.send(message)
        while (served := self.session.serve(0, self.near.fileno(), time.monotonic_ns() + AHEAD_NS)) is not None:
            assert not served.gone
            assert served.answer is None
            self.at_once += served.sent
            assert served.sent == served.delivered
            self.got += [self.far.recv(512) for _ in range(served.delivered)]
            if served.empty:
                return
            if served.rest is not None:
                self.session.data(0, served.rest)
        with suppress(BlockingIOError):
            self.session.data(0, self.near.recv(512))

    def close(self) -> None:
        self.far.close()
        self.near.close()


class Told(World):
    """A world whose program is at a socket."""

    def __init__(self, topology: Topology, mkey: int | None) -> None:
        super().__init__(topology, mkey)
        self.client = self.program = Client(self)  # type: ignore[assignment]
        self.turns.run(1 << 30)


@pytest.fixture
def worlds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Told, Told]]:
    """Two alike: in one, C answers what it can."""
    found = swift.loaded()
    if found is None:
        pytest.skip("there is no compiler, or VHCA_ENGINE=python")
    mkey = getattr(request, "param", 0)
    fast = Told(TREE, mkey)
    monkeypatch.setattr(tool_nodes, "loaded", lambda: None)
    slow = Told(TREE, mkey)
    yield fast, slow
    for world in (fast, slow):
        world.client.close()


def rewrite(random: Random, world: Told, path: tuple[int, ...], number: int) -> PortInfo:
    """What a manager writes: PortInfo as it was read, and a little of it changed."""
    before = len(world.client.got)
    world.client.send(world.client.smp(w.PORT_INFO, path, attr_mod=number))
    world.turns.run(1 << 30)
    info = PortInfo()
    if len(world.client.got) > before:
        info = PortInfo.from_bytes(Smp.from_bytes(world.client.got[-1][32:]).data)
    info.port_physical_state = random.choice((0, 0, 0, 0, 0, 0, 0, 2))
    info.port_state = random.choice((0, 0, 2, 3, 4, info.port_state))
    info.link_down_default_state = random.choice((0, 0, 0, 1, 2, 3))
    for _ in range(random.randint(0, 3)):
        field = random.choice(info.fields())
        if not field.name.startswith("mkey"):
            setattr(info, field.name, random.getrandbits(min(field.width, 4)))
    if random.random() < 0.1:
        info.mkey, info.mkey_lease_period = random.choice(((0, 0), (0x77, 0), (0x77, 2)))
    return info


def some_message(random: Random, world: Told) -> None:
    client = world.client
    client.dlid = random.choice((*[PERMISSIVE_LID] * 20, 1, 3))
    client.length = random.choice((*[256] * 20, 255, 64, 23, 257))
    client.numbers = random.choice(((0, 0), (1, 0), (random.getrandbits(32), random.getrandbits(32))))
    kind = random.random()
    path = tuple(random.choice((1, 1, 2, 3, 4)) if hop else 1 for hop in range(random.randint(1, 4)))
    if kind < 0.3:
        some_smp(random, TREE)(world)
    elif kind < 0.6:
        attribute = random.choice((w.NODE_INFO, w.NODE_DESCRIPTION, w.PORT_INFO, w.P_KEY_TABLE, w.MLNX_EXT_PORT_INFO))
        modifier = random.choice((0, 0, 1, 2, 3, 4, 5, 1 << 16, 2 << 16, 2 << 16 | 1, 1 << 31, 0xFF))
        client.send(client.smp(attribute, path, attr_mod=modifier, return_path=random.randbytes(64)))
    elif kind < 0.9:
        number = random.choice((0, 1, 1, 2, 3, 4, 5))
        info = rewrite(random, world, path, number)
        modifier = number | random.choice((0, 1 << 31))
        client.send(client.smp(w.PORT_INFO, path, method=m.METHOD_SET, attr_mod=modifier, data=info.to_bytes()))
    elif kind < 0.98:
        block, data = random.choice((0, 1, 767, 768, 0xFFFF, 0x10001)), random.randbytes(64)
        client.send(client.smp(w.LINEAR_FORWARDING_TABLE, path, method=m.METHOD_SET, attr_mod=block, data=data))
    else:
        client.say(random.randbytes(random.choice((0, 1, 287, 288, 289, 512))))


@pytest.mark.parametrize("worlds", [None, 0], ids=["secret keys", "no keys"], indirect=True)
@pytest.mark.parametrize("seed", range(8))
def test_c_does_what_python_does(worlds: tuple[Told, Told], seed: int) -> None:
    random = Random(seed)
    for number in range(600):
        step: Any = None
        if random.random() < 0.012:
            step = some_event(random, TREE)
        state = random.getstate()
        for world in worlds:
            random.setstate(state)
            if step is not None:
                step(world)
            else:
                some_message(random, world)
            world.turns.run(1 << 30)
        fast, slow = worlds
        assert fast.client.got == slow.client.got, number
        if number % 50 == 49:
            alike(fast, slow)
    for world in worlds:
        world.pass_time(2_000_000_000)
    alike(fast, slow)
    assert fast.seen == slow.seen
    assert fast.client.got == slow.client.got
    assert fast.client.at_once > 20
    assert slow.client.at_once == 0


def alike(fast: Told, slow: Told) -> None:
    one, other = fast.state(), slow.state()
    differ = [(name, pair) for name in one for pair in zip(one[name], other[name], strict=True) if pair[0] != pair[1]]
    assert not differ
    counters = [{**world.client.session.counters, ToolCount.DELIVERED: 0} for world in (fast, slow)]
    assert counters[0] == counters[1]
    for name, switch in fast.fabric.switches.items():
        for port, twin in zip(switch.ports, slow.fabric.switches[name].ports, strict=True):
            passing = (port.state, port.mtu_bytes, port.data_vls, port.admits, port.emits)
            assert passing == (twin.state, twin.mtu_bytes, twin.data_vls, twin.admits, twin.emits)


def test_what_c_wrote_ends_ways_of_data(worlds: tuple[Told, Told]) -> None:
    """Whoever remembers a way looks again, as after any order."""
    for world in worlds:
        client = world.client
        client.send(client.smp(w.NODE_INFO, (1,)))
        before = world.fabric.wires.changes
        client.send(client.smp(w.LINEAR_FORWARDING_TABLE, (1,), method=m.METHOD_SET, data=bytes(64)))
        assert world.fabric.wires.changes > before
    assert worlds[0].client.at_once == 1


def test_a_program_that_does_not_read_gets_what_was_answered(worlds: tuple[Told, Told]) -> None:
    client, fast = worlds[0].client, worlds[0]
    client.send(client.smp(w.NODE_INFO, (1,)))
    client.got.clear()
    message = proto.DATA.pack(PERMISSIVE_LID, 0, 0, 0, 0, 256, client.smp(w.NODE_INFO, (1,)).to_bytes())
    while True:
        try:
            client.near.send(bytes(1), socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
    client.far.send(message)
    served = client.session.serve(0, client.near.fileno(), time.monotonic_ns() + AHEAD_NS)
    assert served is not None
    assert (served.sent, served.delivered, served.rest, served.empty, served.gone) == (1, 0, None, False, False)
    assert served.answer is not None
    assert Smp.from_bytes(served.answer[32:]).method == m.METHOD_GET_RESP
    assert fast.fabric.switch.ports[1].counters is not None


def test_a_socket_that_is_gone_is_told(worlds: tuple[Told, Told]) -> None:
    client = worlds[0].client
    client.send(client.smp(w.NODE_INFO, (1,)))
    client.far.send(proto.DATA.pack(PERMISSIVE_LID, 0, 0, 0, 0, 256, client.smp(w.NODE_INFO, (1,)).to_bytes()))
    client.far.close()
    served = client.session.serve(0, client.near.fileno(), time.monotonic_ns() + AHEAD_NS)
    assert served is not None
    assert served.gone


def test_time_ends_a_turn_behind_one_message_at_least(worlds: tuple[Told, Told]) -> None:
    client = worlds[0].client
    client.send(client.smp(w.NODE_INFO, (1,)))
    for _ in range(5):
        client.far.send(proto.DATA.pack(PERMISSIVE_LID, 0, 0, 0, 0, 256, client.smp(w.NODE_INFO, (1,)).to_bytes()))
    served = client.session.serve(0, client.near.fileno(), 0)
    assert served is not None
    assert (served.sent, served.delivered, served.empty, served.rest) == (1, 1, False, None)


def test_little_is_owed_to_counters(worlds: tuple[Told, Told], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ports were passed: so nobody waits long for whoever reads counters."""
    fast = worlds[0]
    shared = fast.node._express._swift
    assert shared is not None
    for path in ((1,), (1, 2), (1, 3), (1, 4), (1, 3, 2)):
        fast.client.send(fast.client.smp(w.NODE_INFO, path))
        fast.client.send(fast.client.smp(w.NODE_INFO, path))
    assert 0 < shared.fabric.touched_count <= 2 * sum(len(switch.ports) for switch in fast.fabric.switches.values())
    monkeypatch.setattr(swift, "ENOUGH_TOUCHED", 1)
    fast.client.send(fast.client.smp(w.NODE_INFO, (1,)))
    assert shared.fabric.touched_count == 0


def test_the_places_of_fields_are_those_of_the_declarations() -> None:
    text = swift.header()
    for name, layout in (("PORT_INFO", PortInfo), ("SMP", Smp)):
        kinds: type[Layout] = layout
        for field in kinds.fields():
            assert f"#define {name}_{field.name.upper()}_START {field.start}\n" in text
