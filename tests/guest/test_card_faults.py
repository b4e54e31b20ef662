"""What Linux 6.19's driver does when something goes wrong inside its card: its log, its objects, what programs get."""

from __future__ import annotations

import pytest

from tests.guest.cards import load, settled_objects, unload, wait_for
from vhca.lab import Guest, Lab
from vhca.lab.perftest import wait_port_active

pytestmark = pytest.mark.vhca(guests=1)

WAITS = "timeout 2 ibv_rc_pingpong -d mlx5_0"
"""Makes the objects of a connection, and waits for a peer that never comes; 143 is its end by time."""


def sh(guest: Guest, script: str, timeout_s: float = 60) -> tuple[int, str]:
    """Run a script; its status and all that it printed."""
    done = guest.run(["sh", "-c", script], timeout_s=timeout_s)
    return done.returncode, done.stdout + done.stderr


def log_of(guest: Guest) -> str:
    """What the kernel has said since this was asked last."""
    return sh(guest, "dmesg -c")[1]


@pytest.fixture(autouse=True)
def _quiet(guest: Guest) -> None:
    wait_port_active(guest)
    log_of(guest)


def test_a_command_that_fails_leaves_nothing_behind(lab: Lab, guest: Guest) -> None:
    """First a queue pair of the driver's own, for which a program registers memory; then the program's."""
    rule = lab.faults("g0").add("command CREATE_QP limit=2 status=NO_RES_ERR syndrome=0x1234")
    assert sh(guest, WAITS) == (1, "Couldn't register MR\n")
    said = log_of(guest)
    assert "CREATE_QP(0x500) op_mod(0x0) failed, status no resources(0xf), syndrome (0x1234), err(-11)" in said
    known = settled_objects(lab.hcas[0])
    # the driver has made its own now, and is silent about what a program asks for
    assert sh(guest, WAITS)[0] == 1
    assert rule.hits == 2
    assert sh(guest, WAITS)[0] == 143
    assert sh(guest, WAITS)[0] == 143
    after = settled_objects(lab.hcas[0])
    assert {kind: after[kind] - known.get(kind, 0) for kind in after if after[kind] != known.get(kind, 0)} == {
        # what the driver makes for its first memory region, and keeps; it has kept a PD from the try that failed
        "cq": 1, "qp": 1,
    }  # fmt: skip


def test_a_late_command_is_waited_for(lab: Lab, guest: Guest) -> None:
    lab.faults("g0").add("command CREATE_CQ limit=1 late=2500ms")
    assert sh(guest, f"{WAITS}; {WAITS}")[0] == 143
    assert "CREATE_CQ" not in log_of(guest)


@pytest.mark.vhca_allow_kernel_bug("refcount_warn_saturate|uverbs_destroy_ufile_hw")
@pytest.mark.vhca(fresh=True)
def test_a_command_that_comes_twice_and_one_with_a_wrong_answer(lab: Lab, guest: Guest) -> None:
    """The driver believes its card: it lets go of a command twice, and destroys a queue by a wrong number."""
    sh(guest, WAITS)
    log_of(guest)
    lab.faults("g0").add("command CREATE_CQ limit=1 twice")
    sh(guest, WAITS)
    said = log_of(guest)
    assert "Command completion arrived after timeout (entry idx = 0)" in said
    assert "refcount_t: underflow; use-after-free" in said
    lab.faults("g0").add("command CREATE_CQ limit=1 damage=9")
    assert sh(guest, WAITS) == (1, "Couldn't create QP\n")
    assert "uverbs_destroy_ufile_hw" in log_of(guest)
    assert lab.hcas[0].counters()["faults"] == 2


@pytest.mark.vhca(fresh=True)
def test_a_driver_that_cannot_ask_for_capabilities_lets_the_card_go_and_takes_it_when_it_can(
    lab: Lab, guest: Guest
) -> None:
    unload(guest)
    rule = lab.faults("g0").add("command QUERY_HCA_CAP nth=1 status=INTERNAL_ERR syndrome=0xabc")
    sh(guest, "modprobe mlx5_ib")
    assert "probe with driver mlx5_core failed with error -5" in log_of(guest)
    assert rule.hits == 1
    wait_for(lambda: not any(lab.hcas[0].objects().values()))
    unload(guest)
    load(guest)
