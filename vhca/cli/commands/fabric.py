"""`vhca fabric`: look at the fabric of a running rack, pull and plug its cables, and make descriptions of fabrics."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from vhca.cli import running, status
from vhca.cli.commands import fabric_make

NAME: Final = "fabric"
SUMMARY: Final = "look at a running fabric; pull and plug its cables; describe fabrics"
DESCRIPTION: Final = f"""\
Look at the fabric of guests that are running, or pull and plug the cable of a card, from another terminal.

{running.CARDS_AND_RACKS}"""
EPILOG: Final = f"""\
examples:
  vhca fabric show
  vhca fabric counters h1
  vhca fabric counters --json
  vhca fabric link down h1
  vhca fabric link up h1 --rack ~/ib
  vhca fabric make fat-tree --hosts 1008 -o fabric.toml

exit codes:
  0    done
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    running.add_rack_option(parser, default=None)
    orders = parser.add_subparsers(metavar="ORDER", required=True, help="show, counters, link down or up, or make")

    show = orders.add_parser("show", help="list the cards: cable, link, state of the port, LID, faults")
    show.set_defaults(order=_show)
    counters = orders.add_parser("counters", help="print the counters of ports, switch, subnet manager and directory")
    counters.add_argument("card", metavar="CARD", nargs="?", help="of this card's port only")
    counters.set_defaults(order=_counters)
    for asked in (show, counters):
        asked.add_argument("--json", action="store_true", help="as JSON")
        running.add_rack_option(asked)

    link = orders.add_parser("link", help="pull or plug a cable")
    ways = link.add_subparsers(metavar="down|up", required=True, help="pull the cable of a card, or plug it in again")
    for way, what in (("down", "pull the cable of a card"), ("up", "plug the cable of a card in again")):
        one = ways.add_parser(way, help=what, description=what)
        one.add_argument("card", metavar="CARD", help="h0, h1, ...; with a topology any cable, by an end: leaf1/3")
        one.set_defaults(order=_link, way=way)
        running.add_rack_option(one)

    fabric_make.add_arguments(orders)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    options.order(options)
    return status.OK


def _show(options: argparse.Namespace) -> None:
    found = running.order(options.rack, "show")
    print(json.dumps(found, indent=2) if options.json else report(found))


def _counters(options: argparse.Namespace) -> None:
    from vhca.lab.errors import printable

    counters = running.order(options.rack, "counters", card=options.card)
    if options.json:
        print(json.dumps(counters, indent=2))
        return
    width = max(map(len, counters), default=0)
    for name, value in counters.items():
        print(printable(f"{name.ljust(width)}  {value}"))


def _link(options: argparse.Namespace) -> None:
    running.order(options.rack, f"link_{options.way}", card=options.card)
    print(f"{options.card}: the cable is {'pulled' if options.way == 'down' else 'plugged in'}")


def report(found: dict[str, Any]) -> str:
    """What `vhca fabric show` prints of the answer to the order "show"."""
    from vhca.lab.errors import printable
    from vhca.lab.table import aligned

    header = ("card", "cable", "link", "port state", "LID", "fault rules", "packets hit")
    rows = [
        (
            port["name"],
            "plugged" if port["plugged"] else "pulled",
            "up" if port["up"] else "down",
            port["state"],
            str(port["lid"]) if port["lid"] else "-",
            str(port["rules"]),
            str(port["hits"]),
        )
        for port in found["ports"]
    ]
    lines = [printable(f"rack of process {found['pid']} in {found['directory']}"), *aligned(header, rows)]
    if capture := found["capture"]:
        lines.append(
            printable(f"capture to {capture['file']}: {capture['packets']} packets {capture['trouble']}".rstrip())
        )
    return "\n".join(lines)
