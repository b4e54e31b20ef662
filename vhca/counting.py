"""Counters that are declared: an enum with a sentence for each, so that a misspelt name is a type error.

A component's counters are a dictionary by its enum, most often a :class:`collections.Counter`. What is counted by a
number (an opcode, a syndrome) is a :class:`Tally` of families, each of which says how many numbers it tells apart at
most. To the outside both are strings: :func:`shown`.
"""

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any, Final, Generic, Self, TypeVar

_REST: Final = -1


class Name(StrEnum):
    """Names of counters: `PACKETS = "packets", "Packets that ..."`; the base of each component's enum."""

    sentence: str

    def __new__(cls, name: str, sentence: str) -> Self:
        """A member: what it is called outside, and what it counts."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.sentence = sentence
        return member


class Family(StrEnum):
    """Counters whose names carry a number: `ERRORS = "errors_{:#04x}", "Errors, by syndrome.", 256`.

    The last value bounds how many numbers are told apart: what somebody outside may choose among many must not grow
    without end. Where an enum stands there, its members are told apart, and shown by their names.
    """

    sentence: str
    most: int
    codes: type[IntEnum] | None

    def __new__(cls, template: str, sentence: str, most: int | type[IntEnum]) -> Self:
        """A member: the name with a place for the number, what it counts, and how many numbers it tells apart."""
        member = str.__new__(cls, template)
        member._value_ = template
        member.sentence = sentence
        member.codes = None if isinstance(most, int) else most
        member.most = most if isinstance(most, int) else len(most)
        return member

    def name_for(self, number: int) -> str:
        """The name of the counter for `number`."""
        if number == _REST:
            return self.rest
        return self.value.format(number if self.codes is None else self.codes(number).name)

    @property
    def rest(self) -> str:
        """The name of the counter for all numbers that are not told apart."""
        return self.value.partition("_{")[0]


N = TypeVar("N", bound=Name)
F = TypeVar("F", bound=Family)


class Tally(Generic[F]):
    """Counters by family and number."""

    def __init__(self) -> None:
        self.numbers: dict[F, Counter[int]] = {}

    def add(self, family: F, number: int) -> None:
        """Count `number`, or the rest if as many others as the family tells apart are known."""
        known = self.numbers.setdefault(family, Counter())
        known[number if number in known or len(known) < family.most else _REST] += 1


def shown(counters: Mapping[N, int], tally: Tally[Any] | None = None) -> dict[str, int]:
    """The counters that have counted something, by their plain names."""
    named = {name.value: count for name, count in counters.items() if count}
    if tally is not None:
        for family, numbers in tally.numbers.items():
            named |= {family.name_for(number): count for number, count in numbers.items()}
    return named
