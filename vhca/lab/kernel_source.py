"""Sources of kernels: a tree of one's own, or Debian's package `linux-source-X.Y`, and in which state they are.

Guarantees: nothing is written into a tree; two trees of the same `state` give the same kernel, as far as their text
decides it.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import KernelError, PackageError
from vhca.lab.packages import SUITES, PackageFile, PackageStore, PoolFile, unpack

_PACKAGE: Final = re.compile(r"linux-source-\d+\.\d+")
_RECIPE: Final = "1"  # part of the key of what is unpacked
_UNPACK_TIMEOUT_S: Final = 900
_GIT_TIMEOUT_S: Final = 120
_NOT_OF_IT: Final = frozenset([".git"])


@dataclass(slots=True, frozen=True)
class Source:
    """A kernel's source.

    :ivar label: what kernels made of it are called.
    :ivar tree: its folder.
    :ivar state: a digest that changes with what is in it.
    :ivar own: is it somebody's, who may change it at any time?
    """

    label: str
    tree: Path
    state: str
    own: bool

    def check(self) -> None:
        """Raise :class:`KernelError` if it is not in that state any more."""
        if self.own and tree_state(self.tree) != self.state:
            raise KernelError(f"{self.tree} was changed while it was built", "build it again: it takes what changed")


def is_package(spec: str) -> bool:
    """Does this name a package of Debian's, not a folder?"""
    return _PACKAGE.fullmatch(spec) is not None


def find_source(spec: str | Path, cache: Cache, progress: Progress) -> Source:
    """The source that `spec` names: a folder, or `linux-source-X.Y`, fetched and unpacked into the cache.

    :raises KernelError: there is no such thing.
    """
    path = Path(spec).expanduser()
    if path.is_dir():
        tree = path.resolve()
        if lacks := [
            name for name in ("Makefile", "Kconfig", "arch/x86", "scripts/kconfig") if not (tree / name).exists()
        ]:
            raise KernelError(
                f"{path} is no tree of a kernel: it has no {lacks[0]}", "name the top of a kernel's source"
            )
        progress.step(f"looking at the state of {path}")
        return Source(_label(tree.name), tree, tree_state(tree), True)
    if not is_package(str(spec)):
        raise KernelError(
            f"source {str(spec)!r}: no such folder, and no package linux-source-X.Y",
            "give the folder of a kernel's source, or linux-source-6.19",
        )
    return _packaged(str(spec), cache, progress)


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_]+", "-", name).strip("-.") or "linux"


# ---- packages ----


def _packaged(name: str, cache: Cache, progress: Progress) -> Source:
    pinned = pins.KERNEL_SOURCES.get(name)
    store, file = (None, pinned) if pinned is not None else _listed(name, cache, progress)
    state = hashlib.sha256(f"{_RECIPE} {file.sha256}".encode()).hexdigest()

    def build(place: Path) -> None:
        nonlocal store
        store = store or PackageStore(cache, progress, "kernel-source")
        if isinstance(file, PoolFile):
            debs = store.fetch_pool([file], name)
        else:
            debs = store.fetch([file], name)
        package = place.with_name("package")
        unpack(debs, package, progress, f"unpacking {name}")
        _unpack_archive(package, place, progress)
        store.clear()

    return Source(name, cache.obtain("kernel-source", f"{name}-{state[:12]}", build, progress), state, False)


def _listed(name: str, cache: Cache, progress: Progress) -> tuple[PackageStore, PackageFile]:
    for suites in (SUITES, *((suite,) for suite in pins.OTHER_KERNEL_SUITES)):
        store = PackageStore(cache, progress, "kernel-source", suites, late=suites != SUITES)
        try:
            if name in store.candidates([name]):
                return store, store.plan_alone([name])[0]
        except PackageError:
            if suites == SUITES:
                raise
    raise KernelError(f"the mirror has no package {name}", "take the source of another version, or give a tree")


def _unpack_archive(package: Path, place: Path, progress: Progress) -> None:
    archives = list((package / "usr/src").glob("linux-source-*.tar.xz"))
    if len(archives) != 1:
        raise PackageError("the source package does not hold one archive of the source")
    progress.step("unpacking the kernel's source (1.7 GB)")
    place.mkdir()
    done = subprocess.run(
        ["tar", "-xJf", str(archives[0]), "-C", str(place), "--strip-components=1", "--no-same-owner"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_UNPACK_TIMEOUT_S,
    )
    if done.returncode:
        raise PackageError(f"the source cannot be unpacked: {done.stderr.strip()[-500:]}", "is xz installed?")


# ---- the state of a tree ----


def tree_state(tree: Path) -> str:
    """A digest of what is in a tree: its commit and what was changed since; without git sizes and times of files."""
    digest = hashlib.sha256()
    for part in _git_state(tree) if (tree / ".git").exists() else _file_state(tree):
        digest.update(part)
    return digest.hexdigest()


def _git_state(tree: Path) -> Iterator[bytes]:
    yield _git(tree, "rev-parse", "HEAD")
    yield _git(tree, "diff", "--binary", "--no-ext-diff", "--no-textconv", "HEAD")
    for name in sorted(_git(tree, "ls-files", "-z", "--others", "--exclude-standard").split(b"\0")):
        if name:
            path = tree / os.fsdecode(name)
            yield name + b"\0"
            yield b"link" if path.is_symlink() or not path.is_file() else hashlib.sha256(path.read_bytes()).digest()


def _git(tree: Path, *words: str) -> bytes:
    command = ["git", "-C", str(tree), "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"git cannot say in which state {tree} is: {error}", "install git") from error
    if done.returncode:
        words_of_git = done.stderr.decode("utf-8", "replace").strip()
        raise KernelError(f"git cannot say in which state {tree} is: {words_of_git}", "make `git status` work there")
    return done.stdout


def _file_state(tree: Path) -> Iterator[bytes]:
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(name for name in folders if name not in _NOT_OF_IT)
        for name in sorted(files):
            path = Path(folder, name)
            status = path.lstat()
            yield os.fsencode(f"{path.relative_to(tree)} {status.st_mode} {status.st_size} {status.st_mtime_ns}\n")
