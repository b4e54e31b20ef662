"""What cards of real guests are told, from their boot on, is played again in another process, without a guest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from vhca.lab import Lab, Progress
from vhca.lab.perftest import perftest, run_exchange, wait_port_active


def test_bring_up_and_traffic_are_played_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Lab(guests=2, record=run, progress=Progress(quiet=True)) as lab:
        server, client = lab.guests
        for guest in lab.guests:
            wait_port_active(guest)
        ends = run_exchange(server, client, perftest("ib_write_bw", 10000, 20), 21800)
        assert [end.returncode for end in ends] == [0, 0], ends
    done = replay(run)
    assert done.returncode == 0, done.stdout + done.stderr
    played = [int(steps) for steps in re.findall(r"^(\d+) steps played, the same$", done.stdout, re.M)]
    assert len(played) == 2
    assert min(played) > 1000
    # The packets of the test are where it breaks.
    stopped = replay(run, "--break-on", "packet.opcode=RC_RDMA_WRITE")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert stopped.stdout.count("stopped on what it was to break on") == 2


def replay(recordings: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`vhca replay`, in a process of its own."""
    command = [sys.executable, "-m", "vhca.cli.main", "replay", str(recordings), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


FAILING = """\
import pytest

@pytest.mark.vhca(guests=1)
def test_the_port_is_down(guest):
    assert "PORT_DOWN" in guest.run(["ibv_devinfo"], check=True).stdout
"""


def test_a_failed_test_leaves_a_recording_that_is_played_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    options = ["--vhca-require-guests", "--vhca-record=failed", "--vhca-artefacts=artefacts", "-p", "no:cacheprovider"]
    failed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert failed.returncode == 1, failed.stdout + failed.stderr
    told = re.search(r"vhca replay (\S+/recordings)", failed.stdout)
    assert told is not None, failed.stdout
    done = replay(tmp_path / told[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d{4} steps played, the same$", done.stdout, re.M), done.stdout
