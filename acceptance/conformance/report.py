"""The conformance report: what the suite made of the card, beside what it makes of Soft-RoCE, as one page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from acceptance.conformance.results import BAD, CRASHED, ERROR, FAILED, PASSED, SKIPPED, TIMEOUT, DeviceRun, FileRun
from acceptance.conformance.skips import Explanation, explain

TITLES: Final = {"hca": "The HCA", "soft-roce": "Soft-RoCE"}
_COLUMNS: Final = ((PASSED,), (FAILED,), (ERROR, CRASHED, TIMEOUT), (SKIPPED,))
_HEADINGS: Final = ("passed", "failed", "errors", "skipped")


@dataclass(slots=True)
class SkipGroup:
    """Skips with the same text and the same explanation."""

    reason: str
    explanation: Explanation | None
    tests: list[str] = field(default_factory=list)


def skip_groups(run: DeviceRun) -> list[SkipGroup]:
    """The skips of a run, grouped, the largest group first; unexplained ones before all others."""
    groups: dict[tuple[str, str], SkipGroup] = {}
    for test_id, test in sorted(run.tests().items()):
        if test.outcome != SKIPPED:
            continue
        why = explain(run.device, test_id, test.reason)
        key = (test.gist, why.line if why else "")
        groups.setdefault(key, SkipGroup(test.gist, why)).tests.append(test_id)
    return sorted(groups.values(), key=lambda g: (g.explanation is not None, -len(g.tests), g.reason))


def unexplained(run: DeviceRun) -> list[str]:
    """One line for each skip that no explanation fits."""
    return [
        f"{test_id}: {group.reason}"
        for group in skip_groups(run)
        if group.explanation is None
        for test_id in group.tests
    ]


def markdown(runs: Mapping[str, DeviceRun]) -> str:
    """The page."""
    ordered = [runs[device] for device in TITLES if device in runs]
    parts = [_head(ordered), _table(ordered)]
    for run in ordered:
        parts += [_failures(run), _skips(run)]
    return "\n".join(part for part in parts if part)


def _head(runs: list[DeviceRun]) -> str:
    lines = [
        "# Conformance: rdma-core's own test suite",
        "",
        "Written by `make conformance`; not edited by hand. Each file of the suite runs in a process of its own, in a",
        "guest with one device, 2 GiB of memory, 2 MiB huge pages and an address for the connection manager.",
        "rdma-core.json beside this page has the outcome of every test; with `--compare` a run fails on any that is",
        "worse than before.",
        "",
    ]
    for run in runs:
        about = ", ".join(f"{name} {value}" for name, value in sorted(run.about.items()) if value)
        totals = run.totals()
        bad = sum(totals[outcome] for outcome in BAD)
        lines.append(
            f"- **{TITLES[run.device]}** ({about}): {totals.total()} tests, **{totals[PASSED]} passed**, "
            f"{bad} failed, {totals[SKIPPED]} skipped."
        )
    return "\n".join([*lines, ""])


def _table(runs: list[DeviceRun]) -> str:
    header = ["file"] + [f"{TITLES[run.device]}: {name}" for run in runs for name in _HEADINGS]
    rows = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    for name in sorted({name for run in runs for name in run.files}):
        cells = [name]
        for run in runs:
            cells += _cells(run.files.get(name))
        rows.append("| " + " | ".join(cells) + " |")
    cells = ["**all**"]
    for run in runs:
        totals = run.totals()
        cells += [f"**{sum(totals[outcome] for outcome in column)}**" for column in _COLUMNS]
    rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(["## Outcomes", "", *rows, ""])


def _cells(file: FileRun | None) -> list[str]:
    if file is None:
        return ["not run"] + [""] * (len(_COLUMNS) - 1)
    counts = [str(file.count(*column) or "") for column in _COLUMNS]
    if file.crash:
        counts[2] = f"{counts[2]} (died at its end)".strip()
    return counts


def _failures(run: DeviceRun) -> str:
    bad = [(test_id, test) for test_id, test in sorted(run.tests().items()) if test.bad]
    crashes = [f"- {file.name}: {file.crash}, with all its tests done" for file in run.files.values() if file.crash]
    if not bad and not crashes:
        return ""
    lines = [f"- `{test_id.removeprefix('tests.')}` {test.outcome}: {_code(test.gist)}" for test_id, test in bad]
    return "\n".join([f"## {TITLES[run.device]}: what failed", "", *lines, *crashes, ""])


def _skips(run: DeviceRun) -> str:
    groups = skip_groups(run)
    if not groups:
        return ""
    rows = ["| tests | the suite says | why | which |", "|--:|---|---|---|"]
    for group in groups:
        why = group.explanation.line if group.explanation else "**unexplained**"
        rows.append(f"| {len(group.tests)} | {_code(group.reason)} | {_cell(why)} | {_where(group.tests)} |")
    return "\n".join([f"## {TITLES[run.device]}: what was skipped, and why", "", *rows, ""])


def _where(tests: list[str]) -> str:
    """The tests of a group: by name if they are few, else by file."""
    if len(tests) <= 3:
        return ", ".join(test_id.rpartition(".")[2] for test_id in tests)
    files: defaultdict[str, int] = defaultdict(int)
    for test_id in tests:
        files[test_id.split(".")[1]] += 1
    return ", ".join(f"{name} {count}" for name, count in sorted(files.items()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _code(text: str) -> str:
    return "`" + _cell(text[:200]).replace("`", "'") + "`" if text else ""
