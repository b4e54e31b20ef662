"""Private files: folders and logs that only their owner can enter, write or swap.

What a card logs tells keys and addresses of its guest's memory, and sockets are the way to that memory. Assumes POSIX
permissions. Guarantees: a folder that another user owns or may write to is refused, with what to do about it; a log
never follows a link, never goes on in a file that was there before, and can be read by its owner alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class UnsafeFolder(Exception):
    """A folder that others could reach into; the text says why, `remedy` what to do about it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}\n  -> {remedy}")
        self.what = what
        self.remedy = remedy


def own_folder(path: Path) -> Path:
    """Make `path` if it is not there (mode 0700), see that it is safe, and return it without links in it.

    :raises UnsafeFolder: it is no folder, belongs to somebody else, or others may write to it or replace it.
    :raises OSError: it cannot be made.
    """
    path = Path(os.path.realpath(path))
    # With the mode told, whatever the umask is; parents are ordinary folders.
    for parent in reversed(path.parents):
        _make(parent, 0o755)
    _make(path, 0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeFolder(f"{path} is no folder", "name another folder")
    if status.st_uid != os.geteuid():
        raise UnsafeFolder(
            f"{path} belongs to user {status.st_uid}, who could replace what is written there", "name a folder of yours"
        )
    if status.st_mode & _OTHERS_WRITE:
        raise UnsafeFolder(
            f"other users may write to {path} (mode {stat.S_IMODE(status.st_mode):04o})",
            f"name another folder, or take that right away: chmod go-w {path}",
        )
    for parent in path.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UnsafeFolder(
                f"{path} lies in {parent}, where anybody may replace it", f"name another folder, or chmod o-w {parent}"
            )
    return path


def _make(path: Path, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)


def create_private(path: Path) -> int:
    """Make a new file that its owner alone may read, in place of any that was there, and open it for writing.

    A link at `path` is replaced, never followed. Returns the descriptor, which appends and is not inherited.

    :raises OSError: it cannot be made, for example because `path` is a folder.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


class PrivateLog(RotatingFileHandler):
    """A log in a file of our own, with one older part (`NAME.1`) beside it.

    A line that cannot be written, because the disk is full, is counted in :attr:`lost` and is no other trouble; of the
    first one our own log tells.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.lost = 0
        super().__init__(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8", errors="backslashreplace")
        self.setFormatter(logging.Formatter("%(message)s"))

    def _open(self) -> TextIOWrapper:
        return os.fdopen(create_private(Path(self.baseFilename)), "w", encoding=self.encoding, errors=self.errors)

    def handleError(self, record: logging.LogRecord) -> None:
        """Count the line, and say so once; see :class:`logging.Handler`."""
        self.lost += 1
        if self.lost == 1:
            log.error("%s loses lines: %s", self.baseFilename, sys.exc_info()[1])

    def close(self) -> None:
        """Close the file; what the disk does not take at its end is lost like the lines before."""
        try:
            super().close()
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                log.error("%s loses lines: %s", self.baseFilename, error)
