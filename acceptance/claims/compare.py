"""Records of several kernels side by side: which claims come out differently, and how."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from acceptance.claims.report import Record, cell, from_json, plain
from acceptance.claims.verdict import Status
from vhca.lab import LabError

REASONS: Final = "why.toml"
"""Beside the records: for claims that differ, a table with `why`, what of the kernels' sources makes them differ."""
PAGE: Final = "kernels.md"
_MARKS: Final = {
    Status.CONFIRMED: "yes",
    Status.CONTRADICTED: "**no**",
    Status.NOT_OBSERVABLE: "not seen",
    Status.FAILED: "**test failed**",
}
_ABSENT: Final = "-"


def load_all(folder: Path) -> list[Record]:
    """The records in a folder, by age of their kernels."""
    records = [from_json(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(records, key=lambda record: [int(number) for number in re.findall(r"\d+", record.name)])


def _mark(record: Record, claim: str) -> str:
    outcome = record.outcomes.get(claim)
    return _MARKS[outcome.verdict.status] if outcome is not None else _ABSENT


def changed(records: Sequence[Record]) -> list[str]:
    """The claims that do not come out the same on all kernels on which they were tried."""
    names = sorted({name for record in records for name in record.outcomes})
    return [name for name in names if len({_mark(record, name) for record in records} - {_ABSENT}) > 1]


def parts_that_changed(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Claim and statement, of statements that hold on one kernel and not on another, or could not be seen on one."""
    seen: dict[tuple[str, str], set[bool | None]] = {}
    for record in records:
        for name, outcome in record.outcomes.items():
            for statement in outcome.verdict.statements:
                seen.setdefault((name, statement.text), set()).add(statement.holds)
    return sorted(part for part, holds in seen.items() if len(holds) > 1)


def reasons(folder: Path) -> dict[str, str]:
    """Why claims differ, as people read it from the kernels' sources; :class:`LabError` for a damaged file."""
    try:
        data = tomllib.loads((folder / REASONS).read_text(encoding="utf-8"))
        return {name: " ".join(str(row["why"]).split()) for name, row in data.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{folder / REASONS}: {error!r}", "each table is a claim, with `why`") from error


def page(records: Sequence[Record], why: Mapping[str, str] | None = None) -> str:
    """The page: a table of claims and kernels, then what differs, claim by claim, and why, if that is known."""
    why = why or {}
    texts = {name: outcome.text for record in records for name, outcome in record.outcomes.items()}
    kernels = [record.name for record in records]
    differing = changed(records)
    lines = [
        "# The claims, kernel by kernel",
        "",
        "How [the claims](6.19.md) come out on other kernels.  Written by `vhca validate --kernels` from the records"
        " beside this page, which have the evidence.  `-`: not tried on that kernel.",
        "",
        "| kernel | tested | firmware of the cards | confirmed | contradicted | not seen | test failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in records:
        counts = record.counts()
        about = record.about
        row = [record.kernel, about.get("date", "?"), about.get("firmware of the cards", "?")]
        row += [str(counts[status]) for status in _MARKS]
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", f"{len(texts)} claims; {len(differing) or 'none'} of them not the same on all kernels."]
    lines += ["", f"| claim | says | {' | '.join(kernels)} |", "|---|---|" + "---|" * len(kernels)]
    for name in sorted(texts):
        shown = f"[{name}](#{name.lower()})" if name in differing else name
        marks = [_mark(record, name) for record in records]
        lines.append(f"| {shown} | {cell(texts[name])} | {' | '.join(marks)} |")
    lines += ["", "## What differs", *_differences(records, differing, texts, why)]
    lines += ["", "## Parts of claims that differ", "", *_parts(records, differing, why)]
    return "\n".join(lines) + "\n"


def _differences(
    records: Sequence[Record], differing: Sequence[str], texts: Mapping[str, str], why: Mapping[str, str]
) -> list[str]:
    lines = []
    for name in differing:
        lines += ["", f"### {name}", "", f"{plain(texts[name])}.", ""]
        if name in why:
            lines += [f"**Why**: {plain(why[name])}", ""]
        for record in records:
            if (outcome := record.outcomes.get(name)) is not None:
                lines.append(f"- {record.name}: {_mark(record, name)}. {plain(outcome.verdict.summary)}")
    return lines


_HOLDS: Final = {True: "holds", False: "does not hold", None: "not seen"}


def _parts(records: Sequence[Record], differing: Sequence[str], why: Mapping[str, str]) -> list[str]:
    """Statements that differ, in claims that come out the same all the same."""
    lines = []
    for name, text in parts_that_changed(records):
        if name in differing:
            continue
        found = [
            f"{record.name}: {_HOLDS[statement.holds]}"
            for record in records
            if name in record.outcomes
            for statement in record.outcomes[name].verdict.statements
            if statement.text == text
        ]
        told = f"  {plain(why[name])}" if name in why else ""
        lines.append(f"- {name}, {plain(text)}: {', '.join(found)}.{told}")
    return lines or ["None."]


def write_page(folder: Path) -> Path:
    """Write the page of the records in a folder."""
    path = folder / PAGE
    path.write_text(page(load_all(folder), reasons(folder)), encoding="utf-8")
    return path
