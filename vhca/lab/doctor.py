"""The check of a host: what it has, what it lacks, and how to get it.

Nothing is fetched, installed or changed, but for one small file that is asked of the mirror to see whether
it answers, and the engine in C, which is compiled into the cache if it is not there yet.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from vhca import DEFAULT_KERNEL
from vhca.lab import kernels, packages, pins, qemu
from vhca.lab.cache import Cache, Progress, free_bytes
from vhca.lab.errors import LabError
from vhca.lab.guest_system import guest_root_place
from vhca.lab.kernel_index import matches
from vhca.lab.vmlinux import known_boot_file
from vhca.native import NativeError, choice, compiler

_NEEDED_BYTES = 1_500_000_000  # the cache of one kernel, with what is fetched on the way
_GUEST_BYTES = 1 << 30


class Level(enum.StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARN = "warn"  # works, but slower or less
    FAIL = "fail"  # a lab cannot run


@dataclass(slots=True, frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    subject: str
    detail: str
    remedy: str = ""  # what to do about it, one sentence; empty if all is well


def check(cache: Cache | None = None, kernel: str | Path = DEFAULT_KERNEL) -> list[Finding]:
    """Look at everything a lab needs. Never raises: trouble while looking is a finding."""
    cache = cache if cache is not None else Cache()
    stocked = _is_stocked(cache, kernel)
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", _python),
        ("packages", lambda: _package_tools(stocked)),
        ("keyring", lambda: _keyring(stocked)),
        ("mirror", lambda: _mirror(cache, stocked)),
        ("qemu", lambda: _qemu(cache)),
        ("acceleration", _acceleration),
        ("kernel", lambda: _kernel(cache, kernel)),
        ("kernel's entry", lambda: _kernel_entry(cache, kernel)),
        ("guest system", lambda: _guest_system(cache)),
        ("disk", lambda: _disk(cache, stocked)),
        ("memory", _memory),
        ("engine", _engine),
        ("shared memory", _memfd),
    ]
    findings = []
    for subject, look in looks:
        try:
            findings.append(look())
        except LabError as error:
            findings.append(Finding(Level.FAIL, subject, error.what, error.remedy))
        except OSError as error:
            findings.append(Finding(Level.FAIL, subject, str(error), "see the message"))
    return findings


def _cached_kernel(cache: Cache, kernel: str | Path) -> str:
    """The release in the cache, or the path, that `kernel` means; empty if it would have to be fetched."""
    if Path(kernel).expanduser().exists():
        return str(kernel)
    fitting = [r for r in kernels.cached_releases(cache) if matches(str(kernel), r)]
    return fitting[-1] if fitting else ""


def _is_stocked(cache: Cache, kernel: str | Path) -> bool:
    """Can a lab run from the cache alone?"""
    have_qemu = qemu.host_qemu() is not None or cache.path("qemu", qemu.package_key()).exists()
    return have_qemu and guest_root_place(cache).exists() and bool(_cached_kernel(cache, kernel))


def _python(found: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    version = ".".join(map(str, found))
    if found < (3, 11):
        return Finding(Level.FAIL, "python", f"Python {version}", "use Python 3.11 or newer")
    return Finding(Level.OK, "python", f"Python {version}")


def _package_tools(stocked: bool) -> Finding:
    missing = packages.tools_missing()
    if not missing:
        return Finding(Level.OK, "packages", "apt and dpkg are there")
    if stocked:
        return Finding(Level.OK, "packages", f"no {', '.join(missing)}, but the cache has all that is needed")
    return Finding(
        Level.FAIL,
        "packages",
        f"not found: {', '.join(missing)}",
        "use a Debian or Ubuntu host, or copy a filled cache from one (VHCA_CACHE)",
    )


def _keyring(stocked: bool) -> Finding:
    ring = packages.keyring()
    if ring is not None and ring.exists():
        return Finding(Level.OK, "keyring", f"packages are verified with {ring}")
    if stocked:
        return Finding(Level.OK, "keyring", "none, but the cache has all that is needed")
    return Finding(
        Level.FAIL,
        "keyring",
        f"{ring} is not there" if ring else "the Debian archive's keys are not on this host",
        "install the package debian-archive-keyring, or set VHCA_DEBIAN_KEYRING",
    )


def _mirror(cache: Cache, stocked: bool) -> Finding:
    if stocked:
        return Finding(Level.OK, "mirror", "not needed: the cache has all that is needed")
    if packages.tools_missing():
        return Finding(Level.FAIL, "mirror", "cannot be asked without apt", "see packages above")
    store = packages.PackageStore(cache, Progress(quiet=True), "probe")
    store.probe_mirror()
    return Finding(Level.OK, "mirror", f"{store.mirror} answers")


def _qemu(cache: Cache) -> Finding:
    found = qemu.host_qemu()
    if found is not None:
        return Finding(Level.OK, "qemu", f"{'.'.join(map(str, found.version))} on this host ({found.command[0]})")
    if cache.path("qemu", qemu.package_key()).exists():
        version = qemu.find_qemu(cache, Progress(quiet=True)).version
        return Finding(Level.OK, "qemu", f"{'.'.join(map(str, version))} in the cache")
    return Finding(
        Level.WARN,
        "qemu",
        f"no QEMU >= {'.'.join(map(str, qemu.MINIMUM))} on this host",
        "nothing to do: it is fetched into the cache at the first run",
    )


def _acceleration() -> Finding:
    if qemu.accelerator() == "kvm":
        return Finding(Level.OK, "acceleration", "KVM")
    trouble = "VHCA_ACCEL=tcg" if os.environ.get("VHCA_ACCEL") else qemu.kvm_trouble()
    remedy = (
        "guests run emulated, some ten times slower; with hardware virtualization and access to /dev/kvm they use KVM"
    )
    return Finding(Level.WARN, "acceleration", f"no KVM: {trouble}", remedy)


def _kernel(cache: Cache, kernel: str | Path) -> Finding:
    if found := _cached_kernel(cache, kernel):
        resolved = kernels.resolve(kernel, cache, Progress(quiet=True))
        return Finding(Level.OK, "kernel", f"{resolved.release}, {len(resolved.modules)} modules ({found})")
    pinned = [release for release in pins.KERNELS if matches(str(kernel), release)]
    archive = kernels.fallback_archive()
    source = f" ({pinned[0]})" if pinned else ""
    fallback = f"; if that fails, {archive} is used if it is that version" if archive else ""
    return Finding(
        Level.WARN,
        "kernel",
        f"{kernel}{source} is not in the cache",
        f"nothing to do: it is fetched at the first run (170 MB){fallback}",
    )


def _kernel_entry(cache: Cache, kernel: str | Path) -> Finding:
    if not _cached_kernel(cache, kernel):
        return Finding(Level.OK, "kernel's entry", "see kernel above")
    found = known_boot_file(kernels.resolve(kernel, cache, Progress(quiet=True)), cache)
    if found is None:
        return Finding(Level.OK, "kernel's entry", "tried at the first run: a kernel with CONFIG_PVH is unpacked here")
    if found.direct:
        return Finding(Level.OK, "kernel's entry", found.how)
    remedy = "guests boot a second later; CONFIG_PVH=y and a bzImage packed with gzip, xz or zstd would change that"
    return Finding(Level.WARN, "kernel's entry", found.how, remedy)


def _guest_system(cache: Cache) -> Finding:
    if guest_root_place(cache).exists():
        return Finding(Level.OK, "guest system", "in the cache")
    return Finding(
        Level.WARN, "guest system", "not in the cache", "nothing to do: it is fetched at the first run (30 MB)"
    )


def _disk(cache: Cache, stocked: bool) -> Finding:
    free = free_bytes(cache.root)
    detail = f"{free / 1e9:.1f} GB free for {cache.root}"
    if free >= _NEEDED_BYTES or (stocked and free >= _NEEDED_BYTES // 4):
        if os.access(_existing(cache.root), os.W_OK):
            return Finding(Level.OK, "disk", detail)
        return Finding(Level.FAIL, "disk", f"{cache.root} cannot be written", "set VHCA_CACHE to a folder of yours")
    return Finding(Level.FAIL, "disk", detail, "free 1.5 GB, or set VHCA_CACHE to a folder on another disk")


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _memory(meminfo: Path = Path("/proc/meminfo")) -> Finding:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    detail = f"{available / 1e9:.1f} GB available; a guest takes 1 GB at most unless asked for more"
    if available < 2 * _GUEST_BYTES:
        return Finding(Level.WARN, "memory", detail, "end other programs, or run fewer or smaller guests (--memory)")
    return Finding(Level.OK, "memory", detail)


def _memfd() -> Finding:
    descriptor = os.memfd_create("vhca-doctor", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, 4096)
    finally:
        os.close(descriptor)
    return Finding(Level.OK, "shared memory", "guest memory can be shared with the cards (memfd)")


def _engine() -> Finding:
    try:
        if choice() == "python":
            return Finding(
                Level.WARN, "engine", "in Python only (VHCA_ENGINE=python)", "unset VHCA_ENGINE for the one in C"
            )
        # The program of the cards is loaded by name. What is not compiled yet, is now.
        found = import_module("firmware.native.library").loaded()
        if found.there:
            where = f"on {found.crew + 1} cores" if found.crew else "on one core"
            return Finding(Level.OK, "engine", f"in C, {where}, compiled by {' '.join(compiler())}: {found.reason}")
        why = found.reason
    except NativeError as error:
        why = str(error)
    what, _, remedy = why.partition("\n  -> ")
    return Finding(Level.WARN, "engine", f"in Python only: {what}", remedy)


def worst(findings: list[Finding]) -> Level:
    """The worst level among findings."""
    order = list(Level)
    return max((f.level for f in findings), key=order.index, default=Level.OK)
