"""Traces in tests: a failed test leaves a page of what its cards did, beside the logs of its lab."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from vhca.lab.lab import Lab
    from vhca.lab.traced import LabTrace

_OPTION: Final = "--vhca-trace"
_TRACE: pytest.StashKey[tuple[Lab, LabTrace]] = pytest.StashKey()
_NAME_MAX: Final = 100


def add_option(group: pytest.OptionGroup) -> None:
    """Add the option."""
    group.addoption(
        _OPTION,
        choices=("off", "failed"),
        default="off",
        help="failed: record what cards and cables do in every test with guests, and write a page of it for each that"
        " fails, beside the logs of its lab (--vhca-artefacts); tests are slower then (default: off)",
    )


def begin(item: pytest.Item, lab: Lab) -> None:
    """A test begins to use a lab."""
    if item.config.getoption(_OPTION) == "off" or not lab.hcas:
        return
    from vhca.lab import traced

    item.stash[_TRACE] = lab, traced.LabTrace(lab)


def told(item: pytest.Item) -> str:
    """Write the page of a test that failed, and say where it is; empty if there is none."""
    if _TRACE not in item.stash:
        return ""
    lab, trace = item.stash[_TRACE]
    path = _place(item, lab)
    try:
        found = trace.write(path, f"{item.nodeid}")
    except Exception as error:  # what cannot be told must not hide why the test failed
        return f"there is none: {error}"
    return "\n".join([f"{path}: {len(found.events)} events", *found.notes()])


def _place(item: pytest.Item, lab: Lab) -> Path:
    name = re.sub(r"[^\w.-]+", "-", item.name)[:_NAME_MAX]
    path = lab.log_dir / f"trace-{name}.html"
    number = 1
    while path.exists():
        number += 1
        path = lab.log_dir / f"trace-{name}-{number}.html"
    return path


def end(item: pytest.Item) -> None:
    """The test has ended."""
    if _TRACE in item.stash:
        _, trace = item.stash[_TRACE]
        del item.stash[_TRACE]
        trace.discard()
