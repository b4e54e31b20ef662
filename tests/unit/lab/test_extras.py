"""Packages that a guest gets by name: what of them is put into its image, on small fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from vhca.lab import extras, pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.cpio import read_archive
from vhca.lab.errors import ImageError, PackageError
from vhca.lab.guest_system import merge_folders
from vhca.lab.packages import PackageFile, PackageStore

LIBRARIES = "usr/lib/x86_64-linux-gnu"


class Roots:
    """Unpacked packages: the guest's own, and others; which library each file asks for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base, self.root = folder / "base", folder / "root"
        self.needs: dict[str, list[str]] = {}
        self.present: set[str] = set()
        (self.base / LIBRARIES).mkdir(parents=True)
        self.root.mkdir()
        monkeypatch.setattr(extras, "needed_libraries", lambda path: self.needs.get(path.name))
        monkeypatch.setattr(extras, "base_names", lambda root: self.present)

    def put(self, name: str, *needs: str, base: bool = False) -> None:
        if not base and not (self.root / "lib").is_symlink():
            merge_folders(self.root)
        path = (self.base if base else self.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        self.needs[path.name] = list(needs)

    def wanted(self) -> dict[str, Path]:
        return extras.wanted_files(self.root, self.base)


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roots:
    return Roots(tmp_path, monkeypatch)


def test_what_the_base_has_is_not_brought_again(roots: Roots) -> None:
    roots.present = {"usr/bin/sh", f"{LIBRARIES}/libc.so.6"}
    for name in ("usr/bin/sh", "usr/bin/nvme", "etc/nvme/config", "usr/share/man/man1/nvme.1", "usr/share/pmix/help"):
        roots.put(name)
    roots.put("usr/bin/nvme", "libc.so.6", "ld-linux-x86-64.so.2")
    assert set(roots.wanted()) == {"usr/bin/nvme", "etc/nvme/config", "usr/share/pmix/help"}


def test_a_library_that_the_base_went_without_comes_too_with_what_it_needs(roots: Roots) -> None:
    roots.put("usr/bin/nfs", "libtirpc.so.3")
    roots.put(f"{LIBRARIES}/libtirpc.so.3", "libkrb5.so.3", base=True)
    roots.put(f"{LIBRARIES}/libkrb5.so.3", base=True)
    roots.put(f"{LIBRARIES}/libspare.so.1", base=True)
    found = roots.wanted()
    assert set(found) == {"usr/bin/nfs", f"{LIBRARIES}/libtirpc.so.3", f"{LIBRARIES}/libkrb5.so.3"}
    assert found[f"{LIBRARIES}/libtirpc.so.3"] == roots.base / LIBRARIES / "libtirpc.so.3"


def test_a_program_without_its_library_is_an_error(roots: Roots) -> None:
    roots.put("usr/sbin/tool", "libabsent.so.1")
    with pytest.raises(ImageError, match=r"usr/sbin/tool needs libabsent\.so\.1"):
        roots.wanted()


def test_a_plugin_without_its_library_is_left_out_with_what_needs_it(roots: Roots) -> None:
    roots.put(f"{LIBRARIES}/ucx/libuct_rocm.so.0.0.0", "libhsa.so.1")
    (roots.root / LIBRARIES / "ucx/libuct_rocm.so.0").symlink_to("libuct_rocm.so.0.0.0")
    roots.put(f"{LIBRARIES}/ucx/libneeds.so", "libuct_rocm.so.0.0.0")
    roots.put(f"{LIBRARIES}/ucx/libuct_ib.so.0")
    assert set(roots.wanted()) == {f"{LIBRARIES}/ucx/libuct_ib.so.0"}


def test_no_folder_takes_the_place_of_a_link_of_the_base(roots: Roots) -> None:
    roots.put("sbin/mount.nfs")
    (roots.root / "var/lib/nfs/sm").mkdir(parents=True)
    assert set(roots.wanted()) == {"usr/sbin/mount.nfs", "var/lib/nfs/sm"}


@pytest.mark.parametrize("name", ["", "-oDir=/", "a b", "nvme-cli=1", "nvme-cli-", "Nvme", "../x", "a/sid", "$(x)"])
def test_what_apt_would_read_as_something_else_is_refused(name: str) -> None:
    with pytest.raises(PackageError, match="not the name of a package"):
        extras.checked(["nvme-cli", name])


def test_names_are_sorted_and_few() -> None:
    assert extras.checked(["rds", "g++", "rds"]) == ["g++", "rds"]
    with pytest.raises(PackageError, match="too many"):
        extras.checked(f"p{number}" for number in range(101))


def test_the_archive_has_what_is_not_in_the_guest_and_comes_from_the_cache_again(
    tmp_path: Path, roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def plan(_: PackageStore, names: list[str], suite: str, without: list[str]) -> list[PackageFile]:
        asked.append((tuple(names), tuple(without)))
        listed = ["libc6"] if tuple(names) == pins.GUEST_PACKAGES else ["libc6", "tool"]
        return [PackageFile(name, "1", f"{name}_1_amd64.deb", 1, "00") for name in listed]

    fetched: list[str] = []

    def fetch(_: PackageStore, files: list[PackageFile], what: str) -> list[Path]:
        fetched.extend(file.name for file in files)
        return []

    def place(debs: object, root: Path, *_: object) -> None:
        for name in ("usr/bin/tool", "etc/tool.conf"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name)
        (root / "usr/bin/tool").chmod(0o755)
        (root / "usr/bin/link").symlink_to("tool")

    monkeypatch.setattr(PackageStore, "plan", plan)
    monkeypatch.setattr(PackageStore, "fetch", fetch)
    monkeypatch.setattr(extras, "unpack", place)
    monkeypatch.setattr(extras, "guest_root", lambda *_: roots.base)
    cache, quiet = Cache(tmp_path / "cache"), Progress(quiet=True)
    archive = extras.packages_archive(["tool", "tar"], cache, quiet)
    assert extras.packages_archive(["tar", "tool"], cache, quiet) == archive
    assert fetched == ["tool"]
    names, without = asked[1]
    assert names == ("tar", "tool")
    # What is asked for by name comes even if guests go without it.
    assert "perl" in without
    assert "tar" not in without
    entries = {entry.name: entry for entry in read_archive(archive.read_bytes())}
    assert entries["usr/bin/tool"].data == b"usr/bin/tool"
    assert entries["usr/bin/tool"].mode & 0o777 == 0o755
    assert entries["usr/bin/link"].data == b"tool"
    assert entries["etc/tool.conf"].mode & 0o600 == 0o600
