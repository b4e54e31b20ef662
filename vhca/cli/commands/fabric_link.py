"""`vhca fabric link`: pull, plug, flap, disable and slow down a cable of a running fabric."""

from __future__ import annotations

import argparse
from typing import Any, Final

from vhca.cli import running
from vhca.cli.options import bit_error_rate, duration, line_rate, whole

_WAYS: Final = (
    ("down", "pull a cable", "the cable is pulled"),
    ("up", "plug a cable in again", "the cable is plugged in"),
    (
        "disable",
        "disable the switch's port at a cable; no subnet manager undoes it",
        "the switch's port is disabled",
    ),
    ("enable", "enable a port that was disabled", "the switch's port is enabled"),
)
_MOST_FLAPS: Final = 10_000


def add_arguments(orders: Any) -> None:
    """Describe the order and its options to the parser of `vhca fabric`."""
    link = orders.add_parser("link", help="pull, plug, flap, disable or slow down a cable")
    ways = link.add_subparsers(metavar="ORDER", required=True, help="down, up, flap, disable, enable or set")
    for way, what, done in _WAYS:
        one = _order(ways, way, what)
        one.set_defaults(order=_simple, way=way, done=done)
    flap = _order(ways, "flap", "pull a cable and plug it in again, some times; this does not wait for it")
    flap.add_argument("--times", type=whole(1, _MOST_FLAPS), default=1, metavar="N", help="how often (1)")
    for name in ("down", "up"):
        flap.add_argument(f"--{name}", type=duration, default="1s", metavar="TIME", help=f"how long it is {name} (1s)")
    flap.set_defaults(order=_flap)
    line = _order(ways, "set", "what a cable takes of time, in each direction, and how many bits arrive wrong")
    line.add_argument("--rate", type=line_rate, metavar="RATE", help="25Gbps, 100Mbps ...; 0: takes no time (as usual)")
    line.add_argument("--latency", type=duration, metavar="TIME", help="2us, 1ms ..., at most 10s; 0s: none (as usual)")
    line.add_argument(
        "--bit-error-rate", type=bit_error_rate, metavar="P", help="1e-9 ..., at most 0.1; 0: none (as usual)"
    )
    line.set_defaults(order=_set, refuse=line.error)


def _order(ways: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = ways.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    parser.add_argument("cable", metavar="CABLE", help="h0, g0/1, or an end such as leaf1/3 or switch/2")
    running.add_rack_option(parser)
    return parser


def _simple(options: argparse.Namespace) -> None:
    running.order(options.rack, f"link_{options.way}", cable=options.cable)
    print(f"{options.cable}: {options.done}")


def _flap(options: argparse.Namespace) -> None:
    running.order(
        options.rack, "link_flap", cable=options.cable, times=options.times, down=options.down, up=options.up
    )  # fmt: skip
    print(f"{options.cable}: flaps {options.times} times, {options.down} down and {options.up} up")


def _set(options: argparse.Namespace) -> None:
    fields = {name: getattr(options, name) for name in ("rate", "latency", "bit_error_rate")}
    if all(value is None for value in fields.values()):
        options.refuse("what shall it be?  Give --rate, --latency or --bit-error-rate")
    said = running.order(options.rack, "link_set", cable=options.cable, **fields)
    print(f"{options.cable}: {said or 'as usual'}")
