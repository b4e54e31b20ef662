"""Kernels: finds the one that a guest shall boot, wherever it comes from.

A SPEC is one of

* a version (`6.19`, `6.19.14`): fetched as packages; if they cannot be had, taken from the archive that
  `VHCA_KERNEL_ARCHIVE` names;
* a kernel build tree (`arch/x86/boot/bzImage` and `modules.order`);
* a folder or `.tar` laid out like an installed kernel: modules in `usr/lib/modules/VERSION` (or
  `lib/modules/VERSION`), the image in `boot/vmlinuz-VERSION` or beside the modules as `vmlinuz` (Debian from
  7.2 on, Fedora); or the folder `VERSION` alone, if it has its image;
* a bzImage, with the modules in a folder given beside it, or around it (`/boot/vmlinuz-VERSION` of the host);
* a package of a kernel, `.deb` or `.rpm`, or a folder with those that it is made of;
* the name of one that was built here (:mod:`vhca.lab.kernel_build`).

Guarantees: the result can be read until the process ends; the same content has the same `identity`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vhca.lab import pins
from vhca.lab.built_kernels import find_built
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import KernelError, LabError
from vhca.lab.kernel_index import Listed, Search, matches, version_key
from vhca.lab.packages import PackageStore, unpack
from vhca.lab.rpm import unpack_kernel

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?([-+].*)?$")
_PACKAGE_SUFFIXES = (".deb", ".rpm")
_NO_KERNEL = re.compile(r"headers|devel|debug|-dbg|libc-dev|kbuild|tools|-doc|source|\.src\.")


@dataclass(slots=True, frozen=True)
class Kernel:
    """A kernel that can be booted: its release, its bzImage, and its modules by name (`-` written `_`)."""

    release: str
    image: Path
    modules: dict[str, Path]
    builtin: frozenset[str]
    order: Path | None  # modules.order, for depmod
    identity: str  # changes when the image or a module changes
    origin: str  # where it came from, for people


def module_name(file: str) -> str:
    """The name that the kernel uses for a module file: no suffix, `_` for `-`."""
    return file.rsplit("/", 1)[-1].split(".ko")[0].removesuffix(".o").replace("-", "_")


def resolve(spec: str | Path, cache: Cache, progress: Progress, modules_dir: Path | None = None) -> Kernel:
    """Find the kernel that `spec` names. Raises :class:`KernelError` that says what was looked for."""
    path = Path(spec).expanduser()
    if path.exists():
        return _from_path(path.resolve(), cache, progress, modules_dir)
    text = str(spec)
    if (built := find_built(text, cache)) is not None:
        return _from_installed(built, f"built here: {built.name}")
    if not _VERSION.match(text):
        raise KernelError(
            f"kernel {text!r}: no such file or folder, and no version either",
            "give a version such as 6.19, a bzImage, a build tree, or a folder with boot/ and usr/lib/modules/",
        )
    return _from_version(text, cache, progress)


# ---- by version ----


def _from_version(version: str, cache: Cache, progress: Progress) -> Kernel:
    for release in reversed(cached_releases(cache)):
        if matches(version, release):
            return _from_installed(cache.path("kernels", release), "packages", release)
    with cache.lock("kernels", lambda: progress.step("another run is fetching a kernel; waiting for it")):
        try:
            return _fetch_version(version, cache, progress)
        except LabError as error:
            archive = fallback_archive()
            if archive is None:
                raise
            found = _from_path(archive, cache, progress, None)
            if not matches(version, found.release):
                raise
            progress.say(f"  kernel packages cannot be had ({error.what.splitlines()[0]}); using {archive}")
            return found


def _fetch_version(version: str, cache: Cache, progress: Progress) -> Kernel:
    pinned = [release for release in pins.KERNELS if matches(version, release)]
    if pinned:
        store = PackageStore(cache, progress, "kernel")
        release = max(pinned, key=version_key)
        debs = store.fetch_pool(pins.KERNELS[release], f"kernel {release}")
    else:
        listed = _search(version, cache, progress)
        store, release = listed.store, listed.release
        debs = store.fetch(store.plan_alone(listed.packages), f"kernel {release}")

    def build(place: Path) -> None:
        unpack(debs, place, progress, f"unpacking kernel {release}")

    place = cache.obtain("kernels", release, build, progress)
    store.clear()
    return _from_installed(place, "packages", release)


def _search(version: str, cache: Cache, progress: Progress) -> Listed:
    """The newest kernel of this version, in the first suite that can deliver one."""
    search = Search(cache, progress)
    for kernels in search.kernels(version):
        if fitting := [listed for listed in kernels if matches(version, listed.release)]:
            return fitting[-1]
    known = ", ".join(sorted(search.known, key=version_key)) or "none"
    unreached = f"; not reached: {', '.join(search.unreached)}" if search.unreached else ""
    raise KernelError(
        f"kernel {version}: the mirror cannot deliver it (it lists {known}; not all are complete{unreached})",
        "see `vhca kernels`; give another version, or a bzImage, build tree, package or archive of your own",
    )


def cached_releases(cache: Cache) -> list[str]:
    """Releases whose packages are unpacked in the cache, oldest first."""
    with contextlib.suppress(OSError):
        names = [p.name for p in cache.path("kernels").iterdir() if not p.name.startswith(".")]
        return sorted(names, key=version_key)
    return []


def fallback_archive() -> Path | None:
    """The archive to use if packages cannot be had, which `VHCA_KERNEL_ARCHIVE` names."""
    own = os.environ.get("VHCA_KERNEL_ARCHIVE")
    if not own:
        return None
    path = Path(own).expanduser()
    if not path.exists():
        raise KernelError(f"VHCA_KERNEL_ARCHIVE names {path}, which is not there", "correct or unset it")
    return path


# ---- by path ----


def _from_path(path: Path, cache: Cache, progress: Progress, modules_dir: Path | None) -> Kernel:
    if path.is_dir():
        if (path / "arch/x86/boot/bzImage").exists():
            return _from_build_tree(path)
        if packages := _packages_in(path):
            return _from_packages(packages, path, cache, progress)
        return _from_installed(path, str(path))
    if path.suffix in _PACKAGE_SUFFIXES:
        return _from_packages([path], path, cache, progress)
    if path.suffixes[-1:] == [".tar"] or ".tar" in path.suffixes[-2:]:

        def build(place: Path) -> None:
            progress.step(f"unpacking {path}")
            with tarfile.open(path) as archive:
                _extract(archive, place)

        return _from_installed(cache.obtain("kernel-archives", _key_of([path]), build, progress), str(path))
    return _from_image(path, modules_dir)


def _key_of(files: Sequence[Path]) -> str:
    """What is unpacked of these files is kept by this; it changes with their sizes and times."""
    digest = hashlib.sha256()
    for path in files:
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _packages_in(folder: Path) -> list[Path]:
    """The packages in a folder that may be parts of a kernel: no headers, no debug information."""
    found = [path for path in sorted(folder.iterdir()) if path.suffix in _PACKAGE_SUFFIXES and path.is_file()]
    return [path for path in found if not _NO_KERNEL.search(path.name)]


def _from_packages(packages: Sequence[Path], origin: Path, cache: Cache, progress: Progress) -> Kernel:
    """A kernel of package files that are not of the mirror; nothing of them is run."""

    def build(place: Path) -> None:
        progress.step(f"unpacking {', '.join(path.name for path in packages)}")
        place.mkdir()
        for rpm in (path for path in packages if path.suffix == ".rpm"):
            unpack_kernel(rpm, place)
        if debs := [path for path in packages if path.suffix == ".deb"]:
            unpack(debs, place, progress, f"unpacking {origin.name}")

    return _from_installed(cache.obtain("kernel-archives", _key_of(packages), build, progress), str(origin))


def _from_image(path: Path, modules_dir: Path | None) -> Kernel:
    release = bzimage_release(path)
    if release is None:
        raise KernelError(f"{path} is no bzImage, package, archive or folder", "give the bzImage of an x86-64 build")
    modules = modules_dir.expanduser().resolve() if modules_dir else None
    if modules is None and _is_module_folder(path.parent):
        modules = path.parent
    if modules is None and path.parent.name == "boot":  # of an installed kernel
        modules = _modules_below(path.parent.parent, release)
    if modules is not None and (modules / "modules.order").exists() and (modules / "arch/x86").exists():
        return _kernel(release, path, _built_modules(modules), modules, str(path))
    root = _modules_root(modules, release) if modules else None
    if modules is not None and root is None:
        raise KernelError(
            f"no modules of {release} below {modules}", "give the folder that `make modules_install` filled"
        )
    return _kernel(release, path, _installed_modules(root) if root else {}, root, str(path))


def _extract(archive: tarfile.TarFile, place: Path) -> None:
    """Unpack an archive, nothing of it outside `place`."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(place, filter="data")
        return
    # Python before 3.11.4, Debian 12's own among them, has no filters
    members = archive.getmembers()
    for member in members:
        names = [member.name] if not member.issym() else [member.name, member.linkname]
        if not (member.isreg() or member.isdir() or member.issym()) or any(
            name.startswith("/") or ".." in Path(name).parts for name in names
        ):
            raise KernelError(f"the archive holds {member.name}, which does not belong in a kernel", "give another one")
        member.mode &= 0o755  # as the filter does it
    archive.extractall(place, members)


def _from_build_tree(tree: Path) -> Kernel:
    image = tree / "arch/x86/boot/bzImage"
    release_file = tree / "include/config/kernel.release"
    release = release_file.read_text().strip() if release_file.exists() else bzimage_release(image)
    if not release:
        raise KernelError(f"{tree}: cannot tell the kernel's release", "build the tree (make bzImage modules)")
    return _kernel(release, image, _built_modules(tree), tree, str(tree))


def _from_installed(root: Path, origin: str, release: str | None = None) -> Kernel:
    images = {found: image for found, image in installed_images(root) if release in (None, found)}
    if not images:
        raise KernelError(
            f"{root}: no boot/vmlinuz-*, no usr/lib/modules/*/vmlinuz and no arch/x86/boot/bzImage in it",
            "a kernel folder holds boot/ and usr/lib/modules/VERSION/, or is a build tree",
        )
    found = release or max(images, key=version_key)
    modules = _modules_root(root, found)
    return _kernel(found, images[found], _installed_modules(modules) if modules else {}, modules, origin)


def installed_images(root: Path) -> Iterator[tuple[str, Path]]:
    """Release and place of every image below `root`, in the layouts of distributions; the preferred ones last."""
    if _is_module_folder(root) and (root / "vmlinuz").is_file():
        yield bzimage_release(root / "vmlinuz") or root.name, root / "vmlinuz"
    for folder in ("usr/lib/modules", "lib/modules", "."):
        for image in (root / folder).glob("*/vmlinuz"):
            if image.is_file() and _is_module_folder(image.parent):
                yield image.parent.name, image
    for folder in (".", "boot"):
        for image in (root / folder).glob("vmlinuz-*"):
            if image.is_file():
                yield image.name.removeprefix("vmlinuz-"), image


def _is_module_folder(place: Path) -> bool:
    return (place / "kernel").is_dir() or (place / "modules.order").exists()


def _modules_root(root: Path, release: str) -> Path | None:
    """The folder with `kernel/` in it, whether `root` is that folder or one of those above it."""
    places = (root / release, root)
    return _modules_below(root, release) or next((place for place in places if _is_module_folder(place)), None)


def _modules_below(root: Path, release: str) -> Path | None:
    """Where the modules of an installed kernel are; `root` is `/`, or what stands for it."""
    places = (root / "usr/lib/modules" / release, root / "lib/modules" / release)
    return next((place for place in places if _is_module_folder(place)), None)


def _installed_modules(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder, _, files in os.walk(root):
        for file in files:
            if ".ko" in file:
                found[module_name(file)] = Path(folder, file)
    return found


def _built_modules(tree: Path) -> dict[str, Path]:
    order = tree / "modules.order"
    if not order.exists():
        raise KernelError(f"{tree} has no modules.order", "build the modules too (make modules)")
    found: dict[str, Path] = {}
    for line in order.read_text().split():
        path = tree / line
        if path.suffix == ".o":  # newer trees list objects
            path = path.with_suffix(".ko")
        if path.exists():
            found[module_name(path.name)] = path
    return found


def _kernel(release: str, image: Path, modules: dict[str, Path], root: Path | None, origin: str) -> Kernel:
    builtin: frozenset[str] = frozenset()
    order = None
    if root is not None:
        order = root / "modules.order" if (root / "modules.order").exists() else None
        with contextlib.suppress(OSError):
            builtin = frozenset(module_name(line) for line in (root / "modules.builtin").read_text().split())
    return Kernel(release, image, modules, builtin, order, _identity(release, image, modules), origin)


def _identity(release: str, image: Path, modules: dict[str, Path]) -> str:
    """A digest of the sizes and times of the files; content is not read: a tree has gigabytes of it."""
    digest = hashlib.sha256(release.encode())
    for name, path in [("", image), *sorted(modules.items())]:
        status = path.stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:20]


def bzimage_release(path: Path) -> str | None:
    """The release that a bzImage's setup header names, or `None` if the file is no bzImage."""
    with path.open("rb") as stream:
        head = stream.read(0x8000)
    if len(head) < 0x264 or head[0x202:0x206] != b"HdrS":
        return None
    (pointer,) = struct.unpack_from("<H", head, 0x20E)
    text = head[pointer + 0x200 : pointer + 0x300].split(b"\0")[0].decode("ascii", "replace")
    return text.split()[0] if text.strip() else None
