"""What a guest has beside the usual: Debian packages by name, as an archive to put behind the base.

Assumes the guest's own packages, whose libraries the others use. Guarantees: nothing of the base is replaced but
busybox's small programs; a program whose libraries are not there is an error when the image is built, not when it is
run; nothing of a package is run, so what its installation scripts would have made is not there.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from vhca.lab import pins, sets, suites
from vhca.lab.cache import Cache, Progress
from vhca.lab.cpio import CpioWriter
from vhca.lab.elf import needed_libraries
from vhca.lab.errors import ImageError, PackageError
from vhca.lab.guest_system import LIBRARIES, MERGED, compile_python, guest_root, merge_folders
from vhca.lab.image import base_names, is_whole, skipped
from vhca.lab.packages import UNPACKED, PackageStore, unpack

_RECIPE: Final = "2"  # part of the key: raise it when the code below makes something else of the packages
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")
_NAMES_MAX: Final = 100
_NO_USE: Final = tuple(
    f"usr/share/{folder}/"
    for folder in (
        "applications",
        "bash-completion",
        "bug",
        "doc",
        "doc-base",
        "icons",
        "info",
        "lintian",
        "locale",
        "man",
    )
)
_UNSUITABLE: Final = (".a", ".la", ".pyi")
_LOADER: Final = "ld-linux-x86-64.so.2"
_PROGRAMS: Final = ("usr/bin/", "usr/sbin/")


def checked(names: Iterable[str]) -> list[str]:
    """The names, sorted, each once. `PackageError` for one that no package has: apt would read it as something else."""
    wanted = sorted(set(names))
    for name in wanted:
        if not _NAME.fullmatch(name):
            raise PackageError(f"{name!r} is not the name of a package", "give a name alone, such as nvme-cli")
    if len(wanted) > _NAMES_MAX:
        raise PackageError(f"{len(wanted)} packages are too many for a guest", f"give {_NAMES_MAX} at most")
    return wanted


def packages_archive(names: Sequence[str], cache: Cache, progress: Progress, suite: str = pins.GUEST_SUITE) -> Path:
    """The cpio archive with what these packages, and those that they depend on, have beyond the base of this suite.

    `names` may have those of sets. Raises :class:`PackageError` if one cannot be had, :class:`ImageError` if a program
    lacks a library.
    """
    wanted = checked(sets.packages_of(names))
    base = guest_root(cache, progress, suite)
    brought = sets.brought_by(names)
    without = sorted(
        name for name in suites.extra_without(suite) if name not in wanted and not name.startswith(brought)
    )
    recipe = repr((_RECIPE, UNPACKED, base.name, suite, wanted, without))
    key = hashlib.sha256(recipe.encode()).hexdigest()[:16] + ".cpio"

    def build(place: Path) -> None:
        with tempfile.TemporaryDirectory(dir=cache.folder("tmp")) as folder:
            root = Path(folder, "root")
            _fetch(wanted, without, root, suites.store_of(suite, cache, progress, "extra"), suite)
            compile_python(base, root, progress)
            with place.open("wb") as stream:
                archive = CpioWriter(stream)
                for name, path in sorted(wanted_files(root, base).items()):
                    _add(archive, name, path)
                archive.close()

    return cache.obtain("image-packages", key, build, progress, is_whole)


def _fetch(names: Sequence[str], without: Sequence[str], root: Path, store: PackageStore, suite: str) -> None:
    there = {file.name for file in store.plan(pins.GUEST_PACKAGES, suite, suites.guest_without(suite))}
    files = [file for file in store.plan(names, suite, without) if file.name not in there]
    merge_folders(root)
    if files:
        unpack(store.fetch(files, f"packages {' '.join(names)}"), root, store.progress, "unpacking packages")
    store.clear()


def _add(archive: CpioWriter, name: str, path: Path) -> None:
    if path.is_symlink():
        archive.symlink(name, os.readlink(path))
    elif path.is_dir():
        archive.directory(name)
    else:
        archive.file(name, path.read_bytes(), stat.S_IMODE(path.stat().st_mode))


def wanted_files(root: Path, base: Path) -> dict[str, Path]:
    """Of the packages unpacked at `root`, what a guest gets beyond the base; of those at `base`, the libraries that
    this needs and the base went without. Name in the guest -> file.

    A library whose own libraries are not there (those of graphics processors, mostly) is left out, and with it what
    needs it; :class:`ImageError` if that is a program.
    """
    present = base_names(base)
    files = {name: path for name, path in _files(root) if name not in present}
    spare = {path.name: path for path in (base / LIBRARIES).glob("*.so*")}
    known = {Path(name).name for name in present if ".so" in name} | {_LOADER}
    needs = {name: set(needed_libraries(path) or ()) for name, path in files.items() if path.is_file()}
    while True:
        own = {Path(name).name for name in files} | known
        lacking = {name: lacks for name, asked in needs.items() if (lacks := sorted(asked - own))}
        if not lacking:
            return files
        if spared := spare.keys() & {library for lacks in lacking.values() for library in lacks}:
            for library in spared:
                name = f"{LIBRARIES}/{library}"
                files[name] = spare[library].resolve()
                needs[name] = set(needed_libraries(files[name]) or ())
            continue
        for name, lacks in lacking.items():
            if name.startswith(_PROGRAMS):
                raise ImageError(
                    f"{name} needs {', '.join(lacks)}, which no package that was asked for has",
                    "ask for the package that has it, too",
                )
            files.pop(name, None)
            del needs[name]
            _remove_links(files, name)


def _remove_links(files: dict[str, Path], target: str) -> None:
    """Take out the links that lead to what was taken out."""
    for name, path in list(files.items()):
        if path.is_symlink() and os.path.normpath(os.path.join(os.path.dirname(name), os.readlink(path))) == target:
            del files[name]


def _files(root: Path) -> Iterable[tuple[str, Path]]:
    """What of the packages a guest has use for, by its name there; also folders that are empty: daemons want theirs."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        entries = names + [name for name in folders if Path(folder, name).is_symlink()]
        if not entries and not folders:
            entries = [""]
        for entry in sorted(entries):
            path = Path(folder, entry)
            name = path.relative_to(root).as_posix()
            if name == "." or name.removeprefix("usr/") in MERGED:
                continue  # the base has these links and folders
            if not skipped(f"{name}/") and not f"{name}/".startswith(_NO_USE) and not name.endswith(_UNSUITABLE):
                yield name, path
