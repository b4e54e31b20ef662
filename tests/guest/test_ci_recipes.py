"""The recipes of `vhca ci`, run as jobs: by `make ci-job` only, as each installs vhca anew."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.ci_job import ROOT, job, recipe, shell_steps
from vhca.folders import default_root

pytestmark = pytest.mark.skipif(os.environ.get("VHCA_CI") != "all", reason="takes minutes; `make ci-job` runs it")
KERNEL = "6.19"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("wanted", [0, 1])
def test_a_job_leaves_what_is_needed_to_look_into_it(wanted: int, tmp_path: Path) -> None:
    """A job that passes and one with a test that fails: its shell lines in a clean clone with a home of its own."""
    ran = list(job(tmp_path, KERNEL, default_root(), WANTED=str(wanted)))
    assert [(step.name, step.status) for step in ran] == [
        ("vhca and the project", 0),
        ("kernel and guest", 0),
        ("test", wanted),
    ], ran[-1].output
    (clone,) = (path for path in tmp_path.glob("clone-*") if path.suffix != ".home")
    suite = ElementTree.parse(clone / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", str(wanted), "0")
    left = {path.name for path in (clone / "artefacts").rglob("*.log")}
    assert {"g0-console.log", "g0-qemu.log", "h0.log"} <= left
    if wanted:
        names = {item.get("name") for item in suite.iter("property")}
        assert any("g0" in (name or "") for name in names)


@pytest.mark.timeout(400)
def test_the_lines_of_the_containerfile(tmp_path: Path) -> None:
    """Without a builder of images here: its RUN lines with other folders, but for the host's packages."""
    text = recipe("container", tmp_path, "--kernels", KERNEL, "--vhca", f"{ROOT}[pytest]")
    lines = [lines for _, lines in shell_steps("container", text)]
    place = tmp_path / "opt"
    environment = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}", "VHCA_CACHE": str(default_root())}
    for line in lines[1:]:
        own = line.replace("/opt/vhca", str(place)).replace("&& rm -rf /var/lib/apt/lists/*", "")
        own = own.replace("apt-get update -q && ", "")
        subprocess.run(["sh", "-e", "-c", own], check=True, env=environment, cwd=tmp_path)
    done = subprocess.run(
        ["vhca", "run", "-q", "--", "echo", "in a guest"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "in a guest\n"
