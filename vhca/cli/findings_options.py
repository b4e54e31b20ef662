"""The option `--findings` of commands with guests, and the table that they print of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vhca.cli import status

if TYPE_CHECKING:
    from vhca.lab import Lab


def add_findings_option(parser: argparse._ActionsContainer) -> None:
    """Give a command with guests the option that looks for what they do wrong with objects of their cards."""
    parser.add_argument(
        "--findings",
        nargs="?",
        const="normal",
        default="off",
        choices=("off", "normal", "pedantic"),
        metavar="LEVEL",
        help="look for what drivers and programs do wrong with objects of the cards: destroyed twice, used after their"
        " end, leaked ...; print it, and end with"
        f" {status.FINDINGS} if there is any: off, normal (without LEVEL) or pedantic (docs/findings.md)",
    )


def with_findings(lab: Lab, options: argparse.Namespace, code: int) -> int:
    """Print what the cards found; the exit status: `code`, or that of findings if a command went well otherwise."""
    if options.findings == "off":
        return code
    from vhca.lab.errors import printable

    found = lab.findings()
    for finding in found:
        print(printable(finding.told()), file=sys.stderr)
    rows = [_row(finding.card, finding.kind, finding.object_kind, finding.number, finding) for finding in found]
    print("\n".join(table(rows)), file=sys.stderr)
    if found:
        lab.mark_failed()
    return status.FINDINGS if found and not code else code


def _row(card: str, kind: str, object_kind: str, number: int, finding: Any) -> tuple[str, ...]:
    return card, kind, object_kind, f"{number:#x}", f"{finding.time_ns / 1e9:.6f}", str(finding.times), finding.text


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Findings as people read them."""
    from vhca.lab.table import aligned

    if not rows:
        return ["no findings"]
    return aligned(("card", "finding", "object", "number", "s", "times", "what was seen"), rows)
