"""Many cards of one rack for :mod:`tests.bench.bench_fairness`: all but one busy, and all idle.

Sixteen cards work in pairs, their rings filled anew whenever they are empty; a seventeenth is idle, and its registers
are read. How far each pair came says whether one of them starved. Sixty-four that rest, with machines whose drivers are
up, say what idle costs the server: processor time of its process, threads included.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from tests.bench.lanes import Lane, lanes_of, mixed
from tests.support.remote import RemoteDriver

BUSY = 16
IDLE = 64
QUEUE_PAIRS = 2
SIZES = (64, 64 << 10)
LOG_RINGS = {64: 14, 64 << 10: 10}
PAUSE_S = 0.5e-3
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SETTLED_S = 3.0

Rack = Callable[[int], AbstractContextManager[tuple[Path, int]]]
Probe = Callable[[Path, float, Iterator[None]], list[float]]


def processor_s(pid: int) -> float:
    """Processor time of a process so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machines(stack: ExitStack, folder: Path, count: int, memory_bytes: int) -> list[RemoteDriver]:
    """Machines at the first cards, with drivers that are up and ports that are Active."""
    made = []
    for number in range(count):
        driver = RemoteDriver(folder / f"h{number}.sock", memory_bytes)
        stack.callback(driver.close)
        driver.start()
        made.append(driver)
    return made


def busy(rack: Rack, probe: Probe, size: int, seconds: float) -> tuple[list[float], list[int]]:
    """Waits in ms of the idle card, and the messages that each pair of the others moved meanwhile."""
    with rack(BUSY + 1) as (folder, _), ExitStack() as stack:
        lanes = lanes_of(machines(stack, folder, BUSY, 32 << 20), size, LOG_RINGS[size], QUEUE_PAIRS)
        steps = keep_full(mixed(lanes))
        next(steps)
        waits = probe(folder / f"h{BUSY}.sock", seconds, steps)
        return waits, [sum(lane.number << lane.log for lane in of_pair) for of_pair in lanes]


def keep_full(lanes: list[Lane]) -> Iterator[None]:
    """Fill each ring anew once it is empty."""
    while True:
        for lane in lanes:
            if lane.arrived():
                lane.fill()
                lane.qp.ring()
        time.sleep(PAUSE_S)
        yield


def idle(rack: Rack, seconds: float) -> float:
    """Processor time that the server of idle cards takes, in ms of each second."""
    with rack(IDLE) as (folder, pid), ExitStack() as stack:
        drivers = machines(stack, folder, IDLE, 4 << 20)
        for driver in drivers:
            driver.lid()
        time.sleep(SETTLED_S)
        before = processor_s(pid)
        time.sleep(seconds)
        return (processor_s(pid) - before) / seconds * 1e3


def report(rack: Rack, probe: Probe, seconds: float, repeats: int) -> list[list[str]]:
    """Rows: what was measured, the median of its runs, the goal."""
    rows = []
    for size in SIZES:
        worst, even = [], []
        for _ in range(repeats):
            waits, moved = busy(rack, probe, size, seconds)
            worst.append(max(waits))
            even.append(share(moved))
        rows.append([f"{BUSY} cards busy, WRITE {size} B: idle card's register, worst", _ms(worst), "< 10 ms"])
        rows.append([f"{BUSY} cards busy, WRITE {size} B: least of a pair, of the mean", _ratio(even), ">= 0.5"])
    costs = [idle(rack, seconds) for _ in range(repeats)]
    rows.append([f"{IDLE} cards idle: processor time of each second", _ms(costs), "0"])
    return rows


def share(moved: list[int]) -> float:
    """What the one that moved least moved, as a part of the mean."""
    return min(moved) * len(moved) / max(sum(moved), 1)


def _ms(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ms"


def _ratio(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}"
