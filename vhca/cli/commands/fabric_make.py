"""`vhca fabric make`: descriptions of fabrics of common shapes."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vhca.cli.options import whole

if TYPE_CHECKING:
    from vhca.fabric.topology import Topology

_SHAPES = {
    "fat-tree": "a tree of switches with as many cables up as down, in as few levels as it takes",
    "ring": "switches in a circle",
    "torus": "switches on a grid whose edges are joined",
    "star": "switches around one in the middle",
}


def add_arguments(orders: Any) -> None:
    """Describe the order and its options to the parser of `vhca fabric`."""
    make = orders.add_parser(
        "make",
        help="describe a fabric: fat-tree, ring, torus or star",
        description="Print the description of a fabric, or write it to a file for --topology. Its hosts are h0, h1 ...",
    )
    shapes = make.add_subparsers(metavar="SHAPE", required=True, dest="shape", help=", ".join(_SHAPES))
    for shape, what in _SHAPES.items():
        one = shapes.add_parser(shape, help=what, description=f"A {shape}: {what}.")
        one.add_argument("--hosts", type=whole(1, 1 << 14), required=True, metavar="N", help="how many end nodes")
        if shape in ("ring", "star"):
            what = "how many" if shape == "ring" else "how many, around the one in the middle"
            one.add_argument("--switches", type=whole(1, 1 << 13), required=True, metavar="N", help=what)
        elif shape == "torus":
            one.add_argument(
                "--size", type=size, required=True, metavar="AxBxC", help="switches along each axis: 4x4x2"
            )
        else:
            one.add_argument(
                "--levels", type=whole(1, 3), metavar="N", help="of switches (default: as few as it takes, up to 3)"
            )
        one.add_argument(
            "--ports", type=whole(3, 254), default=36, metavar="N", help="of each switch (default: %(default)s)"
        )
        one.add_argument(
            "--speed", type=str.upper, default="EDR", help="of all cables: SDR ... NDR (default: %(default)s)"
        )
        one.add_argument("--width", type=whole(1, 12), default=4, help="lanes of all cables (default: %(default)s)")
        one.add_argument(
            "--format", choices=("toml", "ibnetdiscover"), help="(default: TOML, unless FILE does not end in .toml)"
        )
        one.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there instead of printing it")
        one.set_defaults(order=_make)


def size(text: str) -> tuple[int, ...]:
    """A type for the size of a grid: 4x4x2."""
    if not re.fullmatch(r"\d{1,4}(x\d{1,4}){0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give switches along each axis, such as 4x4x2")
    return tuple(map(int, text.split("x")))


def _make(options: argparse.Namespace) -> None:
    from vhca.fabric.topology_files import FORMATS
    from vhca.lab.errors import LabError

    path: Path | None = options.output
    usual = "toml" if path is None or path.suffix == ".toml" else "ibnetdiscover"
    written = options.format or usual
    if path is not None and (written == "toml") != (path.suffix == ".toml"):
        raise LabError(
            f"{path}: a file is TOML if its name ends in .toml, and only then", "choose another name or format"
        )
    text = FORMATS[written](_topology(options))
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.expanduser().write_text(text, "utf-8")
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}", "name a file that can be written") from error


def _topology(options: argparse.Namespace) -> Topology:
    from vhca.fabric import shapes
    from vhca.lab.errors import LabError
    from vhca.management.link_speed import LinkSpeed

    try:
        link = LinkSpeed(options.width, options.speed)
    except ValueError as error:
        raise LabError(str(error), "see `vhca fabric make --help`") from error
    more = {"radix": options.ports, "link": link}
    if options.shape == "fat-tree":
        return shapes.fat_tree(options.hosts, levels=options.levels, **more)
    if options.shape == "torus":
        return shapes.torus(options.size, options.hosts, **more)
    make = shapes.ring if options.shape == "ring" else shapes.star
    return make(options.switches, options.hosts, **more)
