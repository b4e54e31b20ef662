"""Kept files: what guests changed in their root, in one disk image for each guest, from one run to the next.

An image is the upper layer of an overlay whose lower one is what the guest boots from, so it holds what differs from
that. Guarantees: an image takes 4 GiB at most, and no more of the disk than is in it; a name is one run's at a time;
the cache's pruning leaves kept files alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vhca.lab.cache import Cache, remove
from vhca.lab.errors import LabError

MODULES: Final = ("overlay", "virtio_blk", "ext4")
"""What the guest's kernel needs for it."""
IMAGE_BYTES: Final = 4 << 30
"""What an image of one guest can hold, with its file system's own structures."""
_KIND: Final = "kept"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LOCK, _OVER = "lock", "over"
_BLOCK_BYTES: Final = 512  # of st_blocks


def checked(name: str | None) -> str | None:
    """The name of kept files; `LabError` if it cannot be one."""
    if name is not None and not _NAME.fullmatch(name):
        raise LabError(f"{name!r} is no name for kept files", "take letters, digits, dots and dashes, 64 at most")
    return name


class Kept:
    """The images of one name, held for as long as this object is open."""

    def __init__(self, name: str, folder: Path, descriptor: int) -> None:
        self.name = name
        self.folder = folder
        self._descriptor = descriptor

    def image(self, guest: str) -> Path:
        """The disk image of a guest, made if it is not there.

        :raises LabError: the host cannot make one.
        """
        place = self.folder / f"{guest}.img"
        if place.exists():
            return place
        program = shutil.which("mke2fs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if program is None:
            raise LabError("files cannot be kept: this host has no mke2fs", "install the package e2fsprogs")
        beside = place.with_suffix(".new")
        remove(beside)
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.truncate(IMAGE_BYTES)
        done = subprocess.run(
            [program, "-q", "-F", "-t", "ext4", "-m", "0", str(beside)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            remove(beside)
            raise LabError(f"mke2fs cannot make {place}: {done.stderr.strip()}", "free some space")
        os.rename(beside, place)
        return place

    def close(self) -> None:
        """Let others have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def claim(cache: Cache, name: str, over: str) -> Kept:
    """Hold the files that are kept under this name; `over` says what they lie over: a root, or a suite.

    :raises LabError: another run has them, or they were kept over something else.
    """
    checked(name)
    folder = cache.folder(_KIND, name)
    folder.chmod(0o700)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
            raise LabError(
                f"the files kept as {name} are in use, by process {holder or '?'}", "wait for it, or take another name"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        note = folder / _OVER
        before = note.read_text().strip() if note.exists() else over
        if before != over:
            raise LabError(
                f"the files kept as {name} lie over {before}, not over {over}",
                f"take another name, or remove them: vhca guest kept --remove {name}",
            )
        note.write_text(over + "\n")
    except BaseException:
        os.close(descriptor)
        raise
    return Kept(name, folder, descriptor)


@dataclass(slots=True, frozen=True)
class Entry:
    """One name: what its files lie over, the guests that have some, what they take of the disk, who uses them."""

    name: str
    over: str
    guests: Sequence[str]
    size_bytes: int
    in_use: bool


def entries(cache: Cache) -> list[Entry]:
    """All names under which files are kept."""
    place = cache.path(_KIND)
    return [_entry(folder) for folder in sorted(place.iterdir())] if place.is_dir() else []


def _entry(folder: Path) -> Entry:
    over, in_use = "?", False
    with contextlib.suppress(OSError):
        over = (folder / _OVER).read_text().strip()
    with contextlib.suppress(OSError), (folder / _LOCK).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            in_use = True
    images = sorted(folder.glob("*.img"))
    size = sum(image.stat().st_blocks * _BLOCK_BYTES for image in images)
    return Entry(folder.name, over, [image.stem for image in images], size, in_use)


def discard(cache: Cache, name: str) -> None:
    """Remove what is kept under this name.

    :raises LabError: there is nothing, or a run has it.
    """
    known = {entry.name: entry for entry in entries(cache)}
    if name not in known:
        raise LabError(f"nothing is kept as {name}", f"there is {', '.join(known) or 'nothing at all'}")
    held = claim(cache, name, known[name].over)
    try:
        remove(held.folder)
    finally:
        held.close()
