"""What went wrong in a lab: host and configuration troubles, each saying what to do about it.

Nothing here describes a fault of the card or of a driver; a guest that fails to boot or a command that
fails inside a guest has its own class, so that a test can tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_QUOTED_MAX: Final = 32 << 10  # characters that are looked at for the lines of a quotation
_LINE_MAX: Final = 500
_TRACE_LINES: Final = 60


def printable(text: str) -> str:
    """`text` as a terminal may show it: what is neither printable nor a new line or tab is written as an escape.

    Guests choose much of what errors quote. An escape sequence on a terminal can change titles, colours and keys,
    and hide what follows; so can characters that change the direction of writing.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text.replace("\r\n", "\n")
    )


def last_lines(text: str, count: int, indent: str = "") -> str:
    """The end of something that may be long: at most `count` lines, and of each what fits on a screen."""
    lines = text[-_QUOTED_MAX:].rstrip().splitlines()[-count:]
    return "\n".join(indent + (line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]} ...") for line in lines)


class LabError(RuntimeError):
    """Trouble with the host, its configuration or a guest. `remedy` says what to do, in one sentence.

    The text can be shown on a terminal, whatever a guest had its part in it.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        what, remedy = printable(what), printable(remedy)
        super().__init__(f"{what}\n  -> {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class PackageError(LabError):
    """A package, its index or its mirror cannot be had."""


class KernelError(LabError):
    """A kernel specification names nothing that can be booted."""


class ImageError(LabError):
    """The guest image cannot be built."""


class QemuError(LabError):
    """QEMU is missing, too old, or refused to start."""


class GuestError(LabError):
    """A guest did not boot, stopped answering, or went away."""


class KernelPanic(GuestError):
    """The kernel of a guest panicked. `headline` is its own line, `trace` what led to it and followed."""

    def __init__(self, guest: str, headline: str, trace: str, console: object, dumped: str = "") -> None:
        shown = last_lines(trace.removeprefix(headline + "\n"), _TRACE_LINES, "  ")
        tail = f"\n{dumped}" if dumped else ""
        super().__init__(f"{guest}: {headline}\n{shown}\nthe console of {guest} is in {console}{tail}")
        self.guest = guest
        self.headline = headline
        self.trace = trace


class CommandTimeout(GuestError):
    """A command in a guest ran longer than it was given; it has been killed."""


@dataclass(slots=True)
class Completed:
    """The outcome of a command that ran in a guest."""

    args: Sequence[str]
    returncode: int  # negative: killed by that signal, as in the subprocess module
    stdout: str
    stderr: str


class CommandFailed(GuestError):
    """A command run with `check=True` ended with another status than 0."""

    def __init__(self, guest: str, completed: Completed) -> None:
        # one after the other: both may be long
        tail = last_lines(completed.stdout[-_QUOTED_MAX:] + completed.stderr[-_QUOTED_MAX:], 15)
        super().__init__(f"{guest}: {' '.join(completed.args)} ended with {completed.returncode}\n{tail}")
        self.completed = completed
