"""Makes rules that are bad together few: one of them, if one is enough, and its words fewer.

Guarantees: what is returned was judged bad itself, if it is not what was given; the number of judgements is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vhca.chip.fault_rules import FaultRuleError, parse_rule

Judge = Callable[[Sequence[str]], bool]
"""Does this happen with these rules?"""


def minimise(rules: Sequence[str], bad: Judge, most: int = 24) -> list[str]:
    """Rules of these with which it still happens: one if that is possible, else as few as halving finds."""
    budget = [most]

    def judged(some: Sequence[str]) -> bool:
        if budget[0] <= 0:
            return False
        budget[0] -= 1
        return bad(some)

    kept = _fewer(list(rules), judged)
    return [_shorter(kept[0], judged)] if len(kept) == 1 else kept


def _fewer(rules: list[str], bad: Judge) -> list[str]:
    """By halves, by thirds, ... one by one."""
    parts = 2
    while len(rules) > 1:
        size = -(-len(rules) // parts)
        pieces = [rules[at : at + size] for at in range(0, len(rules), size)]
        rests = [[rule for rule in rules if rule not in piece] for piece in pieces] if parts > 2 else []
        piece = next((some for some in pieces if bad(some)), None)
        rest = next((some for some in rests if bad(some)), None) if piece is None else None
        if piece is not None:
            rules, parts = piece, 2
        elif rest is not None:
            rules, parts = rest, max(parts - 1, 2)
        elif parts >= len(rules):
            break
        else:
            parts = min(2 * parts, len(rules))
    return rules


def _shorter(rule: str, bad: Judge) -> str:
    """Leave out words of the selection that do not matter."""
    for name in ("syndrome", "probability", "seed", "from", "until"):
        shorter = " ".join(word for word in rule.split() if not word.startswith(f"{name}="))
        try:
            parse_rule(shorter)  # of a completion, the syndrome is what happens
        except FaultRuleError:
            continue
        if shorter != rule and bad([shorter]):
            rule = shorter
    return rule
