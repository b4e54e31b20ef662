"""The machine of the conformance run: a guest with one RDMA device and all that rdma-core's suite asks of a machine.

A real machine for it has a card in a slot, a cable, huge pages, an address for the connection manager and the suite's
Python dependencies; so has this one. Assumes :class:`vhca.lab.Lab`. Guarantees: each file runs in a process
of its own; a test that hangs or kills its interpreter costs only itself; a guest whose device is no longer
usable is replaced by a fresh one before the next file.
"""

from __future__ import annotations

import hashlib
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from acceptance.conformance.results import CRASHED, TIMEOUT, EventLog, FileRun, RecordError
from vhca import DEFAULT_KERNEL
from vhca.lab import (
    GUEST_SUITE,
    Cache,
    CardConfig,
    CommandTimeout,
    Guest,
    GuestConfig,
    GuestError,
    Lab,
    LabError,
    Process,
    Progress,
    guest_root,
)
from vhca.lab.packages import PackageStore, unpack

HCA: Final = "hca"
SOFT_ROCE: Final = "soft-roce"
DEVICES: Final = (HCA, SOFT_ROCE)

SUITE: Final = "/usr/share/doc/rdma-core/tests"
_AGENT: Final = Path(__file__).resolve().with_name("agent.py")
_GUEST_DIR: Final = "/tmp/conformance"
_PYTHON: Final = f"{_GUEST_DIR}/python"
_MEMORY_MIB: Final = 2048
# Huge pages are reserved at boot, before memory is in pieces. Transparent ones are off: the thread that collects
# them holds the lock of an address space at the lowest priority, and a test that polls never lets it finish.
_KERNEL_ARGUMENTS: Final = "hugepagesz=2M hugepages=32 transparent_hugepage=never"
# A thread that answers a page fault of the card must not wait for the next tick of a test that polls. Not for
# Soft-RoCE, which loses a completion to a resize of its queue if its threads may interrupt each other.
_HCA_ARGUMENTS: Final = f"{_KERNEL_ARGUMENTS} preempt=full"
#: An address from the range set aside for documentation: nothing of it leaves the guest.
_ADDRESS: Final = "192.0.2.1/24"
_PORT_UP_S: Final = 60.0
#: The device tests that use DevX build their commands with scapy; a guest does not need it for anything else.
_EXTRA_PACKAGES: Final = ("python3-scapy",)
_EXTRA_LEFT_OUT: Final = ("scapy/contrib/", "scapy/tools/", "scapy/modules/", "scapy/libs/winpcapy")

_SOFT_ROCE_SETUP: Final = f"""
modprobe -a ib_uverbs ib_umad rdma_ucm rdma_rxe
modprobe dummy numdummies=0
ip link add dummy0 type dummy
ip link set dummy0 multicast on
ip addr add {_ADDRESS} dev dummy0
ip link set dummy0 up
rdma link add rxe0 type rxe netdev dummy0
"""
# The connection manager finds an InfiniBand port by the address of its IPoIB interface.
_HCA_SETUP: Final = f"""
modprobe -q ib_ipoib || exit 0
for place in /sys/class/net/*; do
    [ "$(cat "$place/type")" = 32 ] || continue
    ip addr add {_ADDRESS} dev "${{place##*/}}"
    ip link set "${{place##*/}}" up
    break
done
"""
#: The suite looks for a login before it looks whether the card has an encryption engine at all.
_CRYPTO_LOGIN: Final = b'[{"credential": [0, 0, 0, 0, 0, 0], "kek_id": 0, "wrapped_key": [0, 0, 0, 0, 0]}]'
# Without interrupt remapping (which the emulated IOMMU cannot do here) the driver wants to be told that this is meant.
_PASSTHROUGH_SETUP: Final = """
modprobe vfio_iommu_type1 allow_unsafe_interrupts=1
modprobe vfio_pci
for place in /sys/bus/pci/devices/*; do
    [ "$(cat "$place/class")" = 0x020700 ] || continue
    echo "$(cat "$place/vendor") $(cat "$place/device")" >/sys/bus/pci/drivers/vfio-pci/new_id
    [ -e "$place/driver" ] && echo "${place##*/}"
done
"""


def extra_python(cache: Cache, progress: Progress) -> Path:
    """A tar file with the Python packages that the suite imports and guests do not have, fetched if need be."""
    recipe = repr((_EXTRA_PACKAGES, _EXTRA_LEFT_OUT, GUEST_SUITE))
    key = hashlib.sha256(recipe.encode()).hexdigest()[:16] + ".tar"

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if any(part in f"{info.name}/" for part in _EXTRA_LEFT_OUT) else info

    def build(place: Path) -> None:
        store = PackageStore(cache, progress)
        plan = store.plan(_EXTRA_PACKAGES, GUEST_SUITE)
        debs = store.fetch([file for file in plan if file.name in _EXTRA_PACKAGES], "what the suite imports")
        root = place.with_name("root")
        unpack(debs, root, progress, "unpacking what the suite imports")
        with tarfile.open(place, "w") as archive:
            archive.add(root / "usr/lib/python3/dist-packages", ".", filter=wanted)
        for deb in debs:
            deb.unlink(missing_ok=True)

    return cache.obtain("conformance", key, build, progress)


def suite_files(cache: Cache, progress: Progress) -> list[str]:
    """Names of the suite's test files, without `.py`."""
    folder = guest_root(cache, progress) / SUITE.lstrip("/")
    names = sorted(path.stem for path in folder.glob("test_*.py"))
    if not names:
        raise LabError(f"the guest's packages hold no {SUITE}/test_*.py", "run `vhca doctor`")
    return names


@dataclass(frozen=True, slots=True)
class SuiteConfig:
    """What a run asks of its machines.

    :ivar log_dir: the folder in which each guest gets one for its logs.
    :ivar test_timeout_s: the longest time for one test.
    :ivar seed: what the suite's random choices depend on.
    :ivar firmware: name of the package with the program of the card.
    """

    kernel: str | Path = DEFAULT_KERNEL
    log_dir: Path | None = None
    test_timeout_s: float = 180.0
    seed: str = "0"
    firmware: str = "firmware"


class SuiteMachine:
    """One guest with one device, as a context manager. `device`: one of :data:`DEVICES`."""

    def __init__(
        self,
        device: str,
        config: SuiteConfig | None = None,
        *,
        progress: Progress | None = None,
        cache: Cache | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        if device not in DEVICES:
            raise LabError(f"{device}: not a device of this machine", f"give one of {', '.join(DEVICES)}")
        self.device = device
        self.device_name = ""
        self.about: dict[str, str] = {}
        self.config = config if config is not None else SuiteConfig()
        self._progress = progress if progress is not None else Progress()
        self._cache = cache if cache is not None else Cache()
        self._say = say
        self._lab: Lab | None = None
        self._starts = 0

    # ---- life ----
    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(failed=kind is not None)

    def start(self) -> None:
        """Boot a guest and make its device ready for traffic."""
        extra = extra_python(self._cache, self._progress)
        self._starts += 1
        folder = self.config.log_dir
        log_dir = folder / f"{self.device}-{self._starts}" if folder is not None else None
        self._lab = self._make_lab(log_dir)
        self._lab.start()
        try:
            self._prepare(extra)
        except BaseException:
            self.stop(failed=True)
            raise

    def _make_lab(self, log_dir: Path | None) -> Lab:
        return Lab(
            guests=1,
            kernel=self.config.kernel,
            hcas_per_guest=1 if self.device == HCA else 0,
            guest=GuestConfig(
                memory_mib=_MEMORY_MIB,
                kernel_arguments=_HCA_ARGUMENTS if self.device == HCA else _KERNEL_ARGUMENTS,
            ),
            card=CardConfig(firmware=self.config.firmware),
            log_dir=log_dir,
            progress=self._progress,
            cache=self._cache,
        )

    def stop(self, failed: bool = False) -> None:
        """Take the guest down."""
        if self._lab is not None:
            self._lab.stop(failed)
            self._lab = None

    @property
    def guest(self) -> Guest:
        """The running guest."""
        if self._lab is None:
            raise LabError("the machine is not started")
        return self._lab.guests[0]

    def _prepare(self, extra: Path) -> None:
        guest = self.guest
        guest.copy_in(extra, f"{_GUEST_DIR}/extra.tar")
        guest.copy_in(_AGENT, f"{_GUEST_DIR}/agent.py")
        guest.run(["mkdir", "-p", _PYTHON], check=True)
        guest.run(["tar", "xf", f"{_GUEST_DIR}/extra.tar", "-C", _PYTHON], check=True)
        self._make_ready()
        self.about = self._describe()

    def _make_ready(self) -> None:
        """Bring the device up: driver, active port, an address for the connection manager."""
        guest = self.guest
        if self.device == SOFT_ROCE:
            guest.run(["sh", "-e", "-c", _SOFT_ROCE_SETUP], check=True)
        names = guest.run(["ls", "/sys/class/infiniband"]).stdout.split()
        if not names:
            raise GuestError("the guest has no RDMA device: its driver did not accept the card")
        self.device_name = names[0]
        deadline_s = time.monotonic() + _PORT_UP_S
        while not self.port_active():
            if time.monotonic() > deadline_s:
                raise GuestError(f"port 1 of {self.device_name} is not ACTIVE after {_PORT_UP_S:.0f} s")
            time.sleep(0.2)
        if self.device == HCA:
            guest.run(["sh", "-c", _HCA_SETUP], check=True)
            guest.agent.put_file(_CRYPTO_LOGIN, "/tmp/mlx5_crypto_test.txt")

    def _describe(self) -> dict[str, str]:
        run = self.guest.run
        version = run(["sh", "-c", "ls /usr/lib/x86_64-linux-gnu/libibverbs.so.1.*"]).stdout
        firmware = run(["sh", "-c", "cat /sys/class/infiniband/*/fw_ver"]).stdout
        return {
            "kernel": run(["uname", "-r"], check=True).stdout.strip(),
            "rdma-core": version.strip().rpartition(".so.1.")[2].removeprefix("14."),
            "firmware": firmware.strip(),
        }

    def port_active(self) -> bool:
        """Is the device's port up, as its driver sees it?"""
        state = self.guest.run(["cat", f"/sys/class/infiniband/{self.device_name}/ports/1/state"], timeout_s=20)
        return "ACTIVE" in state.stdout

    def usable(self) -> bool:
        """Can the next file still run on this guest?"""
        try:
            return self.port_active()
        except (GuestError, OSError):
            return False

    def _suite_arguments(self) -> tuple[str, ...]:
        return ("--dev", self.device_name, "--port", "1")

    # ---- files ----
    def run_file(self, name: str, matching: str = "") -> FileRun:
        """Run one file of the suite, going on in a new process after a test that took its process down."""
        run = FileRun(name)
        started_s = time.monotonic()
        while True:
            done_before = len(run.tests)
            log = self._run_process(run, matching)
            if log.ended or not log.missing() or len(run.tests) == done_before:
                break
            if not self.usable():
                self.replace_guest()
        run.seconds = time.monotonic() - started_s
        return run

    def replace_guest(self) -> None:
        """Boot a fresh guest instead of one that is no longer usable."""
        self._say(f"  {self.device}: the guest's device is no longer usable; booting a fresh guest")
        self.stop(failed=True)
        self.start()

    def _run_process(self, run: FileRun, matching: str) -> EventLog:
        """Run what is left of a file in one process of the guest."""
        guest, log = self.guest, EventLog(run)
        guest.agent.put_file("\n".join(run.tests).encode(), f"{_GUEST_DIR}/done")
        lines, noise = _Lines(), bytearray()
        process = guest.popen(
            [
                *("python3", "-X", "no_debug_ranges", f"{_GUEST_DIR}/agent.py", "--seed", self.config.seed),
                *("--test-timeout", str(self.config.test_timeout_s), "--without", f"{_GUEST_DIR}/done"),
                *(("--matching", matching) if matching else ()),
                *(SUITE, run.name, *self._suite_arguments(), "-v"),
            ],
            env={"PYTHONPATH": _PYTHON},
            stdout=lines.feed,
            stderr=noise.extend,
        )
        how, outcome = self._wait(process, lines, log)
        for line in lines.take():
            log.take(line)
        if b"Timeout (" in noise and not log.ended:
            how, outcome = f"took longer than {self.config.test_timeout_s:.0f} s", TIMEOUT
        if how:
            log.died(how, outcome, noise[-20000:].decode("utf-8", "replace"))
        elif not log.ended:
            raise RecordError(f"{run.name}: the run in the guest ended without a word")
        return log

    def _wait(self, process: Process, lines: _Lines, log: EventLog) -> tuple[str, str]:
        """Wait for the end of a process while its lines come in. Returns how it died, if it did, and the outcome."""
        quiet_s = self.config.test_timeout_s + 30.0  # the watchdog inside comes first, if the kernel lets it
        while True:
            try:
                status = process.wait(1.0)
            except CommandTimeout:
                for line in lines.take():
                    log.take(line)
                if time.monotonic() - lines.last_s < quiet_s:
                    continue
                self._kill(process)
                return f"hangs in the kernel: could not be ended from inside in {quiet_s:.0f} s", TIMEOUT
            except GuestError as error:
                return f"the guest went away: {error.what}", CRASHED
            if status < 0:
                return f"the interpreter died of signal {-status}", CRASHED
            return (f"the interpreter exited with {status}" if status else ""), CRASHED

    def _kill(self, process: Process) -> None:
        """End a process that does not end itself; if even the kernel cannot, end the guest."""
        process.kill()
        try:
            process.wait(10.0)
        except GuestError:
            self.guest.kill()


class PassthroughMachine(SuiteMachine):
    """A guest that hands its card to the suite itself: no driver in the kernel, vfio-pci and an IOMMU instead."""

    def __init__(
        self,
        config: SuiteConfig | None = None,
        *,
        progress: Progress | None = None,
        cache: Cache | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        super().__init__(HCA, config, progress=progress, cache=cache, say=say)

    def _make_lab(self, log_dir: Path | None) -> Lab:
        return Lab(
            guests=1,
            kernel=self.config.kernel,
            hcas_per_guest=1,
            guest=GuestConfig(
                memory_mib=_MEMORY_MIB,
                iommu=True,
                autoload=False,
                kernel_arguments=f"intel_iommu=on {_HCA_ARGUMENTS}",
            ),
            card=CardConfig(firmware=self.config.firmware),
            log_dir=log_dir.with_name(f"passthrough-{self._starts}") if log_dir is not None else None,
            extra_modules=("vfio_iommu_type1",),
            progress=self._progress,
            cache=self._cache,
        )

    def _make_ready(self) -> None:
        names = self.guest.run(["sh", "-c", _PASSTHROUGH_SETUP], check=True).stdout.split()
        if not names:
            raise GuestError("vfio-pci did not take the card")
        self.device_name = names[0]

    def _suite_arguments(self) -> tuple[str, ...]:
        return ("--pci-dev", self.device_name)

    def usable(self) -> bool:
        """Is the guest there? Its card is reset each time that the suite opens it."""
        try:
            return self.guest.agent.ping() >= 0
        except GuestError:
            return False


class _Lines:
    """Cuts what a guest writes into lines. Fed from the agent's thread, emptied from ours."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lock = threading.Lock()
        self.last_s = time.monotonic()

    def feed(self, data: bytes) -> None:
        """Take what came in."""
        with self._lock:
            self._data += data
            self.last_s = time.monotonic()

    def take(self) -> list[str]:
        """The complete lines so far."""
        with self._lock:
            end = self._data.rfind(b"\n") + 1
            taken = bytes(self._data[:end])
            del self._data[:end]
        return taken.decode("utf-8", "replace").splitlines()
