"""A kernel developer's bench: modules of one's own in a guest, and a dump of its memory when its kernel dies."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from vhca import DEFAULT_KERNEL
from vhca.lab import Cache, GuestConfig, GuestError, KernelPanic, Lab, LabError, Progress, own_module
from vhca.lab.elf import modinfo, notes, read_module
from vhca.lab.kernels import Kernel, resolve
from vhca.lab.own_modules import with_replaced

MEMORY_MIB = 512
_SIGNED = b"~Module signature appended~\n"


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return resolve(DEFAULT_KERNEL, Cache(), Progress(quiet=True))


def changed(kernel: Kernel, name: str, old: bytes, new: bytes, folder: Path) -> Path:
    """A module of the kernel with other words in it, as somebody's own build would have."""
    content = read_module(kernel.modules[name])
    if content.endswith(_SIGNED):  # a signature that fits no more would be refused; a build of one's own has none
        (size,) = struct.unpack_from(">I", content, len(content) - len(_SIGNED) - 4)
        content = content[: -len(_SIGNED) - 12 - size]
    assert old in content
    path = folder / f"{kernel.modules[name].name.split('.ko')[0]}.ko"
    path.write_bytes(content.replace(old, new.ljust(len(old), b" ")))
    return path


@pytest.fixture(scope="module")
def lab(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("modules")
    described = modinfo(read_module(kernel.modules["mlx5_ib"]))["description"][0].encode()
    driver = changed(kernel, "mlx5_ib", b"description=" + described, b"description=Mine", folder)
    dummy = changed(kernel, "dummy", b"description=", b"description=", folder)
    config = GuestConfig(memory_mib=MEMORY_MIB, insmod=[own_module(dummy, ["numdummies=3"])], vmcore=True)
    with Lab(guests=1, guest=config, replaced_modules=[own_module(driver)], log_dir=folder / "logs") as made:
        yield made


def test_a_module_file_is_loaded_with_its_parameters(lab: Lab) -> None:
    links = lab.guests[0].run(["ls", "/sys/class/net"], check=True).stdout.split()
    assert {"dummy0", "dummy1", "dummy2"} <= set(links)


def test_a_module_file_stands_in_for_the_kernel_s_own(lab: Lab) -> None:
    said = lab.guests[0].run(["modinfo", "-F", "description", "mlx5_ib"], check=True).stdout
    assert said.strip() == "Mine"
    assert "PORT_ACTIVE" in lab.guests[0].run(["ibv_devinfo", "-d", "mlx5_0"], check=True).stdout


def test_what_the_kernel_refuses_is_said_in_its_words(lab: Lab, kernel: Kernel, tmp_path: Path) -> None:
    release = kernel.release.encode()
    alien = changed(kernel, "brd", b"vermagic=" + release, b"vermagic=" + release.replace(b"6", b"5", 1), tmp_path)
    with pytest.raises(GuestError, match=r"refused brd.ko:(.|\n)*brd: version magic '5\S* (.|\n)*' should be '6"):
        lab.guests[0].insmod(own_module(alien))
    with pytest.raises(LabError, match=r"brd.ko was built for 5\S+, the kernel is 6"):
        with_replaced(kernel, [own_module(alien)])
    lost = changed(kernel, "brd", b"__register_blkdev", b"__register_blkdiv", tmp_path)
    with pytest.raises(GuestError, match=r"refused brd.ko:(.|\n)*brd: Unknown symbol __register_blkdiv"):
        lab.guests[0].insmod(own_module(lost))


def test_the_memory_of_a_kernel_that_died_is_kept(lab: Lab) -> None:
    guest = lab.guests[0]
    with pytest.raises(KernelPanic, match=r"the memory of g0 is in \S+/g0.vmcore"):
        guest.run(["sh", "-c", "echo c > /proc/sysrq-trigger"], timeout_s=60)
    assert guest.vmcore is not None
    assert guest.vmcore.parent == lab.log_dir
    assert guest.vmcore.stat().st_mode & 0o077 == 0
    assert MEMORY_MIB << 20 <= guest.vmcore.stat().st_size <= (MEMORY_MIB + 1) << 20
    with guest.vmcore.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as core:
        assert {name for name, _ in notes(core)} >= {b"CORE", b"QEMU", b"VMCOREINFO"}
        assert core.find(f"OSRELEASE={lab.prepared.kernel.release}".encode()) > 0
        assert core.find(b"Kernel panic - not syncing: sysrq triggered crash") > 0
