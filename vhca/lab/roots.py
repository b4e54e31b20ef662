"""A guest's root: a folder of the host that takes the place of the guest's own system, looked at before anything boots.

The guest sees it by 9p, read-only, below an overlay that holds what the guest changes. Nothing of the folder is run on
the host: of its shell, the head is read, along links that do not lead out of the folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from vhca.lab.elf import ProgramHead, program_head
from vhca.lab.errors import ImageError

MODULES: Final = ("overlay", "9pnet_virtio", "9p")
"""What the guest's kernel needs for it."""
_SHELLS: Final = ("bin/sh", "usr/bin/sh")
_LINKS_MAX: Final = 40
_X86_64: Final = 62
_MACHINES: Final = {
    2: "sparc",
    3: "i386",
    8: "mips",
    20: "powerpc",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    _X86_64: "x86-64",
    183: "aarch64",
    243: "riscv",
    258: "loongarch",
}
_FORMS: Final = "a tree that debootstrap made, an unpacked image of a container, or /"


def checked(root: str | Path | None) -> Path | None:
    """The folder without links in its path; `ImageError` if no guest could run programs of it."""
    if root is None:
        return None
    folder = Path(root).expanduser().resolve()
    if folder.is_file():
        raise ImageError(f"root {folder} is a file, not a folder", f"unpack it and give the folder: {_FORMS}")
    if not folder.is_dir():
        raise ImageError(f"there is no folder {folder} that could be a root", f"give {_FORMS}")
    shell = next((name for name in _SHELLS if _place(folder, name) is not None), None)
    if shell is None:
        remedy = f"give {_FORMS}"
        if (folder / "rootfs").is_dir():
            remedy = f"the folder {folder / 'rootfs'} may be the one"
        raise ImageError(f"root {folder} has no shell: {' and '.join(_SHELLS)} are not there", remedy)
    _check_program(folder, shell, _head(folder, shell))
    return folder


def _check_program(folder: Path, name: str, head: ProgramHead) -> None:
    if (head.bits, head.machine) != (64, _X86_64):
        machine = _MACHINES.get(head.machine, f"machine {head.machine}")
        raise ImageError(
            f"root {folder} is not for x86-64: {name} is for {machine}, {head.bits} bits", "guests are x86-64"
        )
    if head.loader and _place(folder, head.loader) is None:
        raise ImageError(
            f"root {folder} is not whole: {name} needs {head.loader}, which is not there",
            "complete it (in Debian it is of libc6); absolute links in it are read as if it were /",
        )


def _head(folder: Path, name: str) -> ProgramHead:
    place = _place(folder, name)
    assert place is not None
    try:
        head = program_head(place)
    except OSError as error:
        raise ImageError(f"{place} cannot be read: {error.strerror}", "let your user read the folder") from error
    if head is None:
        raise ImageError(f"root {folder}: {name} is no program", f"give {_FORMS}")
    return head


def _place(folder: Path, name: str) -> Path | None:
    """The file that a program with `folder` for its root would find by that name; `None` if there is none."""
    parts, at, links = [part for part in name.split("/") if part][::-1], folder, 0
    while parts:
        part = parts.pop()
        if part == "..":
            at = at.parent if at != folder else folder
            continue
        try:
            status = os.lstat(at / part)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _LINKS_MAX:
                    return None
                target = os.readlink(at / part)
                at = folder if target.startswith("/") else at
                parts += [piece for piece in target.split("/") if piece not in ("", ".")][::-1]
                continue
        except OSError:
            return None
        at /= part
    return at if at.is_file() else None
