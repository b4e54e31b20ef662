"""The long run's own parts: the rack in another process, and what is called flat."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.soak.distant import DistantRack, Figures
from tests.soak.run import Soak, _share


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


def figures(kib: int = 50_000, descriptors: int = 20, qp: int = 3, keys: int = 6000, **counted: int) -> Figures:
    return Figures(kib, descriptors, [{"qp": qp, "mkey": keys}], [counted])


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
