"""What a claim works with: two guests with a card each, their cards, the cables, and the record of what is seen.

Assumes :class:`vhca.lab.lab.Lab`. Guarantees: nothing boots before it is needed; everything done through the bench
is written into the notebook, which becomes the claim's evidence; a guest that a claim broke is replaced before the
next one.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from acceptance.claims.trace import Event, Probe, Trace
from acceptance.claims.verdict import Evidence
from acceptance.places import scripts
from vhca import DEFAULT_KERNEL
from vhca.chip.live_fabric import LiveFabric
from vhca.fabric.faults import Fault
from vhca.lab import (
    Cache,
    CommandFailed,
    CommandTimeout,
    Completed,
    Guest,
    GuestConfig,
    GuestError,
    Hca,
    Lab,
    LabError,
    Process,
    Progress,
    RackConfig,
)
from vhca.lab.kernels import Kernel, resolve
from vhca.lab.perftest import DEVICE, wait_port_active

_GUEST_DIR: Final = "/tmp/guest-tests"
_FIRST_TCP_PORT: Final = 19000
_OUTPUT_LINES_MAX: Final = 60
_OUTPUT_LINE_MAX: Final = 600
_OUTPUT_CHARACTERS_MAX: Final = 6000
_SPARE_SLOT: Final = 20  # PCI Express slot number of the empty slot


_ABOUT: Final = {
    "firmware of the cards": "cat /sys/class/infiniband/mlx5_0/fw_ver",
    "rdma-core": "readlink -f /usr/lib/x86_64-linux-gnu/libibverbs.so.1 | sed 's/.*[.]so[.]1[.]14[.]//'",
}

#: What a lab of two guests must be made with for a bench to work with all claims, with the two constants below.
GUEST: Final = GuestConfig(
    memory_mib=1536,
    boot_timeout_s=300.0,  # for a kernel with KASAN and lockdep on a busy host
    # the BIOS must leave room for a BAR that it cannot see yet
    qemu_arguments=(
        "-device",
        f"pcie-root-port,id=spare,chassis={_SPARE_SLOT},slot={_SPARE_SLOT},mem-reserve=64M,pref64-reserve=64M",
    ),
)
RACK: Final = RackConfig(mkey=0)
"""No M_Keys: claims look at agents from inside a guest."""
SPARE_HCAS: Final = 1
"""Plugged in while a guest runs."""


class ScriptError(LabError):
    """A script in a guest did not work, or did not say what it saw."""


@dataclass(slots=True)
class Result:
    """What a script in a guest saw: its one JSON object, and everything it printed."""

    seen: dict[str, Any]
    completed: Completed

    def __getitem__(self, name: str) -> Any:
        if name not in self.seen:
            raise ScriptError(f"{self.completed.args[-1]} says nothing about {name!r}: {self.seen}")
        return self.seen[name]

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict."""
        return self.seen.get(name, default)


class Bench:
    """The bench.

    `lab`: a running lab made with :data:`GUEST`, :data:`RACK` and :data:`SPARE_HCAS`; without one the bench boots
    its own, whose guests have `packages` of Debian beside the usual ones.
    """

    def __init__(
        self,
        lab: Lab | None = None,
        *,
        kernel: str | Path = DEFAULT_KERNEL,
        modules_dir: Path | None = None,
        log_dir: Path | None = None,
        packages: Sequence[str] = (),
        source: bool = False,
        progress: Progress | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.evidence: list[Evidence] = []
        self.source = source  # may the kernel's source package be fetched?
        self.progress = progress if progress is not None else Progress()
        self.cache = cache if cache is not None else Cache()
        self._lab = lab
        self._owns_lab = lab is None
        self._kernel_spec = lab.kernel_spec if lab is not None else kernel
        self._modules_dir = modules_dir
        self._packages = packages
        self._log_dir = log_dir
        self._copied: set[tuple[int, int, str]] = set()  # guest, boots, file
        self._tcp_port = _FIRST_TCP_PORT
        self._plugged = False
        self._boots = 0

    # ---- life ----
    @property
    def lab(self) -> Lab:
        """The lab, booted now if it is not running."""
        if self._lab is None:
            self.progress.step("booting two guests")
            self._boots += 1
            log_dir = self._log_dir / f"lab-{self._boots}" if self._log_dir is not None else None
            lab = Lab(
                kernel=self._kernel_spec,
                modules_dir=self._modules_dir,
                extra_packages=self._packages,
                log_dir=log_dir,
                progress=self.progress,
                cache=self.cache,
                guest=GUEST,
                rack=RACK,
                spare_hcas=SPARE_HCAS,
            )
            self._lab = lab.start()
            self._plugged = False
        return self._lab

    @property
    def kernel(self) -> Kernel:
        """The kernel under test; needs no booted guest."""
        if self._lab is not None:
            return self._lab.prepared.kernel
        return resolve(self._kernel_spec, self.cache, self.progress, self._modules_dir)

    @property
    def booted(self) -> bool:
        """Does a lab run now?"""
        return self._lab is not None

    def close(self, failed: bool = False) -> None:
        """Stop the lab, if it is the bench's own."""
        if self._lab is not None and self._owns_lab:
            self._lab.stop(failed=failed)
            self._lab = None
        self._copied.clear()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def renew(self) -> None:
        """Fresh guests: a new lab, or, if the lab belongs to somebody else, both guests rebooted."""
        if self._owns_lab:
            self.close()
            return
        assert self._lab is not None
        for guest in self._lab.guests:
            guest.reset()
        self._lab.wait_active()

    def usable(self) -> bool:
        """Do both guests answer, with their first card's port up?"""
        if self._lab is None:
            return True
        try:
            for guest in self._lab.guests:
                guest.agent.ping(10.0)
                state = guest.run(["cat", "/sys/class/infiniband/mlx5_0/ports/1/state"], timeout_s=20)
                if "ACTIVE" not in state.stdout:
                    return False
        except (GuestError, OSError):
            return False
        return True

    def about(self) -> dict[str, str]:
        """What was tested on what, for the report."""
        about = {"kernel": self.kernel.release}
        if self._lab is not None:
            for name, command in _ABOUT.items():
                done = self.run(command, check=False, quiet=True)
                about[name] = " ".join(done.stdout.split()) or "unknown"
            about["accelerator"] = self._lab.accelerator
        return about

    def note_trouble(self) -> None:
        """Write down what guests and cards say when something did not work."""
        if self._lab is None:
            return
        for guest in self._lab.guests:
            try:
                log = guest.run(["dmesg"], timeout_s=10).stdout
            except (LabError, OSError):
                log = guest.console_log
            self.record(guest.name, "end of the kernel log", "\n".join(log.splitlines()[-15:]))
        for card in self._lab.hcas[:2]:
            self.record(f"card {card.name}", "end of the trace", "\n".join(card.trace_tail(15)))

    def start_notes(self) -> None:
        """Begin a new page of the notebook."""
        self.evidence = []

    # ---- the notebook ----
    def record(self, where: str, command: str, output: object) -> None:
        """Write something down: where it was seen, what was done, what came of it (cut to a readable size)."""
        self.evidence.append(Evidence(where, command, excerpt(str(output))))

    # ---- guests ----
    def guest(self, index: int = 0) -> Guest:
        """A guest."""
        return self.lab.guests[index]

    def run(
        self,
        command: str | Sequence[str],
        *,
        guest: int = 0,
        timeout_s: float = 60.0,
        check: bool = True,
        quiet: bool = False,
        show: str = "",
    ) -> Completed:
        """Run a command in a guest; a string is a line for the shell.

        `check` raises if its status is not 0; `quiet` leaves it out of the notebook; `show`: a regular
        expression, only lines of the output that match it are written down.
        """
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        done = self.guest(guest).run(argv, timeout_s=timeout_s)
        if not quiet:
            shown = command if isinstance(command, str) else shlex.join(command)
            self._note_command(guest, shown, done, show)
        if check and done.returncode:
            raise CommandFailed(self.guest(guest).name, done)
        return done

    def read(self, path: str, guest: int = 0) -> str:
        """Content of a file of the guest, without the last newline; not written down."""
        return self.run(["cat", path], guest=guest, quiet=True).stdout.rstrip("\n")

    def wait_for(self, condition: str, *, guest: int = 0, timeout_s: float = 60.0) -> None:
        """Wait until a shell condition holds in a guest; :class:`LabError` if it does not in time."""
        rounds = int(timeout_s * 10)
        loop = f"i=0; until {condition}; do [ $i -lt {rounds} ] || exit 1; usleep 100000; i=$((i + 1)); done"
        if self.run(loop, guest=guest, timeout_s=2 * timeout_s + 30, check=False, quiet=True).returncode:
            raise LabError(f"g{guest}: not within {timeout_s:.0f} s: {condition}")

    def wait_active(self, guest: int = 0, device: str = DEVICE) -> None:
        """Wait until a port is ACTIVE as the guest's driver sees it."""
        wait_port_active(self.guest(guest), 60.0, device)

    def _note_command(self, guest: int, shown: str, done: Completed, show: str = "") -> None:
        output = done.stdout + done.stderr
        if show:
            output = "\n".join(line for line in output.splitlines() if re.search(show, line))
        if done.returncode:
            output += f"\n[status {done.returncode}]"
        self.record(f"g{guest}", shown, output)

    # ---- scripts ----
    def script(
        self,
        name: str,
        *args: object,
        guest: int = 0,
        timeout_s: float = 60.0,
        check: bool = True,
        prefix: Sequence[str] = (),
        quiet: bool = False,
    ) -> Result:
        """Run a Python script of guest-tests/ in a guest and return what it saw.

        `prefix` goes before the interpreter (`("strace", "-f")`). With `check` a status that is not 0, or no
        JSON line, raises :class:`ScriptError`.
        """
        argv = self._script_command(name, args, guest, prefix)
        done = self.guest(guest).run(argv, timeout_s=timeout_s)
        return self._result(name, args, guest, done, check, quiet)

    def both(
        self,
        script0: str,
        script1: str,
        *,
        args0: Sequence[object] = (),
        args1: Sequence[object] = (),
        timeout_s: float = 60.0,
        check: bool = True,
        quiet: bool = False,
        while_running: Callable[[], None] | None = None,
    ) -> tuple[Result, Result]:
        """Run a script in each guest at the same time: `script0` in g0, `script1` in g1.

        They find each other by two arguments that are added, `--peer SIDE:PORT` (see `Peer` of
        guest-tests/claims/common.py). `while_running` is called once both have started.
        """
        self._tcp_port += 1
        names, args = (script0, script1), (tuple(args0), tuple(args1))
        processes = []
        try:
            for side in (0, 1):
                argv = self._script_command(names[side], (*args[side], "--peer", f"{side}:{self._tcp_port}"), side)
                processes.append(self.guest(side).popen(argv))
            if while_running is not None:
                while_running()
            codes = self._wait_both(processes, timeout_s)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        results = []
        for side in (0, 1):
            process = processes[side]
            out, err = (stream.read_all().decode("utf-8", "replace") for stream in (process.stdout, process.stderr))
            done = Completed(process.args, codes[side], out, err)
            results.append((side, done))
        for side, done in results:  # both are written down before one of them may raise
            if not quiet:
                self._note_command(side, _shown(names[side], args[side]), done)
        first, second = (self._result(names[s], args[s], s, done, check, True) for s, done in results)
        return first, second

    def _wait_both(self, processes: Sequence[Process], timeout_s: float) -> list[int]:
        try:
            return [process.wait(timeout_s) for process in processes]
        except CommandTimeout as late:
            said = []
            for process in processes:
                process.kill()
                with contextlib.suppress(GuestError, OSError):
                    process.wait(5.0)
                for stream in (process.stdout, process.stderr):
                    with contextlib.suppress(TimeoutError):
                        said.append(stream.read(0).decode("utf-8", "replace"))
            raise ScriptError(f"{late}; both had said:\n{excerpt(''.join(said))}") from None

    def _script_command(self, name: str, args: Sequence[object], guest: int, prefix: Sequence[str] = ()) -> list[str]:
        self.copy_script("claims/common.py", guest)
        path = self.copy_script(name, guest)
        return [*prefix, "python3", path, *map(str, args)]

    def copy_script(self, name: str, guest: int = 0) -> str:
        """Copy a file of guest-tests/ into a guest, once for each boot, and return its path there."""
        target = f"{_GUEST_DIR}/{name}"
        client = self.guest(guest).agent
        key = (id(client), client.boots, name)
        if key not in self._copied:
            self.guest(guest).copy_in(scripts() / name, target)
            self._copied.add(key)
        return target

    def _result(
        self, name: str, args: Sequence[object], guest: int, done: Completed, check: bool, quiet: bool
    ) -> Result:
        if not quiet:
            self._note_command(guest, _shown(name, args), done)
        seen = last_object(done.stdout)
        if check and (done.returncode or seen is None):
            tail = "\n".join((done.stdout + done.stderr).rstrip().splitlines()[-25:])
            raise ScriptError(f"{_shown(name, args)} in g{guest} ended with {done.returncode}\n{tail}")
        return Result(seen or {}, done)

    # ---- kernel ----
    @contextlib.contextmanager
    def trace(
        self,
        probes: Sequence[Probe] = (),
        events: Sequence[str] = (),
        *,
        guest: int = 0,
        quiet: bool = False,
        show: Callable[[Event], bool] | None = None,
        **more: Any,
    ) -> Iterator[Trace]:
        """Trace a guest's kernel while the body runs; see :class:`acceptance.claims.trace.Trace`.

        The events are in the yielded object after the body. `show` chooses those to write down.
        """
        trace = Trace(self.guest(guest), probes, events, **more)
        with trace:
            yield trace
        if not quiet:
            what = "; ".join([*(probe.definition for probe in probes), *events])
            lines = [line for event in trace.events if show is None or show(event) for line in _event_lines(event)]
            self.record(f"g{guest}", f"trace: {what}", "\n".join(lines) or "(no event)")

    def interrupts(self, guest: int = 0, match: str = "mlx5") -> dict[str, int]:
        """Interrupts taken so far, by name, of lines of /proc/interrupts that hold `match`."""
        counts: dict[str, int] = {}
        for line in self.read("/proc/interrupts", guest).splitlines():
            words = line.split()
            if match in line and words and words[0].endswith(":"):
                numbers = [int(word) for word in words[1:] if word.isdigit()]
                counts[words[-1]] = counts.get(words[-1], 0) + sum(numbers)
        return counts

    def physical_memory(self, address: int, size: int, guest: int = 0) -> bytes:
        """Bytes of a guest's physical memory, as the machine has them: not through the guest's kernel."""
        with tempfile.NamedTemporaryFile(dir=self.lab.log_dir) as file:
            self.guest(guest).qmp("pmemsave", val=address, size=size, filename=file.name)
            data = Path(file.name).read_bytes()
        self.record(f"QEMU of g{guest}", f"pmemsave {address:#x} {size}", _hexadecimal(data, address))
        return data

    # ---- cards and cables ----
    def card(self, index: int = 0) -> Hca:
        """A card: `counters()`, `objects()`, `trace_tail(lines)`. 0 and 1 are the guests', 2 is the spare."""
        return self.lab.hcas[index]

    @property
    def fabric(self) -> LiveFabric:
        """The fabric: `counters()`, `link_down(name)`, `add_fault(name, fault)`, `capture(path)`."""
        return self.lab.fabric

    @contextlib.contextmanager
    def fault(self, card: int, *faults: Fault, toward_card: bool = True) -> Iterator[Sequence[Fault]]:
        """Let things go wrong on a card's cable while the body runs; each fault counts its `hits`."""
        name = self.card(card).name
        for fault in faults:
            self.fabric.add_fault(name, fault, "to_card" if toward_card else "from_card")
        try:
            yield faults
        finally:
            self.fabric.clear_faults(name)
            way = "toward" if toward_card else "from"
            text = "\n".join(f"{f.action}: {f.hits} packets" for f in faults)
            self.record(f"cable of {name}", f"faults {way} the card", text)

    def plug_spare(self, guest: int = 0) -> None:
        """Plug the spare card into the empty slot of a running guest. Only once in the life of a lab."""
        if self._plugged:
            raise LabError("the spare card is plugged in already", "use needs=('fresh',)")
        self._plugged = True
        arguments = {
            "driver": "vfio-user-pci",
            "id": "spare-hca",
            "bus": "spare",
            "rombar": 0,
            "x-msg-timeout": 60_000,
            "socket": {"type": "unix", "path": str(self.card(2).socket_path)},
        }
        self.guest(guest).qmp("device_add", **arguments)
        self.record(f"QEMU of g{guest}", "device_add vfio-user-pci, bus=spare", "done")


def _shown(name: str, args: Sequence[object]) -> str:
    return " ".join(["guest-tests/" + name, *map(str, args)])


def _event_lines(event: Event) -> list[str]:
    return [str(event), *(f"    <- {function}" for function in event.stack[:12])]


def _hexadecimal(data: bytes, address: int) -> str:
    """A dump of not too many bytes; repeated lines are left out."""
    lines: list[str] = []
    before = b""
    for at in range(0, len(data), 32):
        row = data[at : at + 32]
        if row != before:
            lines.append(f"{address + at:#x}: {row.hex(' ', 4)}")
        before = row
    return "\n".join(lines)


def excerpt(text: str) -> str:
    """Text cut to a readable size, from the middle."""
    lines = [
        line if len(line) <= _OUTPUT_LINE_MAX else f"{line[:_OUTPUT_LINE_MAX]} [...]"
        for line in text.replace("\r", "").rstrip().splitlines()
    ]
    if len(lines) > _OUTPUT_LINES_MAX:
        half = _OUTPUT_LINES_MAX // 2
        lines = [*lines[:half], f"[... {len(lines) - 2 * half} lines ...]", *lines[-half:]]
    joined = "\n".join(lines)
    if len(joined) > _OUTPUT_CHARACTERS_MAX:
        half = _OUTPUT_CHARACTERS_MAX // 2
        joined = f"{joined[:half]}\n[... {len(joined) - 2 * half} characters ...]\n{joined[-half:]}"
    return joined


def last_object(output: str) -> dict[str, Any] | None:
    """The last line of a script's output that is a JSON object."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    return value
    return None
