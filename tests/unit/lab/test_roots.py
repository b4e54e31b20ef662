"""A folder of the host that guests shall have for their root: what is told before anything boots."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from vhca.lab import GuestConfig, Lab, LabError, roots
from vhca.lab.elf import program_head
from vhca.lab.errors import ImageError

LOADER = "/lib64/ld-linux-x86-64.so.2"


def program(machine: int = 62, loader: str = LOADER, bits: int = 64) -> bytes:
    """The head of an ELF program with one segment that names its loader, if it has one."""
    name = loader.encode() + b"\0" if loader else b""
    head = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9) + struct.pack("<HHIQQQ", 3, machine, 1, 0, 64, 0)
    head += struct.pack("<IHHHHHH", 0, 64, 56, 1 if loader else 0, 64, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(name), len(name), 1) + name


def tree(folder: Path, shell: bytes, *, loader: bool = True) -> Path:
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/lib64").mkdir()
    (folder / "bin").symlink_to("usr/bin")
    (folder / "lib64").symlink_to("/usr/lib64")  # absolute: of the folder, not of the host
    (folder / "usr/bin/dash").write_bytes(shell)
    (folder / "usr/bin/sh").symlink_to("dash")
    if loader:
        (folder / "usr/lib64/ld-linux-x86-64.so.2").touch()
    return folder


def test_a_tree_with_a_shell_and_its_loader_is_taken(tmp_path: Path) -> None:
    folder = tree(tmp_path / "root", program())
    (tmp_path / "link").symlink_to("root")
    assert roots.checked(tmp_path / "link") == folder
    assert roots.checked(None) is None
    assert roots.checked("/") == Path("/")


def test_a_static_shell_needs_no_loader(tmp_path: Path) -> None:
    folder = tree(tmp_path / "root", program(loader=""), loader=False)
    assert roots.checked(folder) == folder


@pytest.mark.parametrize(
    ("shell", "why"),
    [
        (program(machine=183), "bin/sh is for aarch64, 64 bits"),
        (program(machine=3, bits=32), "bin/sh is for i386, 32 bits"),
        (program(machine=9999), "machine 9999"),
        (b"#!/bin/bash\n", "bin/sh is no program"),
        (b"\x7fELF", "bin/sh is no program"),
    ],
)
def test_a_shell_that_a_guest_cannot_run_is_told(tmp_path: Path, shell: bytes, why: str) -> None:
    with pytest.raises(ImageError, match=why):
        roots.checked(tree(tmp_path / "root", shell))


def test_a_missing_loader_is_told(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=f"bin/sh needs {LOADER}, which is not there"):
        roots.checked(tree(tmp_path / "root", program(), loader=False))


def test_what_is_no_root_at_all_is_told_with_what_may_be(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="there is no folder"):
        roots.checked(tmp_path / "absent")
    (tmp_path / "image.tar").touch()
    with pytest.raises(ImageError, match="is a file, not a folder"):
        roots.checked(tmp_path / "image.tar")
    (tmp_path / "bundle/rootfs").mkdir(parents=True)
    with pytest.raises(ImageError, match=r"has no shell.*\n.*bundle/rootfs may be the one"):
        roots.checked(tmp_path / "bundle")


def test_links_do_not_lead_out_of_a_root_and_end(tmp_path: Path) -> None:
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "sh").write_bytes(program(loader=""))
    for target in ("../../sh", "/../../sh", str(tmp_path / "sh"), "sh"):
        (tmp_path / "root/bin/sh").unlink(missing_ok=True)
        (tmp_path / "root/bin/sh").symlink_to(target)
        with pytest.raises(ImageError, match="has no shell"):
            roots.checked(tmp_path / "root")


def test_a_head_of_anything_ends(tmp_path: Path) -> None:
    path = tmp_path / "program"
    whole = program()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        program_head(path)
    path.write_bytes(whole[:0x20] + b"\xff" * 40)
    head = program_head(path)
    assert head is not None
    assert head.loader == ""


def test_packages_cannot_be_added_to_a_root(tmp_path: Path) -> None:
    guest = GuestConfig(root=tree(tmp_path / "root", program()))
    with pytest.raises(LabError, match="takes its place"):
        Lab(guest=guest, extra_packages=["gdb"])
    with pytest.raises(LabError, match="takes its place"):
        Lab(guest=guest, suite="forky")
