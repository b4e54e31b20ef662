"""A short run of the fuzzer, and the proof that it would see what it looks for."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from firmware import queues
from firmware.model.objects import Pd
from tests.fuzz import run
from tests.fuzz.watch import BASE, Violation, WatchedMemory
from tests.fuzz.world import World
from vhca.hw.effects import DmaWrite

EPISODES = 10


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    # A stopped card tells at length; here the report does.
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("episode", range(EPISODES))
def test_no_rule_is_broken(episode: int) -> None:
    seed = f"short.{episode}"
    failure = run.play(seed, list(range(-1, 150)))
    if failure is not None:
        pytest.fail(run.thin_out(failure, 5.0).report(), pytrace=False)


def test_an_episode_is_the_same_each_time() -> None:
    first, second = run.Totals(), run.Totals()
    for totals in (first, second):
        assert run.play("same.3", list(range(-1, 80)), totals) is None
        totals.longest_s, totals.longest_move = 0.0, ""
    assert first == second


def test_episodes_have_traffic() -> None:
    totals = run.Totals()
    for episode in range(6):
        assert run.play(f"traffic.{episode}", list(range(-1, 150)), totals) is None
    assert totals.packets > 20
    assert totals.counters["cqes"] > 100


def test_memory_that_was_not_handed_out_is_watched() -> None:
    memory = WatchedMemory(1 << 16, b"0123456789abcdef")
    memory.grant("a", [(BASE, 64), (BASE + 128, 64)], write=True)
    assert memory.peek(BASE, 80) == bytes(64) + b"0123456789abcdef"
    memory.grant("b", [(BASE + 64, 64)], write=False)
    assert len(memory.read(BASE, 192)) == 192
    memory.write(BASE + 128, bytes(64))
    for addr, size in ((BASE + 64, 1), (BASE + 32, 64), (BASE + 191, 2)):
        with pytest.raises(Violation):
            memory.write(addr, bytes(size))
    memory.revoke("b")
    with pytest.raises(Violation):
        memory.read(BASE, 192)


def test_a_leaked_reference_an_exception_and_a_stray_store_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0)
    hca = world.a.board.firmware.hca  # type: ignore[attr-defined]
    hca.pds.add(Pd(refs=-1))
    with pytest.raises(Violation, match="ledger and book"):
        world.check()
    world = World(0)
    world.a.board.execute([])
    with pytest.raises(Violation, match="not handed"):
        world.a.board.execute([DmaWrite(world.a.scratch + 4096, b"stray")])
    real = queues.write_cqe_entry

    def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(queues, "write_cqe_entry", broken)
    failures = [run.play(f"short.{episode}", list(range(-1, 150))) for episode in range(4)]
    monkeypatch.setattr(queues, "write_cqe_entry", real)
    assert any(failure is not None and "ZeroDivisionError" in failure.what for failure in failures)


def test_thinning_keeps_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(seed: str, steps: list[int], totals: run.Totals | None = None) -> run.Failure | None:
        return run.Failure(seed, steps, "x: Violation: because", [], []) if {7, 40} <= set(steps) else None

    monkeypatch.setattr(run, "play", play)
    failure = run.Failure("s", list(range(60)), "x: Violation: because", [], [])
    assert run.thin_out(failure).steps == [7, 40]
