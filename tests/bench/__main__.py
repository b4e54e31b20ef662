"""`make bench`: everything that the goals for speed need, in one run on one machine, and a page of it.

    python -m tests.bench [--quick] [--repeats 5] [--add] [--out build/bench]

It says how long it will take, and how long it will take still. What it measured is in `results.json`, the page with
plots in `index.html`. `--quick` runs everything once, and less of it: whether it works, and figures to look at twice.
`--add` adds to the samples that are in the folder already, instead of beginning anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from firmware.native.library import loaded
from tests.bench import bench_boot, bench_breakdown, bench_cores, bench_engine, goals, host_runs, many_cards, page
from tests.bench.bench_fairness import server, watch
from tests.bench.guest_runs import GuestRuns, Step
from tests.bench.results import PYTHON, C, Results, this_machine
from vhca.lab import Lab, LabError, Progress, aligned, prepare
from vhca.lab.boot_times import WHOLE

QUICK_SIZES: Final = (64, 4096, 65536, 1 << 20)
QUICK_QUEUE_PAIRS: Final = (1, 16)
ENGINE_S: Final = 0.15
CARDS: Final = (2, 4, 8, 16)
CARDS_S: Final = 2.0
BREAKDOWN_ROUNDS: Final = 1000
# What one run takes, and one repeat of the breakdown, seconds on a quiet machine of two processors.
STEP_S: Final = 1.3
BREAKDOWN_S: Final = 25.0
SAY_EVERY_S: Final = 20.0


@dataclass(slots=True)
class Pace:
    """How long it will take still, from how long it took so far."""

    progress: Progress
    total: int
    done: int = 0
    begin: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)

    def step(self, name: str, call: Callable[[], object]) -> None:
        """Do one more."""
        call()
        self.done += 1
        now = time.monotonic()
        if now > self.said + SAY_EVERY_S or self.done == self.total:
            self.said = now
            left = (now - self.begin) / self.done * (self.total - self.done)
            self.progress.say(f"{self.done} of {self.total}: {name}; {_minutes(left)} left")


def _minutes(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds > 90 else f"about {seconds:.0f} s"


def engine_steps(results: Results) -> Iterator[Step]:
    """The engine alone, each case once, and a plain copy of as many bytes."""
    for kind, size in bench_engine.CASES:
        for who in (C, PYTHON) if loaded().there else (PYTHON,):
            yield (
                f"engine in {who}, {kind} {size} B",
                lambda kind=kind, size=size, who=who: (  # type: ignore[misc]
                    _engine(results, kind, size, who)
                ),
            )


def _engine(results: Results, kind: str, size: int, who: str) -> None:
    result = bench_engine.measure(kind, size, ENGINE_S, who == C)
    results.add(f"engine/{kind}/{size}/{who}", [result.per_message_us])
    if kind == "WRITE" and who == PYTHON:
        results.add(f"copy/{size}", [result.copy_us])


def card_steps(results: Results) -> Iterator[Step]:
    """Pairs of cards side by side, many busy cards, many idle ones: each once. A rack has a process of its own."""
    command = str(Path(sys.executable).with_name("vhca"))
    rack = partial(server, command)

    def pairs() -> None:
        for size, ratio in bench_cores.sample_pairs(command).items():
            results.add(f"pairs/2/{size}", [ratio])

    def cards() -> None:
        for (size, count), rate in bench_cores.sample_cards(command, CARDS).items():
            results.add(f"cards/{size}/{count}/{C}", [rate])

    def busy() -> None:
        waits, moved = many_cards.busy(rack, watch, many_cards.SIZES[-1], CARDS_S)
        results.add("cards/fairness", [many_cards.share(moved)])
        results.add("cards/idle wait", [max(waits)])

    def idle() -> None:
        results.add("cards/idle load", [many_cards.idle(rack, CARDS_S) / 10])

    yield "two pairs of cards against one", pairs
    yield "more and more cards", cards
    yield f"{many_cards.BUSY} busy cards", busy
    yield f"{many_cards.IDLE} idle cards", idle


def boot_steps(results: Results) -> Iterator[Step]:
    """Two guests from the command to ACTIVE, once."""

    def boot() -> None:
        command = [str(Path(sys.executable).with_name("vhca")), "run", "-v", "--guests", "2", "--", "true"]
        run = bench_boot.run(command)
        for name, seconds in run.rows.items():
            results.add(f"boot/{name}", [max(seconds)])
        results.add("boot/whole", [max(run.rows[WHOLE])])

    yield "boot of two guests", boot


def guest_steps(runs: GuestRuns, quick: bool) -> list[Step]:
    """All runs between guests, each once."""
    sizes = runs.sizes(QUICK_SIZES) if quick else runs.sizes()
    queue_pairs = runs.queue_pairs(QUICK_QUEUE_PAIRS) if quick else runs.queue_pairs()
    return [*runs.races(), *sizes, *queue_pairs, *runs.tcp()]


def run(results: Results, repeats: int, quick: bool, progress: Progress) -> None:
    """All of it, into `results`. Raises LabError."""
    prepared = prepare(progress)
    with Lab(guests=2, progress=progress) as lab:
        results.machine = this_machine(prepared.kernel.release, lab.accelerator)
        runs = GuestRuns(lab, results)
        runs.set_up()
        rounds: list[list[Step]] = []
        for _ in range(repeats):
            rounds.append([*engine_steps(results), *guest_steps(runs, quick)])
        # In a lab without guests: these have the processors for themselves.
        boots = [step for _ in range(repeats) for step in (*boot_steps(results), *card_steps(results))]
        alone = [*host_runs.steps(results, repeats, quick)]
        pace = Pace(progress, sum(map(len, rounds)) + len(boots) + len(alone))
        progress.say(
            f"{pace.total} runs and a breakdown; {_minutes(pace.total * STEP_S + repeats * BREAKDOWN_S)} in all"
        )
        for steps in rounds:
            for name, call in steps:
                pace.step(name, call)
        if shutil.which("cc") is None:
            progress.say("no breakdown: there is no C compiler (cc) on this machine")
        else:
            breakdown = bench_breakdown.run(lab, BREAKDOWN_ROUNDS, repeats, progress)
            for engine, all_ in breakdown.items():
                results.breakdown.setdefault(engine, []).extend(one.to_json() for one in all_)
    for name, call in (*alone, *boots):
        pace.step(name, call)


def show(results: Results) -> str:
    """Tables for a terminal."""
    tables = [("goals", (goals.HEADER, goals.rows(results))), ("against Soft-RoCE", page.races(results)),
              ("the engine alone", page.engines(results)),
              *((title, grid) for title, grid, _ in page.breakdowns(results))]  # fmt: skip
    return "\n\n".join("\n".join([title, *aligned(*grid)]) for title, grid in tables)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m tests.bench`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="everything once, and less of it")
    parser.add_argument("--repeats", type=int, help="samples of each; medians count (default: 5, quick 1)")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder (default: %(default)s)")
    parser.add_argument("--add", action="store_true", help="add to the results that are there")
    options = parser.parse_args(argv)
    place = options.out / "results.json"
    repeats = options.repeats or (1 if options.quick else 5)
    begin = time.monotonic()
    results = Results.from_json(place.read_text()) if options.add and place.exists() else Results()
    before, load = results.machine, round(os.getloadavg()[0], 1)
    failure = None
    try:
        run(results, repeats, options.quick, Progress())
    except (LabError, subprocess.SubprocessError) as error:
        # What there is until then is worth a look.
        failure = error
    results.machine["load before"] = max(load, before.get("load before", 0))
    results.machine["repeats"] = (repeats if failure is None else 0) + before.get("repeats", 0)
    results.machine["minutes"] = round((time.monotonic() - begin) / 60 + before.get("minutes", 0), 1)
    results.save(place)
    (options.out / "index.html").write_text(page.html(results))
    print(show(results))
    print(f"\n{options.out}/index.html, {place}")
    if failure is not None:
        print(f"bench: {failure}", file=sys.stderr)
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
