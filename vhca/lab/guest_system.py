"""The larder of the bench: the packages that guests are made of, unpacked in the cache.

Their programs run on the host too, through their own loader: whatever the host lacks, they bring with them.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Final

from vhca.lab import pins, suites
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import ImageError
from vhca.lab.packages import UNPACKED, unpack

LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
MERGED: Final = ("bin", "sbin", "lib", "lib64")
"""Links of a guest's root, to the folders of the same name in usr."""
TESTS: Final = "usr/share/doc/rdma-core/tests"
_RECIPE: Final = "1"  # part of the key: raise it when the code below makes something else of the packages


def guest_root_place(cache: Cache, suite: str = pins.GUEST_SUITE) -> Path:
    """Where the guest's packages are unpacked, or will be."""
    recipe = repr((_RECIPE, UNPACKED, pins.GUEST_PACKAGES, sorted(suites.guest_without(suite)), suite))
    return cache.path("guest-root", hashlib.sha256(recipe.encode()).hexdigest()[:16])


def guest_root(cache: Cache, progress: Progress, suite: str = pins.GUEST_SUITE) -> Path:
    """The folder with the guest's packages of this suite, fetched and unpacked if it is not there yet."""

    def build(place: Path) -> None:
        store = suites.store_of(suite, cache, progress, "guest")
        files = store.plan(pins.GUEST_PACKAGES, suite, suites.guest_without(suite))
        debs = store.fetch(files, "guest system")
        merge_folders(place)
        unpack(debs, place, progress, "unpacking the guest system")
        _unpack_tests(place)
        compile_python(place, place, progress)
        store.clear()

    return cache.obtain("guest-root", guest_root_place(cache, suite).name, build, progress)


def merge_folders(root: Path) -> None:
    """Make the links that a merged system has, so that what a package has in /bin comes into /usr/bin."""
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")


def python_of(root: Path) -> str:
    """The program of Python in an unpacked root, as a name below it; `ImageError` if there is none."""
    found = sorted(path.relative_to(root).as_posix() for path in root.glob("usr/bin/python3.[0-9]*[0-9]"))
    if not found:
        raise ImageError(f"no Python is in {root}", "remove the folder and run again")
    return found[-1]


def loader(root: Path, program: str, argv0: str | None = None) -> list[str]:
    """Command prefix that runs a program of an unpacked root by that root's own loader and libraries."""
    libraries = root / LIBRARIES
    prefix = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)]
    if argv0:
        prefix += ["--argv0", argv0]
    return [*prefix, str(root / program)]


def compile_python(base: Path, root: Path, progress: Progress) -> None:
    """Compile the Python files below `root` with the Python of `base`: an emulated processor would need seconds for it
    at every boot."""
    places = (*root.glob("usr/lib/python3.[0-9]*"), root / "usr/lib/python3/dist-packages", root / TESTS)
    folders = [place for place in places if place.is_dir()]
    if not folders:
        return
    python = python_of(base)
    progress.step("compiling the guest's Python files")
    done = subprocess.run(
        [
            *loader(base, python),
            *("-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"),
            *("-s", str(root), "-p", "/", "-x", "lib2to3|idlelib|pydoc_data|turtledemo|/test/|bad_syntax"),
            *map(str, folders),
        ],
        env={"PYTHONHOME": str(base / "usr"), "PATH": os.environ.get("PATH", "")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        raise ImageError(f"the guest's Python cannot compile its files:\n{done.stdout[-800:]}{done.stderr[-800:]}")


def _unpack_tests(root: Path) -> None:
    for packed in (root / TESTS).glob("*.py.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
