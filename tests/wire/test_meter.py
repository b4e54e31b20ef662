"""The meter of the bench sees the messages of a ping-pong, each part of them, and leaves the rack as it was."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from firmware.native.library import loaded
from tests.bench.meter import Meter, Part, Stamp, without_c
from tests.support.remote import RemoteDriver, RemoteQp, pair
from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.wire.connectx.wqe import WqeOpcode

SIZE = 64
ROUNDS = 40
PATIENCE_S = 20.0


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(2, tmp_path, RackConfig(logs=False)) as rack:
        yield rack


@dataclass
class End:
    """A connected queue pair, and the segments of its WRITE to the other's memory."""

    qp: RemoteQp
    segments: bytes
    source: int
    target: int


@pytest.fixture
def ends(rack: Rack) -> Iterator[list[End]]:
    drivers = [RemoteDriver(card.socket_path) for card in rack.hcas]
    for driver in drivers:
        driver.start()
    pairs = pair(drivers[0], drivers[1], {driver: driver.lid() for driver in drivers})
    places = [driver.alloc(SIZE) for driver in drivers]
    yield [
        End(qp, qp.write(places[own], SIZE, places[1 - own], drivers[1 - own].key), places[own], places[1 - own])
        for own, qp in enumerate(pairs)
    ]
    for driver in drivers:
        driver.close()


def play(ends: list[End]) -> None:
    """One WRITE after another, there and back; each end waits until it sees the bytes."""
    for number in range(ROUNDS):
        end, other = ends[number & 1], ends[1 - number & 1]
        content = bytes([number + 1]) * SIZE
        end.qp.driver.memory.write(end.source, content)
        end.qp.post(WqeOpcode.RDMA_WRITE, end.segments)
        limit = time.monotonic() + PATIENCE_S
        while other.qp.driver.memory.read(end.target, SIZE) != content:
            assert time.monotonic() < limit, "the payload did not arrive"


@pytest.mark.parametrize("compiled", [True, False])
def test_every_message_and_part_of_it_is_seen(rack: Rack, ends: list[End], compiled: bool) -> None:
    if compiled and not loaded().there:
        pytest.skip(loaded().reason)
    meter = Meter(rack, SIZE)
    with nullcontext() if compiled else without_c(rack), meter.running():
        play(ends)
    assert sum(what == Stamp.DOORBELL for _, what, _ in meter.stamps) == ROUNDS
    hops = meter.hops()
    # The last has no other behind it; the first may have shared its wake.
    assert len(hops) >= ROUNDS // 2
    for hop in hops:
        assert all(hop.parts[part] > 0 for part in (Part.MESSAGE, Part.ENGINE, Part.AFTER))
        # The engine in C answers in the doorbell's own step.
        assert (hop.parts[Part.QUEUEING] > 0) is not compiled
        assert (hop.parts.get(Part.COMPILED, 0) > 0) is compiled
    count, parts = meter.stream()
    first, last = (meter.stamps.index(stamp) for stamp in _inner(meter))
    assert count == ROUNDS - 2 * (ROUNDS // 10) - 1
    assert sum(parts.values()) == meter.stamps[last][0] - meter.stamps[first][0]


def _inner(meter: Meter) -> tuple[tuple[int, Stamp, int], tuple[int, Stamp, int]]:
    """The doorbells between which a stream is measured."""
    doorbells = [stamp for stamp in meter.stamps if stamp[1] == Stamp.DOORBELL]
    return doorbells[ROUNDS // 10], doorbells[ROUNDS - ROUNDS // 10 - 1]


def test_the_engine_in_c_comes_back(rack: Rack, ends: list[End]) -> None:
    if not loaded().there:
        pytest.skip(loaded().reason)

    def trains() -> int:
        return sum(card.counters().get("train_messages", 0) for card in rack.hcas)

    with without_c(rack):
        play(ends)
        assert trains() == 0
    play(ends)
    assert trains() == ROUNDS


def test_nothing_of_it_is_left(rack: Rack, ends: list[End]) -> None:
    card = rack.hcas[0]

    def touched() -> list[object]:
        return [rack.loop._epoll, loaded().lib, card.board.bar0._emit, card.board.turn, card._gate.write]

    before = touched()
    meter = Meter(rack, SIZE)
    with meter.running():
        play(ends)
        assert not any(map(_same, before[2:], touched()[2:]))
    assert all(map(_same, before, touched()))
    seen = len(meter.stamps)
    play(ends)
    assert len(meter.stamps) == seen


def _same(one: object, other: object) -> bool:
    return one == other
