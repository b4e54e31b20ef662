"""Compressed completions in a real guest: by a program that reads the ring itself, and by rdma-core's own test."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.conformance.machine import HCA, SuiteMachine
from acceptance.conformance.results import PASSED
from tests.bench.verbs_pieces import build
from tests.guest.cards import assert_no_complaint, moved
from vhca.lab import Cache, Guest, Lab, Progress
from vhca.lab.perftest import wait_port_active

SOURCE = Path(__file__).with_name("compressed_cq.c")
PLACE = "/tmp/compressed_cq"
SHORTEST = 10
GRH_BYTES = 40
TOTAL = 200
HASH, CHECKSUM, STRIDE = 1, 2, 4


@pytest.mark.parametrize("form", [HASH, CHECKSUM, STRIDE])
def test_a_program_that_reads_the_ring_gets_all_of_a_session(lab: Lab, guest: Guest, form: int) -> None:
    wait_port_active(guest)
    guest.copy_in(build(Cache(), Progress(quiet=True), SOURCE), PLACE)
    guest.run(["chmod", "755", PLACE], check=True)
    with moved(lab.hcas[0]) as card:
        printed = guest.run([PLACE, str(form), str(TOTAL)], timeout_s=60, check=True).stdout.splitlines()
    got = [tuple(map(int, line.split())) for line in printed if line[0].isdigit()]
    assert got == [(number, GRH_BYTES + SHORTEST + number % 100) for number in range(TOTAL)]
    sessions = [int(line.split()[1]) for line in printed if line.startswith("session")]
    assert card["compressed_sessions"] == len(sessions) > 0
    assert max(sessions) > 8
    assert_no_complaint(guest)


def test_rdma_core_makes_queues_of_all_forms() -> None:
    with SuiteMachine(HCA) as machine:
        file = machine.run_file("test_mlx5_cq", "compression")
    assert {name.rpartition(".")[2]: test.outcome for name, test in file.tests.items()} == {
        "test_dv_cq_compression_flags": PASSED
    }
