"""The project's goals for speed, as ratios or rates, and whether a run of the bench reached them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.bench.results import SOFT, C, Results

GUESTS_PAIRED: Final = "two guests, against Soft-RoCE in the same guests"


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure that a run has, and what it should be.

    :ivar of: what is measured, :ivar what: which part of it.
    :ivar figure: takes it from the results; None if it was not measured.
    :ivar needs: what it should reach; None if it is wanted to be known and no more.
    """

    of: str
    what: str
    needs: float | None
    unit: str
    figure: Callable[[Results], float | None]
    at_most: bool = False

    def reached(self, value: float) -> bool:
        """Whether this is good enough."""
        if self.needs is None:
            return True
        return value <= self.needs if self.at_most else value >= self.needs

    def row(self, results: Results) -> tuple[str, str, str, str, str]:
        """What, which, figure, goal, yes or no."""
        value = self.figure(results)
        sign = "<=" if self.at_most else ">="
        goal = "printed" if self.needs is None else f"{sign} {shown(self.needs)} {self.unit}".rstrip()
        if value is None:
            return self.of, self.what, "not measured", goal, "-"
        good = self.reached(value)
        text = shown(value)
        if not good and self.needs is not None and text == shown(self.needs):
            # Rounding must not hide by how little it was missed.
            text = f"{value:.4g}"
        reached = "machine busy" if results.busy else "yes" if good else "no"
        return self.of, self.what, f"{text} {self.unit}".rstrip(), goal, reached


def shown(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def engine_rate(kind: str, size: int) -> Callable[[Results], float | None]:
    """Million messages a second of the engine in C alone."""

    def figure(results: Results) -> float | None:
        us = results.of("engine", kind, size, C)
        return None if us is None else 1 / us

    return figure


def engine_copies(size: int) -> Callable[[Results], float | None]:
    """Speed of a WRITE as a part of that of one plain copy of its bytes."""

    def figure(results: Results) -> float | None:
        us, copy = results.of("engine", "WRITE", size, C), results.of("copy", size)
        return None if us is None or copy is None else copy / us

    return figure


def against_soft_roce(program: str, size: int) -> Callable[[Results], float | None]:
    """How many times better the card is."""

    def figure(results: Results) -> float | None:
        ours, theirs = (results.of("guests", program, size, who) for who in (C, SOFT))
        if not ours or not theirs:
            return None
        return theirs / ours if program.endswith("_lat") else ours / theirs

    return figure


def measured(*words: str) -> Callable[[Results], float | None]:
    """A figure as it is."""
    return lambda results: results.of(*words)


def part_of(words: tuple[str, ...], whole: tuple[str, ...]) -> Callable[[Results], float | None]:
    """One figure divided by another."""

    def figure(results: Results) -> float | None:
        one, other = results.of(*words), results.of(*whole)
        return None if one is None or not other else one / other

    return figure


ENGINE: Final = "engine alone, two cards through the switch"
GOALS: Final = (
    Goal(ENGINE, "WRITE 64 B", 1, "M/s", engine_rate("WRITE", 64)),
    Goal(ENGINE, "SEND 64 B", 1, "M/s", engine_rate("SEND", 64)),
    Goal(ENGINE, "READ 64 B", 0.5, "M/s", engine_rate("READ", 64)),
    Goal(ENGINE, "atomic", 0.5, "M/s", engine_rate("ATOMIC", 8)),
    Goal(ENGINE, "datagram 64 B", 1, "M/s", engine_rate("DATAGRAM", 64)),
    Goal(ENGINE, "WRITE 64 KiB", 0.5, "of one copy", engine_copies(65536)),
    Goal(ENGINE, "WRITE 1 MiB", 0.8, "of one copy", engine_copies(1 << 20)),
    *(Goal("engine alone, two pairs of cards on two cores", f"WRITE {name}", 1.6, "x one pair",
           measured("pairs", "2", str(size)))
      for size, name in ((64, "64 B"), (4096, "4 KiB"), (65536, "64 KiB"), (1 << 20, "1 MiB"))),
    Goal("engine alone", "10,000 QPs, each message for one by chance", 0.8, "x one QP",
         part_of(("qps", "engine, 1 per doorbell", "10000", C), ("qps", "engine, 1 per doorbell", "1", C))),
    Goal("engine alone", "the same, by fours", None, "x one QP",
         part_of(("qps", "engine, 4 per doorbell", "10000", C), ("qps", "engine, 4 per doorbell", "1", C))),
    Goal("engine alone", "the same, by sixteens", None, "x one QP",
         part_of(("qps", "engine", "10000", C), ("qps", "engine", "1", C))),
    Goal("engine alone", "10,000 QPs, memory for both ends of one", None, "KiB", measured("memory", "10000", C)),
    *(Goal(GUESTS_PAIRED, f"{verb} 64 KiB", 100, "x", against_soft_roce(f"ib_{verb.lower()}_bw", 65536))
      for verb in ("WRITE", "READ", "SEND")),
    *(Goal(GUESTS_PAIRED, f"{verb} 64 B, rate", 10, "x", against_soft_roce(f"ib_{verb.lower()}_bw", 64))
      for verb in ("WRITE", "READ", "SEND")),
    *(Goal(GUESTS_PAIRED, f"{verb}, latency", 10, "x", against_soft_roce(f"ib_{verb.lower()}_lat", 8))
      for verb in ("WRITE", "SEND")),
    Goal("two guests", "TCP over IPoIB, one stream", 1000, "Mbit/s", measured("ipoib", "tcp", C)),
    Goal("16 cards, all busy", "least of a card's share of the mean", 0.5, "", measured("cards", "fairness")),
    Goal("16 cards, all busy", "register of an idle card, at most", 10, "ms", measured("cards", "idle wait"), True),
    Goal("64 idle cards", "processor time", 1, "%", measured("cards", "idle load"), True),
    Goal("two guests", "from command to ACTIVE", 6, "s", measured("boot", "whole"), True),
)  # fmt: skip
HEADER: Final = ("what", "which", "measured", "goal", "reached")


def rows(results: Results) -> list[tuple[str, str, str, str, str]]:
    """One for each goal."""
    return [goal.row(results) for goal in GOALS]
