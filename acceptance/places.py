"""Where the scripts for guests are, and where results go: in a checkout, and installed from a wheel.

A wheel carries the scripts of `guest-tests` inside this package. Results belong into the documentation of a
checkout; elsewhere there is no such place, and the user names one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vhca.lab import LabError

_PACKAGE: Final = Path(__file__).resolve().parent
_PACKAGED: Final = "guest_tests"  # as pyproject.toml has it
_SCRIPTS: Final = "guest-tests"


def checkout(package: Path = _PACKAGE) -> Path | None:
    """The root of the checkout that this package is used from; None if it was installed from a wheel."""
    root = package.parent
    return root if (root / "pyproject.toml").is_file() and (root / _SCRIPTS).is_dir() else None


def scripts(package: Path = _PACKAGE) -> Path:
    """The folder with the scripts that run in guests."""
    root = checkout(package)
    return root / _SCRIPTS if root is not None else package / _PACKAGED


def stored_results(kind: str, package: Path = _PACKAGE) -> Path | None:
    """The folder of a checkout's documentation for results of that kind; None without a checkout."""
    root = checkout(package)
    return root / "docs" / kind if root is not None else None


def results_folder(kind: str, wanted: Path | None, package: Path = _PACKAGE) -> Path:
    """Where results go: to the folder that was `wanted`, else to the checkout's documentation.

    :raises LabError: there is no checkout, and none was wanted.
    """
    folder = wanted if wanted is not None else stored_results(kind, package)
    if folder is None:
        raise LabError("results have no place: vhca is not used from a checkout", "name a folder with --output DIR")
    return folder


def museum(package: Path = _PACKAGE) -> Path:
    """The folder with the exhibits of the museum: what is declared of them, and their scripts."""
    root = checkout(package)
    return root / "museum" if root is not None else package / "museum_exhibits"
