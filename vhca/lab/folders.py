"""The folders of a lab: where its sockets, its logs and what it shares with guests are."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from vhca.lab.errors import LabError
from vhca.private_files import UnsafeFolder, own_folder

_LOGS: Final = "vhca-lab-"
_LOGS_KEPT: Final = 10
_SOCKET_FOLDER_MAX: Final = 50  # of the 107 bytes that the kernel takes for a socket's path


def for_sockets() -> Path:
    """A new private folder with a short name, whatever the folder for temporary files is called."""
    short = len(tempfile.gettempdir()) <= _SOCKET_FOLDER_MAX
    parent = Path(tempfile.gettempdir() if short else "/tmp")
    _remove_leftovers(parent)
    return Path(tempfile.mkdtemp(prefix=f"vhca-{os.getpid()}-", dir=parent))


def for_new_logs() -> Path:
    """A new private folder for the logs of one run; of those that earlier runs left, the newest ten stay."""
    parent = Path(tempfile.gettempdir())
    _prune_logs(parent)
    return Path(tempfile.mkdtemp(prefix=f"{_LOGS}{os.getpid()}-", dir=parent))


def _prune_logs(parent: Path) -> None:
    """Remove the oldest folders of ours that no running process of that number has."""
    ended: list[tuple[float, Path]] = []
    for folder in parent.glob(f"{_LOGS}[0-9]*-*"):
        pid = folder.name.removeprefix(_LOGS).split("-")[0]
        with contextlib.suppress(OSError):
            status = folder.lstat()
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if ours and pid.isdigit() and not Path("/proc", pid).exists():
                ended.append((status.st_mtime, folder))
    for _, folder in sorted(ended, reverse=True)[_LOGS_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(parent: Path) -> None:
    """Remove the socket folders of programs that were killed outright; their process numbers are in the names."""
    for folder in parent.glob("vhca-[0-9]*-*"):
        pid = folder.name.split("-")[1]
        with contextlib.suppress(OSError):
            if pid.isdigit() and not Path("/proc", pid).exists() and folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def for_logs(wanted: Path) -> Path:
    """The folder, made if it is not there; `LabError` if others could read or swap what is written there."""
    try:
        return own_folder(wanted.expanduser())
    except UnsafeFolder as error:
        raise LabError(error.what, error.remedy) from error
    except OSError as error:
        raise LabError(f"cannot make the folder {wanted}: {error.strerror}", "name a folder of yours") from error


def to_share(share: str | Path | None) -> Path | None:
    """The folder that guests shall see, without links in its path; `LabError` if it is not there."""
    if share is None:
        return None
    folder = Path(share).expanduser().resolve()
    if not folder.is_dir():
        raise LabError(f"the folder to share, {folder}, is not there", "give an existing folder")
    return folder
