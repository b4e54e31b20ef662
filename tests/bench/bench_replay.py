"""What it costs to record two cards: an RDMA WRITE between them, driver and all, with and without.

    python -m tests.bench.bench_replay

Columns: processor time of a WRITE and its completion in us, best of seven, with the engine in Python; that of recorded
cards, and how many times as long it is.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import pytest

from tests.scenario.world import World, pair
from tests.unit.replay.recorded import record_scenarios

ROUNDS: Final = 7
WRITES: Final = 300
SIZES: Final = (64, 4096, 65536)


def best_us(size: int) -> float:
    """The least time of a WRITE of `size` bytes."""
    world, a, b = pair()
    content, target = a.buffer(bytes(size)), b.buffer(size)
    found = []
    for _ in range(ROUNDS):
        began_ns = time.process_time_ns()
        for _ in range(WRITES):
            a.write(content, size, target, b.card.key)
            world.settle()
            a.send_cq.poll()
        found.append((time.process_time_ns() - began_ns) / WRITES / 1000)
    return min(found)


def main() -> None:
    """Print the table."""
    print("  bytes      plain   recorded  times")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "rails_by_default", False)
        for size in SIZES:
            plain = best_us(size)
            with pytest.MonkeyPatch.context() as recording, tempfile.TemporaryDirectory() as name:
                image = record_scenarios(recording, Path(name))
                recorded = best_us(size)
                image.close()
            print(f"{size:7} {plain:10.1f} {recorded:10.1f} {recorded / plain:6.2f}")


if __name__ == "__main__":
    main()
