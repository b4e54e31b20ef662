"""Reads a kernel's log and says which lines are complaints about the kernel itself.

Assumes text as `dmesg -r` prints it (`<4>[ 12.3] words`) or a console shows it (`[ 12.3] words`, or no time at
all). Guarantees: pure functions; whatever the text, the answer is bounded by it, and lines that programs wrote
through /dev/kmsg are left out where the log says so (`<12>`: another facility than the kernel's, which programs
cannot claim).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

REPORT_MAX_LINES: Final = 120
_HEADLINE_MAX: Final = 300
_GAP_S: Final = 1.0  # the lines of a report come in one go

_LINE: Final = re.compile(r"(?:<(?P<priority>\d{1,4})>)?(?:\[ *(?P<time>\d+\.\d+)\](?:\[[^\]]*\])? ?)?(?P<words>.*)")
#: What a line that begins a report begins with. In this order: the first that matches names the kind.
_KINDS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("panic", r"Kernel panic - not syncing"),
        ("sanitizer", r"BUG: K[A-Z]*SAN:|BUG: KFENCE:|UBSAN:|KASAN:"),
        (
            "lockdep",
            r"(?:WARNING|INFO): (?:possible (?:circular|recursive|irq lock inversion)|inconsistent lock state"
            r"|bad unlock balance|held lock freed|lock held (?:when|at)|Nested lock|suspicious RCU usage"
            r"|[\w-]+-safe -> [\w-]+-unsafe)|INFO: trying to register non-static key|BUG: MAX_LOCK"
            r"|INFO: suspicious RCU usage",
        ),
        ("lockup", r"(?:watchdog: )?(?:BUG: soft lockup|Watchdog detected hard LOCKUP)|BUG: workqueue lockup"),
        ("stall", r"(?:rcu: )?INFO: \w+ (?:self-detected (?:expedited )?stall|detected (?:expedited )?stalls)"),
        ("hung task", r"INFO: task .* (?:blocked|is blocked|hung) .*for more than \d+ seconds"),
        ("DMA-API", r"DMA-API: .*\b(?:device driver|mapping error|cacheline|overlapping mappings)"),
        ("oops", r"(?:Oops|Internal error)\b:? |(?:general protection|divide error|invalid opcode|double fault)\b.*"),
        ("BUG", r"BUG: |kernel BUG at |BUG at |list_(?:add|del) corruption|Kernel BUG "),
        ("WARNING", r"WARNING: "),
        ("leak", r"kmemleak: \d+ new suspected memory leaks|unregister_netdevice: waiting for .* to become free"),
        ("interrupt", r"irq \d+: nobody cared"),
    )
)
_CUT: Final = "------------[ cut here ]------------"
_RULER: Final = re.compile(r"={20,}$")
_END: Final = re.compile(r"---\[ end (?:trace|Kernel panic)")
_NO_MESSAGE: Final = re.compile(r"Modules linked in:|CPU: \d|RIP: |Hardware name:|Call Trace:|\s*$")


@dataclass(slots=True, frozen=True)
class Report:
    """One complaint."""

    kind: str  # as in _KINDS: "panic", "oops", "WARNING", ...
    headline: str  # one line that names it
    lines: tuple[str, ...]  # the whole, without times, at most :data:`REPORT_MAX_LINES`

    @property
    def text(self) -> str:
        """The whole, as it was printed."""
        return "\n".join(self.lines)


@dataclass(slots=True, frozen=True)
class Record:
    """A line of the log that the kernel wrote."""

    time_s: float | None
    words: str


def records(text: str) -> list[Record]:
    """The kernel's own lines of a log."""
    found = []
    for line in text.replace("\r", "").split("\n"):
        match = _LINE.match(line)
        if match is None or (match["priority"] and int(match["priority"]) >= 8):
            continue
        if line:
            found.append(Record(float(match["time"]) if match["time"] else None, match["words"]))
    return found


def kind_of(words: str) -> str:
    """The kind of report that a line begins, empty if it begins none."""
    return next((kind for kind, pattern in _KINDS if pattern.match(words)), "")


def reports(log: str | Sequence[Record]) -> list[Report]:
    """What a kernel complained of, in its order."""
    lines = records(log) if isinstance(log, str) else log
    found: list[Report] = []
    at = 0
    while at < len(lines):
        kind = kind_of(lines[at].words)
        if not kind:
            at += 1
            continue
        begin = _begin(lines, at)
        end = _end(lines, begin, at, kind)
        words = tuple(record.words for record in lines[begin:end])
        found.append(Report(kind, _headline(lines, begin, at), words))
        at = end
    return found


def _begin(lines: Sequence[Record], at: int) -> int:
    """Where a report begins whose headline is at `at`: a few lines may stand between that and the cut."""
    for back in range(at - 1, max(-1, at - 6), -1):
        words = lines[back].words
        if words == _CUT or (_RULER.match(words) and back == at - 1):
            return back
        if _END.match(words) or _RULER.match(words):
            break
    return at


def _end(lines: Sequence[Record], begin: int, at: int, kind: str) -> int:
    """Behind the last line of a report."""
    ruled = at > 0 and bool(_RULER.match(lines[at - 1].words))
    for end in range(at + 1, min(len(lines), at + REPORT_MAX_LINES)):
        words, before = lines[end].words, lines[end - 1]
        time_s = lines[end].time_s
        if time_s is not None and before.time_s is not None and not 0 <= time_s - before.time_s <= _GAP_S:
            return end
        if _END.match(words) or (ruled and _RULER.match(words)):
            return end + 1
        if words == _CUT or (_RULER.match(words) and not ruled):
            return end
        further = kind_of(words)
        # "BUG: unable to handle ..." and the Oops below it are one; so is what KASAN adds to an oops, and the message
        # between a cut and the line that says where it happened
        crash = kind in ("BUG", "oops") and (further == "oops" or words.startswith("KASAN:"))
        message = lines[begin].words == _CUT and end - begin < 6 and further in ("WARNING", "BUG")
        if further and not (crash or message):
            return end
    return min(len(lines), at + REPORT_MAX_LINES)


def _headline(lines: Sequence[Record], begin: int, at: int) -> str:
    words = lines[at].words
    if words.startswith(("WARNING: ", "kernel BUG at ")):  # the message of a WARN is a line of its own
        message = next((r.words for r in lines[begin + 1 : at] if not _NO_MESSAGE.match(r.words)), "")
        if not message and lines[begin].words == _CUT and at + 1 < len(lines):
            message = "" if _NO_MESSAGE.match(lines[at + 1].words) else lines[at + 1].words
        words += f": {message.strip()}" if message else ""
    return words[:_HEADLINE_MAX]


@dataclass(slots=True, frozen=True)
class Panic:
    """A kernel's last words."""

    headline: str
    trace: str  # what led to it, and the panic's own lines
    ended: bool  # whether the kernel said its last line: it stays as it is and does not restart itself


def panic_of(console: str) -> Panic | None:
    """The last panic that a console shows; `None` if there is none."""
    lines = records(console)
    at = next((n for n in range(len(lines) - 1, -1, -1) if kind_of(lines[n].words) == "panic"), None)
    if at is None:
        return None
    found = reports(lines[max(0, at - 2 * REPORT_MAX_LINES) : at])
    led = found[-1].lines if found and found[-1].kind in ("oops", "BUG", "sanitizer", "lockup") else ()
    end = _end(lines, at, at, "panic")
    own = [record.words for record in lines[at:end]]
    return Panic(lines[at].words[:_HEADLINE_MAX], "\n".join([*led, *own]), any(_END.match(words) for words in own))


# ---- a run that should have left no trace ----

_TROUBLE: Final = re.compile(
    r"WARNING:|BUG:|Oops|Call Trace|timed? ?out|timeout\b.*command|health|leaked|refcount|unregister_netdevice"
    r"|mlx5.*(?:failed|error|syndrome)",
    re.IGNORECASE,
)
#: What a card without the vendor-specific PCI capability makes the driver say (docs/limits.md).
_EXPECTED: Final = re.compile(r"mlx5_pci_vsc_init\b.*Failed to get valid vendor specific ID")


def kernel_log_trouble(log: str) -> list[str]:
    """The lines of a kernel log that a run in which all went well must not leave: stricter than :func:`reports`."""
    return [line for line in log.splitlines() if _TROUBLE.search(line) and not _EXPECTED.search(line)]
