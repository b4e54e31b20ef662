"""`vhca fault`: let something go wrong on a cable of a running rack."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vhca.cli import running, status
from vhca.cli.options import whole

NAME: Final = "fault"
SUMMARY: Final = "lose, repeat, damage or delay packets of a running fabric"
DESCRIPTION: Final = f"""\
Put a fault rule on a cable, list the rules with what they hit, or clear them, from another terminal.

ACTION is drop, duplicate, reorder (swap with the next packet), corrupt or delay.  Without options it happens to every
packet on the cable except management's, both ways.  A packet must fit all of --opcode, --dest-qp, --psn, --direction;
of those that do, --nth hits one, or --skip, --limit and --probability say which.  Rules act in the order in which they
were made, and the first that hits a packet is the only one.

schedule carries out a file that says what happens to which cables when; docs/fabric.md shows one.

--direction is seen from the end that is named (from, to), or from the card (from_card, to_card).

{running.CARDS_AND_RACKS}

{running.CABLES}"""
EPILOG: Final = f"""\
examples:
  vhca fault h1 drop --nth 3
  vhca fault h1 drop --opcode RDMA_WRITE --nth 3 --direction to_card
  vhca fault h0 corrupt --probability 0.01
  vhca fault h0 delay --delay-ms 5 --dest-qp 0x4b
  vhca fault leaf1/3 drop --probability 0.01 --direction from
  vhca fault list
  vhca fault clear h1
  vhca fault schedule faults.toml
  vhca fault schedule stop

exit codes:
  0    done
{status.EPILOG_COMMON}"""

_ACTIONS: Final = ("drop", "duplicate", "reorder", "corrupt", "delay")
_DIRECTIONS: Final = ("both", "from_card", "to_card", "from", "to")
_RULE: Final = (
    "nth",
    "skip",
    "limit",
    "opcode",
    "dest_qp",
    "psn",
    "direction",
    "probability",
    "delay_ms",
    "management",
)


def number_of(bits: int) -> Callable[[str], int]:
    """A type for numbers of so many bits, decimal or with 0x."""

    def convert(text: str) -> int:
        try:
            value = int(text, 0)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number: give it decimal or as 0x4b") from None
        if not 0 <= value < 1 << bits:
            raise argparse.ArgumentTypeError(f"{text} does not have {bits} bits")
        return value

    return convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.usage = (
        "vhca fault CABLE ACTION [options]\n       vhca fault list|clear [CABLE] [options]\n"
        "       vhca fault schedule FILE|stop [options]"
    )
    parser.add_argument("what", metavar="CABLE|list|clear|schedule", help="which cable; or list or clear what is there")
    parser.add_argument(
        "action",
        metavar="ACTION|CABLE|FILE|stop",
        nargs="?",
        help=f"{', '.join(_ACTIONS)}; which cable to list or clear (all); the schedule",
    )
    rule = parser.add_argument_group("which packets")
    count = whole(1, 1 << 48)
    rule.add_argument("--nth", type=count, metavar="N", help="the Nth of those that fit, and no other; counted from 1")
    rule.add_argument("--skip", type=whole(0, 1 << 48), metavar="N", help="let the first N of those that fit pass")
    rule.add_argument("--limit", type=count, metavar="N", help="end after N hits")
    rule.add_argument(
        "--opcode", metavar="NAME", help="an opcode, or its beginning: RDMA_WRITE, SEND, RC_SEND_ONLY, ACKNOWLEDGE"
    )
    rule.add_argument("--dest-qp", type=number_of(24), metavar="QPN", help="for this queue pair (hexadecimal with 0x)")
    rule.add_argument("--psn", type=number_of(24), metavar="PSN", help="with this packet sequence number")
    rule.add_argument(
        "--direction",
        choices=_DIRECTIONS,
        help="one way, or both, counted together (both)",
    )
    rule.add_argument("--probability", type=float, metavar="P", help="hit each with this probability, 0 to 1")
    rule.add_argument("--management", action="store_true", default=None, help="datagrams of QP0 and QP1, too")
    parser.add_argument("--delay-ms", type=float, metavar="MS", help="of action delay: how long, in milliseconds")
    parser.add_argument("--json", action="store_true", help="list as JSON")
    running.add_rack_option(parser, default=None)
    parser.set_defaults(refuse=parser.error)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab.errors import printable

    rule = {name: getattr(options, name) for name in _RULE if getattr(options, name) is not None}
    manages = options.what in ("list", "clear", "schedule")
    if manages and rule:
        options.refuse(f"{options.what} takes no --{next(iter(rule)).replace('_', '-')}")
    if options.json and options.what != "list":
        options.refuse("--json goes with list")
    if not manages and options.action not in _ACTIONS:
        what = f"{options.action} is no fault" if options.action else f"which fault shall {options.what} have?"
        options.refuse(f"{what}  Say: vhca fault {options.what} {'|'.join(_ACTIONS)}")
    if (options.action == "delay") != (options.delay_ms is not None) and not manages:
        options.refuse("delay needs --delay-ms, and nothing else takes it")
    if options.what == "schedule":
        _schedule(options)
    elif options.what == "list":
        rules = running.order(options.rack, "fault_list", cable=options.action)
        print(json.dumps(rules, indent=2) if options.json else report(rules))
    elif options.what == "clear":
        cleared = running.order(options.rack, "fault_clear", cable=options.action)
        print(f"{cleared} rule{'' if cleared == 1 else 's'} cleared")
    else:
        said = running.order(options.rack, "fault_add", cable=options.what, action=options.action, **rule)
        print(printable(f"{options.what}: {said}"))
    return status.OK


def _schedule(options: argparse.Namespace) -> None:
    from vhca.fabric.schedule import ScheduleError, read
    from vhca.lab.errors import LabError

    if options.action is None:
        options.refuse("which schedule?  Say: vhca fault schedule FILE, or stop")
    if options.action == "stop":
        print(f"{running.order(options.rack, 'schedule_stop')} events have happened")
        return
    path = Path(options.action).expanduser().resolve()
    try:
        read(path.read_text("utf-8"))  # what is wrong with it is known before any rack is asked
    except (OSError, UnicodeError) as error:
        raise LabError(f"{path}: {error}", "name a file that describes a schedule") from error
    except ScheduleError as error:
        raise LabError(f"{path}: {error}", "docs/fabric.md shows a schedule") from error
    print(f"{running.order(options.rack, 'schedule_start', file=str(path))} events are planned")


def report(rules: list[dict[str, Any]]) -> str:
    """What `vhca fault list` prints of the answer to the order "fault_list"."""
    from vhca.lab.table import aligned

    if not rules:
        return "no rules"
    header = ("cable", "direction", "seen", "hits", "rule")
    return "\n".join(
        aligned(header, [(r["cable"], r["direction"], str(r["seen"]), str(r["hits"]), r["rule"]) for r in rules])
    )
