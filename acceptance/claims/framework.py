"""What a claim is, and how an observation becomes a verdict.

A claim is a function that observes and returns a :class:`Verdict`. No table says how a claim should come out:
the status follows from statements and whether they were seen to hold. Whatever a claim raises is a failure of the
test, never a verdict.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.verdict import Statement, Status, Verdict

_ID: Final = re.compile(r"[A-Z]\d{2}")
_CLAIM_MODULE: Final = re.compile(r"[a-z]_\w+")

#: What a claim may ask for beside two booted guests with a card each.
#: `no-guest`: nothing is booted. `fresh`: both guests boot anew before it. `spoils`: it leaves the guests in
#: a state that others must not meet; they boot anew after it.
NEEDS: Final = frozenset({"no-guest", "fresh", "spoils"})


class Findings:
    """Collects statements about one claim and draws the verdict from them.

    `check` returns what it was told, so that later steps can depend on it.
    """

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self._notes: list[str] = []

    def check(self, statement: str, holds: object, instead: str = "") -> bool:
        """State something and whether it was seen to hold; `instead` says what was seen if it does not."""
        seen = bool(holds)
        self.statements.append(Statement(statement, seen, "" if seen else instead))
        return seen

    def unseen(self, statement: str, why: str) -> None:
        """A part of the claim that could not be observed."""
        self.statements.append(Statement(statement, None, why))

    def note(self, text: str) -> None:
        """Something worth knowing that is no part of the claim; goes to the end of the summary."""
        self._notes.append(text)

    def verdict(self, summary: str = "") -> Verdict:
        """Confirmed if every statement that could be seen holds, contradicted if one does not.

        `summary` is for a confirmed claim; that of a contradicted one is made of what was seen instead.
        """
        false = [s for s in self.statements if s.holds is False]
        unseen = [s for s in self.statements if s.holds is None]
        if false:
            status = Status.CONTRADICTED
            words = "; ".join(s.instead or f"not so: {s.text}" for s in false)
        elif any(s.holds for s in self.statements):
            status, words = Status.CONFIRMED, summary or "; ".join(s.text for s in self.statements if s.holds)
            if unseen:
                words += "; not observed: " + "; ".join(f"{s.text} ({s.instead})" for s in unseen)
        else:
            status = Status.NOT_OBSERVABLE
            words = "; ".join(s.instead for s in unseen) or "nothing was observed"
        notes = [note[:1].upper() + note[1:] for note in self._notes]
        return Verdict(status, ". ".join([words, *notes]), self.statements)


@dataclass(slots=True, frozen=True)
class Claim:
    """One claim: its id, its words, what it needs, and the function that observes it."""

    id: str
    text: str
    needs: frozenset[str]
    observe: Callable[[Bench], Verdict]
    packages: tuple[str, ...] = ()  # of Debian, that guests must have beside the usual ones

    @property
    def group(self) -> str:
        """The letter of its group."""
        return self.id[0]


_REGISTRY: dict[str, Claim] = {}


def claim(
    claim_id: str, text: str, *, needs: Iterable[str] = (), packages: tuple[str, ...] = ()
) -> Callable[[Callable[[Bench], Verdict]], Callable[[Bench], Verdict]]:
    """Register a function as the test of a claim.

    `claim_id` is a letter and two digits; `text` the claim in words; `needs` some of :data:`NEEDS`;
    `packages` Debian packages that guests must have beside the usual ones.
    `ValueError` for an id that is taken or malformed, or for an unknown need.
    """
    wanted = frozenset(needs)
    if not _ID.fullmatch(claim_id):
        raise ValueError(f"{claim_id!r} is not the id of a claim: a letter and two digits")
    if unknown := wanted - NEEDS:
        raise ValueError(f"{claim_id} needs {', '.join(sorted(unknown))}: choose from {', '.join(sorted(NEEDS))}")

    def register(observe: Callable[[Bench], Verdict]) -> Callable[[Bench], Verdict]:
        if claim_id in _REGISTRY:
            raise ValueError(f"claim {claim_id} has a test already")
        _REGISTRY[claim_id] = Claim(claim_id, text, wanted, observe, packages)
        return observe

    return register


def all_claims() -> list[Claim]:
    """Every claim that has a test, in order of ids."""
    package = importlib.import_module("acceptance.claims")
    for module in pkgutil.iter_modules(package.__path__):
        if _CLAIM_MODULE.fullmatch(module.name):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return [_REGISTRY[name] for name in sorted(_REGISTRY)]


def packages_of(claims: Iterable[Claim]) -> tuple[str, ...]:
    """The Debian packages that guests must have for all of these claims, sorted."""
    return tuple(sorted({package for claim in claims for package in claim.packages}))


def choose(claims: Iterable[Claim], only: Iterable[str]) -> list[Claim]:
    """The claims that `only` names: by id or by group letter; all if it is empty. `KeyError` for others."""
    listed = list(claims)
    wanted = [word.upper() for word in only]
    if not wanted:
        return listed
    known = {c.id for c in listed} | {c.group for c in listed}
    if absent := [word for word in wanted if word not in known]:
        raise KeyError(f"there is no claim {', '.join(absent)}; there are {', '.join(c.id for c in listed)}")
    return [c for c in listed if c.id in wanted or c.group in wanted]
