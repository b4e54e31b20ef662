"""The exhibits of docs/museum.md: faults of kernels that this card makes visible. The fault must be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from vhca.lab import Guest, GuestConfig

SCRIPTS = Path(__file__).resolve().parents[2] / "guest-tests"
SHARED = GuestConfig(share=SCRIPTS, share_writable=False)


@pytest.mark.vhca(guests=1, guest=SHARED, fresh=True)
@pytest.mark.vhca_allow_kernel_bug("BUG: unable to handle page fault|Oops: ")
def test_an_optional_counter_that_could_not_be_made_is_read(guest: Guest) -> None:
    """An oops leaves the kernel damaged: the guest is this test's own."""
    done = guest.run(["/mnt/share/museum/optional_counter.sh"], timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok optional_counter: ")
    assert "mlx5_fc_query+" in done.stdout
    # an error code, -EINVAL, is taken for a pointer
    assert "ffffffffffffffea" in done.stderr
    for caller in ("do_get_op_stat", "mlx5_ib_get_hw_stats"):
        assert caller in done.stderr


@pytest.mark.vhca(guests=1, guest=SHARED)
def test_other_counters_are_read_unharmed(guest: Guest) -> None:
    done = guest.run(["sh", "-c", "cat /sys/class/infiniband/mlx5_0/ports/1/hw_counters/*"], timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert "Oops" not in guest.run(["dmesg"], check=True).stdout
