"""The machine a card is plugged into: finds QEMU, builds its command line, starts it and talks QMP to it.

Prefers a QEMU of the host from 10.1.1 on; else takes the one from the packages, run through its own loader.
Guarantees: a started QEMU dies with the process that started it; it gets the descriptors it was handed and
no others.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.console import Recorder
from vhca.lab.errors import QemuError
from vhca.lab.packages import UNPACKED, PackageStore, unpack

MINIMUM: Final = (10, 1, 1)
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_KVM_GET_API_VERSION: Final = 0xAE00
_KVM_CREATE_VM: Final = 0xAE01
_PR_SET_PDEATHSIG: Final = 1
COMMAND_LINE_MAX: Final = 2048  # x86's COMMAND_LINE_SIZE, with the byte that ends it
_KERNEL_ARGUMENTS: Final = (
    "console=ttyS0 panic=0 quiet loglevel=5 nokaslr mitigations=off audit=0 apparmor=0 selinux=0 nowatchdog"
    " random.trust_cpu=on cryptomgr.notests tsc=reliable no_timer_check 8250.nr_uarts=1 i8042.nokbd i8042.noaux"
    " rcupdate.rcu_expedited=1 net.ifnames=0 systemd.show_status=0 init_on_alloc=0 noreplace-smp"
    " initcall_blacklist=jent_mod_init,init_encrypted"
    # The image is unpacked into half of what is left beside it if nothing is said: too little in a small guest.
    " initramfs_options=size=90%"
)


# ---- finding it ----


@dataclass(slots=True, frozen=True)
class Qemu:
    """A QEMU that can be started: `[*command, ...]` with `environment` added."""

    command: tuple[str, ...]
    version: tuple[int, ...]
    environment: Mapping[str, str]
    origin: str  # "host" or "packages"


def host_qemu() -> Qemu | None:
    """The host's own QEMU if it is new enough. `VHCA_QEMU` names another binary, or `cache` to ignore it."""
    wanted = os.environ.get("VHCA_QEMU", "")
    if wanted == "cache":
        return None
    program = shutil.which(wanted or "qemu-system-x86_64")
    if program is None:
        if wanted:
            raise QemuError(f"VHCA_QEMU names {wanted}, which cannot be run", "correct or unset it")
        return None
    version = _version_of((program,), {})
    if version is None or version < MINIMUM:
        if wanted:
            raise QemuError(f"{wanted} is older than {'.'.join(map(str, MINIMUM))}", "unset VHCA_QEMU")
        return None
    return Qemu((program,), version, {}, "host")


def _version_of(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*command, "--version"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        if match := re.search(r"version (\d+)\.(\d+)\.(\d+)", done.stdout):
            return tuple(int(number) for number in match.groups())
    return None


def package_key() -> str:
    """The cache key of the packaged QEMU."""
    return hashlib.sha256(repr((UNPACKED, pins.QEMU_PACKAGES, pins.QEMU_SUITE)).encode()).hexdigest()[:16]


def find_qemu(cache: Cache, progress: Progress) -> Qemu:
    """Return a QEMU >= 10.1.1, from the host or from packages (fetched if need be)."""
    if found := host_qemu():
        return found

    def build(place: Path) -> None:
        store = PackageStore(cache, progress, "qemu")
        files = store.plan(pins.QEMU_PACKAGES, pins.QEMU_SUITE)
        debs = store.fetch(files, "QEMU")
        unpack(debs, place, progress, "unpacking QEMU")
        store.clear()

    root = cache.obtain("qemu", package_key(), build, progress)
    libraries = root / _LIBRARIES
    command = (
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        str(libraries),
        str(root / "usr/bin/qemu-system-x86_64"),
        "-L",
        str(root / "usr/share/qemu"),
        "-L",
        str(root / "usr/share/seabios"),
    )
    environment = {"QEMU_MODULE_DIR": str(libraries / "qemu")}
    version = _version_of(command, environment)
    if version is None:
        raise QemuError("the packaged QEMU cannot be run", f"remove {root} and run again")
    return Qemu(command, version, environment, "packages")


@functools.cache
def accelerator() -> str:
    """`kvm` or `tcg`. `VHCA_ACCEL` decides; else KVM is used only where it can really run a guest.

    `/dev/kvm` may exist, and even make a VM, on a processor that shows no hardware virtualization; a kernel
    then hangs or faults in it. So KVM is used if the processor has `vmx` or `svm` *and* a VM can be made.
    """
    if own := os.environ.get("VHCA_ACCEL"):
        if own not in ("kvm", "tcg"):
            raise QemuError(f"VHCA_ACCEL={own}: not an accelerator", "set it to kvm or tcg, or unset it")
        return own
    return "tcg" if kvm_trouble() else "kvm"


def kvm_trouble(cpuinfo: Path = Path("/proc/cpuinfo"), device: Path = Path("/dev/kvm")) -> str:
    """Why KVM cannot be used here; empty if it can."""
    try:
        flags = set(re.findall(r"\b(?:vmx|svm)\b", cpuinfo.read_text()))
    except OSError:
        flags = set()
    if not flags:
        return "the processor shows neither vmx nor svm"
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"{device}: {error.strerror}"
    try:
        if fcntl.ioctl(descriptor, _KVM_GET_API_VERSION, 0) != 12:
            return f"{device} speaks another version of the KVM interface"
        os.close(fcntl.ioctl(descriptor, _KVM_CREATE_VM, 0))
    except OSError as error:
        return f"no VM can be made: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


# ---- command line ----


@dataclass(slots=True)
class MachineConfig:
    """What a guest's machine is made of. Descriptors are inherited by QEMU."""

    name: str
    kernel: Path
    image: Path
    console_fd: int
    agent_fd: int
    qmp_fd: int
    kernel_arguments: Mapping[str, str] = field(default_factory=dict)  # vhca.NAME=VALUE
    extra_kernel_arguments: str = ""
    memory_mib: int = 1024
    cpus: int = 1
    network_fd: int | None = None
    mac: str = "52:54:00:00:00:01"
    hca_sockets: Sequence[Path] = ()
    share: Path | None = None
    share_writable: bool = True
    root: Path | None = None
    kept: Path | None = None
    iommu: bool = False
    accelerator: str = "tcg"
    extra_arguments: Sequence[str] = ()
    message_timeout_ms: int = 60_000


def hca_arguments(socket_path: Path | str, index: int, message_timeout_ms: int = 60_000) -> list[str]:
    """The arguments that plug one card, served at a vfio-user socket, into a root port of its own."""
    device = {
        "driver": "vfio-user-pci",
        "id": f"hca{index}",
        "bus": f"port{index}",
        "rombar": 0,
        "x-msg-timeout": message_timeout_ms,
        "socket": {"type": "unix", "path": str(socket_path)},
    }
    return [
        *("-device", f"pcie-root-port,id=port{index},chassis={index + 1},slot={index + 1}"),
        *("-device", json.dumps(device)),
    ]


def command_line(config: MachineConfig) -> list[str]:
    """QEMU's arguments for a machine (without the program itself)."""
    settings = " ".join(f"vhca.{name}={value}" for name, value in config.kernel_arguments.items())
    append = f"{_KERNEL_ARGUMENTS} {settings} {config.extra_kernel_arguments}".strip()
    if len(append.encode()) >= COMMAND_LINE_MAX:  # the kernel would cut it, and say nothing
        own = len(append.encode()) - len(config.extra_kernel_arguments.encode())
        raise QemuError(
            f"the kernel's command line would have {len(append.encode())} bytes",
            f"give at most {COMMAND_LINE_MAX - own - 1} bytes of kernel arguments",
        )
    size = f"{config.memory_mib}M"
    arguments = [
        *("-name", config.name, "-nodefaults", "-no-user-config", "-display", "none", "-vga", "none"),
        *("-machine", "q35,memory-backend=ram,usb=off,vmport=off,hpet=off"),
        *("-object", f"memory-backend-memfd,id=ram,size={size},share=on"),
        *("-m", size, "-smp", str(config.cpus)),
        *("-kernel", str(config.kernel), "-initrd", str(config.image), "-append", append),
        *("-chardev", f"socket,id=console,fd={config.console_fd}", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=qmp,fd={config.qmp_fd}", "-qmp", "chardev:qmp"),
        *("-device", "virtio-serial-pci,id=ports,max_ports=2"),
        *("-chardev", f"socket,id=agent,fd={config.agent_fd}"),
        *("-device", "virtserialport,chardev=agent,name=vhca.agent"),
        *("-device", "virtio-rng-pci"),
    ]
    if config.iommu:
        # Behind the machine and before every device: a device looks for its IOMMU when it is made.
        at = arguments.index("-device")
        arguments[at:at] = ["-device", "intel-iommu,intremap=off,caching-mode=on"]
    if config.accelerator == "kvm":
        arguments += ["-accel", "kvm", "-cpu", "host"]
    else:
        # Page tables of five levels would only make every miss of an emulated processor slower. And one that says that
        # it copies strings fast (ERMS, FSRM) makes the kernel do it byte by byte.
        arguments += ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off,erms=off,fsrm=off"]
    if config.network_fd is not None:
        arguments += ["-netdev", f"dgram,id=management,local.type=fd,local.str={config.network_fd}"]
        arguments += ["-device", f"virtio-net-pci,netdev=management,mac={config.mac},rombar=0"]
    if config.share is not None:
        readonly = "" if config.share_writable else ",readonly=on"
        arguments += [
            "-fsdev",
            f"local,id=share,path={_escape(config.share)},security_model=none,multidevs=remap{readonly}",
        ]
        arguments += ["-device", "virtio-9p-pci,fsdev=share,mount_tag=share"]
    if config.root is not None:
        arguments += [
            "-fsdev",
            f"local,id=root,path={_escape(config.root)},security_model=none,multidevs=remap,readonly=on",
        ]
        arguments += ["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
    if config.kept is not None:
        disk = {"driver": "file", "filename": str(config.kept), "discard": "unmap"}
        arguments += ["-blockdev", json.dumps({"driver": "raw", "node-name": "kept", "discard": "unmap", "file": disk})]
        # a full disk of the host is an error for the guest, not the end of its machine
        arguments += ["-device", "virtio-blk-pci,drive=kept,serial=vhca-kept,werror=report,rerror=report"]
    for index, path in enumerate(config.hca_sockets):
        arguments += hca_arguments(path, index, config.message_timeout_ms)
    return [*arguments, *config.extra_arguments]


def _escape(path: Path) -> str:
    """A path inside a comma-separated QEMU option."""
    return str(path).replace(",", ",,")


# ---- running it ----


def start(
    qemu: Qemu, arguments: Sequence[str], pass_fds: Sequence[int], log: Path
) -> tuple[subprocess.Popen[bytes], Recorder]:
    """Start QEMU with its command line and its messages going to `log`, by the recorder that is returned.

    It is killed if this process dies. The kernel ties that to the *thread* that started it, so all are started from
    one that lives on.
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        recorder = Recorder(ours, log)
        recorder.note((" ".join((*qemu.command, *arguments)) + "\n").encode())
        process = _LAUNCHER.start(
            [*qemu.command, *arguments], {**os.environ, **qemu.environment}, tuple(pass_fds), theirs
        )
    finally:
        os.close(theirs)
    return process, recorder


class _Launcher:
    """A thread that starts processes and never ends before this process does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._pool: Any = None

    def start(
        self, command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...], log: int
    ) -> subprocess.Popen[bytes]:
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._pool is None or self._pid != os.getpid():
                self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qemu-launcher")
                self._pid = os.getpid()
        return self._pool.submit(self._spawn, command, environment, pass_fds, log).result()  # type: ignore[no-any-return]

    @staticmethod
    def _spawn(
        command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...], log: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C on the terminal is ours to handle
            preexec_fn=_die_with_parent,
        )


_LAUNCHER = _Launcher()
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class QmpClient:
    """The machine's control port: one command at a time over a connected socket. Safe between threads."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._socket = connection
        self._name = name
        self._buffer = b""
        self._lock = threading.Lock()
        self._greeted = False
        self.events: list[dict[str, Any]] = []

    def command(self, name: str, timeout_s: float = 10.0, **arguments: Any) -> Any:
        """Run a QMP command and return its result. Raises :class:`QemuError` on an error, EOF or time-out."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            if not self._greeted:
                self._receive("QMP", deadline_s)
                self._greeted = True
                self._exchange("qmp_capabilities", {}, deadline_s)
            return self._exchange(name, arguments, deadline_s)

    def _exchange(self, name: str, arguments: Mapping[str, Any], deadline_s: float) -> Any:
        request = {"execute": name, **({"arguments": dict(arguments)} if arguments else {})}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise QemuError(f"{self._name}: QEMU does not take commands any more ({error})") from error
        return self._receive("return", deadline_s)

    def _receive(self, key: str, deadline_s: float) -> Any:
        while True:
            while b"\n" not in self._buffer:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise QemuError(f"{self._name}: QEMU does not answer on its control port")
                self._socket.settimeout(left_s)
                try:
                    data = self._socket.recv(65536)
                except TimeoutError:
                    continue
                except OSError as error:
                    raise QemuError(f"{self._name}: QEMU's control port broke ({error})") from error
                if not data:
                    raise QemuError(f"{self._name}: QEMU has ended")
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\n")
            message = json.loads(line)
            if "event" in message:
                self.events = [*self.events[-99:], message]
            elif "error" in message:
                raise QemuError(f"{self._name}: {message['error'].get('desc', message['error'])}")
            elif key in message:
                return message[key]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
