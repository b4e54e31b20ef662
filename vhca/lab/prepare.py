"""The preparation: makes QEMU, a kernel and a guest image ready, once, and says what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vhca import DEFAULT_KERNEL
from vhca.lab import kernels, sets, suites
from vhca.lab.cache import Cache, Progress
from vhca.lab.extras import packages_archive
from vhca.lab.image import build_image
from vhca.lab.kernels import Kernel
from vhca.lab.module_names import check_modules
from vhca.lab.own_modules import OwnModule, needed_of, with_replaced
from vhca.lab.qemu import Qemu, find_qemu
from vhca.lab.vmlinux import BootFile, boot_file

# An entry holds 60 to 200 MB; a kernel developer makes a new image at every build.
_KEPT = {
    "images": 6,
    "image-base": 5,
    "image-modules": 6,
    "image-packages": 6,
    "vmlinux": 6,
    "guest-root": 5,
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
    suite: str | None = None,
    needed: Mapping[str, Sequence[str]] | None = None,
    replaced_modules: Sequence[OwnModule] = (),
    loaded_modules: Sequence[OwnModule] = (),
    cache: Cache | None = None,
) -> Prepared:
    """Make everything ready that guests with this kernel need. Fetches what is missing; cheap if nothing is.

    `extra_packages` may have names of sets (:mod:`vhca.lab.sets`); `suite`: of Debian, that all packages are from;
    `needed`: further modules of the kernel, by what cannot be without them.
    `replaced_modules` take the place of the kernel's own; what `loaded_modules` need is in the image.
    Raises a :class:`vhca.lab.errors.LabError` that says what to do.
    """
    progress = progress if progress is not None else Progress()
    cache = cache if cache is not None else Cache()
    release = suites.checked(suite)
    qemu = find_qemu(cache, progress)
    found = with_replaced(kernels.resolve(kernel, cache, progress, modules_dir), replaced_modules)
    own = [*(module.name for module in replaced_modules), *needed_of(found, loaded_modules)]
    boot = boot_file(found, cache, progress)
    modules = [*extra_modules, *own, *sets.modules_of(extra_packages)]
    check_modules(found, modules)
    for what, names in (needed or {}).items():
        check_modules(found, names, what)
        modules += names
    extra = packages_archive(extra_packages, cache, progress, release) if extra_packages else None
    image = build_image(found, cache, progress, modules, extra, release)
    for kind, keep in _KEPT.items():
        cache.prune(kind, keep)
    return Prepared(qemu, found, boot, image)
