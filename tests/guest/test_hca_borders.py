"""One guest's root attacks another's port with SMPs of its own making."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.cards import assert_no_complaint, wait_for
from vhca.lab import Guest, Lab, RackConfig
from vhca.lab.perftest import pingpong, run_exchange, wait_port_active
from vhca.wire import smp
from vhca.wire.smp import PortInfo

SCRIPT = Path(__file__).with_name("forge_smp.py")


def forge(guest: Guest, lid: int, modifier: int, info: PortInfo) -> str:
    guest.copy_in(SCRIPT, "/tmp/forge_smp.py")
    done = guest.run(["python3", "/tmp/forge_smp.py", str(lid), str(modifier), info.to_bytes().hex()], check=True)
    return done.stdout.strip()


def disabling(lid: int) -> PortInfo:
    return PortInfo(
        lid=lid, sm_lid=1, gid_prefix=smp.DEFAULT_GID_PREFIX, port_physical_state=smp.PHYS_DISABLED, subnet_timeout=18
    )


def test_forged_smps_change_nothing(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    attacker, victim = guest_pair
    for guest in guest_pair:
        wait_port_active(guest)
    lid = lab.fabric.lid(lab.hcas[1].name)
    before = lab.hcas[1].counters()
    assert forge(attacker, lid, 1, disabling(lid)) == "silence"
    assert lab.hcas[1].counters()["smp_bad_mkey"] == before.get("smp_bad_mkey", 0) + 1
    # The manager is told, by trap 256.
    wait_for(lambda: lab.hcas[1].counters()["smp_traps"] > before.get("smp_traps", 0))
    # The victim's port of the switch
    dropped = lab.fabric.counters().get("switch.dropped.bad_mkey", 0)
    assert forge(attacker, 1, 2, disabling(0)) == "silence"
    assert lab.fabric.counters()["switch.dropped.bad_mkey"] == dropped + 1
    assert lab.fabric.active()
    ends = run_exchange(victim, attacker, pingpong("rc", 4096, 200), 20950)
    assert [end.returncode for end in ends] == [0, 0], ends
    assert_no_complaint(attacker, victim)


@pytest.mark.vhca(rack=RackConfig(mkey=0), fresh=True)
def test_without_a_key_they_work(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    """The same datagrams bite where nothing protects: the test above shows a border, not a broken forger."""
    attacker, victim = guest_pair
    for guest in guest_pair:
        wait_port_active(guest)
    victims = lab.hcas[1].name
    forge(attacker, 1, 2, disabling(0))
    wait_for(lambda: not lab.fabric.active(victims))
    # The manager's next light sweep sets it right.
    wait_port_active(victim)
    wait_for(lambda: lab.fabric.active(victims))
