"""What Linux 6.19's driver does when something goes wrong inside its card: its log, its objects, what programs get."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.guest.cards import load, settled_objects, unload, wait_for
from vhca.chip.fault_rules import FaultRule
from vhca.cli.main import main
from vhca.lab import Guest, GuestConfig, Lab
from vhca.lab.explain import firmware_explainer, syndrome
from vhca.lab.perftest import wait_listening, wait_port_active

pytestmark = pytest.mark.vhca(guests=1)

PINGPONG = ["ibv_rc_pingpong", "-d", "mlx5_0"]
WAITS = f"timeout 60 {' '.join(PINGPONG)}"
"""Makes the objects of a connection, and waits for a peer."""
MAKES = f"""
{WAITS} & program=$!
while kill -0 $program 2> /dev/null; do
    if grep -q ':4853 .* 0A ' /proc/net/tcp; then kill $program; wait $program; exit 143; fi
    sleep 0.1
done
wait $program
"""
"""The same, but once it waits it is ended, with 143; otherwise as it ends."""


LONG = pytest.mark.skipif(os.environ.get("VHCA_FAULTS") != "all", reason="takes minutes; `make faults` runs it")


def pingpong(lab: Lab, guest: Guest, *options: str, hangs: FaultRule | None = None) -> tuple[list[int], str]:
    """A server and its client in one guest: how they ended, and what both printed; of `hangs` once it has hit.

    Rules are taken away in the end, since what programs leave is cleaned up by the same card.
    """
    server = guest.popen([*PINGPONG, "-n", "100", *options])
    assert wait_listening(guest, 18515, server.pid)
    ends = [guest.popen([*PINGPONG, "-n", "100", *options, "localhost"]), server]
    if hangs is not None:
        wait_for(lambda: hangs.hits)
        time.sleep(1.5)
        assert [end.poll() for end in ends] == [None, None]
    else:
        wait_for(lambda: any(end.poll() is not None for end in ends), 60)
    deadline_s = time.monotonic() + (0 if hangs is not None else 5)
    while time.monotonic() < deadline_s and any(end.poll() is None for end in ends):
        time.sleep(0.05)
    lab.clear_faults()
    for end in ends:
        if end.poll() is None:  # where one has failed, the other may wait for ever
            end.kill()
    codes = [end.wait(60) for end in ends]
    return codes, "".join((end.stdout.read_all() + end.stderr.read_all()).decode() for end in ends)


def sh(guest: Guest, script: str, timeout_s: float = 60) -> tuple[int, str]:
    """Run a script; its status and all that it printed."""
    done = guest.run(["sh", "-c", script], timeout_s=timeout_s)
    return done.returncode, done.stdout + done.stderr


def pingpong_alone(guest: Guest) -> int:
    """How a server ends that is ended once it waits: with 143; or by itself, before."""
    return sh(guest, MAKES)[0]


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
    assert sh(guest, MAKES) == (1, "Couldn't register MR\n")
    said = log_of(guest)
    assert "CREATE_QP(0x500) op_mod(0x0) failed, status no resources(0xf), syndrome (0x1234), err(-11)" in said
    known = settled_objects(lab.hcas[0])
    # the driver has made its own now, and is silent about what a program asks for
    assert sh(guest, MAKES)[0] == 1
    assert rule.hits == 2
    assert sh(guest, MAKES)[0] == 143
    after = settled_objects(lab.hcas[0])
    assert {kind: after[kind] - known.get(kind, 0) for kind in after if after[kind] != known.get(kind, 0)} == {
        # what the driver makes for its first memory region, and keeps; it has kept a PD from the try that failed
        "cq": 1, "qp": 1,
    }  # fmt: skip


def test_a_late_command_is_waited_for(lab: Lab, guest: Guest) -> None:
    lab.faults("g0").add("command CREATE_CQ limit=1 late=2500ms")
    began = time.monotonic()
    assert sh(guest, MAKES)[0] == 143
    assert time.monotonic() - began > 2.5
    assert "CREATE_CQ" not in log_of(guest)


TWICE: Final = (
    "Command completion arrived after timeout",
    "refcount_t: underflow",
    "bad resource",
    "failed to destroy",
    "list_add corruption",
)
"""Signs of a command whose end came twice."""


@pytest.mark.vhca_allow_kernel_bug("uverbs_destroy_ufile_hw")
@pytest.mark.vhca(fresh=True)
def test_a_wrong_answer(lab: Lab, guest: Guest) -> None:
    """The driver believes its card: it destroys a queue by a wrong number."""
    assert sh(guest, MAKES)[0] == 143
    log_of(guest)
    lab.faults("g0").add("command CREATE_CQ limit=1 damage=9")
    assert sh(guest, MAKES) == (1, "Couldn't create QP\n")
    assert "uverbs_destroy_ufile_hw" in log_of(guest)


@pytest.mark.skipif(
    os.environ.get("VHCA_FAULTS") != "all", reason="it spoils the kernel's memory, by chance; `make faults` runs it"
)
@pytest.mark.vhca_allow_kernel_bug(".")
@pytest.mark.vhca(fresh=True)
def test_a_command_that_comes_twice(lab: Lab, guest: Guest) -> None:
    """The driver lets go of a command twice, or takes the one that has its place meanwhile for done."""
    assert sh(guest, MAKES)[0] == 143
    log_of(guest)
    twice = lab.faults("g0").add("command CREATE_CQ limit=1 twice")
    guest.popen(["sh", "-c", WAITS])
    wait_for(lambda: twice.hits)
    said = [""]

    def has_complained() -> bool:
        said.append(log_of(guest))
        return any(words in "".join(said) for words in TWICE)

    try:
        wait_for(has_complained)
    finally:
        print(*said)


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


# ---- entries of queues, interrupts, reads ----

WORKS: Final = "works"
HANGS: Final = "hangs"


@pytest.mark.parametrize(
    ("options", "rule", "said"),
    [
        ("", "completion REQ nth=20 syndrome=REMOTE_ACCESS_ERR", "Failed status remote access error (10)"),
        ("", "completion REQ nth=20 flip=srqn_uidx:0x800000", "poll CQ failed -2"),
        ("", "completion RESP_SEND nth=20 lost", HANGS),
        ("", "completion RESP_SEND nth=20 late=300ms", WORKS),
        ("-e", "event COMP nth=20 lost", HANGS),
        ("-e", "event COMP nth=20 late=300ms", WORKS),
        ("-e", "event COMP nth=20 twice", WORKS),
        ("-e", "event COMP nth=20 type=0x60", WORKS),
        ("-e", "interrupt vector=1..63 nth=20 late=300ms", WORKS),
        ("", "dma size=64 nth=100 fail", "Failed status"),
        ("", "dma size=4 skip=100 stale", HANGS),
        ("-c", "dma size=4096 skip=4 damage=0:0x55", "invalid data in page"),
    ],
)
def test_what_programs_get(lab: Lab, guest: Guest, options: str, rule: str, said: str) -> None:
    """A queue of completion events is read whatever type an entry claims to have."""
    assert pingpong(lab, guest)[0] == [0, 0]  # the driver's own objects are there
    made = lab.faults("g0").add(rule)
    codes, printed = pingpong(lab, guest, *options.split(), hangs=made if said == HANGS else None)
    assert made.hits
    if said == WORKS:
        assert codes == [0, 0]
    elif said != HANGS:
        assert said in printed
    assert log_of(guest) == ""


def test_a_lost_port_event_leaves_a_stale_state(lab: Lab, guest: Guest) -> None:
    """Who reads the state gets the card's; the kernel never knows that the link was down, and says nothing."""
    rule = lab.faults("g0").add("event PORT_CHANGE lost")
    lab.fabric.link_down("h0")
    wait_for(lambda: "1: DOWN" in sh(guest, "cat /sys/class/infiniband/mlx5_0/ports/1/state")[1])
    assert rule.hits
    lab.clear_faults()
    lab.fabric.link_up("h0")
    wait_port_active(guest)
    assert "Link DOWN" not in log_of(guest)


def test_a_link_that_does_not_train_polls(lab: Lab, guest: Guest) -> None:
    lab.faults("g0").add("link untrained until=2s")
    states = "cat /sys/class/infiniband/mlx5_0/ports/1/phys_state"
    wait_for(lambda: "2: Polling" in sh(guest, states)[1])
    lab.fabric.link_down("h0")
    lab.fabric.link_up("h0")
    assert "2: Polling" in sh(guest, states)[1]
    wait_port_active(guest)
    said = log_of(guest)
    assert "Link DOWN" in said
    assert "Link ACTIVE" in said


# ---- health ----


def _reporters(guest: Guest) -> dict[str, dict[str, Any]]:
    """What the driver's health reporters count, by name."""
    (reporters,) = json.loads(guest.run(["devlink", "-j", "health", "show"], check=True).stdout)["health"].values()
    return {reporter["reporter"]: reporter for reporter in reporters}


def _recovered(guest: Guest) -> bool:
    fatal = _reporters(guest)["fw_fatal"]
    return (fatal["state"], fatal["error"], fatal["recover"]) == ("healthy", 1, 1)


@pytest.mark.vhca(guests=3, guest=GuestConfig(memory_mib=512), fresh=True)
def test_health(lab: Lab) -> None:
    """A driver recovers a card once a minute at most, so each of three has its own."""
    asks, leaves, stands = lab.guests
    for guest in lab.guests:
        wait_port_active(guest)
        log_of(guest)
    lab.faults("g0").add("health synd=1 rfr=1 severity=3 assert_var0=0xdead")
    lab.faults("g1").add("card removed until=5s")
    still = lab.faults("g2").add("health stop")
    # the card asks for its reset, gets it, and is well
    wait_for(lambda: _recovered(asks), 30)
    said = log_of(asks)
    for words in (
        "Fatal error 5 detected",
        "Health issue observed, firmware internal error, severity(3) ERROR",
        "assert_var[0] 0x0000dead",
        "Issuing FW Reset",
        "health recovery succeeded",
    ):
        assert words in said
    # the driver waits for the slot, and takes the card that is there again
    wait_for(lambda: _recovered(leaves), 30)
    said = log_of(leaves)
    for words in ("Fatal error 1 detected", "PCI slot is unavailable", "health recovery succeeded"):
        assert words in said
    # a counter that stands still is reported, no more; so is what is not fatal
    wait_for(lambda: _reporters(stands)["fw"]["error"] == 1, 30)
    assert "device's health compromised - reached miss count" in log_of(stands)
    lab.faults("g2").remove(still)
    lab.faults("g2").add("health synd=0x10 severity=4 ext_synd=7")
    wait_for(lambda: _reporters(stands)["fw"]["error"] == 2, 30)
    said = log_of(stands)
    for words in ("Health issue observed, High temperature, severity(4) WARNING", "ext_synd 0x0007"):
        assert words in said
    assert "High temperature" in sh(stands, "devlink health diagnose pci/0000:01:00.0 reporter fw")[1]
    assert _reporters(stands)["fw_fatal"]["error"] == 0
    assert sh(stands, "devlink dev reload pci/0000:01:00.0")[0] == 0
    for guest in lab.guests:
        wait_port_active(guest)
        assert "Call Trace" not in log_of(guest)
        assert pingpong(lab, guest)[0] == [0, 0]


# ---- what takes minutes ----


@LONG
@pytest.mark.timeout(400)
@pytest.mark.vhca(guests=3, guest=GuestConfig(memory_mib=512), fresh=True)
def test_commands_whose_end_is_not_told(lab: Lab) -> None:
    """After 60 s the driver looks into its event queue itself: if an interrupt was lost, the event is there."""
    never, unheard, silent = lab.guests
    for guest in lab.guests:
        wait_port_active(guest)
        sh(guest, MAKES)
        log_of(guest)
    lab.faults("g0").add("command CREATE_CQ limit=1 lost")
    lab.faults("g1").add("event CMD limit=1 lost")
    lab.faults("g2").add("interrupt vector=0 limit=1 lost")
    began = time.monotonic()
    running = [guest.popen(["sh", "-c", MAKES]) for guest in lab.guests]
    ends = [process.wait(100) for process in running]
    assert time.monotonic() - began > 59
    logs = [log_of(guest) for guest in lab.guests]
    print(ends, *logs, sep="\n")
    assert "CREATE_CQ(0x400) timeout. Will cause a leak of a command resource" in logs[0]
    assert "timeout. Will cause a leak of a command resource" in logs[1]
    assert "recovered after timeout" in logs[2]
    # that of the first was ended by its time
    assert ends == [143, 143, 143]
    # each goes on, with one place less for commands where one was leaked
    for guest in (never, unheard, silent):
        assert sh(guest, MAKES)[0] == 143


# fresh: a driver that has keys in its cache asks for none
@pytest.mark.vhca(fresh=True)
def test_a_refused_command_is_explained_from_the_guest_s_log(
    lab: Lab, guest: Guest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The syndrome is one of the firmware's, and `vhca explain` finds its text by what the driver printed."""
    explainer = firmware_explainer()
    rule = lab.faults("g0").add("command CREATE_MKEY limit=1 status=BAD_PARAM syndrome=0x4c976d01")
    assert pingpong_alone(guest) != 0
    assert rule.hits == 1
    (tmp_path / "dmesg.txt").write_text(log_of(guest))
    capsys.readouterr()
    assert main(["explain", "--log", str(tmp_path / "dmesg.txt")]) == 0
    printed = capsys.readouterr().out
    text, place = syndrome(0x4C976D01, explainer)
    assert "syndrome (0x4c976d01)" in printed
    assert f"    {text}\n    {place}\n" in printed
    lab.clear_faults()
    assert pingpong_alone(guest) == 143  # the card was never broken
