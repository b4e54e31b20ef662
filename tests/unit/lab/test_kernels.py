"""What a kernel SPEC means, on fake trees: a folder, an archive, a build tree, a bzImage, a version."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from vhca.lab import kernels
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import KernelError, PackageError
from vhca.lab.kernel_index import matches
from vhca.lab.packages import PackageStore

RELEASE = "6.19.14+deb13-amd64"
NEWER = "7.2.12+deb13-amd64"


def bzimage(release: str) -> bytes:
    """The parts of a setup header that say "bzImage" and name the release."""
    data = bytearray(0x8000)
    data[0x202:0x206] = b"HdrS"
    data[0x20E:0x210] = (0x3000).to_bytes(2, "little")
    text = f"{release} (someone@somewhere) #1 SMP".encode()
    data[0x3200 : 0x3200 + len(text)] = text
    return bytes(data)


def installed(root: Path, release: str = RELEASE, lib: str = "usr/lib") -> Path:
    (root / "boot").mkdir(parents=True)
    (root / f"boot/vmlinuz-{release}").write_bytes(bzimage(release))
    modules = root / lib / "modules" / release
    (modules / "kernel/drivers/net").mkdir(parents=True)
    (modules / "kernel/drivers/net/virtio-net.ko.xz").write_bytes(b"x")
    (modules / "modules.builtin").write_text("kernel/drivers/char/virtio-rng.ko\n")
    (modules / "modules.order").write_text("kernel/drivers/net/virtio-net.ko\n")
    return root


def beside_modules(root: Path, release: str = "", lib: str = "usr/lib") -> Path:
    """The same with the image where Debian puts it from 7.2 on."""
    release = release or NEWER
    modules = root / lib / "modules" / release
    (modules / "kernel/drivers/net").mkdir(parents=True)
    (modules / "vmlinuz").write_bytes(bzimage(release))
    (modules / "kernel/drivers/net/virtio-net.ko.xz").write_bytes(b"x")
    (modules / "modules.builtin").write_text("kernel/drivers/char/virtio-rng.ko\n")
    (modules / "modules.order").write_text("kernel/drivers/net/virtio-net.ko\n")
    return root


@pytest.fixture(autouse=True)
def _no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs these tests may have named an archive; they name their own."""
    monkeypatch.delenv("VHCA_KERNEL_ARCHIVE", raising=False)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def resolve(spec: object, cache: Cache, modules: Path | None = None) -> kernels.Kernel:
    return kernels.resolve(str(spec), cache, Progress(quiet=True), modules)


@pytest.mark.parametrize("lib", ["usr/lib", "lib"])
def test_a_folder_laid_out_like_an_installed_kernel(tmp_path: Path, cache: Cache, lib: str) -> None:
    kernel = resolve(installed(tmp_path / "k", lib=lib), cache)
    assert kernel.release == RELEASE
    assert list(kernel.modules) == ["virtio_net"]
    assert kernel.builtin == {"virtio_rng"}


@pytest.mark.parametrize("lib", ["usr/lib", "lib"])
@pytest.mark.parametrize("below", ["", "modules", "release", "image"])
def test_an_image_beside_its_modules(tmp_path: Path, cache: Cache, lib: str, below: str) -> None:
    root = beside_modules(tmp_path / "k", lib=lib)
    named = {
        "": root,
        "modules": root / lib / "modules",
        "release": root / lib / "modules" / NEWER,
        "image": root / lib / "modules" / NEWER / "vmlinuz",
    }[below]
    kernel = resolve(named, cache)
    assert kernel.release == NEWER
    assert kernel.image == root / lib / "modules" / NEWER / "vmlinuz"
    assert list(kernel.modules) == ["virtio_net"]
    assert kernel.builtin == {"virtio_rng"}
    assert kernel.order == root / lib / "modules" / NEWER / "modules.order"


def test_of_several_kernels_the_newest_is_taken_whatever_its_layout(tmp_path: Path, cache: Cache) -> None:
    root = beside_modules(installed(tmp_path / "k"))
    assert resolve(root, cache).release == NEWER
    older = "6.1.0-50-amd64"
    other = installed(beside_modules(tmp_path / "o", older))
    assert resolve(other, cache).release == RELEASE


def test_a_leftover_without_an_image_is_no_kernel(tmp_path: Path, cache: Cache) -> None:
    root = beside_modules(tmp_path / "k")
    (root / f"usr/lib/modules/{NEWER}/vmlinuz").unlink()
    with pytest.raises(KernelError, match="modules/\\*/vmlinuz"):
        resolve(root, cache)


def test_a_cached_version_with_its_image_beside_the_modules(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    beside_modules(cache.path("kernels", NEWER))
    monkeypatch.setenv("PATH", "")
    assert resolve("7.2", cache).image.name == "vmlinuz"


class Index:
    """A mirror whose suites list these packages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, suites: dict[str, list[str]]) -> None:
        self.suites = suites
        self.asked: list[str] = []
        monkeypatch.setattr(PackageStore, "names", lambda store, prefix: self._names(store, prefix))
        monkeypatch.setattr(
            PackageStore, "candidates", lambda store, names: set(names).intersection(self._names(store, ""))
        )
        monkeypatch.setattr(PackageStore, "plan_alone", lambda _store, names: list(names))
        monkeypatch.setattr(PackageStore, "fetch", lambda _store, files, _what: [Path(name) for name in files])
        monkeypatch.setattr(kernels, "unpack", self._unpack)

    def _names(self, store: PackageStore, prefix: str) -> list[str]:
        self.asked += store.suites
        return [name for suite in store.suites for name in self.suites.get(suite, []) if name.startswith(prefix)]

    @staticmethod
    def _unpack(debs: list[Path], place: Path, *_: object) -> None:
        release = debs[0].name.removeprefix("linux-image-").removeprefix("linux-binary-")
        (beside_modules if len(debs) > 1 else installed)(place, release)


def split(release: str) -> list[str]:
    return [f"linux-{part}-{release}" for part in ("image", "binary", "modules", "base")]


def test_a_version_comes_from_the_suite_that_has_it(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = [f"linux-{part}-7.2.13+deb13-amd64" for part in ("image", "binary")]
    index = Index(
        monkeypatch,
        {
            "trixie": ["linux-image-6.12.7+deb13-amd64", "linux-image-6.12.9+deb13-rt-amd64"],
            "trixie-backports": [*split(NEWER), *split("7.2.6+deb13-amd64"), *torn],
            "bookworm": ["linux-image-6.1.0-9-amd64", "linux-image-6.1.0-50-amd64", "linux-image-6.1.0-51-rt-amd64"],
        },
    )
    assert resolve("6.12", cache).release == "6.12.7+deb13-amd64"
    assert resolve("7.2", cache).release == NEWER
    assert "bookworm" not in index.asked
    assert resolve("6.1", cache).release == "6.1.0-50-amd64"
    with pytest.raises(KernelError, match=r"lists 6\.1\.0-9, 6\.1\.0-50,.* 7\.2\.13; not all"):
        resolve("5.10", cache)


def test_an_archive_of_such_a_folder(tmp_path: Path, cache: Cache) -> None:
    root = installed(tmp_path / "k")
    with tarfile.open(tmp_path / "k.tar", "w") as archive:
        archive.add(root, ".")
    kernel = resolve(tmp_path / "k.tar", cache)
    assert kernel.release == RELEASE
    assert list(kernel.modules) == ["virtio_net"]
    assert kernel.image.is_relative_to(cache.root)


def test_a_build_tree_gives_what_was_built(tmp_path: Path, cache: Cache) -> None:
    tree = tmp_path / "linux"
    (tree / "arch/x86/boot").mkdir(parents=True)
    (tree / "arch/x86/boot/bzImage").write_bytes(bzimage("6.19.0-mine"))
    (tree / "include/config").mkdir(parents=True)
    (tree / "include/config/kernel.release").write_text("6.19.0-mine\n")
    (tree / "drivers/net").mkdir(parents=True)
    for name in ("virtio_net", "dummy"):
        (tree / f"drivers/net/{name}.ko").write_bytes(b"x")
    # older trees list .ko, newer ones .o; a module that was not built is passed over
    (tree / "modules.order").write_text("drivers/net/virtio_net.ko\ndrivers/net/dummy.o\ndrivers/net/absent.o\n")
    kernel = resolve(tree, cache)
    assert kernel.release == "6.19.0-mine"
    assert set(kernel.modules) == {"virtio_net", "dummy"}
    (tree / "modules.order").unlink()
    with pytest.raises(KernelError, match=r"modules\.order"):
        resolve(tree, cache)


def test_a_bzimage_with_its_modules(tmp_path: Path, cache: Cache) -> None:
    root = installed(tmp_path / "k")
    image = tmp_path / "bzImage"
    image.write_bytes(bzimage(RELEASE))
    for folder in (root, root / "usr/lib/modules", root / "usr/lib/modules" / RELEASE):
        assert list(resolve(image, cache, folder).modules) == ["virtio_net"]
    assert resolve(image, cache).modules == {}
    with pytest.raises(KernelError, match="no modules"):
        resolve(image, cache, tmp_path / "cache")


def test_a_file_that_is_no_kernel(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "file").write_bytes(b"text" * 1000)
    with pytest.raises(KernelError, match="no bzImage"):
        resolve(tmp_path / "file", cache)
    with pytest.raises(KernelError, match="no boot/vmlinuz"):
        resolve(tmp_path, cache)


def test_a_word_is_neither_path_nor_version(cache: Cache) -> None:
    with pytest.raises(KernelError, match="no such file"):
        resolve("newest", cache)


@pytest.mark.parametrize(
    ("version", "release", "fits"),
    [
        ("6.19", RELEASE, True),
        ("6.19.14", RELEASE, True),
        (RELEASE, RELEASE, True),
        ("6.1", RELEASE, False),
        ("6.19.1", RELEASE, False),
        ("7", RELEASE, False),
    ],
)
def test_a_version_matches_whole_numbers(version: str, release: str, fits: bool) -> None:
    assert matches(version, release) is fits


def test_a_cached_version_needs_no_packages(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(cache.path("kernels", RELEASE))
    installed(cache.path("kernels", "6.19.2-old"), "6.19.2-old")
    monkeypatch.setenv("PATH", "")
    assert resolve("6.19", cache).release == RELEASE


def test_without_packages_the_archive_is_used(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PackageError, match="not found on this host"):
        resolve("6.19", cache)
    root = installed(tmp_path / "k")
    monkeypatch.setenv("VHCA_KERNEL_ARCHIVE", str(root))
    assert resolve("6.19", cache).release == RELEASE
    monkeypatch.setenv("VHCA_KERNEL_ARCHIVE", str(tmp_path / "gone"))
    with pytest.raises(KernelError, match="VHCA_KERNEL_ARCHIVE"):
        resolve("6.19", cache)


def test_the_archive_stands_in_for_its_own_version_only(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("VHCA_KERNEL_ARCHIVE", str(installed(tmp_path / "k")))
    with pytest.raises(PackageError, match="not found on this host"):
        resolve("6.12", cache)


def test_nothing_is_looked_for_outside_of_what_was_named(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VHCA_KERNEL_ARCHIVE", raising=False)
    assert kernels.fallback_archive() is None


def test_identity_follows_content(tmp_path: Path, cache: Cache) -> None:
    root = installed(tmp_path / "k")
    before = resolve(root, cache).identity
    assert resolve(root, cache).identity == before
    (root / f"usr/lib/modules/{RELEASE}/kernel/drivers/net/virtio-net.ko.xz").write_bytes(b"xyz")
    assert resolve(root, cache).identity != before
