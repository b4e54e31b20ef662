"""Shows an exhibit: boots a kernel that has the fault and one that does not, runs the script, looks for the signs.

Guarantees: a showing ends in bounded time, whatever becomes of the guest's kernel; what is said to have been seen
stands in what the script printed or a kernel logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from acceptance.museum.exhibits import Exhibit
from acceptance.places import museum
from vhca.lab import Cache, CommandTimeout, Guest, GuestConfig, GuestError, KernelPanic, Lab, Process, Progress

MEMORY_MIB: Final = 512
SETTLE_S: Final = 1.0  # until the kernel has logged all of it
TRACE_LINES: Final = 14

_TIME: Final = re.compile(r"^(?:<\d+>)?\[ *\d+\.\d+\](?:\[[^\]]*\])? ?")
_TRACE: Final = re.compile(r"RIP: |^ (?!\?)[\w.]+\+0x| ?Call Trace|Oops|BUG:|WARNING:|UBSAN|refcount_t")


@dataclass(frozen=True, slots=True)
class Sight:
    """What one showing gave.

    :ivar release: the kernel. :ivar said: what the scripts printed. :ivar text: that, and what was logged.
    :ivar missing: signs that are not there.
    """

    release: str
    said: str
    text: str
    missing: tuple[str, ...]


Tell = Callable[[str], None]


def show(exhibit: Exhibit, tell: Tell, kernel: str | None = None, cache: Cache | None = None) -> bool:
    """Show an exhibit, on another kernel if one is named; True if what it declares was seen."""
    tell(f"{exhibit.id} {exhibit.name}: {exhibit.title}")
    tell(f"  where: {exhibit.where}")
    sight = _showing(exhibit, kernel or exhibit.kernel, exhibit.faults, exhibit.environment, exhibit.signs, cache)
    _tell_sight(sight, [*exhibit.signs, exhibit.evidence], tell)
    seen = not sight.missing
    tell(f"  {sight.release}: the fault was {'seen' if seen else 'not seen'}" + _lacks(sight))
    if kernel is not None:
        return seen
    return seen and _shown_mended(exhibit, tell, cache)


def _shown_mended(exhibit: Exhibit, tell: Tell, cache: Cache | None) -> bool:
    mended = exhibit.mended
    if mended is None:
        tell(f"  nothing to compare with: {exhibit.no_mended}")
        return True
    faults = exhibit.faults if mended.faults is None else mended.faults
    environment = {**exhibit.environment, **mended.environment}
    sight = _showing(exhibit, mended.kernel or exhibit.kernel, faults, environment, mended.signs, cache)
    _tell_sight(sight, [*mended.signs, exhibit.evidence], tell)
    there = [sign for sign in exhibit.signs if _found(sign, sight.text)]
    well = not sight.missing and len(there) < len(exhibit.signs)
    tell(
        f"  {sight.release}, {mended.how}: the fault was {'absent' if well else 'not shown to be absent'}"
        + _lacks(sight)
    )
    return well


def _lacks(sight: Sight) -> str:
    return f" (not there: {'; '.join(sight.missing)})" if sight.missing else ""


def _found(sign: str, text: str) -> re.Match[str] | None:
    return re.search(sign, text, re.MULTILINE)


def _showing(
    exhibit: Exhibit,
    kernel: str,
    faults: Sequence[str],
    environment: Mapping[str, str],
    signs: Sequence[str],
    cache: Cache | None,
) -> Sight:
    """Boot, run, and look."""
    lab = Lab(
        guests=exhibit.guests,
        kernel=kernel,
        hcas_per_guest=exhibit.hcas,
        guest=GuestConfig(memory_mib=MEMORY_MIB, cpus=exhibit.cpus, share=museum(), share_writable=False),
        extra_modules=exhibit.modules,
        extra_packages=exhibit.packages,
        progress=Progress(quiet=True),
        cache=cache if cache is not None else Cache(),
    )
    with lab:
        for rule in faults:
            lab.faults("g0").add(rule)
        said, logged = _run(lab.guests, exhibit, environment)
        release = lab.prepared.kernel.release
    text = f"{said}\n{logged}"
    return Sight(release, said, text, tuple(sign for sign in signs if not _found(sign, text)))


def _run(guests: Sequence[Guest], exhibit: Exhibit, environment: Mapping[str, str]) -> tuple[str, str]:
    """What the scripts print, and what the kernels log."""
    printed: list[bytes] = []
    said = []
    try:
        if exhibit.peer:
            _start(guests[1], exhibit.peer, environment, [])
        script = _start(guests[0], exhibit.script, environment, printed)
        try:
            script.wait(exhibit.timeout_s)
        except CommandTimeout:
            said.append(f"(the script did not end in {exhibit.timeout_s} s)")
    except KernelPanic as panic:
        said.append(panic.trace)
    except GuestError as error:
        said.append(str(error))
    time.sleep(SETTLE_S)
    said.insert(0, b"".join(printed).decode("utf-8", "replace"))
    return "\n".join(said), "\n".join(_log(guest) for guest in guests)


def _start(guest: Guest, script: str, environment: Mapping[str, str], printed: list[bytes]) -> Process:
    """Start a script; what it prints is added as it comes, since one that hangs in the kernel never ends."""
    words = [f"{name}={value}" for name, value in environment.items()]
    program = ["python3", f"/mnt/share/{script}"] if script.endswith(".py") else [f"/mnt/share/{script}"]
    return guest.popen(["env", *words, *program], stdout=printed.append, stderr=printed.append)


def _log(guest: Guest) -> str:
    """The kernel's log without priorities and times; of one that does not answer, its console."""
    log = guest.kernel_log() or guest.console_log
    return "\n".join(_TIME.sub("", line) for line in log.replace("\r", "").splitlines())


def _tell_sight(sight: Sight, signs: Sequence[str], tell: Tell) -> None:
    """Print the lines that were looked for, and of a report of the kernel what leads there."""
    lines = sight.text.splitlines()
    wanted = [re.compile(sign) for sign in signs if sign]
    shown = left = 0
    for line in lines:
        hit = any(pattern.search(line) for pattern in wanted)
        if hit:
            left = TRACE_LINES if _TRACE.search(line) else left
        elif left and _TRACE.search(line):
            left -= 1
        else:
            continue
        shown += 1
        if shown <= 4 * TRACE_LINES:
            tell(f"    {line.rstrip()}")
    if sight.missing:
        for line in sight.said.splitlines()[:TRACE_LINES]:
            tell(f"    | {line.rstrip()}")
