"""Which kernels can be taken out of their bzImage, and what is said of those that cannot."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.lab import vmlinux
from vhca.lab.cache import Cache, Progress
from vhca.lab.elf import notes
from vhca.lab.errors import ImageError
from vhca.lab.guest_system import guest_root_place
from vhca.lab.kernels import Kernel

SETUP_SECTORS = 3
PAYLOAD_OFFSET = 0x40


def elf(owner: bytes = b"Xen\0", kind: int = 18) -> bytes:
    """A kernel of one note and some text."""
    note = struct.pack("<III", len(owner), 4, kind) + owner + b"\0" * (-len(owner) % 4) + bytes(4)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4)
    return head + segment + note + b"text" * 2000


def bzimage(packed: bytes, version: int = 0x20F) -> bytes:
    """A bzImage with this payload."""
    image = bytearray((SETUP_SECTORS + 1) * 512 + PAYLOAD_OFFSET)
    image[0x1F1] = SETUP_SECTORS
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", image, 0x206, version)
    struct.pack_into("<II", image, 0x248, PAYLOAD_OFFSET, len(packed))
    return bytes(image) + packed + b"signature"


def sized(packed: bytes, content: bytes) -> bytes:
    return packed + struct.pack("<I", len(content))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lambda content: sized(lzma.compress(content), content),
    "lzma": lambda content: sized(lzma.compress(content, lzma.FORMAT_ALONE), content),
    "bzip2": lambda content: sized(bz2.compress(content), content),
    "nothing": lambda content: sized(content, content),
}


def kernel_of(path: Path) -> Kernel:
    return Kernel("6.19.0", path, {}, frozenset(), None, "id", "test")


def boot(tmp_path: Path, image: bytes) -> vmlinux.BootFile:
    path = tmp_path / "bzImage"
    path.write_bytes(image)
    return vmlinux.boot_file(kernel_of(path), Cache(tmp_path / "cache"), Progress(quiet=True))


@pytest.fixture(autouse=True)
def no_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vmlinux, "guest_root", lambda *_: tmp_path)


@pytest.mark.parametrize("packing", PACKERS)
def test_a_kernel_is_unpacked(tmp_path: Path, packing: str) -> None:
    found = boot(tmp_path, bzimage(PACKERS[packing](elf())))
    assert found.direct
    assert found.path.read_bytes().startswith(elf())
    assert "PVH" in found.how


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (bzimage(PACKERS["gzip"](elf(kind=17))), "it has no PVH entry point (CONFIG_PVH)"),
        (bzimage(PACKERS["gzip"](elf(owner=b"GNU\0"))), "it has no PVH entry point (CONFIG_PVH)"),
        (bzimage(sized(b"\x02\x21\x4c\x18rest", b"x")), "it is packed with lz4"),
        (bzimage(sized(b"\x89LZO rest", b"x")), "it is packed with lzo"),
        (bzimage(sized(b"what is that", b"x")), "it is packed with something unknown"),
        (bzimage(PACKERS["xz"](b"no ELF file")), "it holds no ELF file"),
        (bzimage(sized(b"\xfd7zXZ\0damaged", b"x")), "its xz data cannot be unpacked"),
        (bzimage(PACKERS["gzip"](elf()), version=0x0207), "its boot protocol 2.07 does not say where the kernel is"),
        (bzimage(PACKERS["gzip"](elf()))[:-500], "it is cut short"),
        (bzimage(b""), "it is cut short"),
        (b"short", "it is no bzImage"),
        (bzimage(b"\xfd7zXZ\0" + struct.pack("<I", 0xFFFFFFFF)), "unpacked it would have 4294967295 bytes"),
    ],
)
def test_a_kernel_that_cannot_be_entered_is_booted_as_it_is_and_why_is_said(
    tmp_path: Path, image: bytes, why: str
) -> None:
    found = boot(tmp_path, image)
    assert not found.direct
    assert found.path == tmp_path / "bzImage"
    assert f"bzImage, unpacked by the guest: {why}" in found.how


def test_it_is_unpacked_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    whole = vmlinux.unpacked

    def counted(image: bytes, root: Path) -> bytes:
        calls.append(len(image))
        return whole(image, root)

    monkeypatch.setattr(vmlinux, "unpacked", counted)
    image = bzimage(PACKERS["gzip"](elf()))
    path = boot(tmp_path, image).path
    os.utime(tmp_path / "bzImage", ns=(1, 1))
    first = vmlinux.boot_file(kernel_of(tmp_path / "bzImage"), Cache(tmp_path / "cache"), Progress(quiet=True))
    again = vmlinux.boot_file(kernel_of(tmp_path / "bzImage"), Cache(tmp_path / "cache"), Progress(quiet=True))
    assert len(calls) == 2
    assert first.path == again.path != path


def test_what_was_found_before_is_known_without_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    path = tmp_path / "bzImage"
    path.write_bytes(bzimage(PACKERS["gzip"](elf())))
    assert vmlinux.known_boot_file(kernel_of(path), cache) is None
    found = boot(tmp_path, path.read_bytes())
    monkeypatch.setattr(vmlinux, "unpacked", None)
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    assert vmlinux.known_boot_file(kernel_of(path), cache) == found


@pytest.mark.parametrize("left", [0, 100])
def test_what_is_left_of_an_entry_is_made_again(tmp_path: Path, left: int) -> None:
    image = bzimage(PACKERS["gzip"](elf()))
    boot(tmp_path, image)
    os.utime(tmp_path / "bzImage", ns=(1, 1))
    kernel = kernel_of(tmp_path / "bzImage")
    cache = Cache(tmp_path / "cache")
    path = vmlinux.boot_file(kernel, cache, Progress(quiet=True)).path
    os.truncate(path, left)
    assert vmlinux.boot_file(kernel, cache, Progress(quiet=True)).path.read_bytes() == elf()


def test_zstd_needs_nothing_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    root = guest_root_place(Cache())
    if not root.exists():
        pytest.skip("the guest's packages are not in the cache: `vhca fetch`")
    # one raw block: magic, a header with the size in four bytes, a block's header with "last" and the size
    content = elf()
    packed = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(content))
    packed += ((len(content) << 3) | 1).to_bytes(3, "little") + content
    monkeypatch.setenv("PATH", "/nonexistent")
    assert vmlinux.unpacked(bzimage(sized(packed, content)), root) == content
    with pytest.raises(Exception, match="its zstd data cannot be unpacked"):
        vmlinux.unpacked(bzimage(sized(packed[:-1], content)), root)


def test_guests_python_that_does_not_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object, **_named: object) -> subprocess.CompletedProcess[bytes]:
        raise FileNotFoundError("ld-linux")

    monkeypatch.setattr(subprocess, "run", missing)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3.13").touch()
    with pytest.raises(ImageError, match="cannot be run on the host"):
        boot(tmp_path, bzimage(sized(b"\x28\xb5\x2f\xfd", b"x")))


@given(st.binary(max_size=600))
def test_notes_of_anything_end(data: bytes) -> None:
    whole = elf()
    list(notes(data))
    list(notes(whole[: len(data)]))
    list(notes(whole[:64] + data))
    assert list(notes(whole)) == [(b"Xen", 18)]


def test_a_kernel_with_kasan_unpacks_itself(tmp_path: Path) -> None:
    configuration = tmp_path / "config-6.19.0"
    configuration.write_text("CONFIG_X=y\nCONFIG_KASAN=y\n")
    found = boot(tmp_path, bzimage(PACKERS["gzip"](elf())))
    assert (found.path, found.direct) == (tmp_path / "bzImage", False)
    assert vmlinux.known_boot_file(kernel_of(tmp_path / "bzImage"), Cache(tmp_path / "cache")) == found
    configuration.write_text("CONFIG_X=y\n# CONFIG_KASAN is not set\n")
    assert boot(tmp_path, bzimage(PACKERS["gzip"](elf()))).direct
