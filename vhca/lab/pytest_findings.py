"""Findings in tests: what a test's guests do wrong with objects of their cards fails the test, if that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from vhca.hw.findings import Finding
    from vhca.lab.lab import Lab

MARKER: Final = (
    "vhca_findings(level='normal', allow=()): what the guests do wrong with objects of their cards while the test runs"
    " fails it (level='off': not); allow: kinds that do not, such as 'unknown-key'; docs/findings.md has them"
)
_OPTION: Final = "--vhca-findings"
_WATCHED: Final = pytest.StashKey["_Watched"]()


@dataclass
class _Watched:
    lab: Lab
    fail: bool
    allow: tuple[str, ...]
    before: dict[tuple[Any, ...], int] = field(default_factory=dict)


def add_option(group: pytest.OptionGroup) -> None:
    """Add the option."""
    group.addoption(
        _OPTION,
        choices=("off", "report", "fail"),
        default="off",
        help="look for what guests do wrong with objects of their cards (destroyed twice, used after their end ...) in"
        " every test: report: tell of it in the reports of failed tests; fail: it fails a test (default: off; see also"
        " the marker vhca_findings)",
    )


def begin(item: pytest.Item, lab: Lab) -> None:
    """A test begins to use a lab."""
    wanted: dict[str, Any] = {}
    marked = False
    for marker in reversed(list(item.iter_markers("vhca_findings"))):
        if marker.args or set(marker.kwargs) - {"level", "allow"}:
            raise pytest.UsageError("@pytest.mark.vhca_findings takes level='normal' and allow=(), by name")
        wanted.update(marker.kwargs)
        marked = True
    asked = item.config.getoption(_OPTION)
    level = str(wanted.get("level", "normal"))
    if level == "off" or not (marked or asked != "off"):
        return
    from vhca.hw.findings import FindingKind

    allow = tuple(map(str, wanted.get("allow", ())))
    try:
        for kind in allow:
            FindingKind(kind)
        lab.look_for_findings(level)
    except ValueError as error:
        raise pytest.UsageError(f"@pytest.mark.vhca_findings: {error}") from None
    watched = _Watched(lab, marked or asked == "fail", allow)
    watched.before = {_same(finding): finding.times for finding in lab.findings()}
    item.stash[_WATCHED] = watched


def _same(finding: Finding) -> tuple[Any, ...]:
    return finding.card, finding.kind, finding.object_kind, finding.number, finding.time_ns, finding.text


def _new(watched: _Watched) -> Iterator[Finding]:
    for finding in watched.lab.findings():
        if finding.times > watched.before.get(_same(finding), 0) and finding.kind not in watched.allow:
            yield finding


def told(item: pytest.Item) -> str:
    """What was found while the test ran, for people; empty if nothing."""
    watched = item.stash.get(_WATCHED, None)
    if watched is None:
        return ""
    try:
        return "\n".join(finding.told() for finding in _new(watched))
    except Exception as error:  # cards that cannot be asked must not hide why the test failed
        return f"cannot be read: {error!r}"


def verdict(item: pytest.Item) -> str:
    """Why the findings fail the test; empty if they do not."""
    watched = item.stash.get(_WATCHED, None)
    return told(item) if watched is not None and watched.fail else ""


def end(item: pytest.Item) -> None:
    """The test has ended; others that use the lab do not pay for it."""
    watched = item.stash.get(_WATCHED, None)
    if watched is not None:
        del item.stash[_WATCHED]
        watched.lab.look_for_findings(None)
