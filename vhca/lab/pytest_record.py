"""Recordings in tests: a failed test leaves a file for each card, which anybody can play again without a guest."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from vhca.lab.lab import Lab

_OPTION: Final = "--vhca-record"
_FOLDER: Final = "recordings"


def add_option(group: pytest.OptionGroup) -> None:
    """Add the option."""
    group.addoption(
        _OPTION,
        choices=("off", "failed", "all"),
        default="off",
        help="record the cards of every lab, for `vhca replay`, beside its logs: failed: keep what failed tests leave;"
        " all: keep all (default: off; recorded cards work with the engine in Python, which is slower)",
    )


def asked(config: pytest.Config) -> str:
    """What the option says."""
    return str(config.getoption(_OPTION))


def arguments(mode: str, logs: Path) -> dict[str, Any]:
    """What a lab is to be made with, whose logs go there."""
    return {} if mode == "off" else {"record": logs / _FOLDER}


def evidence(lab: Lab) -> list[tuple[str, str]]:
    """What a failed test's report says."""
    recordings = getattr(lab, "recordings", None)
    if recordings is None:
        return []
    lines = [str(path) for path in recordings.paths]
    return [("recordings of the cards", "\n".join([*lines, f"vhca replay {recordings.folder}"]))]


def ended(lab: Lab, mode: str, failed: bool) -> None:
    """A lab has stopped: what is not to be kept goes."""
    recordings = getattr(lab, "recordings", None)
    if recordings is not None and mode == "failed" and not failed:
        with contextlib.suppress(OSError):
            shutil.rmtree(recordings.folder)
