"""What it costs to keep the lives of objects: pairs of commands that make and destroy one, with and without.

    python -m tests.bench.bench_findings

Columns: time of such a pair in the program alone, best of seven, in us. No packet pays anything: `make bench-engine`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tests.scenario.world import Card, World
from vhca.hw.findings import Strictness
from vhca.wire.connectx.cmd import Op

ROUNDS: Final = 7
PAIRS: Final = 1000


def best_us(card: Card, pair: Callable[[], None]) -> float:
    """The least time of a pair."""
    found = []
    for _ in range(ROUNDS):
        began_ns = time.process_time_ns()
        for _ in range(PAIRS):
            pair()
        found.append((time.process_time_ns() - began_ns) / PAIRS / 1000)
        card.effects.clear()
        card.traces.clear()
    return min(found)


def main() -> None:
    """Print the table."""
    print(f"{'lives':8} {'ALLOC_PD, DEALLOC_PD':>22} {'CREATE_MKEY, DESTROY_MKEY':>27}")
    for level in Strictness:
        card = World().a
        card.firmware.keep_lives(level)
        domain = best_us(card, lambda card=card: card.destroy(Op.DEALLOC_PD, card.alloc_pd()))  # type: ignore[misc]
        key = best_us(card, lambda card=card: card.destroy_key(card.create_key(0)))  # type: ignore[misc]
        print(f"{level.name.lower():8} {domain:22.1f} {key:27.1f}")


if __name__ == "__main__":
    main()
