"""Every script of guest-tests/ does what its table says, through the shared folder, as a user would run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vhca.lab import Guest, GuestConfig, Lab

SCRIPTS = Path(__file__).resolve().parents[2] / "guest-tests"
SHARED = GuestConfig(share=SCRIPTS, share_writable=False)

pytestmark = pytest.mark.vhca(guests=2, guest=SHARED)


def _script(guest: Guest, *words: str) -> str:
    done = guest.run([f"/mnt/share/{words[0]}", *words[1:]], timeout_s=240)
    lines = done.stdout.strip().splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"ok {words[0].removesuffix('.sh')}: "), lines
    return lines[0]


def test_the_table_names_every_script() -> None:
    table = (SCRIPTS / "README.md").read_text()
    named = {path.name for path in SCRIPTS.glob("*.sh") if f"`{path.name}" in table}
    assert named == {path.name for path in SCRIPTS.glob("*.sh")}


@pytest.mark.parametrize("script", ["probe.sh", "loopback.sh"])
def test_alone(script: str, guest: Guest) -> None:
    _script(guest, script)


@pytest.mark.parametrize(
    "words", [("pingpong.sh", "rc"), ("pingpong.sh", "uc"), ("pingpong.sh", "ud"), ("perftest.sh", "ib_read_lat", "64")]
)
def test_both_ends(words: tuple[str, ...], guest_pair: tuple[Guest, Guest]) -> None:
    server, client = guest_pair
    listening = server.popen([f"/mnt/share/{words[0]}", *words[1:]])
    _script(client, *words)
    assert listening.wait(30) == 0, listening.stdout.read_all()


def test_reload(guest: Guest) -> None:
    assert "3 times" in _script(guest, "reload.sh", "3")


def test_kernel_log_last(lab: Lab) -> None:
    for guest in lab.guests:
        _script(guest, "kernel-log.sh")


def test_kernel_log_finds_what_is_wrong(guest: Guest) -> None:
    guest.run(["sh", "-c", "echo 'mlx5_core: device health compromised' >/dev/kmsg"], check=True)
    done = guest.run(["/mnt/share/kernel-log.sh"])
    assert done.returncode == 1
    assert done.stdout.startswith("FAILED kernel-log: ")
