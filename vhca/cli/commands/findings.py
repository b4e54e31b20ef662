"""`vhca findings`: what hosts do wrong with the objects of a running rack's cards, and the lives of those objects."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from vhca.cli import running, status
from vhca.cli.commands.fault import number_of
from vhca.cli.findings_options import table

NAME: Final = "findings"
SUMMARY: Final = "show what guests do wrong with objects of their cards"
DESCRIPTION: Final = f"""\
Look, from another terminal, for what a driver or a program does wrong with the objects of its card: queue pairs,
completion queues, memory keys ...  destroyed twice, used after their end, leaked.  docs/findings.md has all kinds.

keep says how strictly cards look from now on (off, normal, pedantic); list shows what they found; lives shows what
became of objects: who made them, by which command, when, and when they were destroyed.

{running.CARDS_AND_RACKS}"""
EPILOG: Final = f"""\
examples:
  vhca findings keep normal
  vhca findings list
  vhca findings list --card g0 --json
  vhca findings lives --kind mkey --number 0x1204

exit codes:
  0    done; of list: there are no findings
  {status.FINDINGS}  of list: there are findings
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("what", choices=("keep", "list", "lives"), nargs="?", default="list", help="what to do")
    parser.add_argument("level", choices=("off", "normal", "pedantic"), nargs="?", help="of keep: how strictly")
    parser.add_argument("--card", metavar="CARD", help="of this card only (default: of all)")
    parser.add_argument("--kind", metavar="KIND", help="of lives: of this kind only, such as qp, cq or mkey")
    parser.add_argument("--number", type=number_of(32), metavar="N", help="of lives: of this object only")
    parser.add_argument("--json", action="store_true", help="as JSON")
    running.add_rack_option(parser, default=None)
    parser.set_defaults(refuse=parser.error)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab.errors import printable

    if (options.what == "keep") != (options.level is not None):
        options.refuse("keep needs one of off, normal, pedantic, and nothing else takes it")
    if options.what == "keep":
        count = running.order(options.rack, "findings_keep", card=options.card, level=options.level)
        print(f"{count} card{'' if count == 1 else 's'}: {options.level}")
        return status.OK
    if options.what == "lives":
        told = running.order(options.rack, "lives_list", card=options.card, kind=options.kind, number=options.number)
        print(json.dumps(told, indent=2) if options.json else printable("\n".join(_lives(told))))
        return status.OK
    told = running.order(options.rack, "findings_list", card=options.card)
    print(json.dumps(told, indent=2) if options.json else printable("\n".join(report(told))))
    return status.FINDINGS if told["count"] else status.OK


def report(told: dict[str, Any]) -> list[str]:
    """What `vhca findings list` prints of the answer to the order "findings_list"."""
    rows = [
        (
            each["card"],
            each["kind"],
            each["object"],
            f"{each['number']:#x}",
            f"{each['time_ns'] / 1e9:.6f}",
            str(each["times"]),
            each["text"],
        )
        for each in told["findings"]
    ]
    return table(rows) + _more(told["count"] - len(rows))


def _lives(told: dict[str, Any]) -> list[str]:
    lines = []
    for life in told["lives"]:
        lines.append(f"{life['card']}: {life['kind']} {life['number']:#x}{'' if life['alive'] else ' (gone)'}")
        events = [f"  {event}" for event in life["events"]]
        if life["left_out"]:
            events.insert(1, f"  ... {life['left_out']} more")
        lines += events
    return (lines or ["nothing is known"]) + _more(told["count"] - len(told["lives"]))


def _more(count: int) -> list[str]:
    return [f"... and {count} more"] if count > 0 else []
