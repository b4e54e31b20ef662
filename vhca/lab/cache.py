"""The cache: one folder with everything that is fetched or built once.

Assumes a POSIX file system with `flock` and an atomic `rename`. Guarantees: an entry that exists is
complete (it is built beside its place and renamed into it); two processes that want the same entry build
it once; a build that dies leaves only a `.tmp-` folder that the next build of that entry removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from vhca.folders import default_root
from vhca.lab.errors import LabError, printable


class Progress:
    """Says what the lab is doing. On a terminal a line is redrawn; elsewhere plain lines are printed."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._tty = self._stream.isatty()
        self._started_s = time.monotonic()
        self._open_line = False
        self._last_draw_s = 0.0
        self._quarters: dict[str, int] = {}

    def say(self, text: str) -> None:
        """Print one whole line."""
        if not self._quiet:
            self.insist(text)

    def insist(self, text: str) -> None:
        """Print one whole line, even if quiet: without it something could not be found again."""
        self._close_line()
        print(printable(text), file=self._stream, flush=True)

    def step(self, text: str) -> None:
        """Announce a step that is about to start."""
        self.say(f"[{time.monotonic() - self._started_s:6.1f} s] {text}")

    def bar(self, label: str, done: int, total: int) -> None:
        """Show how far a counted job is. Without a terminal only quarters are printed."""
        if self._quiet or total <= 0:
            return
        done = min(done, total)
        if not self._tty:
            quarter = 4 * done // total
            if quarter > self._quarters.get(label, 0):
                print(f"           {label}: {25 * quarter} %", file=self._stream, flush=True)
            self._quarters[label] = quarter % 4  # at its end a job may start again
            return
        now_s = time.monotonic()
        if done < total and now_s - self._last_draw_s < 0.05:
            return
        self._last_draw_s = now_s
        filled = 30 * done // total
        self._stream.write(f"\r{label:<32.32} [{'#' * filled}{'.' * (30 - filled)}] {100 * done // total:3d} %")
        self._stream.flush()
        self._open_line = True
        if done >= total:
            self._close_line()

    def _close_line(self) -> None:
        if self._open_line:
            self._stream.write("\n")
            self._open_line = False


class Cache:
    """A folder of finished entries, safe to share between processes."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else default_root()

    def path(self, *parts: str) -> Path:
        """The place of an entry, whether it exists or not."""
        return self.root.joinpath(*parts)

    def folder(self, *parts: str) -> Path:
        """A working folder inside the cache, made if needed."""
        path = self.path(*parts)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(
                f"cannot write the cache folder {path}: {error}",
                "set VHCA_CACHE to a folder of yours with 2 GB free",
            ) from error
        return path

    @contextlib.contextmanager
    def lock(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the named lock; `waiting` is called once if another process holds it now."""
        path = self.folder("locks") / f"{name}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None:
                    waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def obtain(
        self,
        kind: str,
        key: str,
        build: Callable[[Path], None],
        progress: Progress | None = None,
        sound: Callable[[Path], bool] | None = None,
    ) -> Path:
        """Return the entry `kind/key`; if it is missing, `build` makes it at the path it is given.

        The path given to `build` does not exist yet; it may make a file or a folder there. An entry that is there
        but not `sound` is made again, and that is said.
        """
        place = self.path(kind, key)

        def usable() -> bool:
            return place.exists() and (sound is None or sound(place))

        if usable():
            with contextlib.suppress(OSError):
                os.utime(place)  # pruning goes by the time of last use
            return place

        def waiting() -> None:
            if progress is not None:
                progress.step(f"another run is preparing {kind}; waiting for it")

        with self.lock(f"{kind}-{key}", waiting):
            if usable():
                return place
            if place.exists():
                if progress is not None:
                    progress.say(f"  {place} is damaged; it is made again")
                remove(place)
            parent = self.folder(kind)
            for leftover in parent.glob(f".tmp-{key}-*"):
                remove(leftover)
            workspace = Path(tempfile.mkdtemp(prefix=f".tmp-{key}-", dir=parent))
            try:
                build(workspace / "entry")
                os.rename(workspace / "entry", place)
            except OSError as error:
                if isinstance(error, LabError):
                    raise
                raise LabError(f"cannot build {place}: {error}", space_remedy(parent)) from error
            finally:
                remove(workspace)
        return place

    def prune(self, kind: str, keep: int) -> None:
        """Remove the entries of `kind` that were used longest ago, but for the `keep` newest."""
        with contextlib.suppress(OSError):
            entries = [p for p in self.path(kind).iterdir() if not p.name.startswith(".")]
            entries.sort(key=lambda p: p.stat().st_mtime, reverse=True)
            for old in entries[keep:]:
                remove(old)


def remove(path: Path) -> None:
    """Remove a file or a tree; a path that is not there, or is in use, is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def space_remedy(path: Path) -> str:
    """What to do about a disk that is, or may be, full."""
    return (
        f"free some space: {free_bytes(path) / 1e6:.0f} MB are free for {path};"
        " or set VHCA_CACHE to a folder on another disk"
    )


def free_bytes(path: Path) -> int:
    """Free space, in bytes, of the file system that `path` is or will be on."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
