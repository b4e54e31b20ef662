"""Runs the shell lines of a recipe of `vhca ci` as a job would, and says what that takes.

    python -m tests.ci_job [--kernel 6.19] [--cold]

A small repository with two tests is made, `vhca ci` asked for its recipes, and the lines of the one for GitHub run in a
clean clone, in order, each step by `sh -e` with a home of its own. The cache is the host's; with --cold a new one. The
step that installs the host's packages is left out: it needs root, and changes the host.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import yaml

from vhca.cli.main import main as vhca
from vhca.folders import default_root

ROOT: Final = Path(__file__).resolve().parents[1]
HOST_PACKAGES: Final = "host packages"
TEST: Final = """\
import os

import pytest

@pytest.mark.vhca(guests=1)
def test_the_port_is_active(guest):
    assert "PORT_ACTIVE" in guest.run(["ibv_devinfo"], check=True).stdout

@pytest.mark.vhca(guests=1)
def test_what_this_job_is_about(guest):
    assert guest.run(["test", "-e", "/sys/class/infiniband/mlx5_0"]).returncode == int(os.environ.get("WANTED", 0))
"""


@dataclass(slots=True)
class Ran:
    """A step that was run: its status, output, time, and the memory of its processes at its highest."""

    name: str
    status: int
    output: str
    seconds: float
    peak_mib: float


def recipe(kind: str, repository: Path, *words: str) -> str:
    """What `vhca ci KIND` prints for a repository."""
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert vhca(["ci", kind, "--repository", str(repository), *words]) == 0
    return printed.getvalue()


def shell_steps(kind: str, text: str) -> list[tuple[str, str]]:
    """The steps of a recipe with shell lines: name (or "") and lines, in order."""
    if kind == "github":
        steps = yaml.safe_load(text)["jobs"]["guests"]["steps"]
        runs = [(step["name"], step["run"]) for step in steps if "run" in step]
        # As Actions evaluates expressions; of other than literals there are none in lines.
        return [(name, re.sub(r"\$\{\{ '([^']*)' \}\}", r"\1", lines)) for name, lines in runs]
    if kind == "gitlab":
        job = yaml.safe_load(text)["guests"]
        return [("host packages", "\n".join(job["before_script"]) + "\n"), ("", "\n".join(job["script"]) + "\n")]
    if kind == "jenkins":
        found = re.findall(r"stage\('([^']+)'\) \{\s+steps \{\s+sh '''\n((?:\\.|[^\\])*?)'''", text, re.DOTALL)
        # As Groovy reads a text in '''.
        shell = [(name, re.sub(r"\\(.)", r"\1", lines)) for name, lines in found]
        return [(name, re.sub(r"^ +", "", lines, flags=re.MULTILINE)) for name, lines in shell]
    joined = text.replace("\\\n", " ")
    return [("", f"{' '.join(line[4:].split())}\n") for line in joined.splitlines() if line.startswith("RUN ")]


def example_repository(folder: Path) -> Path:
    """A repository of git with two tests of guests."""
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_ports.py").write_text(TEST)
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    git = ["git", "-c", "user.name=you", "-c", "user.email=you@example.org", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Test the port"]):
        subprocess.run([*git, *words], check=True)
    return folder


def run_steps(steps: Sequence[tuple[str, str]], clone: Path, environment: dict[str, str]) -> Iterator[Ran]:
    """Run steps until one fails."""
    for name, lines in steps:
        started_s, peak = time.monotonic(), [0.0]
        process = subprocess.Popen(
            ["sh", "-e", "-c", lines], cwd=clone, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        watcher = threading.Thread(target=_watch, args=(process, peak))
        watcher.start()
        output = process.communicate()[0]
        watcher.join()
        yield Ran(name, process.returncode, output, time.monotonic() - started_s, peak[0])
        if process.returncode:
            return


def _watch(process: subprocess.Popen[str], peak: list[float]) -> None:
    """Note the memory of a process and those below it; what they share is counted once."""
    while process.poll() is None:
        total = 0
        with contextlib.suppress(psutil.Error):
            whole = psutil.Process(process.pid)
            for each in (whole, *whole.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += each.memory_full_info().pss
        peak[0] = max(peak[0], total / (1 << 20))
        time.sleep(0.5)


def job(folder: Path, kernel: str, cache: Path, **more: str) -> Iterator[Ran]:
    """Run a whole job in a clean clone in `folder`; `more` goes into its environment."""
    repository = folder / "repository"
    if not repository.exists():
        example_repository(repository)
    clone = Path(tempfile.mkdtemp(prefix="clone-", dir=folder))
    subprocess.run(["git", "clone", "-q", str(repository), str(clone)], check=True)
    text = recipe("github", repository, "--kernels", kernel, "--vhca", f"{ROOT}[pytest]")
    steps = [step for step in shell_steps("github", text) if step[0] != HOST_PACKAGES]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VHCA_", "PYTEST_"))}
    (clone.with_suffix(".home")).mkdir()
    own = {"HOME": str(clone.with_suffix(".home")), "CI": "true", "KERNEL": kernel, "VHCA_CACHE": str(cache)}
    python = str(Path(sys.base_prefix) / "bin")
    own["PATH"] = f"{python}:{os.environ['PATH']}"
    yield from run_steps(steps, clone, {**environment, **own, **more})


def main() -> int:
    """Run a job and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.19")
    parser.add_argument("--cold", action="store_true", help="with an empty cache")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache" if options.cold else default_root()
        status = 0
        print("| step | time | memory at most |\n|---|---|---|")
        for ran in job(Path(folder), options.kernel, cache):
            print(f"| {ran.name} | {ran.seconds:.0f} s | {ran.peak_mib:.0f} MiB |", flush=True)
            status = ran.status
        if status:
            print(ran.output)
        size = sum(path.lstat().st_size for path in cache.rglob("*") if path.is_file() and not path.is_symlink())
        if options.cold:
            print(f"cache: {size / 1e6:.0f} MB")
    return status


if __name__ == "__main__":
    sys.exit(main())
