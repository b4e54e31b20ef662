"""`vhca explain`: what the numbers in a guest's log mean."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vhca.cli import status

if TYPE_CHECKING:
    from vhca.lab.explain import Explainer

NAME: Final = "explain"
SUMMARY: Final = "say what syndromes and completion statuses in a guest's log mean"
DESCRIPTION: Final = """\
Say what the numbers mean that the driver or a program prints when something failed: the syndrome of a refused command
(`syndrome (0x...)` in the kernel's log; the answer is the firmware's own text, and where it stands in the sources), and
the status of a work completion (`WC error: 12`, `Failed status 12`).

Say a syndrome (0x...), a completion's status (1 to 21), a line of the log in quotes, or `-` for a whole log
on standard input."""
EPILOG: Final = f"""\
examples:
  vhca explain 0x7a1a1ec3
  vhca explain 12
  vhca run -- dmesg | vhca explain -
  vhca explain --log dmesg.txt

exit codes:
  0    explained
  1    nothing of it is known
{status.EPILOG_COMMON}"""

_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]{1,8}|\d{1,10}")
_HEX: Final = ("0x", "0X")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("what", nargs="*", metavar="WHAT", help="a syndrome, a status, or a line in quotes; `-`: stdin")
    parser.add_argument("--log", metavar="FILE", help="explain the lines of this file")
    parser.set_defaults(refuse=parser.error)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab.explain import firmware_explainer

    if not options.what and options.log is None:
        options.refuse("say a syndrome such as 0x7a1a1ec3, a line of a log in quotes, or `-` for a log on stdin")
    explainer = firmware_explainer()
    blocks: list[str] = []
    unknown: list[str] = []
    if options.log is not None:
        try:
            text = Path(options.log).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            options.refuse(f"--log {options.log}: {error.strerror}")
        _collect(text, options.log, explainer, blocks, unknown)
    for what in options.what:
        if what == "-":
            _collect(sys.stdin.read(), "standard input", explainer, blocks, unknown)
        else:
            _collect(what, what, explainer, blocks, unknown)
    if blocks:
        print("\n\n".join(blocks))
    for what in unknown:
        print(f"vhca explain: nothing is known of: {what}", file=sys.stderr)
    return status.FAILED if unknown or not blocks else status.OK


def _collect(text: str, name: str, explainer: Explainer, blocks: list[str], unknown: list[str]) -> None:
    from vhca.lab import explain

    word = text.strip()
    if _NUMBER.fullmatch(word):
        meanings = explain.syndrome(int(word, 16), explainer) if word[:2] in _HEX else explain.completion(int(word))
        found = [explain.Explanation(word, meanings)] if meanings else []
    else:
        found = list(explain.in_text(text, explainer))
    blocks += ["\n".join([one.line, *(f"    {meaning}" for meaning in one.meanings)]) for one in found]
    if not found:
        unknown.append(name)
