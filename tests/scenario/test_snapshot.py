"""The whole state of two cards is dumped in mid-traffic, restored, and goes on with the same result."""

from collections import deque
from random import Random
from typing import Any

import pytest

from firmware.model.counters import Count, CountOf
from firmware.model.hca import Hca
from firmware.snapshot import differences, dump, load, outside_of
from tests.scenario.paging import PRESENT, Region, answer, faults
from tests.scenario.world import Card, End, World, pair
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.packet import Packet

# Statistics of the host's process, and what a step leaves behind.
SKIP = frozenset({".out", ".through"})


class Snapshot:
    """Everything of a world that is not the test's own."""

    def __init__(self, world: World) -> None:
        self.cards = (world.a, world.b)
        self.now_ns = world.now_ns
        self.images = [card.firmware.dump() for card in self.cards]
        self.memories = [bytes(card.memory.data) for card in self.cards]
        self.queue = [(self.cards.index(card), load(dump(packet, {}), {})) for card, packet in world.queue]

    def restore(self, world: World) -> None:
        """Put it back."""
        world.now_ns = self.now_ns
        world.queue = deque((self.cards[index], load(dump(packet, {}), {})) for index, packet in self.queue)
        for card, image, memory in zip(self.cards, self.images, self.memories, strict=True):
            card.firmware.restore(image)
            card.memory.data[:] = memory


class Result:
    """What a run ended with."""

    def __init__(self, world: World) -> None:
        self.now_ns = world.now_ns
        self.memories = [bytes(card.memory.data) for card in (world.a, world.b)]
        self.states: list[Hca] = [world.a.hca, world.b.hca]
        self.ladder = list(world.ladder)

    def compare(self, other: "Result") -> None:
        """Fail where they differ."""
        assert self.ladder == other.ladder
        assert self.now_ns == other.now_ns
        assert self.memories == other.memories
        for one, two in zip(self.states, other.states, strict=True):
            assert differences(one, two, SKIP) == []


class Loss:
    """A cable that loses and repeats packets, the same ones again after :meth:`rewind`."""

    def __init__(self) -> None:
        self.rewind()

    def rewind(self) -> None:
        self.random = Random(42)

    def __call__(self, packet: Packet) -> list[Packet]:
        return [packet] * self.random.choice((0, 2, *[1] * 18))


def traffic(a: End, b: End) -> None:
    """Work for both sides: long and short, with answers and without."""
    for number in range(8):
        a.write(a.buffer(3000), 3000, b.buffer(3000), b.card.key)
        b.post_recv(b.buffer(100), 100)
        a.send(a.buffer(100), 100)
        a.read(a.buffer(20_000), 20_000, b.buffer(20_000), b.card.key)
        a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), b.buffer(8), b.card.key, number)
        b.write(b.buffer(500), 500, a.buffer(500), a.card.key)


@pytest.mark.parametrize("delivered", [0, 1, 7, 20, 45])
def test_a_world_goes_on_from_its_snapshot_as_it_did(delivered: int) -> None:
    world, a, b = pair(world=World(8 << 20))
    loss = Loss()
    world.fault = loss
    traffic(a, b)
    for _ in range(delivered):
        assert world.deliver() or world.a.turn() or world.b.turn()
    loss.rewind()
    snapshot = Snapshot(world)
    ladder = list(world.ladder)
    first = finish(world)
    assert first.states[0].count[Count.RETRANSMITS]
    snapshot.restore(world)
    loss.rewind()
    world.ladder[:] = ladder
    finish(world).compare(first)
    assert [completion.syndrome for completion in a.send_cq.poll()] == [0] * 32


def finish(world: World) -> Result:
    """Let everything come to its end."""
    for _ in range(30):
        world.settle()
        world.pass_time(100_000_000)
    return Result(world)


def test_who_waits_for_pages_is_found_in_a_restored_state() -> None:
    world, a, b = pair(world=World(8 << 20))
    region = Region(b.card, 1)
    a.write(a.buffer(8), 8, region.addr, region.key)
    world.settle()
    (fault,) = faults(b.card)
    before = b.card.mkey(region.key)
    Snapshot(world).restore(world)
    assert b.card.mkey(region.key) is not before
    region.set(PRESENT)
    answer(b.card, fault)
    world.settle()
    world.pass_time(1_000_000_000)
    assert [completion.syndrome for completion in a.send_cq.poll()] == [0]


def test_a_card_of_the_stage_starts_as_if_it_had_been_brought_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Card, "_started", {})
    fresh, started = World(), World()
    given = frozenset({".memory", ".trace", ".info", ".ask"})
    for one, two in ((fresh.a, started.a), (fresh.b, started.b)):
        assert differences(one.hca, two.hca, SKIP | given) == []
        assert (one.uar, one.pd, one.eqn, one.key) == (two.uar, two.pd, two.eqn, two.key)


def test_differences_are_named() -> None:
    world, a, _ = pair()
    hca = world.a.hca
    copy: Any = load(dump(hca, outside_of(hca)), outside_of(hca))
    assert differences(hca, copy, SKIP) == []
    # Past the door: a copy, to be told from the original.
    copy.qps.get(a.qpn).requester.next_psn += 1
    copy.count[Count.COMMANDS] += 3
    found = differences(hca, copy, SKIP)
    assert len(found) == 2
    assert "commands" in found[0]
    assert "next_psn" in found[1]


def test_a_copy_shares_nothing_with_the_state() -> None:
    world, a, _ = pair()
    card: Card = world.a
    before = dump(card.hca, outside_of(card.hca))
    copy: Hca = load(before, outside_of(card.hca))
    qp = copy.qps.get(a.qpn)
    assert qp is not None
    # Past the door: a copy, to be told from the original.
    qp.requester.pending.clear()
    # Past the door: and so is this.
    qp.requester.next_psn = 77
    copy.count[Count.COMMANDS] += 1
    copy.count_of.add(CountOf.SEND_ERRORS, 5)
    assert dump(card.hca, outside_of(card.hca)) == before
