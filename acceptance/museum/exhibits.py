"""What the exhibits are: `museum/exhibits.toml`, the one place where they are declared.

Guarantees: what is loaded is whole (each exhibit has a script that exists, signs, and either a mended showing or the
reason why there is none); nothing is booted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from acceptance.places import museum
from vhca.lab import LabError
from vhca.toml_files import read_toml

FILE: Final = "exhibits.toml"


@dataclass(frozen=True, slots=True)
class Mended:
    """How the fault's absence is shown.

    :ivar how: in words, what is different.
    :ivar signs: regular expressions, all of which are found then: the same was tried, and went well.
    :ivar kernel: another kernel, if that is the difference. :ivar environment: of the script.
    :ivar faults: rules inside the card instead of the exhibit's.
    """

    how: str
    signs: tuple[str, ...]
    kernel: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One fault of a kernel, a library or a tool.

    :ivar id: M01, ... :ivar name: a word or two for it. :ivar title: a sentence.
    :ivar where: source file and function. :ivar wrong: what is wrong there. :ivar seen: what one sees.
    :ivar versions: which have it. :ivar references: where the public can read of it.
    :ivar script: of `museum/`, run in guest 0; `peer`: at the same time in guest 1.
    :ivar kernel: one that has it. :ivar faults: rules inside the first card, made when all is up.
    :ivar signs: regular expressions, all of which are found in what the script prints and the kernels log.
    :ivar evidence: regular expression of further lines that are printed.
    :ivar mended: how its absence is shown; else `no_mended`: why it is not.
    :ivar quick: shown by the regular tests.
    """

    id: str
    name: str
    title: str
    where: str
    wrong: str
    seen: str
    versions: str
    references: tuple[str, ...]
    script: str
    kernel: str
    signs: tuple[str, ...]
    faults: tuple[str, ...] = ()
    peer: str = ""
    guests: int = 1
    cpus: int = 1
    hcas: int = 1
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    evidence: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    mended: Mended | None = None
    no_mended: str = ""
    timeout_s: int = 60
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """A fault that is not shown here."""

    what: str
    why: str


def load(text: str, scripts: Path) -> tuple[list[Exhibit], list[Absent]]:
    """The exhibits that a declaration has, and what it says is not shown.

    :raises ValueError: something is missing, or is there that means nothing.
    """
    document = read_toml(text)
    absent = [Absent(**_known(Absent, "absent", each)) for each in document.pop("absent", [])]
    found = [_exhibit(name, table, scripts) for name, table in document.items()]
    for key in ("id", "name"):
        values = [getattr(exhibit, key) for exhibit in found]
        if len(set(values)) != len(values):
            raise ValueError(f"two exhibits have the same {key}")
    return found, absent


def _exhibit(number: str, table: dict[str, Any], scripts: Path) -> Exhibit:
    values = _known(Exhibit, number, table)
    mended = values.pop("mended", None)
    exhibit = Exhibit(id=number, mended=None if mended is None else Mended(**_known(Mended, number, mended)), **values)
    if not re.fullmatch(r"M\d\d", number):
        raise ValueError(f"{number}: exhibits are called M01, M02, ...")
    if (exhibit.mended is None) == (not exhibit.no_mended):
        raise ValueError(f"{number}: give mended, or no_mended with the reason")
    if not exhibit.signs or not exhibit.references or (exhibit.mended is not None and not exhibit.mended.signs):
        raise ValueError(f"{number}: signs and references may not be empty")
    if exhibit.peer and exhibit.guests < 2:
        raise ValueError(f"{number}: a peer needs two guests")
    for script in filter(None, (exhibit.script, exhibit.peer)):
        if not (scripts / script).is_file():
            raise ValueError(f"{number}: there is no {script}")
    return exhibit


def _known(kind: type[Any], number: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of one table, lists as tuples."""
    names = {each.name for each in fields(kind)}
    if strange := set(table) - names:
        raise ValueError(f"{number}: {', '.join(sorted(strange))}: no such field")
    needed = {each.name for each in fields(kind) if _is_needed(each)} - {"id"}
    if missing := needed - set(table):
        raise ValueError(f"{number}: {', '.join(sorted(missing))} is missing")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


def _is_needed(each: Any) -> bool:
    from dataclasses import MISSING

    return each.default is MISSING and each.default_factory is MISSING


@cache
def whole() -> tuple[tuple[Exhibit, ...], tuple[Absent, ...]]:
    """All exhibits, and what is not shown."""
    folder = museum()
    found, absent = load((folder / FILE).read_text("utf-8"), folder)
    return tuple(found), tuple(absent)


def choose(names: Iterable[str]) -> list[Exhibit]:
    """The exhibits of these ids or names.

    :raises LabError: there is none of that name.
    """
    exhibits, _ = whole()
    chosen = []
    for name in names:
        meant = [each for each in exhibits if name.lower() in (each.id.lower(), each.name)]
        if not meant:
            known = ", ".join(f"{each.id} ({each.name})" for each in exhibits)
            raise LabError(f"there is no exhibit {name}", f"there are {known}")
        chosen += meant
    return chosen
