"""How a claim came out, with what was seen: statements, evidence, and the verdict that they make."""

from __future__ import annotations

import enum
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_CHECKOUT: Final = Path(__file__).resolve().parents[2]


class Status(enum.StrEnum):
    """How a claim came out."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NOT_OBSERVABLE = "not observable"
    FAILED = "failed"  # the test itself did not work: says nothing about the claim


class CannotSee(Exception):
    """This kernel lacks what a claim is observed by; the text says what. The claim is then not observable."""


@dataclass(slots=True, frozen=True)
class Evidence:
    """What was done and what came of it."""

    where: str  # "g0", "card h1", "host", ...
    command: str
    output: str


@dataclass(slots=True, frozen=True)
class Statement:
    """One part of a claim and whether it was seen to hold (None: could not be seen)."""

    text: str
    holds: bool | None
    instead: str = ""  # what is true instead, or why it could not be seen


@dataclass(slots=True)
class Verdict:
    """The outcome of a claim.

    `summary`: one or two sentences; of a contradicted claim they say what is true instead, of one that is not
    observable they say why.
    """

    status: Status
    summary: str
    statements: list[Statement] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def not_observable(cls, why: str) -> Verdict:
        """The claim cannot be observed here."""
        return cls(Status.NOT_OBSERVABLE, why)

    @classmethod
    def failed(cls, error: BaseException) -> Verdict:
        """The test did not work; the traceback is its evidence."""
        text = _traceback(error)
        return cls(Status.FAILED, f"{type(error).__name__}: {error}", [], [Evidence("host", "traceback", text)])


def _traceback(error: BaseException) -> str:
    """The error and its calls, without the folders of this machine: a record is for everybody."""
    told = traceback.TracebackException.from_exception(error)
    for frame in told.stack:
        path = Path(frame.filename)
        inside = path.is_relative_to(_CHECKOUT) and ".venv" not in path.relative_to(_CHECKOUT).parts
        frame.filename = path.relative_to(_CHECKOUT).as_posix() if inside else path.name
    return "".join(told.format())
