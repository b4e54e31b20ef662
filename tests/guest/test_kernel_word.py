"""What a guest's kernel says of itself is seen: a panic at once, an oops at the end, with statuses of their own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vhca.cli.main import main
from vhca.lab import Guest, GuestConfig, GuestError, KernelPanic, Lab

#: A fault of the kernel itself (docs/museum.md).
_OOPS = (
    "rdma statistic set link mlx5_0/1 optional-counters rdma_rx_packets;"
    " cat /sys/class/infiniband/mlx5_0/ports/1/hw_counters/* > /dev/null; true"
)


def test_a_panic_in_a_command_is_shown_and_loses_no_output(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["run", "-q", "--hcas", "0", "--log-dir", str(tmp_path / "logs"), "--"]
    assert main([*arguments, "sh", "-c", "echo before; echo c > /proc/sysrq-trigger"]) == 123
    said = capfd.readouterr()
    assert said.out == "before\n"
    assert "g0: Kernel panic - not syncing: sysrq triggered crash" in said.err
    assert "sysrq_handle_crash" in said.err


def test_an_oops_in_a_command_is_shown_and_kept(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    user = "echo '<4>WARNING: a line of a program' > /dev/kmsg;"
    code = main(["run", "-q", "--fail-on-kernel-bug", "--log-dir", str(logs), "--", "sh", "-c", user + _OOPS])
    said = capfd.readouterr().err
    assert code == 122
    assert f"BUG: unable to handle page fault for address: ffffffffffffffea\n  the whole is in {logs}" in said
    assert "a line of a program" not in said
    assert "mlx5_fc_query" in (logs / "g0-kernel.log").read_text()
    console = (logs / "g0-console.log").read_text()
    assert "a line of a program" in console  # level 7: warnings are kept, whoever wrote them
    assert "mlx5_fc_query" in console


def test_a_panic_while_booting_is_no_time_out(tmp_path: Path) -> None:
    lab = Lab(
        guests=1, hcas_per_guest=0, guest=GuestConfig(kernel_arguments="rdinit=/nonexistent"), log_dir=tmp_path / "logs"
    )
    with pytest.raises(KernelPanic, match="Unable to mount root fs") as caught:
        lab.start()
    assert "mount_root_generic" in caught.value.trace
    assert lab.guests[0].console_log.count("] Kernel panic") == 1


@pytest.mark.vhca(guests=1, hcas_per_guest=0, fresh=True)
@pytest.mark.vhca_allow_kernel_bug("sysrq triggered crash")
def test_a_panicked_guest_can_be_looked_at_and_reset(guest: Guest, tmp_path: Path) -> None:
    pretended = guest.run(["sh", "-c", "echo '<0>Kernel panic - not syncing: a joke' > /dev/kmsg; sleep 1; echo alive"])
    assert pretended.stdout == "alive\n"
    assert guest.panic is None
    with pytest.raises(KernelPanic):
        guest.run(["sh", "-c", "echo c > /proc/sysrq-trigger"])
    assert guest.qmp("query-status")["status"] == "paused"
    assert [report.headline for report in guest.kernel_reports()][-1].endswith("sysrq triggered crash")
    guest.qmp("dump-guest-memory", paging=False, protocol=f"file:{tmp_path / 'memory'}", begin=0, length=1 << 20)
    assert (tmp_path / "memory").stat().st_size > 1 << 20
    with pytest.raises(GuestError):
        guest.run(["true"])
    guest.reset()
    assert guest.panic is None
    assert guest.run(["echo", "again"], check=True).stdout == "again\n"


@pytest.mark.vhca(guests=1, hcas_per_guest=0, guest=GuestConfig(kernel_arguments="panic=-1"), fresh=True)
def test_a_kernel_that_was_told_to_restart_does_and_its_panic_is_seen(guest: Guest) -> None:
    boots = guest.agent.boots
    with pytest.raises(KernelPanic):
        guest.run(["sh", "-c", "echo c > /proc/sysrq-trigger"])
    end_s = time.monotonic() + 60
    while guest.agent.boots == boots:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert guest.run(["echo", "again"], check=True).stdout == "again\n"
    assert [report.kind for report in guest.kernel_reports()] == ["panic"]
