"""One machine of a lab: QEMU with its console, its agent and its cards, from power-on to the end.

Assumes what :mod:`vhca.lab.prepare` made ready. Guarantees: what the guest prints, and QEMU's own messages, are in
files; a call into a guest that is gone ends with the last words of both.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vhca.lab import boot_times, debug, folders, guest_agent, kept, roots, vmcore
from vhca.lab import qemu as machine
from vhca.lab.agent_client import FILE_MAX_BYTES, AgentClient
from vhca.lab.agent_process import Process, Sink
from vhca.lab.console import FILE_BYTES, Recorder, tail
from vhca.lab.devices import Hca
from vhca.lab.errors import CommandFailed, Completed, GuestError, KernelPanic, LabError, last_lines
from vhca.lab.image import HCA_MODULES
from vhca.lab.kernel_log import Report
from vhca.lab.kernel_watch import KernelWatch, headlines
from vhca.lab.network import address_of, mac_of
from vhca.lab.own_modules import OwnModule, load
from vhca.lab.prepare import Prepared

_TAIL_BYTES = 64 << 10
_WRITE_BACK_S = 20.0
_LAST_WORDS_S = 5.0  # for what an ended machine had printed


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """What each machine of a lab is like, and what it does when it boots.

    :ivar memory_mib: its memory; 384 at least.
    :ivar cpus: its processors.
    :ivar iommu: put an IOMMU between devices and memory (`kernel_arguments` must switch it on), so that a guest can
        hand a card to a program of its own.
    :ivar share: a host folder that guests see at /mnt/share; docs/host.md says what a guest can do there.
    :ivar share_writable: may guests write to it?
    :ivar root: a folder of the host that is the guest's root instead of its own system, read-only below an overlay; no
        packages can be added to it then.
    :ivar keep: a name under which what guests change in their root is kept, for the next run with that name.
    :ivar autoload: load mlx5_ib and the user interfaces of the RDMA stack in guests that have a card, and wait for
        their ports to be ACTIVE.
    :ivar boot_timeout_s: how long a guest may take to boot.
    :ivar kernel_arguments: words for the kernel's command line.
    :ivar qemu_arguments: words for QEMU's command line.
    :ivar insmod: module files to load when it has booted, in this order (:func:`vhca.lab.own_module`).
    :ivar vmcore: write its memory beside its logs when its kernel panics; an oops is a panic then.
    """

    memory_mib: int = 1024
    cpus: int = 1
    iommu: bool = False
    share: str | Path | None = None
    share_writable: bool = True
    root: str | Path | None = None
    keep: str | None = None
    autoload: bool = True
    boot_timeout_s: float = 120.0
    kernel_arguments: str = ""
    qemu_arguments: Sequence[str] = ()
    insmod: Sequence[OwnModule] = ()
    vmcore: bool = False

    def checked(self) -> GuestConfig:
        """The same with the true paths of `share` and `root`; `LabError` if no machine can be like that."""
        if self.memory_mib < 384:
            raise LabError(f"{self.memory_mib} MiB is too little for a guest", "give at least 384")
        kept.checked(self.keep)
        return replace(self, share=folders.to_share(self.share), root=roots.checked(self.root))

    def modules(self) -> dict[str, tuple[str, ...]]:
        """The modules of the kernel that this asks for, by what asks for them."""
        asked: dict[str, tuple[str, ...]] = {}
        if self.root is not None:
            asked[f"root {self.root}"] = roots.MODULES
        if self.keep is not None:
            asked[f"files kept as {self.keep}"] = kept.MODULES
        return asked


@dataclass(slots=True)
class Surroundings:
    """What a lab's guests have in common beside their configuration."""

    prepared: Prepared
    guests: int
    log_dir: Path
    accelerator: str
    live_console: Callable[[str], Sink] | None = None
    kept: kept.Kept | None = None


class Guest:
    """One running guest. Made by :class:`vhca.lab.Lab`.

    :ivar index: its number, from 0.
    :ivar name: g0, g1 ...: so it is called in the management network, too.
    :ivar hcas: its cards.
    :ivar boot_s: seconds from power-on, or the order to reboot, to the agent's first word.
    :ivar boot_times: where the time of its first boot went.
    """

    def __init__(
        self, index: int, config: GuestConfig, around: Surroundings, hcas: Sequence[Hca], gdb_address: str = ""
    ) -> None:
        self.index = index
        self.name = f"g{index}"
        self.address = address_of(index)
        self.config = config
        self.hcas = list(hcas)
        self.console_path = around.log_dir / f"{self.name}-console.log"
        self.qemu_log_path = around.log_dir / f"{self.name}-qemu.log"
        self.boot_s = 0.0
        self.boot_times = boot_times.BootTimes()
        self._powered_s = 0.0
        self._around = around
        self._gdb_address = gdb_address
        self._process: subprocess.Popen[bytes] | None = None
        self._recorders: list[Recorder] = []  # of the console, and of what QEMU says
        self._agent: AgentClient | None = None
        self._qmp: machine.QmpClient | None = None
        self._watch = KernelWatch(self, vmcore.place_of(self.console_path, self.name) if config.vmcore else None)

    # ---- life ----
    def start(self, network_end: socket.socket | None) -> None:
        """Power it on. For its lab."""
        self._powered_s = time.monotonic()
        self.boot_times.end(boot_times.HOST)
        sync = secrets.token_bytes(guest_agent.SYNC_BYTES)
        agent_ours, agent_theirs = socket.socketpair()
        qmp_ours, qmp_theirs = socket.socketpair()
        console_ours, console_theirs = socket.socketpair()
        config = self._machine(sync, console_theirs, agent_theirs, qmp_theirs, network_end)
        descriptors = [agent_theirs.fileno(), qmp_theirs.fileno(), console_theirs.fileno()]
        if network_end is not None:
            descriptors.append(network_end.fileno())
        try:
            live_console = self._around.live_console
            live = live_console(self.name) if live_console is not None else None

            def heard(data: bytes) -> None:
                self._watch.hear(data)
                if live is not None:
                    live(data)

            self._recorders.append(Recorder(console_ours.detach(), self.console_path, listener=heard))
            self._process, messages = machine.start(
                self._around.prepared.qemu, machine.command_line(config), descriptors, self.qemu_log_path
            )
            self._recorders.append(messages)
        finally:
            for theirs in (agent_theirs, qmp_theirs, console_theirs, network_end):
                if theirs is not None:
                    theirs.close()
        self._agent = AgentClient(agent_ours, sync, self.name)
        self._qmp = machine.QmpClient(qmp_ours, self.name)

    def _machine(
        self,
        sync: bytes,
        console: socket.socket,
        agent: socket.socket,
        qmp: socket.socket,
        network: socket.socket | None,
    ) -> machine.MachineConfig:
        config, around = self.config, self._around
        share = folders.to_share(config.share)
        settings = {"index": str(self.index), "count": str(around.guests), "sync": sync.hex()}
        if network is not None:
            settings["net"] = "1"
        if share is not None:
            settings["share"] = "rw" if config.share_writable else "ro"
        root = roots.checked(config.root)
        if root is not None:
            settings["root"] = "1"
        image = around.kept.image(self.name) if around.kept is not None else None
        if image is not None:
            settings["keep"] = "1"
        debugger = debug.gdb_arguments(self._gdb_address) if self._gdb_address else []
        return machine.MachineConfig(
            name=self.name,
            kernel=around.prepared.boot.path,
            image=around.prepared.image,
            console_fd=console.fileno(),
            agent_fd=agent.fileno(),
            qmp_fd=qmp.fileno(),
            kernel_arguments=settings,
            extra_kernel_arguments=f"{config.kernel_arguments}{vmcore.KERNEL_ARGUMENTS * config.vmcore}",
            memory_mib=config.memory_mib,
            cpus=config.cpus,
            network_fd=network.fileno() if network is not None else None,
            mac=mac_of(self.index),
            hca_sockets=[hca.socket_path for hca in self.hcas],
            share=share,
            share_writable=config.share_writable,
            root=root,
            kept=image,
            iommu=config.iommu,
            accelerator=around.accelerator,
            extra_arguments=[*config.qemu_arguments, *debugger, *(vmcore.QEMU_ARGUMENTS if config.vmcore else ())],
        )

    def bring_up(self) -> None:
        """Wait until it has booted, and make it ready. For its lab."""
        self._wait_up(self.config.boot_timeout_s)
        self._make_ready()
        self.boot_times.end(boot_times.MODULES)

    def _make_ready(self) -> None:
        if self.config.share is not None and self.run(["grep", "-q", " /mnt/share 9p ", "/proc/mounts"]).returncode:
            what = "the shared folder could not be mounted; the kernel needs 9p and 9pnet_virtio for that"
            raise self._explained(GuestError(f"{self.name}: {what}"))
        if (self.config.root or self.config.keep) and self.run(["test", "-e", "/run/vhca/root"]).returncode:
            raise self._explained(GuestError(f"{self.name}: its root could not be mounted"))
        if self.config.autoload and self.hcas:
            try:
                self.run(["modprobe", "-a", *HCA_MODULES], timeout_s=self.config.boot_timeout_s, check=True)
            except GuestError as error:
                raise self._explained(error) from None
        if self.config.vmcore:
            self.run(vmcore.PREPARE, timeout_s=self.config.boot_timeout_s)
        load(self, self.config.insmod)

    def _wait_up(self, timeout_s: float, after_boots: int = 0) -> None:
        try:
            ready = self.agent.wait_ready(timeout_s, after_boots)
        except GuestError as error:
            raise self._explained(error) from None
        self.boot_s = time.monotonic() - self._powered_s
        self.boot_times.agent_ready(ready.begun_s, ready.started_s, ready.ready_s)

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

    def write_back(self) -> None:
        """Let a guest that keeps files write what is in its memory, so that nothing of them is lost."""
        if self.config.keep is not None and self.alive and self.panic is None:
            with contextlib.suppress(GuestError, OSError):
                self.run(["busybox", "sync"], timeout_s=_WRITE_BACK_S)

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

        Ports may still be on their way to ACTIVE then: see :meth:`vhca.lab.Lab.wait_active`.
        """
        boots = self.agent.boots
        self._powered_s = time.monotonic()
        # A fast machine is down before it has said that the program began; whether it came back is asked next.
        with contextlib.suppress(GuestError, OSError):
            self.popen(["busybox", "reboot", "-f"]).wait(20)
        self._came_back(boots, timeout_s)

    def reset(self, timeout_s: float | None = None) -> None:
        """Press the reset button: the kernel gets no chance to say good-bye. Waits until it is up again."""
        boots = self.agent.boots
        self._powered_s = time.monotonic()
        self._watch.forget()
        self.qmp("system_reset")
        if self._watch.stopped:
            self._watch.stopped = False
            self.qmp("cont")
        self._came_back(boots, timeout_s)

    def _came_back(self, boots: int, timeout_s: float | None) -> None:
        self._wait_up(timeout_s if timeout_s is not None else self.config.boot_timeout_s, boots)
        self._make_ready()

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
        """The panic of the guest's kernel; `None` while it runs. Its memory can be dumped, and it can be reset."""
        return self._watch.panic

    @property
    def vmcore(self) -> Path | None:
        """The dump of the guest's memory at the last panic, if it was to be made and could be."""
        return self._watch.vmcore

    def kernel_log(self) -> str:
        """The kernel's log of this boot, each line with its priority (`<4>[ 12.3] ...`); empty if it is not told."""
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

    # ---- work ----
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

        `check` raises :class:`CommandFailed` if its status is not 0; a command that takes longer than
        `timeout_s` is killed and raises :class:`CommandTimeout`; one that cannot be started raises
        `OSError`; one that prints more than 64 MiB is killed and raises :class:`GuestError`. `stdout` and
        `stderr` are called with output as it comes, instead of collecting it: any amount of it.
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
        """Start a command and return while it runs. `tty` (rows, columns) gives it a terminal."""
        return self.agent.popen(argv, env=env, cwd=cwd, tty=tty, stdout=stdout, stderr=stderr)

    def insmod(self, *modules: OwnModule) -> None:
        """Load these module files, in this order, each after those of the kernel's that it needs.

        :raises GuestError: one was refused; with the kernel's words.
        """
        load(self, modules)

    def copy_in(self, source: str | Path, target: str, timeout_s: float = 60.0) -> None:
        """Copy a file or a folder of the host into the guest."""
        self.agent.copy_in(Path(source), target, timeout_s)

    def copy_out(
        self, source: str, target: str | Path, timeout_s: float = 60.0, max_bytes: int = FILE_MAX_BYTES
    ) -> None:
        """Copy a file of the guest to the host; `OSError` (EFBIG) if it has more than `max_bytes`.

        Of the guest's mode only whether the file can be executed is taken over.
        """
        self.agent.copy_out(source, Path(target), timeout_s, max_bytes)
