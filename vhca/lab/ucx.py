"""UCX for guests: the programs of the communication library, from packages, as one archive to unpack in a guest.

It is not part of the image: most guests have no use for it. Assumes a guest with the C library and verbs of the same
suite; brings the rest, with the modules that drive RDMA devices and none for graphics processors.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.elf import needed_libraries
from vhca.lab.guest import Guest
from vhca.lab.packages import UNPACKED, PackageStore, unpack

#: Where :func:`install` puts it in a guest.
PLACE: Final = "/opt/ucx"
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_PROGRAMS: Final = ("usr/bin/ucx_info", "usr/bin/ucx_perftest")
# Loaded by name when they are needed.
_MODULES: Final = ("libuct_ib.so.0", "libuct_ib_mlx5.so.0", "libuct_rdmacm.so.0", "libuct_cma.so.0")


def find_ucx(cache: Cache, progress: Progress) -> Path:
    """The archive with UCX (tar), fetched and packed if it is not in the cache. Raises PackageError."""
    recipe = repr((UNPACKED, pins.UCX_PACKAGES, pins.GUEST_SUITE, _PROGRAMS, _MODULES))

    def build(place: Path) -> None:
        store = PackageStore(cache, progress, "ucx")
        with tempfile.TemporaryDirectory(dir=cache.folder("tmp")) as folder:
            root = Path(folder)
            unpack(store.fetch(store.plan_alone(pins.UCX_PACKAGES), "UCX"), root, progress, "unpacking UCX")
            with tarfile.open(place, "w") as archive:
                for name in wanted_files(root):
                    # What a link stands for, under the link's name: a program asks for no other.
                    archive.add((root / name).resolve(), name)
        store.clear()

    return cache.obtain("ucx", hashlib.sha256(recipe.encode()).hexdigest()[:16] + ".tar", build, progress)


def wanted_files(root: Path) -> list[str]:
    """Programs and modules below `root`, and the libraries there that they ask for."""
    queue = [*_PROGRAMS, *(f"{_LIBRARIES}/ucx/{name}" for name in _MODULES)]
    found: set[str] = set()
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found.add(name)
        for library in needed_libraries(root / name) or ():
            if (root / _LIBRARIES / library).exists():
                queue.append(f"{_LIBRARIES}/{library}")
    return sorted(found)


def install(guest: Guest, archive: Path) -> None:
    """Unpack UCX in a guest; again for nothing if it is there."""
    if guest.run(["test", "-e", f"{PLACE}/usr/bin/ucx_perftest"]).returncode == 0:
        return
    guest.copy_in(archive, "/tmp/ucx.tar", timeout_s=300)
    guest.run(["sh", "-c", f"mkdir -p {PLACE} && tar -xf /tmp/ucx.tar -C {PLACE} && rm /tmp/ucx.tar"], check=True)


def command(program: str, *arguments: str, **settings: str) -> list[str]:
    """The command that runs a UCX program in a guest; `settings` are environment variables, such as `UCX_TLS`."""
    variables = {"LD_LIBRARY_PATH": f"{PLACE}/{_LIBRARIES}", **settings}
    assigned = [f"{name}={value}" for name, value in variables.items()]
    return ["env", *assigned, f"{PLACE}/usr/bin/{program}", *arguments]
