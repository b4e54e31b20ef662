"""A probe on the guest's kernel: kprobe and trace events, set up, read and taken away as one thing.

Assumes a kernel with ftrace and kprobe events (all of Debian's have them built in). Guarantees: what it set up in
tracefs is gone at the end, whatever happened in between.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from acceptance.claims.verdict import CannotSee
from vhca.lab import Completed, Guest, GuestError

TRACEFS: Final = "/sys/kernel/tracing"
_NAMED_ARGUMENTS: Final = (6, 6)
_EVENT: Final = re.compile(
    r"\s*(?P<task>.+)-(?P<pid>\d+)\s+\[\d+\]\s+\S+\s+(?P<time>\d+\.\d+): (?P<name>[\w.]+): ?(?P<text>.*)"
)
_NO_SYMBOL: Final = re.compile(r"error: Invalid probed address or symbol\s+Command: [pr]\S* (\S+)")
_ARGUMENT: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\{[^}]*\}|\S+)')


@dataclass(slots=True, frozen=True)
class Probe:
    """A kprobe event.

    `function` may be `module:function` for a module that is not loaded yet; `fetch` names what to read, in the
    kernel's own syntax (`name=+0($arg1):string`); `on_return` makes it a return probe (`ret=$retval`).
    """

    name: str
    function: str
    fetch: str = ""
    on_return: bool = False

    @property
    def definition(self) -> str:
        """The line for kprobe_events."""
        return f"{'r' if self.on_return else 'p'}:vhca/{self.name} {self.function} {self.fetch}".strip()


@dataclass(slots=True)
class Event:
    """One line of the trace; `stack` innermost function first, if stacks were asked for."""

    task: str
    pid: int
    time_s: float
    name: str
    text: str
    stack: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> dict[str, str]:
        """What was fetched, by name; quotes are taken off."""
        return {name: value.strip('"') for name, value in _ARGUMENT.findall(self.text)}

    def __str__(self) -> str:
        return f"{self.time_s:.6f} {self.task}-{self.pid} {self.name}: {self.text}"


def parse(text: str) -> list[Event]:
    """The events of a trace file's content."""
    events: list[Event] = []
    for line in text.splitlines():
        if line.startswith(" => "):
            if events:
                events[-1].stack.append(line[4:].strip().split("+")[0])
        elif (match := _EVENT.fullmatch(line)) and match["name"] not in ("<stack",):
            if match["text"].startswith("<stack trace>") or match["name"] == "kernel_stack":
                continue
            events.append(
                Event(match["task"].strip(), int(match["pid"]), float(match["time"]), match["name"], match["text"])
            )
    return events


def too_old(release: str) -> bool:
    """Whether kernels of this release take a probe's arguments by number alone."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return match is not None and (int(match[1]), int(match[2])) < _NAMED_ARGUMENTS


class Trace:
    """A trace of one guest as a context manager; read :attr:`events` after the end.

    `events` are names such as `raw_syscalls/sys_enter`; `filters` event -> filter in the kernel's syntax,
    also for probes (`vhca/NAME`); `stacks` adds the call stack to each event.
    """

    def __init__(
        self,
        guest: Guest,
        probes: Sequence[Probe] = (),
        events: Sequence[str] = (),
        *,
        filters: dict[str, str] | None = None,
        stacks: bool = False,
        buffer_kib: int = 4096,
    ) -> None:
        self.probes = list(probes)
        self.events: list[Event] = []
        self._guest = guest
        self._system_events = list(events)
        self._filters = filters or {}
        self._stacks = stacks
        self._buffer_kib = buffer_kib

    def __enter__(self) -> Trace:
        enabled = [f"vhca/{probe.name}" for probe in self.probes] + self._system_events
        lines = [
            "set -e",
            f"[ -d {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}",
            f"cd {TRACEFS}",
            *_RESET,
            "[ ! -e error_log ] || : >error_log",
            f"echo {self._buffer_kib} >buffer_size_kb",
            "echo 0 >options/overwrite",
            f"echo {int(self._stacks)} >options/stacktrace",
            *(f"echo {shlex.quote(probe.definition)} >>kprobe_events" for probe in self.probes),
            *(f"echo {shlex.quote(rule)} >events/{name}/filter" for name, rule in self._filters.items()),
            *(f"echo 1 >events/{name}/enable" for name in enabled),
            "echo >trace",
            "echo 1 >tracing_on",
        ]
        done = self._shell("\n".join(lines))
        if done.returncode:
            said = self._shell(f"tail -n 12 {TRACEFS}/error_log").stdout
            release = self._shell("uname -r").stdout.strip()
            self._clear()
            if "Invalid fetch argument" in said and too_old(release):
                raise CannotSee(f"probes of {release} do not know a function's arguments by name: Linux does since 6.6")
            if absent := self._absent(said):
                raise CannotSee(f"the test looks at {', '.join(absent)}, which {release} does not have")
            raise GuestError(f"{self._guest.name}: the trace could not be set up: {done.stderr.strip()}\n{said}")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._shell(f"echo 0 >{TRACEFS}/tracing_on")
            self.text = self._guest.run(["cat", f"{TRACEFS}/trace"], timeout_s=120).stdout
            self.events = parse(self.text)
        finally:
            self._clear()

    def _absent(self, said: str) -> list[str]:
        """Events that this kernel does not have, and functions that it says it does not have."""
        tests = "\n".join(f"[ -d {TRACEFS}/events/{name} ] || echo {name}" for name in self._system_events)
        events = self._shell(tests).stdout.split() if tests else []
        functions = _NO_SYMBOL.findall(said)
        return [f"the trace event {name}" for name in events] + [f"the function {name}" for name in functions]

    def named(self, name: str) -> list[Event]:
        """The events of one name."""
        return [event for event in self.events if event.name == name]

    def _clear(self) -> None:
        self._shell("\n".join([f"cd {TRACEFS} || exit 0", *_RESET]))

    def _shell(self, script: str) -> Completed:
        return self._guest.run(["sh", "-c", script], timeout_s=60)


_RESET: Final = (
    "echo 0 >tracing_on",
    "echo 0 >events/enable",
    "echo 0 >options/stacktrace",
    "echo nop >current_tracer",
    "echo >kprobe_events",
    "echo >trace",
)
