"""MPI between four guests: Open MPI over UCX, over libfabric's verbs provider, and over a cable that loses packets.

Guests have no SSH: Open MPI starts its daemons by a shell that listens on the management network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.cards import assert_no_complaint, moved
from tests.guest.upper import FOUR, LONG, lossy, network_up, shell
from vhca.lab import Guest, Lab

pytestmark = [pytest.mark.vhca(**FOUR), pytest.mark.timeout(300)]

WORK = Path(__file__).with_name("mpi_work.py")
SHELL_PORT = 5555
AGENT = f"""#!/bin/sh
host=$1
shift
echo "$*" | nc $host {SHELL_PORT}
"""
COMMON = (
    "mpirun.openmpi --allow-run-as-root --prtemca plm_ssh_agent /tmp/agent --prtemca oob_tcp_if_include eth0"
    " --mca btl self --host g0,g1,g2,g3"
)
TRANSPORTS = {
    "ucx-rc": "--mca pml ucx -x UCX_TLS=rc_x,self -x UCX_NET_DEVICES=mlx5_0:1",
    "ucx-ud": "--mca pml ucx -x UCX_TLS=ud_x,self -x UCX_NET_DEVICES=mlx5_0:1",
    "libfabric": "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' -x FI_MR_CACHE_MAX_COUNT=0",
}


@pytest.fixture
def ranks(lab: Lab) -> Iterator[list[Guest]]:
    for guest in lab.guests:
        network_up(guest)
        guest.copy_in(WORK, "/tmp/mpi_work.py")
        # On all guests: a daemon without it would fail when it shall start others.
        shell(guest, f"cat > /tmp/agent <<'END'\n{AGENT}END\nchmod +x /tmp/agent")
        if guest.run(["grep", "-q", f":{SHELL_PORT:04X} ", "/proc/net/tcp"]).returncode:
            guest.popen(["nc", "-ll", "-p", str(SHELL_PORT), "-e", "sh"])
    yield lab.guests
    assert_no_complaint(*lab.guests)


def run(ranks: list[Guest], transport: str) -> str:
    """Run the work with a rank in each guest; what rank 0 printed."""
    return shell(ranks[0], f"{COMMON} {TRANSPORTS[transport]} python3 /tmp/mpi_work.py", timeout_s=200)


@pytest.mark.parametrize(
    "transport", [name if name == "ucx-rc" else pytest.param(name, marks=LONG) for name in TRANSPORTS]
)
def test_all_ranks_get_what_was_sent(
    lab: Lab, ranks: list[Guest], transport: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with moved(lab.hcas[3]) as card:
        printed = run(ranks, transport)
    assert printed.splitlines()[-1] == f"{len(ranks)} ranks: done"
    assert card["tx_bytes"] + card["tx_ud_bytes"] > 1 << 20
    with capsys.disabled():
        for line in re.findall(r"pingpong with 1, .*", printed):
            print(f"\n{transport}: {line}", end="")


@LONG
def test_a_lossy_cable_changes_nothing(lab: Lab, ranks: list[Guest]) -> None:
    with lossy(lab):
        printed = run(ranks, "ucx-rc")
    assert printed.splitlines()[-1] == f"{len(ranks)} ranks: done"
