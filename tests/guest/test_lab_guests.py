"""Guests without a card: boot, commands, files, network, share, reboot, death. One lab serves nearly all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.content import some_bytes
from vhca.lab import CommandFailed, CommandTimeout, Guest, GuestConfig, GuestError, Lab, LabError
from vhca.lab.boot_times import AGENT, FIRMWARE, INIT, KERNEL, STAGES
from vhca.lab.prepare import Prepared, prepare
from vhca.lab.vmlinux import BootFile

_PROGRAMS = [
    *("ibv_devinfo", "ibv_rc_pingpong", "ibv_ud_pingpong", "ibstat", "saquery", "opensm", "rdma", "ucmatose"),
    *("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_send_lat"),
    *("strace", "ethtool", "lspci", "modprobe", "bash", "ip"),
]


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("share")


@pytest.fixture(scope="module")
def lab(share: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    logs = tmp_path_factory.mktemp("logs")
    with Lab(guests=2, hcas_per_guest=0, guest=GuestConfig(share=share), log_dir=logs) as running:
        yield running


def test_the_kernel_that_was_asked_for_runs(lab: Lab) -> None:
    release = lab.guests[0].run(["uname", "-r"], check=True).stdout.strip()
    assert release == lab.prepared.kernel.release
    assert release.startswith("6.19.")


def boot_protocol(guest: Guest) -> str:
    """What the kernel was told on its way in: its PVH entry writes 2.12, a bzImage its own version."""
    return guest.run(["cat", "/sys/kernel/boot_params/version"], check=True).stdout.strip()


def test_the_kernel_is_entered_without_unpacking_itself(lab: Lab) -> None:
    assert lab.prepared.boot.direct
    assert boot_protocol(lab.guests[0]) == "0x020c"


def test_a_kernel_that_cannot_be_entered_so_unpacks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_is(*args: Any, **named: Any) -> Prepared:
        prepared = prepare(*args, **named)
        return replace(prepared, boot=BootFile(prepared.kernel.image, False, "bzImage, for a test"))

    monkeypatch.setattr("vhca.lab.lab.prepare", as_it_is)
    with Lab(guests=1, hcas_per_guest=0) as running:
        assert boot_protocol(running.guests[0]) == "0x020f"
        assert running.boot_report(0.0)[0].endswith("bzImage, for a test")


def test_where_the_time_of_the_boot_went_adds_up(lab: Lab) -> None:
    now_s = time.monotonic()
    for guest in lab.guests:
        took_s = guest.boot_times.durations_s(0.0)
        assert list(took_s) == list(STAGES)
        assert sum(took_s.values()) < now_s
        from_power_to_agent_s = sum(took_s[stage] for stage in (FIRMWARE, KERNEL, INIT, AGENT))
        assert from_power_to_agent_s == pytest.approx(guest.boot_s, abs=0.5)
        assert min(took_s[stage] for stage in (FIRMWARE, KERNEL, INIT, AGENT)) > 0


def test_file_systems_and_links_that_programs_expect_are_there(lab: Lab) -> None:
    mounts = lab.guests[0].run(["cat", "/proc/mounts"], check=True).stdout
    kinds = {place: kind for _, place, kind, *_ in (line.split() for line in mounts.splitlines())}
    assert (
        kinds.items()
        >= {
            "/proc": "proc",
            "/sys": "sysfs",
            "/dev": "devtmpfs",
            "/dev/pts": "devpts",
            "/dev/shm": "tmpfs",
            "/run": "tmpfs",
            "/tmp": "tmpfs",
            "/sys/kernel/debug": "debugfs",
        }.items()
    )
    modes = lab.guests[0].run(["stat", "-c", "%a", "/dev/shm", "/tmp", "/dev"], check=True).stdout.split()
    assert modes == ["1777", "1777", "755"]
    each = "for name in fd stdin stdout stderr; do readlink /dev/$name; done"
    links = lab.guests[0].run(["sh", "-c", each], check=True).stdout
    assert links.split() == ["/proc/self/fd", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"]


def test_status_and_both_outputs_come_back(lab: Lab) -> None:
    done = lab.guests[0].run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    with pytest.raises(CommandFailed, match="ended with 7"):
        lab.guests[0].run(["sh", "-c", "exit 7"], check=True)


def test_a_program_that_is_not_there_is_an_os_error(lab: Lab) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        lab.guests[0].run(["no-such-program"])


def test_environment_folder_and_input_reach_the_command(lab: Lab) -> None:
    done = lab.guests[1].run(["sh", "-c", "echo $COLOUR; pwd; cat"], env={"COLOUR": "blue"}, cwd="/tmp", stdin="in")
    assert done.stdout == "blue\n/tmp\nin"


def test_output_streams_while_the_command_runs(lab: Lab) -> None:
    process = lab.guests[0].popen(["sh", "-c", "echo first; read line; echo got $line; sleep 1000"])
    lines = iter(process.stdout)
    assert next(lines) == "first\n"
    assert process.poll() is None
    process.write(b"hello\n")
    assert next(lines) == "got hello\n"
    process.kill()
    assert process.wait(20) == -signal.SIGKILL
    assert list(lines) == []


def test_a_command_that_takes_too_long_is_killed_with_its_children(lab: Lab) -> None:
    with pytest.raises(CommandTimeout, match="some words"):
        lab.guests[0].run(["sh", "-c", "echo some words; sleep 777 & wait"], timeout_s=2)
    assert "sleep 777" not in lab.guests[0].run(["ps"]).stdout


def test_two_commands_at_once(lab: Lab) -> None:
    slow = lab.guests[0].popen(["sh", "-c", "read line; echo $line"])
    assert lab.guests[0].run(["echo", "quick"]).stdout == "quick\n"
    slow.write(b"slow\n")
    assert slow.stdout.read_all() == b"slow\n"
    assert slow.wait(20) == 0


def test_a_terminal(lab: Lab) -> None:
    process = lab.guests[0].popen(["sh", "-c", "tty; stty size"], tty=(33, 101))
    text = process.stdout.read_all().decode()
    assert "/dev/pts/" in text
    assert "33 101" in text
    assert process.wait(20) == 0


def test_files_go_in_and_out_unchanged(lab: Lab, tmp_path: Path) -> None:
    data = some_bytes(3_000_001)
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/data").write_bytes(data)
    (tmp_path / "tree/tool").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "tree/tool").chmod(0o755)
    guest = lab.guests[1]
    guest.copy_in(tmp_path / "tree", "/tmp/tree")
    assert guest.run(["/tmp/tree/tool"], check=True).stdout == "ran\n"
    guest.copy_out("/tmp/tree/sub/data", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    guest.copy_out("/tmp/tree/tool", tmp_path / "tool")
    assert (tmp_path / "tool").stat().st_mode & 0o777 == 0o755
    with pytest.raises(FileNotFoundError):
        guest.copy_out("/nowhere", tmp_path / "nothing")


def test_guests_reach_each_other_by_name(lab: Lab) -> None:
    for guest, other in ((0, "g1"), (1, "g0")):
        done = lab.guests[guest].run(["ping", "-c", "2", "-W", "5", other], timeout_s=30, check=True)
        assert " 0% packet loss" in done.stdout
    assert [g.run(["hostname"]).stdout.strip() for g in lab.guests] == ["g0", "g1"]


def test_bulk_data_crosses_the_management_network(lab: Lab) -> None:
    server = lab.guests[1].popen(["sh", "-c", "nc -l -p 5000 | sha256sum"])
    script = "head -c 2000000 /dev/urandom > /tmp/r; sha256sum < /tmp/r; sleep 0.5; nc g1 5000 < /tmp/r"
    sent = lab.guests[0].run(["sh", "-c", script], timeout_s=60, check=True).stdout.split()[0]
    assert server.stdout.read_all().decode().split()[0] == sent


def test_the_share_is_the_same_folder_everywhere(lab: Lab, share: Path) -> None:
    (share / "from-host").write_text("hello")
    assert lab.guests[0].run(["cat", "/mnt/share/from-host"], check=True).stdout == "hello"
    lab.guests[0].run(["sh", "-c", "echo there > /mnt/share/from-g0"], check=True)
    assert lab.guests[1].run(["cat", "/mnt/share/from-g0"], check=True).stdout == "there\n"
    assert (share / "from-g0").read_text() == "there\n"
    lab.guests[0].run(["cp", "/usr/bin/busybox", "/mnt/share/"], check=True)
    assert lab.guests[1].run(["/mnt/share/busybox", "echo", "ran"], check=True).stdout == "ran\n"


@pytest.mark.parametrize(
    "program",
    _PROGRAMS,
)
def test_the_guest_has_what_driver_tests_need(lab: Lab, program: str) -> None:
    assert lab.guests[0].run(["which", program]).returncode == 0


def test_scripts_get_the_real_tools(lab: Lab) -> None:
    done = lab.guests[0].run(["sh", "-c", "ip -brief address show dev eth0; modprobe --version"], check=True)
    assert "10.0.0.1/16" in done.stdout
    assert "kmod version" in done.stdout


def test_the_library_tests_of_rdma_core_can_be_loaded(lab: Lab) -> None:
    folder = "/usr/share/doc/rdma-core"
    code = "import tests.test_qp, pyverbs.providers.mlx5.mlx5dv"
    env = {"PYTHONPATH": f"{folder}:{folder}/tests"}
    lab.guests[0].run(["python3", "-c", code], env=env, timeout_s=60, check=True)


def test_memory_can_be_locked(lab: Lab) -> None:
    assert lab.guests[0].run(["sh", "-c", "ulimit -l"]).stdout.strip() == "unlimited"


def test_soft_roce_runs_between_the_guests(lab: Lab) -> None:
    for guest in lab.guests:
        guest.run(["modprobe", "-a", "rdma_rxe", "ib_uverbs"], check=True)
        guest.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"], check=True)
    server = lab.guests[1].popen(["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "20"])
    end_s = time.monotonic() + 20
    while lab.guests[1].run(["sh", "-c", "netstat -ltn | grep -q :18515"]).returncode:
        assert time.monotonic() < end_s, "the server does not listen"
    done = lab.guests[0].run(["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "20", "g1"], timeout_s=60, check=True)
    assert "20 iters" in done.stdout
    assert server.wait(30) == 0


def test_the_least_memory_that_is_taken_is_enough(tmp_path: Path) -> None:
    with Lab(guests=1, guest=GuestConfig(memory_mib=384), log_dir=tmp_path / "logs") as small:
        assert small.guests[0].run(["ibv_devinfo"], check=True).stdout.count("PORT_ACTIVE") == 1
        script = "import os; root = os.statvfs('/'); print(root.f_bavail * root.f_frsize)"
        assert int(small.guests[0].run(["python3", "-c", script], check=True).stdout) > 16 << 20


def test_an_unknown_kernel_is_refused_before_anything_starts() -> None:
    with pytest.raises(LabError, match="no such file or folder"):
        Lab(guests=1, kernel="nonsense", hcas_per_guest=0).start()


def test_a_rebooted_guest_comes_back(lab: Lab) -> None:
    guest = lab.guests[1]
    before = guest.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    waiting = guest.popen(["sleep", "1000"])
    guest.reboot()
    assert guest.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout != before
    with pytest.raises(GuestError, match="restarted"):
        waiting.wait(5)
    lab.guests[0].run(["ping", "-c", "1", "-W", "5", "g1"], timeout_s=30, check=True)


def test_a_killed_guest_leaves_the_other_working(lab: Lab) -> None:
    victim, other = lab.guests[1], lab.guests[0]
    running = victim.popen(["sleep", "1000"])
    victim.kill()
    assert not victim.alive
    with pytest.raises(GuestError):
        running.wait(5)
    with pytest.raises(GuestError, match="killed"):
        victim.run(["true"])
    assert other.run(["ping", "-c", "1", "-W", "1", "g1"], timeout_s=30).returncode != 0
    assert other.run(["echo", "alive"], check=True).stdout == "alive\n"


def test_no_guest_outlives_a_killed_program(tmp_path: Path) -> None:
    """A program that is killed outright cannot tidy up; the kernel must."""
    program = (
        "import sys, time\nfrom vhca.lab import Lab\n"
        f"lab = Lab(guests=3, hcas_per_guest=0, log_dir={str(tmp_path)!r}).start()\n"
        "print(*(g.pid for g in lab.guests), lab.guests[2].run(['ping', '-c', '1', 'g0']).returncode, flush=True)\n"
        "time.sleep(1000)\n"
    )
    root = Path(__file__).parents[2]
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert child.stdout is not None
        *pids, ping = child.stdout.readline().split()
        assert len(pids) == 3
        assert ping == "0"  # three guests: through the hub
    finally:
        child.kill()
        child.wait()
    end_s = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end_s, "a guest is still running"
        time.sleep(0.05)


def test_a_guest_that_prints_without_end_stays_usable(lab: Lab) -> None:
    guest = lab.guests[0]
    flood = guest.popen(["sh", "-c", "exec yes 'a line of no use' > /dev/console"])
    recorded = len(guest.console_log)
    for _ in range(10):
        assert guest.run(["echo", "there"], timeout_s=30, check=True).stdout == "there\n"
    flood.kill()
    flood.wait(30)
    assert len(guest.console_log) > recorded
    assert "a line of no use" in guest.console_log
    with pytest.raises(GuestError, match="printed more than"):
        guest.run(["cat", "/dev/zero"], timeout_s=120)
    assert guest.run(["echo", "there"], timeout_s=30).stdout == "there\n"


def test_a_kernel_with_its_virtio_in_modules_has_share_and_network(share: Path, tmp_path: Path) -> None:
    with Lab(guests=2, hcas_per_guest=0, kernel="6.1", guest=GuestConfig(share=share), log_dir=tmp_path) as lab:
        assert lab.guests[0].run(["ls", "/mnt/share"], check=True).stdout.split() == sorted(os.listdir(share))
        assert lab.guests[0].run(["ping", "-c", "1", "g1"]).returncode == 0


def test_a_share_that_cannot_be_mounted_is_said(share: Path, tmp_path: Path) -> None:
    lab = Lab(
        guests=1,
        hcas_per_guest=0,
        guest=GuestConfig(share=share, kernel_arguments="module_blacklist=9p"),
        log_dir=tmp_path,
    )
    with pytest.raises(GuestError, match="g0: the shared folder could not be mounted; the kernel needs 9p"):
        lab.start()
