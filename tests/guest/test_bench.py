"""The bench in guests: each kind of run gives a figure, with the engine that it says, and the breakdown adds up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from firmware.native.library import loaded
from tests.bench import bench_breakdown
from tests.bench.guest_runs import GuestRuns, Step
from tests.bench.results import PYTHON, SOFT, Results
from vhca.lab import Lab, Progress


@pytest.fixture(scope="module")
def own_lab() -> Iterator[Lab]:
    # Soft-RoCE and addresses stay in its guests.
    with Lab(guests=2) as lab:
        yield lab


def trains(lab: Lab) -> int:
    return sum(card.counters().get("train_messages", 0) for card in lab.hcas)


def take(steps: Iterator[Step], results: Results) -> dict[str, float]:
    """Run them, and what they measured."""
    before = set(results.samples)
    for _, call in steps:
        call()
    return {name: values[-1] for name, values in results.samples.items() if name not in before}


def test_each_kind_of_run_gives_a_figure(own_lab: Lab) -> None:
    results = Results()
    runs = GuestRuns(own_lab, results)
    runs.set_up()
    engines = {*runs.engines, SOFT}
    sizes = take(runs.sizes([64]), results)
    assert sizes.keys() == {f"curve/64/{who}" for who in engines}
    queue_pairs = take(runs.queue_pairs([4]), results)
    assert queue_pairs.keys() == {f"qps/guests/4/{who}" for who in engines}
    streams = take(runs.tcp(), results)
    assert streams.keys() == {f"ipoib/tcp/{who}" for who in runs.engines}
    races = take((step for step in runs.races() if "_lat" in step[0]), results)
    assert races.keys() == {f"guests/{name}/8/{who}" for name in ("ib_write_lat", "ib_send_lat")
                            for who in (runs.engines[0], SOFT)}  # fmt: skip
    assert all(figure > 0 for found in (sizes, queue_pairs, streams, races) for figure in found.values())


def test_the_engine_in_python_has_no_trains(own_lab: Lab) -> None:
    if not loaded().there:
        pytest.skip(loaded().reason)
    runs = GuestRuns(own_lab, Results())
    seen = {}
    for name, call in runs.sizes([64]):
        before = trains(own_lab)
        if SOFT not in name:
            call()
            seen[name.endswith(PYTHON)] = trains(own_lab) - before
    # What the programs send one by one before and behind is no part of it.
    assert seen[False] > 5000
    assert seen[True] == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")
def test_the_breakdown_adds_up(own_lab: Lab) -> None:
    found = bench_breakdown.run(own_lab, rounds=200, repeats=1, progress=Progress(quiet=True))
    tables = bench_breakdown.tables(found)
    assert len(tables) == 3 * len(found)
    for table in tables:
        assert sum(us for _, _, us in table.rows) == pytest.approx(table.whole)
    for all_measured in found.values():
        pieces = all_measured[0].pieces
        assert pieces.keys() == {
            "post",
            "post-inline",
            "burst",
            "burst-inline",
            "poll",
            "look",
            "store",
            "stores",
            "hop",
        }
        assert all(us > 0 for us in pieces.values())
        # A post has a store in it, and more.
        assert pieces["burst"] > pieces["stores"]
