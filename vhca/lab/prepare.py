"""The preparation: makes QEMU, a kernel and a guest image ready, once, and says what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vhca import DEFAULT_KERNEL
from vhca.lab import kernels
from vhca.lab.cache import Cache, Progress
from vhca.lab.extras import packages_archive
from vhca.lab.image import build_image
from vhca.lab.kernels import Kernel
from vhca.lab.qemu import Qemu, find_qemu
from vhca.lab.vmlinux import BootFile, boot_file

# An entry holds 60 to 200 MB; a kernel developer makes a new image at every build.
_KEPT = {
    "images": 6,
    "image-base": 3,
    "image-modules": 6,
    "image-packages": 6,
    "vmlinux": 6,
    "guest-root": 3,
    "qemu": 3,
    "host-tools": 3,
    "kernel-archives": 4,
}


@dataclass(slots=True, frozen=True)
class Prepared:
    """All that a guest is started from."""

    qemu: Qemu
    kernel: Kernel
    boot: BootFile
    image: Path


def prepare(
    progress: Progress | None = None,
    kernel: str | Path = DEFAULT_KERNEL,
    *,
    modules_dir: Path | None = None,
    extra_modules: Sequence[str] = (),
    extra_packages: Sequence[str] = (),
    cache: Cache | None = None,
) -> Prepared:
    """Make everything ready that guests with this kernel need. Fetches what is missing; cheap if nothing is.

    Raises a :class:`vhca.lab.errors.LabError` that says what to do.
    """
    progress = progress if progress is not None else Progress()
    cache = cache if cache is not None else Cache()
    qemu = find_qemu(cache, progress)
    found = kernels.resolve(kernel, cache, progress, modules_dir)
    boot = boot_file(found, cache, progress)
    extra = packages_archive(extra_packages, cache, progress) if extra_packages else None
    image = build_image(found, cache, progress, extra_modules, extra)
    for kind, keep in _KEPT.items():
        cache.prune(kind, keep)
    return Prepared(qemu, found, boot, image)
