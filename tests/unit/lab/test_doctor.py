"""The inspection on hosts that lack something."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from firmware.native.library import loaded
from vhca.lab import doctor, kernels, packages, qemu
from vhca.lab.cache import Cache
from vhca.lab.doctor import Finding, Level
from vhca.lab.kernels import Kernel
from vhca.lab.vmlinux import BootFile


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A host without programs, keys, mirror or cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VHCA_ACCEL", "tcg")
    monkeypatch.delenv("VHCA_QEMU", raising=False)
    monkeypatch.delenv("VHCA_DEBIAN_MIRROR", raising=False)
    monkeypatch.delenv("VHCA_KERNEL_ARCHIVE", raising=False)
    monkeypatch.setenv("VHCA_DEBIAN_KEYRING", str(tmp_path / "no-keyring"))
    qemu.accelerator.cache_clear()
    return Cache(tmp_path / "cache")


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    return {f.subject: f for f in findings}


def test_a_bare_host_is_told_everything_it_lacks(bare: Cache) -> None:
    findings = by_subject(doctor.check(bare))
    assert {s for s, f in findings.items() if f.level is Level.FAIL} == {"packages", "keyring", "mirror"}
    assert {findings[s].level for s in ("qemu", "kernel", "guest system", "acceleration")} == {Level.WARN}
    assert findings["python"].level is Level.OK
    assert all(f.remedy for f in findings.values() if f.level is not Level.OK)
    assert doctor.worst(list(findings.values())) is Level.FAIL


def test_a_full_cache_needs_no_packages(bare: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_stocked", lambda *_: True)
    findings = by_subject(doctor.check(bare))
    assert {findings[s].level for s in ("packages", "keyring", "mirror")} == {Level.OK}


def test_a_mirror_that_does_not_answer_is_a_finding(
    bare: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("apt-get", "apt-config", "dpkg-deb", "apt-helper"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'Temporary failure resolving' >&2\nexit 100\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(packages, "_APT_HELPER", tmp_path / "apt-helper")
    monkeypatch.setenv("VHCA_DEBIAN_MIRROR", "http://mirror.invalid/debian")
    found = by_subject(doctor.check(bare))["mirror"]
    assert found.level is Level.FAIL
    assert "VHCA_DEBIAN_MIRROR" in found.remedy


def test_a_full_disk_fails(bare: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "free_bytes", lambda _: 10**6)
    found = by_subject(doctor.check(bare))["disk"]
    assert (found.level, "VHCA_CACHE" in found.remedy) == (Level.FAIL, True)


def test_little_memory_and_old_python(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 4000000 kB\nMemAvailable:    1000000 kB\n")
    assert doctor._memory(info).level is Level.WARN
    info.write_text("MemAvailable:   9000000 kB\n")
    assert doctor._memory(info).level is Level.OK
    assert doctor._python((3, 10, 2)).level is Level.FAIL


def test_a_kernel_of_ones_own_is_looked_at(bare: Cache, tmp_path: Path) -> None:
    found = by_subject(doctor.check(bare, tmp_path / "cache"))["kernel"]
    assert found.level is Level.WARN  # neither a path that is there nor a version
    (tmp_path / "empty").mkdir()
    found = by_subject(doctor.check(bare, tmp_path / "empty"))["kernel"]
    assert found.level is Level.FAIL
    assert "boot/vmlinuz" in found.detail


@pytest.mark.parametrize(
    ("found", "level", "says"),
    [
        (None, Level.OK, "at the first run"),
        (BootFile(Path("/v"), True, "entered by PVH"), Level.OK, "entered by PVH"),
        (BootFile(Path("/k"), False, "bzImage: packed with lz4"), Level.WARN, "packed with lz4"),
    ],
)
def test_how_the_kernel_is_entered_is_said(
    bare: Cache, monkeypatch: pytest.MonkeyPatch, found: BootFile | None, level: Level, says: str
) -> None:
    kernel = Kernel("6.19.0", Path("/k"), {}, frozenset(), None, "id", "test")
    monkeypatch.setattr(kernels, "resolve", lambda *_: kernel)
    monkeypatch.setattr(doctor, "known_boot_file", lambda *_: found)
    monkeypatch.setattr(doctor, "_cached_kernel", lambda *_: "6.19.0")
    finding = by_subject(doctor.check(bare))["kernel's entry"]
    assert finding.level is level
    assert says in finding.detail
    assert bool(finding.remedy) is (level is Level.WARN)


def test_which_engine_there_is_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VHCA_ENGINE", raising=False)
    monkeypatch.setenv("VHCA_CACHE", str(tmp_path))
    monkeypatch.setenv("VHCA_CORES", "3")
    try:
        for compiler, level in (("/nowhere/cc", Level.WARN), ("cc", Level.OK)):
            loaded.cache_clear()
            monkeypatch.setenv("CC", compiler)
            if level == Level.OK and shutil.which(compiler) is None:
                break
            finding = doctor._engine()
            assert finding.level == level
            assert (compiler if level == Level.WARN else str(tmp_path)) in finding.detail
            if level == Level.OK:
                assert "on 3 cores" in finding.detail
                monkeypatch.setenv("VHCA_CORES", "1")
                loaded.cache_clear()
                assert "on one core" in doctor._engine().detail
    finally:
        loaded.cache_clear()
