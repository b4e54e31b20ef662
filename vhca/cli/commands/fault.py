"""`vhca fault`: let something go wrong on a cable, or inside a card, of a running rack."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vhca.cli import running, status
from vhca.cli.options import whole

NAME: Final = "fault"
SUMMARY: Final = "let packets of a running fabric, or what a card does, go wrong"
DESCRIPTION: Final = f"""\
Put a fault rule on a cable or into a card, list the rules with what they hit, or clear them, from another terminal.

On a cable: ACTION is drop, duplicate, reorder (swap with the next packet), corrupt or delay.  Without options it
happens to every packet on the cable except management's, both ways.  A packet must fit all of --opcode, --dest-qp,
--psn, --direction; of those that do, --nth hits one, or --skip, --limit and --probability say which.  Rules act in
the order in which they were made, and the first that hits a packet is the only one.

schedule carries out a file that says what happens to which cables when; docs/fabric.md shows one.

Inside a card: add makes a rule of words (a command that fails, an event that is lost ...; docs/faults.md has all of
them), remove takes the rule with a number away, or all of the card.  A card is h0, h1, ..., or g0 for guest g0's first.

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
  vhca fault add g0 command CREATE_MKEY nth=3 status=NO_RES_ERR syndrome=0x1234
  vhca fault remove g0 1

exit codes:
  0    done
{status.EPILOG_COMMON}"""

_MANAGES: Final = ("list", "clear", "schedule", "add", "remove")
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
        "       vhca fault schedule FILE|stop [options]\n"
        "       vhca fault add CARD RULE | remove CARD [NUMBER] [options]"
    )
    parser.add_argument(
        "what", metavar="CABLE|list|clear|schedule|add|remove", help="which cable; or what to do with rules"
    )
    parser.add_argument(
        "action",
        metavar="ACTION|NAME|FILE|stop",
        nargs="?",
        help=f"{', '.join(_ACTIONS)}; which cable or card to list or clear (all); the schedule; which card",
    )
    parser.add_argument("words", metavar="RULE|NUMBER", nargs="*", help="of add: the rule; of remove: which one (all)")
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
    manages = options.what in _MANAGES
    if options.words and options.what not in ("add", "remove"):
        options.refuse(f"what is {options.words[0]}?  Say: vhca fault add {options.what} RULE for a rule inside a card")
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
        rules = _cable_rules(options) + _card_rules(options)
        print(json.dumps(rules, indent=2) if options.json else report(rules))
    elif options.what == "clear":
        cards = {rule["card"] for rule in _card_rules(options)}
        cleared = sum(running.order(options.rack, "card_fault_remove", card=card) for card in sorted(cards))
        if not _is_guest(options.action):
            cleared += running.order(options.rack, "fault_clear", cable=options.action)
        print(f"{cleared} rule{'' if cleared == 1 else 's'} cleared")
    elif options.what in ("add", "remove"):
        _card(options)
    else:
        said = running.order(options.rack, "fault_add", cable=options.what, action=options.action, **rule)
        print(printable(f"{options.what}: {said}"))
    return status.OK


def _is_guest(name: str | None) -> bool:
    """Whether this is the name of a guest, which is also its first card's, but no cable's."""
    return name is not None and re.fullmatch(r"g\d+", name) is not None


def _cable_rules(options: argparse.Namespace) -> list[dict[str, Any]]:
    if _is_guest(options.action):
        return []
    rules: list[dict[str, Any]] = running.order(options.rack, "fault_list", cable=options.action)
    return rules


def _card_rules(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rules inside cards, of all or of the one that is named."""
    rules: list[dict[str, Any]] = running.order(options.rack, "card_fault_list")
    return [rule for rule in rules if options.action in (None, *rule["names"])]


def _card(options: argparse.Namespace) -> None:
    """Make a rule inside a card, or take some away."""
    from vhca.chip.fault_rules import FaultRuleError, parse_rule
    from vhca.lab.errors import LabError, printable

    card, words = options.action, options.words
    if card is None:
        options.refuse(f"in which card?  Say: vhca fault {options.what} g0 ...")
    if options.what == "add":
        try:
            parse_rule(" ".join(words))  # what is wrong with it is known before any rack is asked
        except FaultRuleError as error:
            raise LabError(str(error), "docs/faults.md has the language") from error
        rule = running.order(options.rack, "card_fault_add", card=card, rule=" ".join(words))
        print(printable(f"{card}: rule {rule['number']}: {rule['rule']}"))
        return
    if len(words) > 1 or not all(word.isdigit() for word in words):
        options.refuse("remove takes the number of one rule, as `vhca fault list` shows it, or none: all of the card")
    number = int(words[0]) if words else None
    removed = running.order(options.rack, "card_fault_remove", card=card, number=number)
    print(f"{removed} rule{'' if removed == 1 else 's'} removed")


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
    tables = []
    for where, which in (("cable", "direction"), ("card", "number")):
        rows = [(r[where], str(r[which]), str(r["seen"]), str(r["hits"]), r["rule"]) for r in rules if where in r]
        if rows:
            tables.append("\n".join(aligned((where, which, "seen", "hits", "rule"), rows)))
    return "\n\n".join(tables)
