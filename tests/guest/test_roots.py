"""A folder of the host as a guest's root, files that are kept, and guests of another suite."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from vhca.lab import Cache, Guest, GuestConfig, KernelPanic, Lab, LabError, Progress, guest_root

LIBRARIES = "usr/lib/x86_64-linux-gnu"
# From outside of the guest's root, where the folder is mounted.
FORCED = "below=/usr/lib/vhca/root/below; mount -o remount,rw $below; echo mine > $below/etc/issue"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A root of some files of Debian's packages: a shell, its library, and its loader; no program beside."""
    source, root = guest_root(Cache(), Progress(quiet=True)), tmp_path / "small"
    for name in ("usr/bin/dash", f"{LIBRARIES}/libc.so.6", f"{LIBRARIES}/ld-linux-x86-64.so.2"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy((source / name).resolve(), root / name)
    (root / "usr/lib64").mkdir()
    (root / "usr/lib64/ld-linux-x86-64.so.2").symlink_to("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/bin/sh").symlink_to("dash")
    (root / "etc").mkdir()
    (root / "etc/issue").write_text("small\n")
    return root


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The name of kept files in the cache, which are removed at the end."""
    from vhca.lab import kept

    name = f"test-{tmp_path.parent.name}"
    yield name
    kept.discard(Cache(), name)


def said(guest: Guest, script: str) -> str:
    return guest.run(["sh", "-ec", script], check=True).stdout


def test_a_root_is_read_and_never_written(small: Path, cache: str) -> None:
    """Also by who mounts it anew; what is changed is kept, and there in the next run, whatever became of the kernel."""
    guest = GuestConfig(root=small, keep=cache, memory_mib=512)
    with Lab(guests=2, guest=guest) as lab:
        g0, g1 = lab.guests
        assert said(g0, "cat /etc/issue; echo $PATH; ls /lib/modules; ping -c 1 g1 > /dev/null").splitlines() == [
            "small",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/vhca/bin",
            lab.prepared.kernel.release,
        ]
        assert said(g0, "cat /sys/class/infiniband/mlx5_0/ports/1/state") == "4: ACTIVE\n"
        said(g0, "modprobe rdma_rxe; test -d /sys/module/rdma_rxe")
        forced = g0.run(["busybox", "chroot", "/proc/1/root", "sh", "-c", FORCED])
        assert "Read-only file system" in forced.stderr, forced
        said(g0, "wait-for true; echo changed > /etc/issue; mkdir -p /opt/work; echo kept > /opt/work/file")
        assert (g0.run(["cat", "/etc/issue"]).stdout, g1.run(["cat", "/etc/issue"]).stdout) == ("changed\n", "small\n")
        with pytest.raises(LabError, match=f"kept as {cache} are in use"), Lab(guests=1, guest=guest):
            pass
    assert (small / "etc/issue").read_text() == "small\n"
    assert sorted(path.name for path in small.iterdir()) == ["bin", "etc", "lib", "lib64", "usr"]
    assert (small / "usr/bin/dash").exists()
    with Lab(guests=1, hcas_per_guest=0, guest=guest) as lab:
        (g0,) = lab.guests
        assert said(g0, "cat /etc/issue /opt/work/file; ls /opt") == "changed\nkept\nwork\n"
        said(g0, "echo late > /opt/work/late; sleep 4")
        with pytest.raises(KernelPanic):
            g0.run(["sh", "-c", "echo c > /proc/sysrq-trigger; sleep 60"])
    with Lab(guests=1, hcas_per_guest=0, guest=guest) as lab:
        assert said(lab.guests[0], "cat /opt/work/late") == "late\n"


@pytest.mark.parametrize("suite", ["forky"])
def test_a_guest_of_another_suite_talks_to_one_card_and_another(suite: str) -> None:
    with Lab(guests=2, suite=suite, guest=GuestConfig(memory_mib=512)) as lab:
        g0, g1 = lab.guests
        assert f"VERSION_CODENAME={suite}" in said(g0, "cat /etc/os-release")
        server = g0.popen(["ib_write_bw", "-d", "mlx5_0", "-F", "-n", "50"])
        said(g0, "wait-for -p 18515")
        said(g1, "ib_write_bw -d mlx5_0 -F -n 50 g0")
        assert server.wait(10) == 0
