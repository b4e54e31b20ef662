"""Looks for rules that a kernel cannot take: rounds of several rules, and of a bad round the one rule that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from acceptance.adversary.bench import Sight
from acceptance.adversary.minimise import minimise

TOGETHER: Final = 3
"""Rules in a round: more hide each other, since a probe that fails early is all that is seen."""


class Stand(Protocol):
    """What runs a round: :class:`acceptance.adversary.bench.Bench`."""

    def round(self, rules: Sequence[str]) -> Sight:
        """What the kernel made of a card with these rules."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Rules, one if possible, and what a kernel says to them."""

    rules: tuple[str, ...]
    headline: str
    text: str


def search(
    rules: Sequence[str],
    stand: Stand,
    tell: Callable[[str], None],
    together: int = TOGETHER,
    known: Sequence[str] = (),
) -> list[Finding]:
    """Try these rules, some at a time; findings with the same signature are told once.

    `known`: signatures that are not looked for.
    """
    seen = set(known)
    findings = []
    for at in range(0, len(rules), together):
        some = rules[at : at + together]
        sight = stand.round(some)
        new = sight.signatures - seen
        said = "; ".join(sorted(new)) or ("known" if sight.headlines else "-")
        tell(f"{at + len(some):4} of {len(rules)}: {said}")
        if not new:
            continue
        finding = _least(some, sight, new, stand)
        seen |= new
        findings.append(finding)
        tell(told(finding))
    return findings


def _least(rules: Sequence[str], sight: Sight, new: frozenset[str], stand: Stand) -> Finding:
    """The fewest rules after which the kernel says any of what was new."""
    last = [sight]

    def bad(some: Sequence[str]) -> bool:
        again = stand.round(some)
        if again.signatures & new:
            last[0] = again
            return True
        return False

    least = minimise(rules, bad)
    headline = next((line for line in last[0].headlines), "")
    return Finding(tuple(least), headline, last[0].text)


def told(finding: Finding) -> str:
    """A finding as lines for people, each rule as an option that makes it."""
    options = " ".join(f"--fault '{rule}'" for rule in finding.rules)
    return f"  {finding.headline}\n  vhca adversary {options}"
