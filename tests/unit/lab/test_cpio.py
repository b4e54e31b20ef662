"""The archive writer, checked by our reader, by the kernel's format rules and by the cpio program if there."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from vhca.lab.cache import Cache
from vhca.lab.cpio import CpioWriter, read_archive
from vhca.lab.guest_system import guest_root_place


def cpio_command() -> list[str]:
    """The host's cpio, or the guest's; empty if neither is there."""
    if program := shutil.which("cpio"):
        return [program]
    busybox = guest_root_place(Cache()) / "usr/bin/busybox"
    return [str(busybox), "cpio"] if busybox.exists() else []


CPIO = cpio_command()


def archive() -> bytes:
    stream = io.BytesIO()
    writer = CpioWriter(stream)
    writer.file("init", b"#!/bin/sh\n", 0o755)
    writer.file("usr/lib/deep/odd", b"12345")
    writer.symlink("bin", "usr/bin")
    writer.device("dev/console", 0o600, 5, 1)
    writer.directory("tmp", 0o1777)
    writer.close()
    return stream.getvalue()


def test_what_is_written_is_read() -> None:
    entries = {e.name: e for e in read_archive(archive())}
    assert entries["init"].data == b"#!/bin/sh\n"
    assert entries["init"].mode == stat.S_IFREG | 0o755
    assert entries["usr/lib/deep/odd"].data == b"12345"
    assert entries["bin"].data == b"usr/bin"
    assert stat.S_ISLNK(entries["bin"].mode)
    assert entries["dev/console"].rdev == (5, 1)
    assert stat.S_ISCHR(entries["dev/console"].mode)
    assert stat.S_IMODE(entries["tmp"].mode) == 0o1777


def test_parents_come_before_children_once() -> None:
    names = [e.name for e in read_archive(archive())]
    assert names.index("usr") < names.index("usr/lib") < names.index("usr/lib/deep") < names.index("usr/lib/deep/odd")
    assert len(names) == len(set(names))


def test_archives_can_be_put_one_behind_the_other() -> None:
    one = archive()
    assert len(one) % 512 == 0
    assert len(list(read_archive(one + one))) == 2 * len(list(read_archive(one)))


def test_header_fields_are_where_the_kernel_looks() -> None:
    data = archive()
    assert data[:6] == b"070701"
    assert int(data[14:22], 16) == stat.S_IFREG | 0o755  # mode
    assert int(data[22:30], 16) == int(data[30:38], 16) == 0  # owner
    assert int(data[54:62], 16) == len(b"#!/bin/sh\n")
    assert data[110:115] == b"init\0"
    assert data[116:126] == b"#!/bin/sh\n"


def test_a_name_is_taken_once() -> None:
    writer = CpioWriter(io.BytesIO())
    writer.file("a", b"")
    with pytest.raises(ValueError, match="already"):
        writer.file("a", b"")


@pytest.mark.parametrize("cut", [1, 100, 120, 600])
def test_a_broken_archive_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match=r"byte|cut|invalid"):
        list(read_archive(archive()[cut:] if cut == 1 else b"070701" + b"0" * 60 + archive()[:cut]))


def test_a_tree_keeps_modes_and_links(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/run").write_text("x")
    (tmp_path / "a/b/run").chmod(0o750)
    (tmp_path / "a/link").symlink_to("b/run")
    stream = io.BytesIO()
    writer = CpioWriter(stream)
    writer.tree(tmp_path, "top")
    writer.close()
    entries = {e.name: e for e in read_archive(stream.getvalue())}
    assert stat.S_IMODE(entries["top/a/b/run"].mode) == 0o750
    assert entries["top/a/link"].data == b"b/run"


@pytest.mark.skipif(not CPIO, reason="no cpio program on the host, and no busybox in the cache (vhca fetch)")
def test_the_cpio_program_agrees(tmp_path: Path) -> None:
    data = archive()
    listing = subprocess.run([*CPIO, "-t"], input=data, capture_output=True, check=True)
    assert listing.stdout.decode().split() == [e.name for e in read_archive(data)]
    if os.geteuid() == 0:
        subprocess.run([*CPIO, "-id"], input=data, cwd=tmp_path, check=True, capture_output=True)
        assert (tmp_path / "usr/lib/deep/odd").read_bytes() == b"12345"
