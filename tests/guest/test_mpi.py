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
HEAP = Path(__file__).with_name("mpi_heap.py")
SHELL_PORT = 5555
AGENT = f"""#!/bin/sh
host=$1
shift
echo "$*" | nc $host {SHELL_PORT}
"""
COMMON = (
    "mpirun.openmpi --allow-run-as-root --prtemca plm_ssh_agent /tmp/agent --prtemca oob_tcp_if_include eth0"
    " --mca btl self"
)
# Else libfabric does not hear of memory that malloc gives back, and sends what had been there before
# (docs/upper-protocols.md).
LET_SBRK_ALONE = "-x UCX_MEM_MMAP_HOOK_MODE=none"
VERBS = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm'"
TRANSPORTS = {
    "ucx-rc": "--mca pml ucx -x UCX_TLS=rc_x,self -x UCX_NET_DEVICES=mlx5_0:1",
    "ucx-ud": "--mca pml ucx -x UCX_TLS=ud_x,self -x UCX_NET_DEVICES=mlx5_0:1",
    "libfabric": f"{VERBS} {LET_SBRK_ALONE}",
}
ROUNDS = 12


@pytest.fixture
def ranks(lab: Lab) -> Iterator[list[Guest]]:
    for guest in lab.guests:
        network_up(guest)
        guest.copy_in(WORK, "/tmp/mpi_work.py")
        guest.copy_in(HEAP, "/tmp/mpi_heap.py")
        # On all guests: a daemon without it would fail when it shall start others.
        shell(guest, f"cat > /tmp/agent <<'END'\n{AGENT}END\nchmod +x /tmp/agent")
        if guest.run(["grep", "-q", f":{SHELL_PORT:04X} ", "/proc/net/tcp"]).returncode:
            guest.popen(["nc", "-ll", "-p", str(SHELL_PORT), "-e", "sh"])
    yield lab.guests
    assert_no_complaint(*lab.guests)


def run(ranks: list[Guest], transport: str) -> str:
    """Run the work with a rank in each guest; what rank 0 printed."""
    hosts = ",".join(guest.name for guest in ranks)
    return shell(ranks[0], f"{COMMON} --host {hosts} {TRANSPORTS[transport]} python3 /tmp/mpi_work.py", timeout_s=200)


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


def heap(ranks: list[Guest], options: str) -> tuple[int, str]:
    """Messages in memory that comes and goes, between two guests: how many were wrong, and whose sbrk() they had."""
    command = f"{COMMON} --host g0,g1 {VERBS} {options} python3 /tmp/mpi_heap.py {ROUNDS}"
    said = re.search(
        rf"^(\d+) of {ROUNDS} wrong, (\d+) at the same address, sbrk of (\S+)$", shell(ranks[0], command), re.MULTILINE
    )
    assert said is not None
    assert int(said[2]) > 1, "memory has to come back at the same address, or nothing is shown"
    return int(said[1]), said[3]


@pytest.fixture(params=["card", "Soft-RoCE"])
def device(request: pytest.FixtureRequest, lab: Lab, ranks: list[Guest]) -> Iterator[str]:
    """Options for libfabric's verbs: over our cards, or over Soft-RoCE and nothing of ours."""
    if request.param == "card":
        before = lab.hcas[0].counters()["tx_packets"]
        yield ""
        assert lab.hcas[0].counters()["tx_packets"] > before
        return
    for guest in ranks[:2]:
        shell(guest, "modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0; ip link set ib0 down; rmmod mlx5_ib")
    before = lab.hcas[0].counters()["tx_packets"]
    yield "-x FI_UNIVERSE_SIZE=4"  # smaller completion queues than libfabric's usual ones, which Soft-RoCE has not
    assert lab.hcas[0].counters()["tx_packets"] == before
    for guest in ranks[:2]:
        shell(guest, "rdma link delete rxe0; modprobe mlx5_ib")
        network_up(guest)


@LONG
def test_libfabric_has_to_hear_of_memory_that_malloc_gives_back(ranks: list[Guest], device: str) -> None:
    """What docs/upper-protocols.md says: the cache of registrations is wrong if UCX takes sbrk(), on any device."""
    wrong, sbrk = heap(ranks, device)
    assert (wrong > 0, sbrk) == (True, "libucm.so.0.0.0")
    assert heap(ranks, f"{device} -x FI_MR_CACHE_MAX_COUNT=0") == (0, "libucm.so.0.0.0")
    assert heap(ranks, f"{device} {LET_SBRK_ALONE}") == (0, "libc.so.6")
