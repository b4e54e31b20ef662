"""Reload, reboot, reset, death: nothing is left behind, and everybody else goes on."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.guest.cards import assert_no_complaint, live_objects, load, moved, settled_objects, unload, wait_for
from vhca.lab import Guest, GuestError, Lab, RackConfig
from vhca.lab.perftest import pingpong, run_exchange, wait_listening, wait_port_active

PINGPONG = pingpong("rc", 4096, 200)
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


@pytest.mark.vhca(guests=3, fresh=True, rack=RackConfig(mkey=0))
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
    assert "H-" + f"{dead.node_guid:016x}" not in server.run(["ibnetdiscover"], check=True).stdout
    assert_no_complaint(server, client)


def _fatal_reporter(guest: Guest) -> dict[str, Any]:
    """What the driver's health reporter counts of fatal errors; all of it goes to the test's output."""
    shown = guest.run(["devlink", "-j", "health", "show"], check=True).stdout
    print(guest.name, "devlink health show:", shown)
    (reporters,) = json.loads(shown)["health"].values()
    return next(reporter for reporter in reporters if reporter["reporter"] == "fw_fatal")


def _recovered(guest: Guest) -> None:
    """The driver's health poll saw the card's state within 3 s and brought the port back, once."""
    wait_for(lambda: _fatal_reporter(guest)["recover"] == 1, 30)
    reporter = _fatal_reporter(guest)
    assert (reporter["state"], reporter["error"]) == ("healthy", 1)
    wait_port_active(guest)
    log = guest.run(["dmesg"], check=True).stdout
    assert "health recovery succeeded" in log
    # no command waited for its time-out, and the kernel has nothing against it
    for trouble in ("timeout", "Call Trace", "WARNING"):
        assert trouble not in log


def _function_level_reset(guest: Guest) -> None:
    reset = "echo 1 > /sys/class/infiniband/mlx5_0/device/reset"
    guest.run(["sh", "-c", reset], timeout_s=60, check=True)


@pytest.mark.vhca(guests=2, fresh=True)
def test_function_level_resets_under_a_live_driver(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    """One card rests, the other is in the middle of a transfer; the driver recovers a card once a minute at most."""
    server, client = guest_pair
    for guest in guest_pair:
        wait_port_active(guest)
    # the driver makes some objects when a program asks first
    _works(server, client)
    first = [settled_objects(hca) for hca in lab.hcas]
    _function_level_reset(client)
    _recovered(client)
    _works(server, client)
    assert settled_objects(lab.hcas[1]) == first[1]

    long = [PINGPONG.program, "-d", "mlx5_0", "-n", "1000000", "-p", "20993"]
    listening = server.popen(long)
    assert wait_listening(server, 20993, listening.pid)
    asking = client.popen([*long, server.name])
    wait_for(lambda: lab.hcas[1].counters().get("cqes", 0) > 100)
    _function_level_reset(server)
    _recovered(server)
    for program in (listening, asking):
        program.kill()
        program.wait(20)
    _works(server, client)
    _works(client, server)
    assert [settled_objects(hca) for hca in lab.hcas] == first


@pytest.mark.vhca(guests=2, fresh=True)
def test_the_driver_resets_a_card_whose_firmware_failed(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    server, client = guest_pair
    for guest in guest_pair:
        wait_port_active(guest)
    card: Any = lab.hcas[1]
    _works(server, client)
    first = settled_objects(card)

    def fail(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    card.board.firmware.handle = fail
    client.popen(["ibstat"])
    _recovered(client)
    assert not card.board.dead
    assert card.counters()["firmware_failures"] == 1
    _works(server, client)
    assert settled_objects(card) == first
