"""Watches a guest's kernel: notices a panic at once, and reads the kernel's log when asked.

Assumes the console's recorder tells what comes. Guarantees: a panic ends all that waits for the guest, within a second
of its last line; a kernel that stays halted is stopped, so that its memory can be looked at and no processor spins; a
report is told once, by the boot that it happened in, whether the guest still answers or not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any, Final, Protocol

from vhca.lab import vmcore
from vhca.lab.agent_client import AgentClient
from vhca.lab.console import FILE_BYTES, tail
from vhca.lab.errors import GuestError, KernelPanic, LabError
from vhca.lab.kernel_log import Panic, Report, panic_of, records, reports
from vhca.private_files import create_private

_HEADLINE: Final = b"Kernel panic - not syncing"
_PING_S: Final = 0.5
_QUIET_S: Final = 0.5  # nothing more comes: the kernel restarts itself, or hangs
_TRACE_MAX_S: Final = 3.0
_DMESG_S: Final = 10.0
_STEP_S: Final = 0.02


class Patient(Protocol):
    """What the watch asks of a guest."""

    name: str
    console_path: Path

    @property
    def alive(self) -> bool:
        """Is the machine running?"""

    @property
    def agent(self) -> AgentClient:
        """The connection to its agent."""

    @property
    def recorded_bytes(self) -> int:
        """How much was printed on the console."""

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Run a QMP command on the machine."""


class KernelWatch:
    """Watches one guest's kernel."""

    def __init__(self, guest: Patient, dump: Path | None = None) -> None:
        """Watch a guest; `dump`: where to write its memory when it panics."""
        self.panic: KernelPanic | None = None
        self.vmcore: Path | None = None
        self.stopped = False  # the machine, by us, after a panic
        self.log_path = guest.console_path.with_name(f"{guest.name}-kernel.log")
        self._guest = guest
        self._dump = dump
        self._rest = b""
        self._following = threading.Lock()
        self._told_boot = 0
        self._told_s = -1.0  # of that boot, up to here
        self._told_bytes = 0  # of the console

    # ---- panic ----
    def hear(self, data: bytes) -> None:
        """Take what the console prints, from its recorder's thread."""
        if _HEADLINE in self._rest + data and self._following.acquire(blocking=False):
            threading.Thread(target=self._follow, name=f"panic-{self._guest.name}", daemon=True).start()
        self._rest = data[-len(_HEADLINE) :]

    def _follow(self) -> None:
        try:
            # Programs can write such a line, too; but then the guest answers.
            if self._answers():
                return
            found = self._last_words()
            if found is None:
                return
            if found.ended or self._dump is not None:
                with contextlib.suppress(LabError, OSError):
                    self._guest.qmp("stop")
                    self.stopped = True
            dumped = self._dumped()  # before anybody is told: they would end the machine
            self.panic = KernelPanic(self._guest.name, found.headline, found.trace, self._guest.console_path, dumped)
            self._guest.agent.panicked(self.panic)
        finally:
            self._following.release()

    def _dumped(self) -> str:
        """Dump the memory if that is wanted; what came of it, for people."""
        if self._dump is None:
            return ""
        try:
            self.vmcore = vmcore.dump(self._guest, self._dump)
        except (LabError, OSError) as error:
            return f"the memory of {self._guest.name} could not be dumped: {error}"
        return f"the memory of {self._guest.name} is in {self.vmcore}"

    def _answers(self) -> bool:
        with contextlib.suppress(GuestError):
            self._guest.agent.ping(_PING_S)
            return True
        return False

    def _last_words(self) -> Panic | None:
        """The panic with its trace, as soon as it is whole."""
        end_s = time.monotonic() + _TRACE_MAX_S
        quiet_s, length = time.monotonic() + _QUIET_S, 0
        while True:
            console = tail(self._guest.console_path, FILE_BYTES // 8)
            found = panic_of(console)
            now_s = time.monotonic()
            if len(console) != length:
                quiet_s, length = now_s + _QUIET_S, len(console)
            if found is None or found.ended or now_s > min(end_s, quiet_s):
                return found
            time.sleep(_STEP_S)

    def forget(self) -> None:
        """The machine begins anew."""
        self.panic = None
        self._guest.agent.panicked(None)

    # ---- reports ----
    def log(self) -> str:
        """The kernel's log of this boot, each line with its priority; empty if the guest does not tell."""
        if self.panic is None and self._guest.alive:
            with contextlib.suppress(LabError, OSError):
                return self._guest.agent.run(["busybox", "dmesg", "-r"], timeout_s=_DMESG_S).stdout
        return ""

    def take(self) -> list[Report]:
        """What the kernel complained of since the last time."""
        guest = self._guest
        log, boot = self.log(), guest.agent.boots
        lines = records(log)
        since_s = self._told_s if boot == self._told_boot else -1.0
        first_s = next((line.time_s for line in lines if line.time_s is not None), None)
        overrun = first_s is not None and first_s > max(since_s, 1.0)
        found = reports([line for line in lines if line.time_s is None or line.time_s > since_s])
        recorded = guest.recorded_bytes
        if not lines or overrun or (boot != self._told_boot and self._told_boot):
            # another boot's, or more than the kernel keeps, or the guest does not tell
            known = {report.headline for report in found}
            said = tail(guest.console_path, min(2 * FILE_BYTES, recorded - self._told_bytes))
            found = [report for report in reports(said) if report.headline not in known] + found
        self._told_boot, self._told_bytes = boot, recorded
        self._told_s = max([since_s, *(line.time_s for line in lines if line.time_s is not None)])
        if found and log:
            self._keep(log)
        return found

    def _keep(self, log: str) -> None:
        with contextlib.suppress(OSError), open(create_private(self.log_path), "w", encoding="utf-8") as stream:
            stream.write(log)

    @property
    def evidence(self) -> Path:
        """The file that has the whole of what was reported last."""
        return self.log_path if self.log_path.exists() else self._guest.console_path


def headlines(console: str) -> list[str]:
    """The complaints that a console shows, for a message."""
    return [report.headline for report in reports(console)]
