"""`vhca doctor`: what is there, what is missing, and how to get it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from vhca import DEFAULT_KERNEL
from vhca.cli import status

if TYPE_CHECKING:
    from vhca.lab.doctor import Finding

NAME: Final = "doctor"
SUMMARY: Final = "say what is there, what is missing and how to get it"
DESCRIPTION: Final = """\
Look at this machine and say what vhca needs, whether it is there, and how to get what is not.  Nothing is changed
and nothing is fetched."""
EPILOG: Final = f"""\
examples:
  vhca doctor
  vhca doctor --kernel 6.12

exit codes:
  0    everything that is needed is there, or `vhca fetch` can fetch it
  1    something that is needed is missing; the table says how to get it
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument(
        "--kernel", default=DEFAULT_KERNEL, metavar="SPEC", help="the kernel to look for (default: %(default)s)"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab import doctor

    findings = doctor.check(kernel=options.kernel)
    print(report(findings))
    return status.FAILED if doctor.worst(findings) is doctor.Level.FAIL else status.OK


def report(findings: list[Finding]) -> str:
    """The findings as a table, what to do about them, and a last line that says how it stands."""
    from vhca.lab.doctor import Level, worst
    from vhca.lab.table import aligned

    words = {Level.OK: "ok", Level.WARN: "note", Level.FAIL: "MISSING"}
    lines = aligned(("what", "state", "found"), [(f.subject, words[f.level], f.detail) for f in findings])
    advice = [f"  {f.subject}: " + f.remedy.replace("\n", "\n    ") for f in findings if f.remedy]
    if advice:
        lines += ["", "how to get it:", *advice]
    missing = [f.subject for f in findings if f.level is Level.FAIL]
    verdict = f"guests cannot run here: {', '.join(missing)}" if missing else "guests can run here"
    if worst(findings) is Level.WARN:
        verdict += "; see the notes"
    return "\n".join([*lines, "", verdict])
