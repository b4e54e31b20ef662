"""Reload, reboot, reset, death: nothing is left behind, and everybody else goes on."""

from __future__ import annotations

import signal

import pytest

from tests.guest.cards import assert_no_complaint, live_objects, load, moved, settled_objects, unload, wait_for
from vhca.lab import Guest, GuestError, Lab
from vhca.lab.demo import EXCHANGES, run_exchange, wait_listening, wait_port_active

PINGPONG = EXCHANGES[0]
_ports = iter(range(20000, 21000))


def _works(server: Guest, client: Guest) -> None:
    ends = run_exchange(server, client, PINGPONG, next(_ports))
    assert [end.returncode for end in ends] == [0, 0], ends


def test_ten_reloads_leave_no_object_and_a_working_port(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    guest, hca = guest_pair[1], lab.hcas[1]
    wait_port_active(guest)
    after = []
    for _ in range(10):
        unload(guest)
        assert live_objects(hca) == {}
        load(guest)
        after.append(settled_objects(hca))
    assert after == after[:1] * 10
    _works(*guest_pair)
    assert_no_complaint(*guest_pair)


def test_unloading_under_a_program_that_has_objects_of_the_card(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    """The driver takes the card away from the program; what the program had made is gone, and the card works on."""
    guest, hca = guest_pair[1], lab.hcas[1]
    wait_port_active(guest)
    before = live_objects(hca)
    waiting = guest.popen(["ibv_rc_pingpong", "-d", "mlx5_0", "-p", "20990"])
    wait_for(lambda: live_objects(hca).get("qp", 0) > before.get("qp", 0))
    unload(guest)
    assert live_objects(hca) == {}
    waiting.kill()
    assert waiting.wait(20) == -signal.SIGKILL
    load(guest)
    _works(*guest_pair)
    assert_no_complaint(*guest_pair)


@pytest.mark.vhca(guests=2, fresh=True)
def test_a_reboot_leaves_no_object_and_a_working_port(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    server, client = guest_pair
    wait_port_active(client)
    first = settled_objects(lab.hcas[1])
    _works(server, client)
    with moved(lab.hcas[1]) as counted:
        client.reboot()
    assert counted["resets"] >= 1
    wait_port_active(client)
    assert settled_objects(lab.hcas[1]) == first
    _works(server, client)
    assert_no_complaint(server, client)


@pytest.mark.vhca(guests=2, fresh=True)
def test_a_reset_without_warning_in_the_middle_of_a_transfer(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    server, client = guest_pair
    for guest in guest_pair:
        wait_port_active(guest)
    first = settled_objects(lab.hcas[1])
    long = [PINGPONG.program, "-d", "mlx5_0", "-n", "1000000", "-p", "20991"]
    listening = server.popen(long)
    assert wait_listening(server, 20991, listening.pid)
    asking = client.popen([*long, server.name])
    wait_for(lambda: lab.hcas[1].counters().get("cqes", 0) > 100)
    client.reset()
    with pytest.raises(GuestError):
        asking.wait(1)
    listening.kill()
    wait_port_active(client)
    assert settled_objects(lab.hcas[1]) == first
    _works(server, client)
    assert_no_complaint(server, client)


@pytest.mark.vhca(guests=3, fresh=True)
def test_the_death_of_a_guest_leaves_the_others_and_the_fabric_working(lab: Lab) -> None:
    for guest in lab.guests:
        wait_port_active(guest)
    server, client, victim = lab.guests
    long = [PINGPONG.program, "-d", "mlx5_0", "-n", "1000000", "-p", "20992"]
    listening = server.popen(long)
    assert wait_listening(server, 20992, listening.pid)
    victim.popen([*long, server.name])
    dead = lab.hcas[2]
    wait_for(lambda: dead.counters().get("cqes", 0) > 100)
    victim.kill()
    # the card of a guest that is gone is reset, and its link goes down
    wait_for(lambda: live_objects(dead) == {})
    wait_for(lambda: lab.fabric.lid(dead.name) == 0 or not lab.fabric.active(dead.name))
    listening.kill()
    _works(server, client)
    assert "H-" + f"{dead.info.node_guid:016x}" not in server.run(["ibnetdiscover"], check=True).stdout
    assert_no_complaint(server, client)
