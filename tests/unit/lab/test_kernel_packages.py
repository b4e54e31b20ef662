"""Kernels of package files, of the host, and the list of all that there are."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.lab.test_kernels import NEWER, RELEASE, Index, beside_modules, installed, resolve, split
from vhca.cli.main import main
from vhca.lab.cache import Cache, Progress
from vhca.lab.cpio import CpioWriter
from vhca.lab.errors import KernelError, PackageError
from vhca.lab.kernel_list import Offer, offers
from vhca.lab.packages import PackageFile, PackageStore
from vhca.lab.rpm import unpack_kernel

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "xz": lzma.compress}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def header(tags: dict[int, str]) -> bytes:
    """A header of RPM: index and store, of texts alone."""
    store, index = b"", b""
    for tag, text in tags.items():
        index += struct.pack(">IIII", tag, 6, len(store), 1)
        store += text.encode() + b"\0"
    return b"\x8e\xad\xe8\x01" + bytes(4) + struct.pack(">II", len(tags), len(store)) + index + store


def rpm(path: Path, root: Path, compressor: str = "xz") -> Path:
    """A package with everything below `root`, as rpm makes one."""
    archive = io.BytesIO()
    writer = CpioWriter(archive)
    writer.tree(root)
    writer.close()
    signature = header({1000: "ignored"})
    payload = COMPRESSORS.get(compressor, bytes)(archive.getvalue())
    lead = b"\xed\xab\xee\xdb".ljust(96, b"\0")
    path.write_bytes(lead + signature + bytes(-len(signature) % 8) + header({1125: compressor}) + payload)
    return path


def deb(path: Path, root: Path) -> Path:
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text("Package: x\nVersion: 1\nArchitecture: amd64\nMaintainer: x\nDescription: x\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(root), str(path)], check=True, capture_output=True)
    return path


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_an_rpm_package_is_a_kernel(tmp_path: Path, cache: Cache, compressor: str) -> None:
    package = rpm(tmp_path / "kernel-core.rpm", beside_modules(tmp_path / "root"), compressor)
    kernel = resolve(package, cache)
    assert (kernel.release, list(kernel.modules)) == (NEWER, ["virtio_net"])
    assert kernel.image.is_relative_to(cache.root)


def test_a_deb_package_is_a_kernel(tmp_path: Path, cache: Cache) -> None:
    package = deb(tmp_path / "linux-image.deb", installed(tmp_path / "root"))
    kernel = resolve(package, cache)
    assert (kernel.release, list(kernel.modules)) == (RELEASE, ["virtio_net"])


@pytest.mark.parametrize("suffix", ["deb", "rpm"])
def test_a_folder_of_packages_is_one_kernel(tmp_path: Path, cache: Cache, suffix: str) -> None:
    """Image and modules are in two packages; headers beside them are left alone."""
    folder = tmp_path / "built"
    folder.mkdir()
    whole = installed(tmp_path / "root")
    image = tmp_path / "image"
    image.mkdir()
    (whole / "boot").rename(image / "boot")
    make = {"deb": deb, "rpm": rpm}[suffix]
    make(folder / f"kernel-modules.{suffix}", whole)
    make(folder / f"kernel-core.{suffix}", image)
    (folder / f"linux-headers-6.19.{suffix}").write_bytes(b"no package")
    kernel = resolve(folder, cache)
    assert (kernel.release, list(kernel.modules)) == (RELEASE, ["virtio_net"])


def test_a_new_build_of_a_package_is_unpacked_anew(tmp_path: Path, cache: Cache) -> None:
    package = rpm(tmp_path / "kernel.rpm", beside_modules(tmp_path / "a"))
    assert resolve(package, cache).release == NEWER
    rpm(package, beside_modules(tmp_path / "b", "7.3.4-mine"), "gzip")
    assert resolve(package, cache).release == "7.3.4-mine"


def test_nothing_of_a_package_leaves_its_folder(tmp_path: Path) -> None:
    archive = io.BytesIO()
    writer = CpioWriter(archive)
    writer.symlink("lib/modules/6.1", "../../..")
    writer.file("lib/modules/6.1/evil", b"x")
    writer.file("lib/modules/../../evil", b"x")
    writer.file("etc/passwd", b"x")
    writer.file("boot/vmlinuz-6.1", b"kernel", 0o4777)
    writer.close()
    package = tmp_path / "kernel.rpm"
    lead = b"\xed\xab\xee\xdb".ljust(96, b"\0")
    package.write_bytes(lead + header({}) + header({1125: "gzip"}) + gzip.compress(archive.getvalue()))
    root = tmp_path / "root"
    root.mkdir()
    unpack_kernel(package, root)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "kernel.rpm",
        "root/boot/vmlinuz-6.1",
        "root/lib/modules/6.1/evil",
    ]
    assert (root / "boot/vmlinuz-6.1").stat().st_mode & 0o7022 == 0


def test_a_damaged_package_is_an_error_or_a_kernel_and_a_short_one_an_error(tmp_path: Path) -> None:
    whole = rpm(tmp_path / "kernel.rpm", beside_modules(tmp_path / "root")).read_bytes()
    bad = tmp_path / "bad.rpm"
    for at in range(0, len(whole), 7):
        bad.write_bytes(whole[:at])
        with pytest.raises(PackageError, match=r"bad\.rpm"):
            unpack_kernel(bad, tmp_path / "out")
        bad.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with contextlib.suppress(PackageError):
            unpack_kernel(bad, tmp_path / "out")


def test_an_unknown_compressor_is_named(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(PackageError, match="compressed with bzip9"):
        resolve(rpm(tmp_path / "kernel.rpm", beside_modules(tmp_path / "root"), "bzip9"), cache)


def test_a_package_without_a_kernel_is_refused(tmp_path: Path, cache: Cache) -> None:
    root = tmp_path / "root"
    (root / "usr/share").mkdir(parents=True)
    (root / "usr/share/text").write_text("no kernel")
    with pytest.raises(KernelError, match="no boot/vmlinuz"):
        resolve(deb(tmp_path / "other.deb", root), cache)


@pytest.mark.parametrize("lib", ["usr/lib", "lib"])
def test_an_image_of_the_host_finds_its_modules(tmp_path: Path, cache: Cache, lib: str) -> None:
    root = installed(tmp_path / "host", lib=lib)
    assert list(resolve(root / f"boot/vmlinuz-{RELEASE}", cache).modules) == ["virtio_net"]


# ---- the list ----


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Index:
    def plan(_store: PackageStore, names: list[str]) -> list[PackageFile]:
        return [PackageFile(name, "1", f"{name}.deb", 50_000_000, "") for name in names]

    index = Index(
        monkeypatch,
        {
            "trixie": ["linux-image-6.12.9+deb13-amd64", "linux-image-6.12.9+deb13-rt-amd64"],
            "trixie-backports": [*split(NEWER), "linux-image-7.2.13+deb13-amd64", "linux-binary-7.2.13+deb13-amd64"],
            "bookworm": ["linux-image-6.1.0-50-amd64"],
            "forky": split("7.2.12+deb14-amd64"),
        },
    )
    monkeypatch.setattr(PackageStore, "plan_alone", plan)
    return index


def test_kernels_of_mirror_cache_and_host_are_listed(tmp_path: Path, cache: Cache, mirror: Index) -> None:
    beside_modules(cache.path("kernels", NEWER))
    installed(cache.path("kernels", "6.5.0-old"), "6.5.0-old")
    host = installed(tmp_path / "host", "6.1.0-9-amd64")
    found, trouble = offers(cache, Progress(quiet=True), root=host)
    assert not trouble
    assert [(offer.release, offer.spec, offer.state, offer.origin) for offer in found] == [
        ("6.1.0-50-amd64", "6.1.0-50", "50 MB to fetch", "bookworm"),
        ("6.5.0-old", "6.5.0-old", "cached", ""),
        ("6.12.9+deb13-amd64", "6.12.9", "50 MB to fetch", "trixie, trixie-backports"),
        ("6.19.14+deb13-amd64", "6.19.14", "171 MB to fetch", "pool"),
        ("7.2.12+deb13-amd64", "7.2.12+deb13-amd64", "cached", "trixie, trixie-backports"),
        ("7.2.12+deb14-amd64", "7.2.12+deb14-amd64", "150 MB to fetch", "forky"),
        ("6.1.0-9-amd64", str(host / "boot/vmlinuz-6.1.0-9-amd64"), "installed", "host"),
    ]
    for offer in found:
        if offer.cached or offer.origin == "host":
            assert resolve(offer.spec, cache).release == offer.release


def test_a_suite_that_the_mirror_does_not_have_is_named(
    cache: Cache, mirror: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed = PackageStore.names

    def names(store: PackageStore, prefix: str) -> list[str]:
        if "sid" in store.suites:
            raise PackageError("404")
        return listed(store, prefix)

    monkeypatch.setattr(PackageStore, "names", names)
    found, trouble = offers(cache, Progress(quiet=True), root=tmp_path)
    assert "forky" in {offer.origin for offer in found}
    assert trouble == "the mirror has no index of sid"


def test_without_a_mirror_the_cache_is_listed(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    beside_modules(cache.path("kernels", NEWER))
    expected = [Offer(NEWER, "7.2.12", "", True, None)]
    assert offers(cache, Progress(quiet=True), mirror=False, root=tmp_path) == (expected, "")
    found, trouble = offers(cache, Progress(quiet=True), root=tmp_path)
    assert found == expected
    assert "not found on this host" in trouble
    monkeypatch.setenv("VHCA_CACHE", str(cache.root))
    assert main(["kernels", "--cached", "--json", "7.2"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["release"] == NEWER
    assert main(["kernels", "--cached", "5.10"]) == 1
