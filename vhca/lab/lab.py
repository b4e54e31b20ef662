"""The bench: guests, their cards and the fabric between them, set up and torn down as one thing.

Guarantees: guests boot at the same time; whatever happens (exception, Ctrl-C, end of the process) no QEMU is
left; each guest's console and QEMU's own messages are in files, kept if the run failed.
"""

from __future__ import annotations

import atexit
import contextlib
import secrets
import shutil
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from vhca.lab import debug, folders
from vhca.lab import guest_agent as wire
from vhca.lab import qemu as machine
from vhca.lab.agent_client import FILE_MAX_BYTES, AgentClient
from vhca.lab.agent_process import Process, Sink
from vhca.lab.cache import Cache, Progress
from vhca.lab.console import FILE_BYTES, Recorder, tail
from vhca.lab.errors import CommandFailed, Completed, GuestError, KernelPanic, LabError, last_lines
from vhca.lab.image import HCA_MODULES
from vhca.lab.kernel_log import Report
from vhca.lab.kernel_watch import KernelWatch, headlines
from vhca.lab.kernels import DEFAULT_SPEC
from vhca.lab.network import Network, address_of, mac_of
from vhca.lab.prepare import Prepared, prepare

_TAIL_BYTES = 64 << 10
_LAST_WORDS_S = 5.0  # for what an ended machine had printed


class HcaLike(Protocol):
    """What the lab asks of a card."""

    name: str
    socket_path: Path


class RackLike(Protocol):
    """What the lab asks of the device side: cards on one fabric, each listening at a socket."""

    @property
    def hcas(self) -> Sequence[Any]:
        """The cards."""

    @property
    def fabric(self) -> Any:
        """The fabric that joins them."""

    def start(self) -> None:
        """Listen at the sockets."""

    def stop(self) -> None:
        """Close everything."""

    def wait_active(self, timeout_s: float) -> None:
        """Wait until the ports of all cards whose host is there are ACTIVE; raise if that takes too long."""


#: Called with the number of cards and the folder for sockets and logs.
RackFactory = Callable[[int, Path], RackLike]


def default_rack(hcas: int, directory: Path, mkey: int | None = None, card_memory: int | None = None) -> RackLike:
    """The project's own rack of cards."""
    from vhca.chip.rack import Rack

    return Rack(hcas, directory, mkey=mkey, card_memory=card_memory)


class Guest:
    """One running guest.  Made by :class:`Lab`."""

    def __init__(self, lab: Lab, index: int, hcas: Sequence[Any]) -> None:
        self.index = index
        self.name = f"g{index}"
        self.address = address_of(index)
        self.hcas = list(hcas)
        self.console_path = lab.log_dir / f"{self.name}-console.log"
        self.qemu_log_path = lab.log_dir / f"{self.name}-qemu.log"
        self.boot_s = 0.0  # wall time from power-on, or the order to reboot, to the agent's first word
        self._powered_s = 0.0
        self._lab = lab
        self._process: subprocess.Popen[bytes] | None = None
        self._recorders: list[Recorder] = []  # of the console, and of what QEMU says
        self._agent: AgentClient | None = None
        self._qmp: machine.QmpClient | None = None
        self._watch = KernelWatch(self)

    # -- life ----------------------------------------------------------------------------------------
    def _start(self, network_end: socket.socket | None) -> None:
        lab = self._lab
        self._powered_s = time.monotonic()
        sync = secrets.token_bytes(wire.SYNC_BYTES)
        agent_ours, agent_theirs = socket.socketpair()
        qmp_ours, qmp_theirs = socket.socketpair()
        console_ours, console_theirs = socket.socketpair()
        settings = {"index": str(self.index), "count": str(lab.guest_count), "sync": sync.hex()}
        if network_end is not None:
            settings["net"] = "1"
        if lab.share is not None:
            settings["share"] = "rw" if lab.share_writable else "ro"
        address = lab.gdb_address(self.index)
        config = machine.MachineConfig(
            name=self.name,
            kernel=lab.prepared.kernel.image,
            image=lab.prepared.image,
            console_fd=console_theirs.fileno(),
            agent_fd=agent_theirs.fileno(),
            qmp_fd=qmp_theirs.fileno(),
            kernel_arguments=settings,
            extra_kernel_arguments=lab.kernel_arguments,
            memory_mib=lab.memory_mib,
            cpus=lab.cpus,
            network_fd=network_end.fileno() if network_end is not None else None,
            mac=mac_of(self.index),
            hca_sockets=[hca.socket_path for hca in self.hcas],
            share=lab.share,
            share_writable=lab.share_writable,
            iommu=lab.iommu,
            accelerator=lab.accelerator,
            extra_arguments=[*lab.qemu_arguments, *(debug.gdb_arguments(address) if address else ())],
        )
        descriptors = [agent_theirs.fileno(), qmp_theirs.fileno(), console_theirs.fileno()]
        if network_end is not None:
            descriptors.append(network_end.fileno())
        try:
            live = lab.live_console(self.name) if lab.live_console is not None else None

            def heard(data: bytes) -> None:
                self._watch.hear(data)
                if live is not None:
                    live(data)

            self._recorders.append(Recorder(console_ours.detach(), self.console_path, listener=heard))
            self._process, messages = machine.start(
                lab.prepared.qemu, machine.command_line(config), descriptors, self.qemu_log_path
            )
            self._recorders.append(messages)
        finally:
            for theirs in (agent_theirs, qmp_theirs, console_theirs, network_end):
                if theirs is not None:
                    theirs.close()
        self._agent = AgentClient(agent_ours, sync, self.name)
        self._qmp = machine.QmpClient(qmp_ours, self.name)

    def _wait_up(self, timeout_s: float, after_boots: int = 0) -> None:
        try:
            self.agent.wait_ready(timeout_s, after_boots)
        except GuestError as error:
            raise self._explained(error) from None
        self.boot_s = time.monotonic() - self._powered_s

    def _explained(self, error: GuestError) -> GuestError:
        """An error with the last words of the console and of QEMU.  A panic says all by itself."""
        if isinstance(error, KernelPanic):
            return error
        text = error.what
        if not self.alive:
            self._await_last_words()
        _, _, qemu_words = tail(self.qemu_log_path, _TAIL_BYTES).partition("\n")  # behind its command line
        if qemu_words:
            text += "\nQEMU said:\n" + last_lines(qemu_words, 8, "  ")
        if complaints := headlines(self.console_log):
            text += "\nthe kernel reported:\n" + last_lines("\n".join(complaints), 8, "  ")
        text += f"\nthe console ({self.console_path}) ends with:\n"
        text += last_lines(tail(self.console_path, _TAIL_BYTES), 15, "  ") or "  (nothing)"
        return GuestError(text)

    def kill(self) -> None:
        """End the guest at once, as if its power were cut."""
        if self._agent is not None:  # first, so that calls end with the true reason
            self._agent.close("the guest was killed")
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        self._await_last_words()
        if self._qmp is not None:
            self._qmp.close()

    def _await_last_words(self) -> None:
        for recorder in self._recorders:
            recorder.join(_LAST_WORDS_S)

    def reboot(self, timeout_s: float | None = None) -> None:
        """Reboot the guest's kernel and wait until it is up again, drivers loaded as at the first boot.

        Ports may still be on their way to ACTIVE then: see :meth:`Lab.wait_active`.
        """
        boots = self.agent.boots
        self._powered_s = time.monotonic()
        # A fast machine is down before it has said that the program began; whether it came back is asked next.
        with contextlib.suppress(GuestError, OSError):
            self.popen(["/usr/bin/busybox", "reboot", "-f"]).wait(20)
        self._came_back(boots, timeout_s)

    def reset(self, timeout_s: float | None = None) -> None:
        """Press the reset button: the kernel gets no chance to say good-bye.  Waits until it is up again."""
        boots = self.agent.boots
        self._powered_s = time.monotonic()
        self._watch.forget()
        self.qmp("system_reset")
        if self._watch.stopped:
            self._watch.stopped = False
            self.qmp("cont")
        self._came_back(boots, timeout_s)

    def _came_back(self, boots: int, timeout_s: float | None) -> None:
        self._wait_up(timeout_s if timeout_s is not None else self._lab.boot_timeout_s, boots)
        self._lab._make_ready(self)

    @property
    def alive(self) -> bool:
        """Is the guest's machine running?"""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process number of the guest's QEMU on the host."""
        assert self._process is not None
        return self._process.pid

    @property
    def agent(self) -> AgentClient:
        """The connection to the guest's agent."""
        if self._agent is None:
            raise GuestError(f"{self.name} is not started")
        return self._agent

    @property
    def console_log(self) -> str:
        """What the guest has printed on its console since its first power-on; of much, the last 8 MiB at least."""
        return tail(self.console_path, 2 * FILE_BYTES)

    @property
    def recorded_bytes(self) -> int:
        """How much the guest has printed on its console."""
        return self._recorders[0].recorded_bytes if self._recorders else 0

    @property
    def panic(self) -> KernelPanic | None:
        """The panic of the guest's kernel; ``None`` while it runs.  Its memory can be dumped, and it can be reset."""
        return self._watch.panic

    def kernel_log(self) -> str:
        """The kernel's log of this boot, each line with its priority (``<4>[ 12.3] ...``); empty if it is not told."""
        return self._watch.log()

    def kernel_reports(self) -> list[Report]:
        """What the kernel complained of (:mod:`vhca.lab.kernel_log`) since this was last called, or since power-on."""
        return self._watch.take()

    @property
    def kernel_evidence(self) -> Path:
        """The file with the whole of what :meth:`kernel_reports` returned last."""
        return self._watch.evidence

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Run a QMP command on the guest's machine and return its result."""
        if self._qmp is None:
            raise GuestError(f"{self.name} is not started")
        return self._qmp.command(command, **arguments)

    # -- work ----------------------------------------------------------------------------------------
    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 60.0,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        stdin: bytes | str = b"",
        stdout: Sink | None = None,
        stderr: Sink | None = None,
    ) -> Completed:
        """Run a command to its end.

        ``check`` raises :class:`CommandFailed` if its status is not 0; a command that takes longer than
        ``timeout_s`` is killed and raises :class:`CommandTimeout`; one that cannot be started raises
        ``OSError``; one that prints more than 64 MiB is killed and raises :class:`GuestError`.  ``stdout`` and
        ``stderr`` are called with output as it comes, instead of collecting it: any amount of it.
        """
        completed = self.agent.run(
            argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr
        )
        if check and completed.returncode:
            raise CommandFailed(self.name, completed)
        return completed

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        tty: tuple[int, int] | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
    ) -> Process:
        """Start a command and return while it runs.  ``tty`` (rows, columns) gives it a terminal."""
        return self.agent.popen(argv, env=env, cwd=cwd, tty=tty, stdout=stdout, stderr=stderr)

    def copy_in(self, source: str | Path, target: str, timeout_s: float = 60.0) -> None:
        """Copy a file or a folder of the host into the guest."""
        self.agent.copy_in(Path(source), target, timeout_s)

    def copy_out(
        self, source: str, target: str | Path, timeout_s: float = 60.0, max_bytes: int = FILE_MAX_BYTES
    ) -> None:
        """Copy a file of the guest to the host; ``OSError`` (EFBIG) if it has more than ``max_bytes``.

        Of the guest's mode only whether the file can be executed is taken over.
        """
        self.agent.copy_out(source, Path(target), timeout_s, max_bytes)


class Lab:
    """Guests on one fabric, as a context manager.  See :meth:`__init__` for what can be chosen."""

    def __init__(
        self,
        guests: int = 2,
        kernel: str | Path = DEFAULT_SPEC,
        hcas_per_guest: int = 1,
        memory_mib: int = 1024,
        share: str | Path | None = None,
        log_dir: str | Path | None = None,
        *,
        modules_dir: Path | None = None,
        extra_modules: Sequence[str] = (),
        share_writable: bool = True,
        cpus: int = 1,
        autoload: bool = True,
        keep_logs: bool = False,
        iommu: bool = False,
        boot_timeout_s: float = 120.0,
        kernel_arguments: str = "",
        qemu_arguments: Sequence[str] = (),
        live_console: Callable[[str], Sink] | None = None,
        gdb: int | None = None,
        mkey: int | None = None,
        card_memory: int | None = None,
        rack_factory: RackFactory | None = None,
        progress: Progress | None = None,
        cache: Cache | None = None,
    ) -> None:
        """Describe a lab; nothing happens before :meth:`start` (or ``with``).

        ``log_dir``: where logs go; they stay there.  They tell what is in guests' memory: the folder is made for its
        owner alone, and one that somebody else owns or may write to is refused.  Without it they go to a temporary
        folder, removed after a run that did not fail unless ``keep_logs``.  ``autoload``: load mlx5_ib and the user
        interfaces of the RDMA stack in guests that have a card, and wait for their ports to be ACTIVE.  ``share``: a
        host folder that guests see at /mnt/share; docs/host.md says what a guest can do there.
        ``iommu``: put an IOMMU between devices and memory (``kernel_arguments`` must switch it on), so that a
        guest can hand a card to a program of its own.  ``mkey``: one M_Key for all ports of the fabric, 0 for
        none; without it each has a secret one, and tools that send SMPs (smpquery, ibnetdiscover) get no answer.
        ``card_memory``: bytes of this process that the objects of one card's guest may take (default: a quarter of the
        guest's memory, 256 MiB to 2 GiB).  ``boot_timeout_s``: how long a guest may take to boot.
        ``live_console``: called with a guest's name; what it returns is called with what the console prints, as it
        comes.  ``gdb``: let gdb attach to guest i at port ``gdb`` + i of the loopback, which any user of the host can
        reach; 0: at a private socket (:meth:`gdb_address`).
        """
        if guests < 1 or guests > 1000:
            raise LabError(f"{guests} guests: not a number of guests", "give 1 to 1000")
        if hcas_per_guest < 0 or hcas_per_guest > 16:
            raise LabError(f"{hcas_per_guest} cards per guest: not possible", "give 0 to 16")
        from vhca.chip.rack import MAX_CARDS

        cards = guests * hcas_per_guest
        if cards > MAX_CARDS:
            raise LabError(
                f"{cards} cards: one switch joins them, and it has {MAX_CARDS} ports", "take fewer guests or cards"
            )
        if memory_mib < 384:
            raise LabError(f"{memory_mib} MiB is too little for a guest", "give at least 384")
        self.guest_count = guests
        self.kernel_spec = kernel
        self.hcas_per_guest = hcas_per_guest
        self.memory_mib = memory_mib
        self.cpus = cpus
        self.autoload = autoload
        self.boot_timeout_s = boot_timeout_s
        self.share = folders.to_share(share)
        self.share_writable = share_writable
        self.iommu = iommu
        self.kernel_arguments = kernel_arguments
        self.qemu_arguments = list(qemu_arguments)
        self.live_console = live_console
        self._gdb = gdb
        self.guests: list[Guest] = []
        self.rack: RackLike | None = None
        self.prepared: Prepared
        self.accelerator = "tcg"
        self.log_dir = Path()
        self._wanted_log_dir = Path(log_dir) if log_dir is not None else None
        self._keep_logs = keep_logs
        self._modules_dir = modules_dir
        self._extra_modules = extra_modules
        self._rack_factory = rack_factory or (lambda hcas, directory: default_rack(hcas, directory, mkey, card_memory))
        self._progress = progress if progress is not None else Progress()
        self._cache = cache if cache is not None else Cache()
        self._network: Network | None = None
        self._socket_dir: Path | None = None
        self._started = False
        self._failed = False
        self._teardown = threading.Lock()

    @property
    def hcas(self) -> Sequence[Any]:
        """All cards, guest by guest."""
        return self.rack.hcas if self.rack is not None else []

    @property
    def fabric(self) -> Any:
        """The fabric between the cards; ``None`` in a lab without cards."""
        return self.rack.fabric if self.rack is not None else None

    def gdb_address(self, index: int) -> str:
        """Where this guest waits for gdb, as gdb's ``target remote`` takes it; empty if it does not."""
        return debug.gdb_address(self._gdb, index, self._socket_dir) if self._gdb is not None else ""

    # -- life ----------------------------------------------------------------------------------------
    def start(self) -> Self:
        """Prepare what is missing, start the cards, boot the guests and wait until all are up."""
        if self._started:
            raise LabError("this lab was started before", "make a new one")
        self._started = True
        self.prepared = prepare(
            self._progress,
            self.kernel_spec,
            modules_dir=self._modules_dir,
            extra_modules=self._extra_modules,
            cache=self._cache,
        )
        self.accelerator = machine.accelerator()
        _LIVING.add(self)
        try:
            self._make_folders()
            self._start_rack()
            self._start_guests()
            if self.cpus > 1 and (missing := debug.processors_missing(self.guests[0], self.cpus)):
                self._progress.say(missing)  # once: all have the same kernel
            if self.autoload:
                self.wait_active(self.boot_timeout_s)
        except BaseException:
            self.stop(failed=True)
            raise
        return self

    def _make_folders(self) -> None:
        if self._wanted_log_dir is not None:
            self.log_dir = folders.for_logs(self._wanted_log_dir)
        else:
            self.log_dir = folders.for_new_logs()
        self._socket_dir = folders.for_sockets()

    def _start_rack(self) -> None:
        count = self.guest_count * self.hcas_per_guest
        if count:
            assert self._socket_dir is not None
            rack = self._rack_factory(count, self._socket_dir)
            rack.start()
            self.rack = rack

    def _start_guests(self) -> None:
        self._network = Network(self.guest_count)
        per_guest = self.hcas_per_guest
        for index, end in enumerate(self._network.ends):
            guest = Guest(self, index, self.hcas[index * per_guest : (index + 1) * per_guest])
            self.guests.append(guest)
            guest._start(end)
            if address := self.gdb_address(index):
                self._progress.say(debug.gdb_advice(guest.name, address, self.prepared.kernel))
        with ThreadPoolExecutor(max_workers=self.guest_count) as pool:
            waits = [pool.submit(self._bring_up, guest) for guest in self.guests]
            for wait in waits:
                try:
                    wait.result()
                except BaseException:
                    for guest in self.guests:  # the others need not be waited for
                        guest.kill()
                    raise

    def _bring_up(self, guest: Guest) -> None:
        guest._wait_up(self.boot_timeout_s)
        self._make_ready(guest)

    def _make_ready(self, guest: Guest) -> None:
        if self.share is not None and guest.run(["grep", "-q", " /mnt/share 9p ", "/proc/mounts"]).returncode:
            what = "the shared folder could not be mounted; the kernel needs 9p and 9pnet_virtio for that"
            raise guest._explained(GuestError(f"{guest.name}: {what}"))
        if self.autoload and guest.hcas:
            try:
                guest.run(["modprobe", "-a", *HCA_MODULES], timeout_s=self.boot_timeout_s, check=True)
            except GuestError as error:
                raise guest._explained(error) from None

    def wait_active(self, timeout_s: float = 60.0) -> None:
        """Wait until the port of every card whose guest is running is ACTIVE; ``GuestError`` if it takes longer."""
        if self.rack is None:
            return
        try:
            self.rack.wait_active(timeout_s)
        except Exception as error:
            raise GuestError(f"the ports did not become ACTIVE: {error} (logs in {self.log_dir})") from error

    def stop(self, failed: bool = False) -> None:
        """Take everything down.  ``failed`` keeps the logs.  May be called again, and from any thread."""
        with self._teardown:
            _LIVING.discard(self)
            self._failed = self._failed or failed
            for guest in self.guests:
                guest.kill()
            if self.rack is not None:
                with contextlib.suppress(Exception):
                    self.rack.stop()
            if self._network is not None:
                self._network.close()
            if self._socket_dir is not None:
                self._keep_device_logs(self._socket_dir)
                shutil.rmtree(self._socket_dir, ignore_errors=True)
                self._socket_dir = None
            if self._wanted_log_dir is None and self.log_dir != Path() and self.log_dir.exists():
                if self._failed or self._keep_logs:
                    self._progress.insist(f"the logs of this run are in {self.log_dir}")
                else:
                    shutil.rmtree(self.log_dir, ignore_errors=True)

    def _keep_device_logs(self, folder: Path) -> None:
        """Move what the cards wrote beside their sockets to where the logs are."""
        for path in folder.iterdir():
            if path.is_file():
                with contextlib.suppress(OSError):
                    shutil.move(path, self.log_dir / path.name)

    def mark_failed(self) -> None:
        """Keep the logs of this run although no exception will reach the lab."""
        self._failed = True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(failed=kind is not None)


_LIVING: weakref.WeakSet[Lab] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for lab in list(_LIVING):
        lab.stop(failed=True)
