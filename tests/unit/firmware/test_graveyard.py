"""What a reset drops is freed in pieces, without the collector."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterator

import pytest

from firmware.model.budget import OBJECT_BYTES
from firmware.model.graveyard import PIECE, Graveyard
from firmware.model.objects import Mkey
from firmware.model.qp import Qp
from tests.bench.bench_memory import Rounds
from tests.scenario.world import ST_RC, World, pair
from tests.support.driver import Driver


class Thing:
    """Something that can be watched."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_containers_of_all_kinds_are_freed_by_so_many() -> None:
    graveyard = Graveyard()
    things = [Thing() for _ in range(40)]
    gone = [weakref.ref(thing) for thing in things]
    graveyard.bury(dict(enumerate(things[:20])), {}, deque(things[20:30]), [(0, thing) for thing in things[30:]])
    things.clear()
    for left in (30, 20, 10):
        assert graveyard.shrink(10)
        assert sum(ref() is not None for ref in gone) == left
    assert not graveyard.shrink(100)
    assert not graveyard
    assert not any(ref() for ref in gone)


def test_what_holds_long_lists_counts_by_its_bytes() -> None:
    """256 keys of 16 MiB are no piece of some tenths of a millisecond."""
    graveyard = Graveyard()
    graveyard.bury({at: Mkey(mtts=bytes(8), charged=16 << 20) for at in range(4)}, [Mkey(charged=1024)] * PIECE)
    for left in (3, 2, 1):
        assert graveyard.shrink()
        assert sum(map(len, graveyard._graves)) == left + PIECE
    assert graveyard.shrink()
    assert not graveyard.shrink()


def test_one_graveyard_takes_over_another() -> None:
    old, new = Graveyard(), Graveyard()
    old.bury({1: Thing()})
    new.adopt(old)
    assert (bool(old), bool(new)) == (False, True)


def queue_pairs() -> int:
    return sum(type(thing) is Qp for thing in gc.get_objects())


@pytest.mark.usefixtures("no_collector")
def test_a_reset_frees_queue_pairs_in_turns() -> None:
    rounds = Rounds()
    driver: Driver = rounds.driver
    before = queue_pairs()
    for _ in range(2 * PIECE):
        rounds.send(rounds.create())
    assert rounds.hca.budget.used > 2 * PIECE * OBJECT_BYTES["qp"]
    driver.at_once = False
    driver.board.reset("flr")
    assert rounds.hca.budget.used == 0
    assert queue_pairs() == before + 2 * PIECE, "freed in one go"
    assert driver.later, "nobody asked for a turn"
    driver.run_deferred()
    assert queue_pairs() == before
    assert not rounds.hca.graveyard


@pytest.mark.usefixtures("no_collector")
def test_what_a_failed_program_left_is_freed_by_the_next_one() -> None:
    rounds = Rounds()
    board = rounds.driver.board
    before = queue_pairs()
    rounds.send(rounds.create())
    failed = board.firmware

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the program")

    failed.handle = fail  # type: ignore[method-assign, assignment]
    board.link_change(1, False)
    assert board.dead
    board.reset("lost_connection")
    rounds.driver.run_deferred()
    assert board.firmware is not failed
    assert queue_pairs() == before


@pytest.mark.usefixtures("no_collector")
def test_a_reset_under_traffic_leaves_no_circle() -> None:
    """Timers, replies under way, work requests: all of it goes."""
    world, a, b = pair(ST_RC, world=World(8 << 20))
    size = 3 << 20
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    a.read(a.buffer(size), size, b.buffer(size), b.card.key)
    for _ in range(5):
        world.deliver()
    qpns = a.qp.handle, b.qp.handle
    cards = a.card, b.card
    before = queue_pairs()
    del a, b
    for card in cards:
        card.hca.clear()
        while card.hca.graveyard.shrink():
            pass
    assert all(card.hca.qps.get(qpn) is None for card, qpn in zip(cards, qpns, strict=True))
    assert queue_pairs() == before - 2
