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
    command = [sys.executable, "-m", "vhca.cli.main", "replay", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    played = [int(steps) for steps in re.findall(r"^(\d+) steps played, the same$", done.stdout, re.M)]
    assert len(played) == 2
    assert min(played) > 1000
    # The packets of the test are where it breaks.
    stopped = subprocess.run(
        [*command, "--break-on", "packet.opcode=RC_RDMA_WRITE"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert stopped.stdout.count("stopped on what it was to break on") == 2
