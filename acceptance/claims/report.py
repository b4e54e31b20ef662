"""The validation report: verdicts as JSON (the record), as a page, and as JUnit XML.

The record holds everything; the page and the XML are made from it. In JUnit a confirmed claim is a passed test, a
contradicted one a failure, one that is not observable skipped, and a test that did not work an error.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from acceptance.claims.framework import Claim
from acceptance.claims.verdict import Evidence, Statement, Status, Verdict
from vhca.lab import LabError

KIND: Final = "validation"
"""The folder of a checkout's documentation that has these reports."""
GROUPS: Final = {
    "A": "Device and client",
    "B": "Queue pairs",
    "C": "Memory",
    "D": "Work requests",
    "E": "Shared receive queue",
    "F": "Networks, protocols, tools",
}
_PAGE_LINES_MAX: Final = 24
_MARKS: Final = {True: "holds", False: "**does not hold**", None: "not seen"}


@dataclass(slots=True)
class Outcome:
    """A claim's words and its verdict."""

    text: str
    verdict: Verdict


@dataclass(slots=True)
class Record:
    """A run: what was tested and how each claim came out."""

    kernel: str
    about: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def add(self, claim: Claim, verdict: Verdict) -> None:
        """Put a verdict in; one of the same claim is replaced."""
        self.outcomes[claim.id] = Outcome(claim.text, verdict)

    def counts(self) -> Counter[Status]:
        """How many claims came out how."""
        return Counter(outcome.verdict.status for outcome in self.outcomes.values())

    @property
    def name(self) -> str:
        """What its files are called: the kernel's version without patch level, such as `6.19`."""
        match = re.match(r"\d+\.\d+", self.kernel)
        return match[0] if match else "unknown"


# ---- record ----


def to_json(record: Record) -> str:
    """The record as text."""
    claims = {
        name: {"claim": outcome.text, **asdict(outcome.verdict), "seconds": round(outcome.verdict.seconds, 1)}
        for name, outcome in sorted(record.outcomes.items())
    }
    return json.dumps({"kernel": record.kernel, "about": record.about, "claims": claims}, indent=1) + "\n"


def from_json(text: str) -> Record:
    """The inverse of :func:`to_json`; :class:`LabError` if it is no record."""
    try:
        data: dict[str, Any] = json.loads(text)
        record = Record(data["kernel"], dict(data["about"]))
        for name, row in data["claims"].items():
            verdict = Verdict(
                Status(row["status"]),
                row["summary"],
                [Statement(**statement) for statement in row["statements"]],
                [Evidence(**evidence) for evidence in row["evidence"]],
                row["seconds"],
            )
            record.outcomes[name] = Outcome(row["claim"], verdict)
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"this is no record of a validation: {error!r}", "run `vhca validate` anew") from error
    return record


# ---- page ----


def markdown(record: Record) -> str:
    """The page: a table of all claims, then each with its statements and evidence."""
    lines = [
        f"# The claims on Linux {record.name}",
        "",
        "What is said of RDMA on Linux, claim by claim, against what two guests with emulated cards really did."
        " Written by `vhca validate`; the whole evidence is in the JSON file beside this page.",
        "",
        *(f"- {name}: {value}" for name, value in record.about.items()),
        "",
        _totals(record),
        "",
        "| Claim | Says | Outcome | What was seen |",
        "|---|---|---|---|",
    ]
    for name, outcome in sorted(record.outcomes.items()):
        verdict = outcome.verdict
        cells = (f"[{name}](#{name.lower()})", outcome.text, _bold(verdict.status), verdict.summary)
        lines.append("| " + " | ".join(cell(text) for text in cells) + " |")
    group = ""
    for name, outcome in sorted(record.outcomes.items()):
        if name[0] != group:
            group = name[0]
            lines += ["", f"## {group}. {GROUPS.get(group, '')}".rstrip(". ")]
        lines += _section(name, outcome)
    return "\n".join(lines) + "\n"


def _totals(record: Record) -> str:
    counts = record.counts()
    parts = ", ".join(f"{counts[status]} {status.value}" for status in Status if counts[status])
    return f"{len(record.outcomes)} claims: {parts}."


def _bold(status: Status) -> str:
    return status.value if status is Status.CONFIRMED else f"**{status.value}**"


def cell(text: str) -> str:
    """Text that fits a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _section(name: str, outcome: Outcome) -> Iterable[str]:
    verdict = outcome.verdict
    yield from ("", f"### {name}", "", f"{outcome.text}: {_bold(verdict.status)} ({verdict.seconds:.0f} s).", "")
    yield from (plain(verdict.summary), "")
    for statement in verdict.statements:
        instead = f": {statement.instead}" if statement.instead else ""
        yield f"- {_MARKS[statement.holds]}: {plain(statement.text)}{plain(instead)}"
    if verdict.evidence:
        yield from ("", "<details><summary>Evidence</summary>", "", "```text")
        for evidence in verdict.evidence:
            yield f"[{evidence.where}] {evidence.command}".replace("```", "'''")
            output = evidence.output.replace("```", "'''").splitlines()
            if len(output) > _PAGE_LINES_MAX:
                half = _PAGE_LINES_MAX // 2
                output = [*output[:half], f"[... {len(output) - 2 * half} lines ...]", *output[-half:]]
            yield from ("    " + line.rstrip() if line.strip() else "" for line in output)
        yield from ("```", "", "</details>")


def plain(text: str) -> str:
    """Text in which Markdown and HTML find nothing of their own."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")


# ---- JUnit ----


def junit(record: Record) -> str:
    """The record as JUnit XML."""
    counts = record.counts()
    seconds = sum(outcome.verdict.seconds for outcome in record.outcomes.values())
    suite = ElementTree.Element(
        "testsuite",
        name=f"claims on {record.kernel}",
        tests=str(len(record.outcomes)),
        failures=str(counts[Status.CONTRADICTED]),
        errors=str(counts[Status.FAILED]),
        skipped=str(counts[Status.NOT_OBSERVABLE]),
        time=f"{seconds:.1f}",
    )
    for name, outcome in sorted(record.outcomes.items()):
        verdict = outcome.verdict
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"claims.{name[0]}",
            name=f"{name} {outcome.text}",
            time=f"{verdict.seconds:.1f}",
        )
        kind = {Status.CONTRADICTED: "failure", Status.FAILED: "error", Status.NOT_OBSERVABLE: "skipped"}
        if verdict.status in kind:
            ElementTree.SubElement(
                case, kind[verdict.status], message=_printable(verdict.summary), type=verdict.status.value
            )
        shown = "\n".join(f"[{e.where}] {e.command}\n{e.output}" for e in verdict.evidence)
        ElementTree.SubElement(case, "system-out").text = _printable(f"{verdict.summary}\n{shown}")
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """Text without the control characters that XML cannot hold."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


# ---- files ----


def load(folder: Path, name: str) -> Record | None:
    """The stored record of a kernel version, if there is one."""
    path = folder / f"{name}.json"
    return from_json(path.read_text(encoding="utf-8")) if path.exists() else None


def write(record: Record, folder: Path) -> list[Path]:
    """Write record, page and XML; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: Mapping[str, str] = {"md": markdown(record), "json": to_json(record), "xml": junit(record)}
    paths = []
    for suffix, text in parts.items():
        path = folder / f"{record.name}.{suffix}"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
