"""What goes into a guest image, on small fakes; and the labels that ELF files carry, on real ones."""

from __future__ import annotations

import lzma
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from vhca.lab import elf, image
from vhca.lab.cpio import CpioWriter
from vhca.lab.errors import ImageError
from vhca.lab.kernels import Kernel
from vhca.lab.module_names import check_modules


def module(**info: str) -> bytes:
    """The smallest ELF file with a `.modinfo` section."""
    text = b"".join(f"{key}={value}".encode() + b"\0" for key, value in info.items())
    names = b"\0.shstrtab\0.modinfo\0"
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    table = 64 + len(names) + len(text)
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HHH", header, 0x3A, 64, 3, 1)
    section = struct.Struct("<IIQQQQIIQQ")
    return (
        bytes(header)
        + names
        + text
        + bytes(64)
        + section.pack(1, 3, 0, 0, 64, len(names), 0, 0, 0, 0)
        + section.pack(11, 1, 0, 0, 64 + len(names), len(text), 0, 0, 0, 0)
    )


def kernel(folder: Path, modules: dict[str, bytes], builtin: frozenset[str] = frozenset()) -> Kernel:
    folder.mkdir(exist_ok=True)
    paths = {}
    for name, content in modules.items():
        path = folder / f"{name.replace('_', '-')}.ko.xz"
        path.write_bytes(lzma.compress(content))
        paths[name] = path
    return Kernel("6.19.0-test", folder / "vmlinuz", paths, builtin, None, "id", "test")


def test_a_module_says_what_it_needs() -> None:
    assert elf.modinfo(module(depends="a,b-c", license="x")) == {"depends": ["a,b-c"], "license": ["x"]}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 80, module(depends="a")[:150]])
def test_a_damaged_module_says_nothing(data: bytes) -> None:
    assert elf.modinfo(data) == {}


def test_modules_come_with_all_they_depend_on(tmp_path: Path) -> None:
    found = image.close_over_dependencies(
        ["mlx5-ib", "absent"],
        kernel(
            tmp_path,
            {
                "mlx5_ib": module(depends="ib-core,mlx5_core", softdep="pre: crc_fast post: late"),
                "mlx5_core": module(depends=""),
                "ib_core": module(depends="mlx5_core"),
                "crc_fast": module(),
                "unrelated": module(),
            },
        ),
    )
    assert set(found) == {"mlx5_ib", "mlx5_core", "ib_core", "crc_fast"}
    assert found["mlx5_core"] == module(depends="")  # decompressed


def test_a_module_asked_for_by_name_must_exist(tmp_path: Path) -> None:
    own = kernel(tmp_path / "k", {"here_it_is": module()}, frozenset({"built_in"}))
    check_modules(own, ["here-it-is", "built_in"])
    with pytest.raises(ImageError, match=r"--x: kernel .* has no module nowhere, rpcrdma \(CONFIG_SUNRPC_XPRT_RDMA\)"):
        check_modules(own, ["rpcrdma", "here-it-is", "built_in", "nowhere"], "--x")
    with pytest.raises(ImageError, match="if it is a slip: there is here_it_is"):
        check_modules(own, ["here_it_si"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads this host's ELF programs")
def test_a_real_program_names_its_libraries(tmp_path: Path) -> None:
    needed = elf.needed_libraries(Path(sys.executable).resolve())
    assert needed is not None
    assert any(name.startswith("libc.so") for name in needed)
    assert elf.needed_libraries(Path(__file__)) is None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("usr/bin/ib_write_bw", True),
        ("usr/share/doc/perftest/copyright", False),
        ("usr/share/doc/rdma-core/tests/test_qp.py", True),
        ("usr/share/misc/pci.ids", True),
        ("usr/share/man/man1/ib_write_bw.1.gz", False),
        ("usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so", True),
        ("usr/lib/x86_64-linux-gnu/libx.a", False),
        ("usr/lib/python3.13/test/support/os_helper.py", False),
        ("etc/libibverbs.d/mlx5.driver", True),
    ],
)
def test_what_a_guest_does_not_need_stays_out(name: str, wanted: bool) -> None:
    assert image._wanted(name) is wanted


def test_a_missing_library_is_found_when_the_image_is_built(tmp_path: Path) -> None:
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    program = tmp_path / "usr/bin/tool"
    program.write_bytes(Path(sys.executable).resolve().read_bytes())
    with pytest.raises(ImageError, match=r"libc\.so"):
        image._unneeded_libraries(tmp_path)
    for name in elf.needed_libraries(program) or ():
        (libraries / name).write_bytes(b"no elf")
    (libraries / "libspare.so.1").write_bytes(b"no elf")
    assert image._unneeded_libraries(tmp_path) == {"usr/lib/x86_64-linux-gnu/libspare.so.1"}


@pytest.mark.parametrize("script", ["guest_init.sh", "guest_wait_for.sh"])
def test_a_script_of_guests_has_no_syntax_error(script: str) -> None:
    subprocess.run(["sh", "-n", str(Path(image.__file__).with_name(script))], check=True)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_an_archive_that_was_cut_short_is_noticed(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "image.cpio"
    with path.open("wb") as stream:
        archive = CpioWriter(stream)
        archive.file("etc/x", bytes(200_000))
        archive.close()
    assert image.is_whole(path)
    os.truncate(path, int(path.stat().st_size * kept))
    assert not image.is_whole(path)
