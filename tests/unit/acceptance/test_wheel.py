"""What people get who install the wheel: commands that need no checkout, with the scripts for guests inside."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with nothing but the wheel: the folder of its programs."""
    pytest.importorskip("hatchling", reason="hatchling, which builds wheels, is not here: make install")
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*PIP, *build], check=True, timeout=300)
    (wheel,) = folder.glob("vhca-*.whl")
    venv.create(folder / "env", with_pip=False)
    programs = folder / "env" / "bin"
    install = ["--python", str(programs / "python"), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*PIP, *install], check=True, timeout=300)
    return programs


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(word) for word in command], cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_claims_are_listed(installed: Path, tmp_path: Path) -> None:
    assert "--output DIR" in run(tmp_path, installed / "vhca", "validate", "--help").stdout
    listed = run(tmp_path, installed / "vhca", "validate", "--list", "--only", "A02", "B")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.startswith("A02  ")
    assert "\nB16  " in listed.stdout


def test_the_exhibits_are_listed_and_the_rules_of_a_seed(installed: Path, tmp_path: Path) -> None:
    listed = run(tmp_path, installed / "vhca", "museum")
    assert "second-srq" in listed.stdout, listed.stderr
    rules = run(tmp_path, installed / "vhca", "adversary", "--seed", "1", "--budget", "3", "--list")
    assert len(rules.stdout.splitlines()) == 3, rules.stderr


@pytest.mark.parametrize("words", [["validate"], ["validate", "--only", "A02", "--update"]])
def test_results_need_a_folder_before_anything_boots(installed: Path, tmp_path: Path, words: list[str]) -> None:
    done = run(tmp_path, installed / "vhca", *words)
    assert done.returncode == 125
    assert "name a folder with --output DIR" in done.stderr
    assert done.stdout == ""


def test_so_do_the_outcomes_of_the_suite(installed: Path, tmp_path: Path) -> None:
    done = run(tmp_path, installed / "python", "-m", "acceptance.conformance", "--compare")
    assert done.returncode == 2
    assert "name a folder with --output DIR" in done.stderr


def test_the_scripts_are_those_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    shown = run(tmp_path, installed / "python", "-c", "from acceptance.places import scripts; print(scripts())").stdout
    there = Path(shown.strip())
    assert not there.is_relative_to(ROOT)
    ours = {path.relative_to(ROOT / "guest-tests") for path in (ROOT / "guest-tests").rglob("*.py")}
    assert {path.relative_to(there) for path in there.rglob("*.py")} == ours
