"""osmtest, by which OpenSM tests itself, against OpenSM in the guest and against the administration in the switch."""

from __future__ import annotations

import pytest

from tests.guest.cards import assert_no_complaint, wait_for
from vhca.lab import Guest, Lab

# One guest: osmtest lets a host join groups for another one, which nobody may do here.
pytestmark = pytest.mark.vhca(guests=1, sm="opensm@g0")


def osmtest(guest: Guest, flow: str) -> None:
    done = guest.run(["osmtest", "-f", flow, "-i", "/tmp/inventory"], timeout_s=60)
    assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-30:])


def stress(guest: Guest, kind: int) -> None:
    """Floods the directory with questions until it is stopped, which is no error; one ends it earlier."""
    done = guest.run(["timeout", "1", "osmtest", "-f", "f", "-s", str(kind), "-i", "/tmp/inventory"], timeout_s=30)
    assert "ERR" not in done.stdout, done.stdout
    assert done.returncode in (-15, 143), done.stdout


def flows(guest: Guest) -> None:
    osmtest(guest, "c")
    osmtest(guest, "a")  # inventory, services, event forwarding, multicast
    for kind in (1, 2, 3, 4):
        stress(guest, kind)


def test_all_flows_pass_against_both(lab: Lab, guest: Guest) -> None:
    assert lab.fabric.manager_state() == "standby"
    flows(guest)
    assert lab.opensm is not None
    lab.opensm.kill()
    wait_for(lambda: lab.fabric.manager_state() == "master" and lab.fabric.sm_lid("h0") == 1, 30)
    flows(guest)
    osmtest(guest, "q")  # lanes and weights
    counters = lab.fabric.counters()
    assert counters["sa.requests"] > 100
    assert not counters.get("sa.too_many_requests")
    assert_no_complaint(guest)
