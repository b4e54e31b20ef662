"""The garbage collector while a rack runs: no automatic collections, young objects only, everything back at the end."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from vhca.sim import collector as module
from vhca.sim.collector import YOUNG, Collector
from vhca.sim.loop import Loop


class Knot:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    collector.start()
    yield collector
    collector.stop()


def test_automatic_collections_are_off_while_a_rack_runs_and_on_after_the_last() -> None:
    assert gc.isenabled()
    one, two = Collector(), Collector()
    one.start()
    two.start()
    one.start()
    assert not gc.isenabled()
    one.stop()
    one.stop()
    assert not gc.isenabled()
    two.stop()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_young_circles_are_collected_and_survivors_are_not_looked_at_again(collector: Collector) -> None:
    knot = weakref.ref(Knot())
    keep = [[number] for number in range(YOUNG // 2)]
    collector.look()
    assert knot() is not None, "too few objects for a collection"
    keep += [[number] for number in range(YOUNG)]
    collector.look()
    assert knot() is None
    assert gc.get_freeze_count() >= len(keep)
    assert gc.get_count()[0] < YOUNG


def test_an_idle_moment_collects_what_is_old_but_only_in_a_small_process(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    knot = weakref.ref(Knot())
    gc.freeze()
    collector.idle()
    assert knot() is not None, "the last full collection was just now"
    monkeypatch.setattr(module, "IDLE_PERIOD_NS", -1)
    monkeypatch.setattr(module, "FEW", 0)
    collector.idle()
    assert knot() is not None, "the process is too large"
    monkeypatch.setattr(module, "FEW", 1 << 40)
    collector.idle()
    assert knot() is None


def test_a_loop_holds_the_collector_while_it_runs() -> None:
    loop = Loop()
    loop.start()
    assert loop.call(gc.isenabled) is False
    assert loop.stop()
    assert gc.isenabled()
