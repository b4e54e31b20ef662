"""Records of several kernels side by side: which claims come out differently, and how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from acceptance.claims.report import Record, cell, from_json, plain
from acceptance.claims.verdict import Status

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


def page(records: Sequence[Record]) -> str:
    """The page: a table of claims and kernels, then what differs, claim by claim."""
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
    lines += ["", "## What differs"]
    for name in differing:
        lines += ["", f"### {name}", "", f"{plain(texts[name])}.", ""]
        for record in records:
            if (outcome := record.outcomes.get(name)) is not None:
                lines.append(f"- {record.name}: {_mark(record, name)}. {plain(outcome.verdict.summary)}")
    return "\n".join(lines) + "\n"


def write_page(folder: Path) -> Path:
    """Write the page of the records in a folder."""
    path = folder / PAGE
    path.write_text(page(load_all(folder)), encoding="utf-8")
    return path
