"""The long run's own parts: the rack in another process, and what is called flat."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.guest.cards import wait_for
from tests.soak.distant import DistantRack, Figures
from tests.soak.run import Soak, _share
from tests.soak.subnet import TREE, Run, trunks


def test_a_rack_in_another_process_listens_and_tells_what_it_holds(tmp_path: Path) -> None:
    rack = DistantRack(2, tmp_path)
    rack.start()
    try:
        assert all(card.socket_path.is_socket() for card in rack.hcas)
        figures = rack.figures()
        assert figures.objects == [{}, {}]
        assert rack.hcas[1].objects() == {}
        assert figures.anonymous_kib > 10_000
        assert figures.descriptors > 4
        assert len(figures.counters) == 2
        # nobody is there, so nobody is waited for
        rack.wait_active(1.0)
    finally:
        rack.stop()
    assert not any(card.socket_path.exists() for card in rack.hcas)


def test_a_rack_whose_process_has_ended_says_so(tmp_path: Path) -> None:
    rack = DistantRack(1, tmp_path / "not there")
    with pytest.raises(RuntimeError, match="has ended"):
        rack.start()
    rack.stop()


def figures(
    kib: int = 50_000, descriptors: int = 20, qp: int = 3, keys: int = 6000, threads: int = 5, **counted: int
) -> Figures:
    return Figures(kib, descriptors, [{"qp": qp, "mkey": keys}], [counted], threads)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        # the first row is the warm-up's, keys are the driver's stock
        ([figures(1, 2, 9), figures(), figures(54_000, keys=6100), figures(55_000)], []),
        ([figures(), figures(), figures(56_000)], ["memory"]),
        ([figures(), figures(), figures(descriptors=21), figures()], ["descriptors"]),
        ([figures(), figures(), figures(qp=4), figures()], ["objects of h0"]),
        ([figures(), figures(), figures(leaked_objects=2, firmware_failures=1)], ["h0 firmware_failures", "h0 leaked"]),
    ],
)
def test_what_is_flat(rows: list[Figures], found: list[str]) -> None:
    lab: Any = SimpleNamespace(guests=[None])
    soak = Soak(0, 0, 2, lab, DistantRack(0, Path()))
    soak.rows = rows
    said = soak.judge()
    assert len(said) == len(found)
    for line, begin in zip(said, found, strict=True):
        assert line.startswith(begin)


@pytest.mark.parametrize(("whole", "parts"), [(20, 4), (5, 4), (0, 3), (500, 7)])
def test_work_is_shared_out_whole(whole: int, parts: int) -> None:
    shares = [_share(whole, number, parts) for number in range(1, parts + 1)]
    assert sum(shares) == whole
    assert max(shares) - min(shares) <= 1


def test_a_rack_in_another_process_takes_orders_about_its_fabric(tmp_path: Path) -> None:
    rack = DistantRack(2, tmp_path, TREE, ["h0", "h4"])
    rack.start()
    try:
        wait_for(lambda: rack.manager_state() == "master")
        assert rack.unbalanced() == []
        cable = trunks(TREE)[0]
        before = rack.counted().get("sm.traps", 0)
        rack.set_link(cable, False)
        assert not rack.healed()
        rack.set_link(cable, True)
        wait_for(lambda: rack.counted().get("sm.traps", 0) > before)
        wait_for(lambda: rack.unbalanced() == [])
    finally:
        rack.stop()


def test_every_leaf_of_the_tree_keeps_a_way_if_any_trunk_falls() -> None:
    cables = trunks(TREE)
    assert len(cables) == len({cable.a for cable in TREE.cables}) - 16
    leaves = [cable.partition("/")[0] for cable in cables]
    assert all(leaves.count(leaf) > 1 for leaf in leaves)


class Balanced:
    """A rack of which only this is asked."""

    def __init__(self, *found: str) -> None:
        self.found = list(found)

    def unbalanced(self) -> list[str]:
        return self.found


@pytest.mark.parametrize(
    ("after", "cables", "found"),
    [
        (figures(54_000, keys=9000), [], []),
        (figures(56_000), [], ["memory"]),
        (figures(descriptors=21), [], ["descriptors"]),
        (figures(threads=7), [], ["threads"]),
        (figures(qp=4), [], ["h0 held"]),
        (figures(firmware_failures=1), [], ["h0 firmware_failures"]),
        (figures(), ["a - b: 3 packets sent, 2 arrived, 0 lost"], ["a - b"]),
    ],
)
def test_what_a_soak_of_the_subnet_calls_lost_or_leaked(after: Figures, cables: list[str], found: list[str]) -> None:
    rack: Any = Balanced(*cables)
    run = Run(lab=SimpleNamespace(), rack=rack, minutes=1, seed=1)  # type: ignore[arg-type]
    run.rows = [figures() for _ in range(10)]
    run._judge(figures(), after)
    assert len(run.found) == len(found)
    for line, begin in zip(run.found, found, strict=True):
        assert line.startswith(begin)
