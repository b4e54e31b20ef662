"""Runs without guests that take long to set up: thousands of queue pairs in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from firmware.native.library import loaded
from tests.bench.many_queue_pairs import BATCHES, Connections
from tests.bench.results import PYTHON, C, Results

COUNTS: Final = (1, 10, 100, 1000, 10_000)
QUICK_COUNTS: Final = (1, 10_000)
Step = tuple[str, Callable[[], None]]


def steps(results: Results, repeats: int, quick: bool) -> Iterator[Step]:
    """All of them; each step has all repeats in it, since what it needs takes long to set up."""
    counts = QUICK_COUNTS if quick else COUNTS
    for who in (C, PYTHON) if loaded().there else (PYTHON,):
        yield f"QPs, engine in {who}", partial(_queue_pairs, results, repeats, counts, who)


def _queue_pairs(results: Results, repeats: int, counts: tuple[int, ...], who: str) -> None:
    """64-byte WRITEs, each doorbell for a queue pair by chance; those of all counts in turn."""
    sets = {count: Connections(count, who == C) for count in counts}
    for _ in range(repeats):
        for count, connections in sets.items():
            *few, usual = BATCHES
            results.add(f"qps/engine/{count}/{who}", [1e6 / connections.measure(1, usual)])
            for batch in few:
                results.add(f"qps/engine, {batch} per doorbell/{count}/{who}", [1e6 / connections.measure(1, batch)])
            results.add(f"memory/{count}/{who}", [connections.bytes_each / 1024])
