"""Pairs of cards side by side: what two, or more, move together against what one of them moves alone.

The rack runs in a process of its own (`vhca serve`); this one fills whole send rings in advance, rings their doorbells
at once, and sleeps until the last message of each has arrived, so that all work in between is the rack's. Runs with one
pair and with several take turns, and the medians of their times are compared. `--single` is the same with one core;
`--processes` gives each pair a rack, and so a process, of its own: as much as the machine can do side by side.

    python -m tests.bench.bench_cores [--pairs 2] [--repeats 9] [--single | --processes] [--vhca COMMAND]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.bench_fairness import rack
from tests.bench.lanes import Lane, lanes_of, mixed
from tests.support.remote import RemoteDriver
from vhca.lab.table import aligned
from vhca.native import cores

MEMORY_BYTES = 128 << 20
QUEUE_PAIRS = 8
DEADLINE_S = 30.0
PAUSE_S = 500e-6
CASES = ((64, 15), (4096, 14), (65536, 11), (1 << 20, 7))
"""Bytes of a message, and the logarithm of how many each queue pair has in a run."""
CURVES = ((64, 15), (65536, 12))
SAMPLE_RUNS = 3


@contextmanager
def drivers(command: str, cards: int, memory_bytes: int = MEMORY_BYTES) -> Iterator[list[RemoteDriver]]:
    """A rack and the machines of its cards, started."""
    with rack(command, cards) as folder, ExitStack() as stack:
        made = [RemoteDriver(folder / f"h{number}.sock", memory_bytes) for number in range(cards)]
        for driver in made:
            stack.callback(driver.close)
            driver.start()
        yield made


def run(lanes: list[Lane]) -> float:
    """Seconds from the doorbells until everything has arrived; raises TimeoutError."""
    for lane in lanes:
        lane.fill()
    begin = time.perf_counter()
    for lane in lanes:
        lane.qp.ring()
    waiting = list(lanes)
    while waiting:
        time.sleep(PAUSE_S)
        waiting = [lane for lane in waiting if not lane.arrived()]
        if time.perf_counter() > begin + DEADLINE_S:
            raise TimeoutError("messages did not arrive")
    return time.perf_counter() - begin


def measure(command: str, pairs: int, repeats: int, processes: bool) -> list[list[str]]:
    """Rows of the table."""
    rows = []
    with ExitStack() as stack:
        machines: list[RemoteDriver] = []
        for _ in range(pairs if processes else 1):
            machines += stack.enter_context(drivers(command, 2 if processes else 2 * pairs))
        for size, log in CASES:
            lanes = lanes_of(machines, size, log, QUEUE_PAIRS)
            alone: list[float] = []
            together: list[float] = []
            run(mixed(lanes))
            for number in range(repeats):
                alone.append(run(lanes[number % pairs]))
                together.append(run(mixed(lanes)))
            one, all_of_them = statistics.median(alone), statistics.median(together)
            count = QUEUE_PAIRS << log
            rows.append([f"WRITE {size} B", _rate(count, one, size), _rate(pairs * count, all_of_them, size),
                         f"{pairs * one / all_of_them:.2f}"])  # fmt: skip
    return rows


def sample_pairs(command: str) -> dict[int, float]:
    """One sample for each size: how many times as much as one pair two of them move."""
    found = {}
    with drivers(command, 4) as machines:
        for size, log in CASES:
            lanes = lanes_of(machines, size, log, QUEUE_PAIRS)
            run(mixed(lanes))
            alone = [run(lanes[number % 2]) for number in range(SAMPLE_RUNS)]
            together = [run(mixed(lanes)) for _ in range(SAMPLE_RUNS)]
            found[size] = 2 * statistics.median(alone) / statistics.median(together)
    return found


def sample_cards(command: str, counts: tuple[int, ...]) -> dict[tuple[int, int], float]:
    """One sample for each size and number of cards: messages of all of them per second."""
    found = {}
    with drivers(command, max(counts)) as machines:
        for size, log in CURVES:
            lanes = lanes_of(machines, size, log, 1)
            run(mixed(lanes))
            for count in counts:
                some = mixed(lanes[: count // 2])
                found[size, count] = (len(some) << log) / statistics.median(run(some) for _ in range(SAMPLE_RUNS))
    return found


def _rate(messages: int, seconds: float, size: int) -> str:
    return f"{messages / seconds / 1e6:.2f} M/s, {messages * size / seconds / 1e9:.1f} GB/s"


def main() -> None:
    """Print a table for all cores, and one for a single one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2, help="pairs of cards (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="runs of each kind (default: %(default)s)")
    parser.add_argument("--single", action="store_true", help="with one core")
    parser.add_argument("--processes", action="store_true", help="a process for each pair")
    parser.add_argument("--vhca", default=str(Path(sys.executable).with_name("vhca")), help="the command to measure")
    options = parser.parse_args()
    if options.single:
        os.environ["VHCA_CORES"] = "1"
    where = "each pair in a process" if options.processes else f"on {cores()} cores"
    print(f"{options.pairs} pairs of cards against one, {where}; medians of {options.repeats}")
    head = ["messages", "one pair", f"{options.pairs} pairs", "ratio"]
    print("\n".join(aligned(head, measure(options.vhca, options.pairs, options.repeats, options.processes))))


if __name__ == "__main__":
    main()
