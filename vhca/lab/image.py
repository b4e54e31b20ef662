"""The disk image of a guest, held in memory: base system, kernel modules, power-up script and agent.

An image is cpio archives put one behind the other: the *base* (programs, the same for every kernel), the *modules* of
one kernel, and packages that were asked for by name (:mod:`vhca.lab.extras`). Each is cached by a digest of what goes
into it. Assumes unpacked packages in the cache; runs only programs out of those packages, through their own loader.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.cpio import CpioWriter
from vhca.lab.elf import modinfo, needed_libraries, read_module
from vhca.lab.errors import ImageError
from vhca.lab.guest_system import LIBRARIES, MERGED, TESTS, guest_root, loader, python_of
from vhca.lab.kernels import Kernel, module_name

_RECIPE: Final = "1"  # part of every key: raise it when the code below puts other things into an image
_BASE_RECIPE: Final = "3"  # the same, for the base archive alone
_END_BYTES: Final = 1024  # of an archive: its last entry, and what fills its last block
_HERE: Final = Path(__file__).resolve().parent
# What of ours runs in guests: beside this file -> in a guest.
_SCRIPTS: Final = {"guest_init.sh": "init", "guest_wait_for.sh": "usr/bin/wait-for"}
_KEPT_SHARE: Final = ("usr/share/misc", "usr/share/iproute2", "usr/share/terminfo", TESTS)
_PYTHON: Final = "usr/lib/python3.N"
_PYTHON_VERSION: Final = re.compile(r"^usr/lib/python3\.\d+/")
# Folders of packages that no guest has use for.
_SKIPPED: Final = tuple(
    f"{folder}/"
    for folder in (
        "usr/include usr/lib/systemd usr/lib/udev usr/lib/tmpfiles.d usr/lib/valgrind usr/lib/init"
        " etc/init.d etc/logrotate.d etc/network etc/skel etc/default usr/lib/mime"
        f" {LIBRARIES}/gconv {LIBRARIES}/perl {LIBRARIES}/ossl-modules {LIBRARIES}/engines-3"
        f" {LIBRARIES}/pkgconfig {LIBRARIES}/security"
    ).split()
) + tuple(
    f"{_PYTHON}/{folder}/"
    for folder in [
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "sqlite3",
        "test",
        "tkinter",
        "turtledemo",
        "venv",
        "xmlrpc",
        "wsgiref",
        "dbm",
    ]
)
# Programs that would bring in large libraries and that no RDMA work needs.
_LEFT_OUT: Final = ("usr/sbin/arpd", f"{_PYTHON}/lib-dynload/_dbm", f"{_PYTHON}/lib-dynload/_sqlite3")
# Loaded by name at run time, so no program asks for them in its header.
_PLUGINS: Final = (f"{LIBRARIES}/libibverbs/", "usr/lib/python3/", f"{_PYTHON}/lib-dynload/")
_DEVICES: Final = (("console", 0o600, 5, 1), ("null", 0o666, 1, 3), ("kmsg", 0o644, 1, 11))
_TEXTS: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/usr/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/bin/false\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/shells": "/usr/bin/bash\n/usr/bin/sh\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nprotocols: files\nservices: files\n",
    "etc/security/limits.conf": "* - memlock unlimited\n",
    # Not Debian, only made of its packages: a program that asks ID must not take this for a whole system.
    "etc/os-release": (
        'PRETTY_NAME="vhca guest (packages of Debian {suite})"\nNAME="vhca guest"\n'
        "ID=vhca\nID_LIKE=debian\nVERSION_CODENAME={suite}\n"
    ),
    "usr/lib/vhca/mount/first": "proc /proc proc\nsys /sys sysfs\ndevtmpfs /dev devtmpfs\n",
    "usr/lib/vhca/mount/then": (
        "devpts /dev/pts devpts gid=5,mode=620,ptmxmode=666\ntmpfs /dev/shm tmpfs\ntmpfs /run tmpfs\ntmpfs /tmp tmpfs\n"
        "debugfs /sys/kernel/debug debugfs\n"
    ),
    "root/.profile": "PS1='\\u@\\h:\\w\\$ '\n",
    "root/.bashrc": "PS1='\\u@\\h:\\w\\$ '\n",
}
# What init puts into /dev, where the kernel keeps devices alone.
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}

#: The modules an image holds, with all they depend on; those a kernel does not have are left out.
MODULES: Final = (
    "virtio_console",
    "virtio_pci",
    "virtio_net",
    "9p",
    "9pnet_virtio",
    "virtio_rng",
    "qemu_fw_cfg",  # tells QEMU what a dump of the memory is read by
    "mlx5_core",
    "mlx5_ib",
    "ib_umad",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_cm",
    "ib_cm",
    "ib_ipoib",
    "rdma_rxe",
    # what Soft-RoCE, and LIO at a login of iSCSI, ask the crypto of older kernels for by name
    "crc32_generic",
    "crc32c_generic",
    "siw",
    "dummy",
    "ib_srp",
    "ib_srpt",
    "ib_iser",
    "ib_isert",
    "nvme_rdma",
    "nvmet",
    "nvmet_rdma",
    "nvme_loop",
    "null_blk",
    "brd",
    "loop",
    "rds",
    "rds_rdma",
    "smc",
    "smc_diag",
    "vfio_pci",
    "target_core_mod",
    "target_core_file",
    "target_core_iblock",
    "sd_mod",
    "sch_netem",
)
#: What `autoload` asks for in a guest that has an HCA.
HCA_MODULES: Final = ("mlx5_ib", "ib_umad", "ib_uverbs", "rdma_ucm")


# ---- base ----


def base_archive(cache: Cache, progress: Progress, suite: str = pins.GUEST_SUITE) -> Path:
    """The cpio archive with everything but kernel modules; its programs are of this suite."""
    root = guest_root(cache, progress, suite)
    agent = _HERE / "guest_agent.py"
    scripts = {name: (_HERE / file).read_bytes() for file, name in _SCRIPTS.items()}
    recipe = repr((_BASE_RECIPE, suite, _TEXTS, root.name, agent.read_bytes(), scripts))
    key = hashlib.sha256(recipe.encode()).hexdigest()[:16] + ".cpio"

    def build(place: Path) -> None:
        progress.step("building the guest image")
        with place.open("wb") as stream:
            archive = CpioWriter(stream)
            _write_base(archive, root, agent, scripts, suite)
            archive.close()

    return cache.obtain("image-base", key, build, progress, is_whole)


def programs(root: Path) -> tuple[list[str], list[str]]:
    """The names of the programs that an image of this root has: those of packages, and those that are busybox."""
    places = ("usr/bin/", "usr/sbin/")
    own = {name.rpartition("/")[2] for name, _ in _base_files(root) if name.startswith(places)} | {"sh"}
    own |= {name.rpartition("/")[2] for name in _SCRIPTS.values() if name.startswith(places)}
    return sorted(own), [name for name in _busybox_applets(root) if name not in own]


def base_names(root: Path) -> set[str]:
    """The files of this root's packages that the base has, by their names in a guest."""
    return {name for name, _ in _base_files(root)} - _unneeded_libraries(root) | set(_TEXTS) | set(_SCRIPTS.values())


def _write_base(archive: CpioWriter, root: Path, agent: Path, scripts: Mapping[str, bytes], suite: str) -> None:
    for name in ("dev", "proc", "sys", "run", "tmp", "mnt", "var/tmp", "root", "etc"):
        archive.directory(name, 0o1777 if name.endswith("tmp") else 0o755)
    for name in MERGED:
        archive.symlink(name, f"usr/{name}")
    archive.symlink("var/run", "/run")
    for name, mode, major, minor in _DEVICES:
        archive.device(f"dev/{name}", mode, major, minor)
    for name, script in scripts.items():
        archive.file(name, script, 0o755)
    archive.file("usr/lib/vhca/guest_agent.pyc", _compiled_agent(root, agent))
    for name, text in _TEXTS.items():
        archive.file(name, text.replace("{suite}", suite).encode())
    archive.symlink("etc/mtab", "/proc/self/mounts")
    for folder in ("pts", "shm"):
        archive.directory(f"usr/lib/vhca/mount/dev/{folder}")
    for name, target in _DEVICE_LINKS.items():
        archive.symlink(f"usr/lib/vhca/mount/dev/{name}", target)
    present = set()
    unneeded = _unneeded_libraries(root)
    for name, path in _base_files(root):
        if name in unneeded or name in _TEXTS:
            continue
        present.add(name)
        if path.is_symlink():
            archive.symlink(name, os.readlink(path))
        else:
            archive.file(name, path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
    # not busybox's shell: that one runs its own small tools even where the real ones are on the PATH
    if "usr/bin/sh" not in present:
        archive.symlink("usr/bin/sh", "dash")
        present.add("usr/bin/sh")
    for applet in _busybox_applets(root):
        if f"usr/bin/{applet}" not in present and f"usr/sbin/{applet}" not in present:
            archive.symlink(f"usr/bin/{applet}", "busybox")


def _compiled_agent(root: Path, agent: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "agent.pyc")
        code = "import py_compile,sys; py_compile.compile(sys.argv[1], sys.argv[2], 'guest_agent.py', doraise=True)"
        subprocess.run(
            [*loader(root, python_of(root)), "-I", "-S", "-c", code, str(agent), str(target)],
            env={"PYTHONHOME": str(root / "usr")},
            check=True,
            timeout=60,
        )
        return target.read_bytes()


def _base_files(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        for link in [d for d in folders if Path(folder, d).is_symlink()]:
            folders.remove(link)
            files.append(link)
        for file in sorted(files):
            path = Path(folder, file)
            name = path.relative_to(root).as_posix()
            if name not in MERGED and _wanted(name):
                yield name, path


def skipped(name: str) -> bool:
    """Is it in a folder of packages that no guest has use for?"""
    return _neutral(name).startswith(_SKIPPED)


def _neutral(name: str) -> str:
    """A name in a guest, whatever version of Python the guest has."""
    return _PYTHON_VERSION.sub(f"{_PYTHON}/", name)


def _wanted(name: str) -> bool:
    name = _neutral(name)
    if name.startswith("usr/share/") and not name.startswith(_KEPT_SHARE):
        return False
    if name.startswith((*_SKIPPED, *_LEFT_OUT)) or f"{_PYTHON}/config-" in name:
        return False
    return not name.endswith((".a", ".la", ".pl", ".pyi"))


def _unneeded_libraries(root: Path) -> set[str]:
    """Shared libraries that nothing in the image asks for. Raises if something asks for one that is missing."""
    files = dict(_base_files(root))
    libraries = {Path(name).name: name for name in files if name.startswith(LIBRARIES + "/") and ".so" in name}
    inside = {name for name in libraries.values() if name.count("/") == LIBRARIES.count("/") + 1}
    queue = [n for n in files if _neutral(n).startswith(("usr/bin/", "usr/sbin/", *_PLUGINS)) and n not in inside]
    # opened by the C library when they are needed: name services, and what ends a thread
    queue += [n for n in files if n.startswith(LIBRARIES) and ("/libnss_" in n or "/libgcc_s.so" in n)]
    used: set[str] = set()
    missing: set[str] = set()
    while queue:
        name = queue.pop()
        if name in used:
            continue
        used.add(name)
        path = files[name]
        if path.is_symlink():
            target = os.path.normpath(os.path.join(os.path.dirname("/" + name), os.readlink(path))).lstrip("/")
            queue += [target] if target in files else []
            continue
        for library in needed_libraries(path) or ():
            if library in libraries:
                queue.append(libraries[library])
            elif not library.startswith("ld-linux"):
                missing.add(f"{library} (for {name})")
    if missing:
        raise ImageError(
            f"libraries missing from the guest's packages: {', '.join(sorted(missing))}",
            "a package was left out that is needed: correct GUEST_WITHOUT in vhca/lab/pins.py",
        )
    return {name for name in inside if name not in used and "/ld-linux" not in name}


def _busybox_applets(root: Path) -> list[str]:
    done = subprocess.run(
        [str(root / "usr/bin/busybox"), "--list"], capture_output=True, text=True, check=True, timeout=30
    )
    return sorted(set(done.stdout.split()) - {"busybox"})


# ---- modules ----


def close_over_dependencies(wanted: Sequence[str], kernel: Kernel) -> dict[str, bytes]:
    """The wanted modules and all they depend on: name -> decompressed content. Absent ones are left out."""
    found: dict[str, bytes] = {}
    queue = [module_name(name) for name in wanted]
    while queue:
        name = queue.pop()
        path = kernel.modules.get(name)
        if name in found or path is None:
            continue
        content = found[name] = read_module(path)
        info = modinfo(content)
        for depends in info.get("depends", []):
            queue += [module_name(other) for other in depends.split(",") if other]
        for soft in info.get("softdep", []):
            queue += [module_name(other) for other in soft.split() if not other.endswith(":")]
    return found


def modules_archive(kernel: Kernel, cache: Cache, progress: Progress, extra: Sequence[str] = ()) -> Path:
    """The cpio archive with one kernel's modules and their tables."""
    wanted = sorted({module_name(name) for name in (*MODULES, *extra)})
    recipe = repr((_RECIPE, kernel.identity, wanted))
    key = hashlib.sha256(recipe.encode()).hexdigest()[:16] + ".cpio"

    def build(place: Path) -> None:
        progress.step(f"collecting the modules of {kernel.release}")
        root = guest_root(cache, progress)
        with tempfile.TemporaryDirectory(dir=cache.folder("tmp")) as folder:
            _stage_modules(Path(folder), kernel, close_over_dependencies(wanted, kernel), root)
            with place.open("wb") as stream:
                archive = CpioWriter(stream)
                archive.tree(Path(folder, "lib/modules"), "usr/lib/modules")
                archive.close()

    return cache.obtain("image-modules", key, build, progress, is_whole)


def _stage_modules(folder: Path, kernel: Kernel, modules: dict[str, bytes], root: Path) -> None:
    place = folder / "lib/modules" / kernel.release
    (place / "kernel").mkdir(parents=True)
    for name, content in modules.items():
        file = kernel.modules[name].name.split(".ko")[0] + ".ko"
        (place / "kernel" / file).write_bytes(content)
    if kernel.order is not None:
        # depmod asks for both; the order only matters for aliases that several modules claim
        lines = [f"kernel/{module}" for module in map(os.path.basename, kernel.order.read_text().split())]
        (place / "modules.order").write_text("\n".join(lines) + "\n")
        for extra in ("modules.builtin", "modules.builtin.modinfo"):
            if (source := kernel.order.parent / extra).exists():
                shutil.copyfile(source, place / extra)
    done = subprocess.run(
        [*loader(root, "usr/bin/kmod", argv0="depmod"), "-b", str(folder), kernel.release],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise ImageError(f"depmod failed for {kernel.release}:\n{done.stderr.strip()}")


# ---- whole ----


def is_whole(archive: Path) -> bool:
    """Does the file end as a cpio archive does? One that was cut short does not."""
    with archive.open("rb") as stream:
        stream.seek(max(0, archive.stat().st_size - _END_BYTES))
        return b"TRAILER!!!" in stream.read()


def build_image(
    kernel: Kernel,
    cache: Cache,
    progress: Progress,
    extra_modules: Sequence[str] = (),
    extra: Path | None = None,
    suite: str = pins.GUEST_SUITE,
) -> Path:
    """The initramfs for a kernel: base, modules and, if there is one, the archive `extra`, one behind the other."""
    base = base_archive(cache, progress, suite)
    modules = modules_archive(kernel, cache, progress, extra_modules)
    parts = [base, modules, *([extra] if extra is not None else [])]
    key = "-".join(part.stem for part in parts) + ".cpio"

    def build(place: Path) -> None:
        with place.open("wb") as target:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)

    size = sum(part.stat().st_size for part in parts)
    return cache.obtain("images", key, build, progress, lambda place: place.stat().st_size == size and is_whole(place))
