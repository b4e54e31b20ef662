"""The manifest of a guest: which packages, programs and modules are in its image.

Read from what the image is made of, so it cannot differ from it. Versions are those that the packages' own changelogs
name first.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.guest_system import guest_root
from vhca.lab.image import HCA_MODULES, MODULES, close_over_dependencies, programs
from vhca.lab.kernels import Kernel, module_name

_CHANGELOGS: Final = ("changelog.Debian.amd64.gz", "changelog.Debian.gz", "changelog.gz")
_ENTRY: Final = re.compile(r"\S+ \(([^)\s]+)\)")
_HEAD_BYTES: Final = 4096


@dataclass(slots=True, frozen=True)
class Manifest:
    """What is in a guest."""

    suite: str  # of Debian, that the packages are from
    packages: Sequence[tuple[str, str]]  # name and version; "?" if the package does not tell it
    programs: Sequence[str]  # of packages
    applets: Sequence[str]  # of busybox, for names that no package has
    kernel: Kernel
    autoloaded: Sequence[str]  # asked for at boot, in a guest with a card
    modules: Sequence[str]  # that can be loaded, with those that these need
    builtin: Sequence[str]  # of the same list, in the kernel itself
    absent: Sequence[str]  # of the same list, that this kernel does not have


def manifest(kernel: Kernel, cache: Cache, progress: Progress, suite: str = pins.GUEST_SUITE) -> Manifest:
    """The manifest of a guest of this suite with this kernel. Fetches the packages if they are not in the cache."""
    root = guest_root(cache, progress, suite)
    files, applets = programs(root)
    wanted = [module_name(name) for name in MODULES]
    modules = close_over_dependencies(wanted, kernel)
    return Manifest(
        suite=suite,
        packages=packages(root),
        programs=files,
        applets=applets,
        kernel=kernel,
        autoloaded=HCA_MODULES,
        modules=sorted(modules),
        builtin=sorted(name for name in wanted if name in kernel.builtin and name not in modules),
        absent=sorted(name for name in wanted if name not in kernel.builtin and name not in modules),
    )


def packages(root: Path) -> list[tuple[str, str]]:
    """Name and version of every package that is unpacked at `root`."""
    folder = root / "usr/share/doc"
    entries = sorted(entry.name for entry in os.scandir(folder)) if folder.is_dir() else []
    # every package has a copyright; a folder without one is of another package (rdma-core's, with pyverbs' tests)
    names = [name for name in entries if (folder / name / "copyright").exists()]
    return [(name, _version(folder / name)) for name in names]


def _version(place: Path) -> str:
    for name in _CHANGELOGS:
        try:
            with gzip.open(place / name, "rt", encoding="utf-8", errors="replace") as text:
                if match := _ENTRY.match(text.read(_HEAD_BYTES)):
                    return match[1]
        except (OSError, EOFError):
            continue
    return "?"
