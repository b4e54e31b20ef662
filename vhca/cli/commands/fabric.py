"""`vhca fabric`: look at the fabric of a running rack, do things to its cables, and make descriptions of fabrics."""

from __future__ import annotations

import argparse
import json
from typing import Final

from vhca.cli import running, status
from vhca.cli.commands import fabric_exec, fabric_link, fabric_make, fabric_show

NAME: Final = "fabric"
SUMMARY: Final = "look at a running fabric; pull, plug, slow down its cables; run tools on it; describe fabrics"
DESCRIPTION: Final = f"""\
Look at the fabric of guests that are running, or do something to one of its cables, from another terminal.

{running.CARDS_AND_RACKS}

{running.CABLES}"""
EPILOG: Final = f"""\
examples:
  vhca fabric show
  vhca fabric show --svg fabric.svg --route h0 h1
  vhca fabric show --topology fabric.toml
  vhca fabric counters h1
  vhca fabric counters --json
  vhca fabric link down h1
  vhca fabric link up h1 --rack ~/ib
  vhca fabric link flap leaf1/3 --times 5 --down 200ms --up 2s
  vhca fabric link disable switch/2
  vhca fabric link set g0/1 --rate 25Gbps --latency 2us
  vhca fabric link set h1 --bit-error-rate 1e-8
  vhca fabric exec -- ibnetdiscover
  vhca fabric exec --at tools -- perfquery 1
  vhca fabric exec --topology fabric.toml -- iblinkinfo
  vhca fabric make fat-tree --hosts 1008 -o fabric.toml

exit codes:
  0    done; of exec, those of the tool
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    running.add_rack_option(parser, default=None)
    orders = parser.add_subparsers(metavar="ORDER", required=True, help="show, counters, link, exec or make")

    show = fabric_show.add_arguments(orders)
    counters = orders.add_parser("counters", help="print the counters of ports, switch, subnet manager and directory")
    counters.add_argument("card", metavar="CARD", nargs="?", help="of this card's port only")
    counters.set_defaults(order=_counters)
    for asked in (show, counters):
        asked.add_argument("--json", action="store_true", help="as JSON")
        running.add_rack_option(asked)

    fabric_link.add_arguments(orders)
    fabric_exec.add_arguments(orders)
    fabric_make.add_arguments(orders)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    return options.order(options) or status.OK


def _counters(options: argparse.Namespace) -> None:
    from vhca.lab.errors import printable

    counters = running.order(options.rack, "counters", card=options.card)
    if options.json:
        print(json.dumps(counters, indent=2))
        return
    width = max(map(len, counters), default=0)
    for name, value in counters.items():
        print(printable(f"{name.ljust(width)}  {value}"))
