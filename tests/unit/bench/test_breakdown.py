"""The tables of the breakdown add up to what they are tables of, and say what they do not explain."""

import json

import pytest

from tests.bench import socket_hop
from tests.bench.bench_breakdown import REST, Measured, latency_table, middle, stream_tables
from tests.bench.meter import Part, Stamp, _parts
from tests.bench.socket_hop import SocketHop

PIECES = {"burst": 2.6, "burst-inline": 2.4, "stores": 1.6, "hop": 40.0}
HOP = {Part.WAITING: 9.0, Part.MESSAGE: 7.0, Part.QUEUEING: 8.0, Part.ENGINE: 9.5, Part.COMPILED: 0.8, Part.AFTER: 11.0}
STREAM = {part: us / 4 for part, us in HOP.items()}


def measured(**other: float) -> Measured:
    figures = {"latency": 42.0, "metered": 46.0, "message": 12.0, "copy": 0.05} | other
    return Measured(PIECES, SocketHop(5.5, 0.9), dict(HOP), dict(STREAM), **figures)


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_add_up(compiled: bool) -> None:
    figures = measured()
    if not compiled:
        figures.hop[Part.COMPILED] = figures.stream[Part.COMPILED] = 0.0
    tables = [latency_table("engine", figures), *stream_tables("engine", figures)]
    for table in tables:
        assert sum(us for _, _, us in table.rows) == pytest.approx(table.whole)
    assert [table.whole for table in tables] == pytest.approx(
        [sum(figures.hop.values()), 12.0, sum(figures.stream.values())]
    )


def test_what_is_not_explained_is_a_row() -> None:
    table = latency_table("engine", measured())
    explained = 0.8 + 0.7 + 5.5 + 7.0 + 8.0 + 9.5 + 0.8
    assert {who: us for who, _, us in table.rows}[REST] == pytest.approx(sum(HOP.values()) - explained)


def test_medians_are_taken_of_each_figure() -> None:
    several = [measured(latency=us) for us in (50.0, 41.0, 43.0)]
    assert middle(several).latency == 43.0
    assert middle(several).hop == HOP


def test_the_time_between_two_stamps_has_one_part() -> None:
    train = [
        (0, Stamp.AWAKE, 1),
        (3, Stamp.DOORBELL, 0),
        (7, Stamp.TURN, 0),
        (12, Stamp.TRAIN, 0),
        (13, Stamp.PLACED, 0),
    ]
    packets = [
        (0, Stamp.DOORBELL, 0),
        (2, Stamp.DOORBELL, 0),
        (5, Stamp.TURN, 0),
        (9, Stamp.TURN, 1),
        (15, Stamp.PLACED, 0),
    ]
    end = [(20, Stamp.TURN, 0), (24, Stamp.ASLEEP, 0), (30, Stamp.AWAKE, 1)]
    assert _parts(train + end) == {
        Part.MESSAGE: 3, Part.QUEUEING: 4, Part.ENGINE: 5, Part.COMPILED: 1, Part.AFTER: 11, Part.WAITING: 6,
    }  # fmt: skip
    assert _parts(packets + end) == {Part.MESSAGE: 2, Part.QUEUEING: 3, Part.ENGINE: 10, Part.AFTER: 9, Part.WAITING: 6}


def test_a_measurement_survives_its_file() -> None:
    assert Measured.from_json(json.loads(json.dumps(measured().to_json()))) == measured()


def test_two_processes_over_sockets() -> None:
    hop = socket_hop.measure(rounds=100)
    assert hop.wake > 0
    assert hop.send > 0
