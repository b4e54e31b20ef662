"""Scripts are found and results put in the right place, in a checkout and installed from a wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from acceptance.places import checkout, museum, results_folder, scripts, stored_results
from vhca.lab import LabError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A package as a wheel leaves it in site-packages."""
    package = tmp_path / "site-packages" / "acceptance"
    (package / "guest_tests").mkdir(parents=True)
    return package


def test_in_a_checkout_scripts_and_results_are_its_own() -> None:
    assert checkout() == ROOT
    assert (scripts() / "claims" / "common.py").is_file()
    assert stored_results("validation") == ROOT / "docs" / "validation"
    assert results_folder("conformance", None) == ROOT / "docs" / "conformance"


def test_from_a_wheel_scripts_are_in_the_package_and_results_where_the_user_says(
    installed: Path, tmp_path: Path
) -> None:
    assert checkout(installed) is None
    assert scripts(installed) == installed / "guest_tests"
    assert stored_results("validation", installed) is None
    assert results_folder("validation", tmp_path / "mine", installed) == tmp_path / "mine"
    with pytest.raises(LabError, match="name a folder with --output"):
        results_folder("validation", None, installed)


def test_the_wheel_carries_the_scripts_there(installed: Path) -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {
        "guest-tests": f"acceptance/{scripts(installed).name}",
        "museum": f"acceptance/{museum(installed).name}",
    }
