"""`vhca museum`: faults of drivers and libraries, each shown on a kernel that has it and on one that does not."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Final

from vhca.cli import status

if TYPE_CHECKING:
    from acceptance.museum.exhibits import Exhibit

NAME: Final = "museum"
SUMMARY: Final = "show known faults of drivers and libraries, and their absence once mended"
DESCRIPTION: Final = """\
Show an exhibit of the museum: boot a kernel that has the fault, run the exhibit's script in a guest, print what is
seen; then the same where the fault is mended, if that can be had.  Without an exhibit: list them.  docs/museum.md
tells what is wrong in each, and since when."""
EPILOG: Final = f"""\
examples:
  vhca museum
  vhca museum M01
  vhca museum second-srq --kernel 7.2
  vhca museum --all

exit codes:
  0    all was seen as described; with --kernel: the fault was seen on that kernel
  1    something was not; what was missing is printed
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("exhibits", nargs="*", metavar="ID", help="an exhibit's number or name, such as M01")
    parser.add_argument("--all", action="store_true", help="show all of them; takes a quarter of an hour or more")
    parser.add_argument(
        "--kernel", metavar="SPEC", help="look for the fault on this kernel only (as `vhca run --kernel` takes one)"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from acceptance.museum.exhibits import choose, whole

    if options.all and options.exhibits:
        print("vhca museum: --all shows all exhibits: name none", file=sys.stderr)
        return status.USAGE
    exhibits = list(whole()[0]) if options.all else choose(options.exhibits)
    if not exhibits:
        _list()
        return status.OK
    outcomes = [(exhibit, *_shown(exhibit, options.kernel)) for exhibit in exhibits]
    if len(outcomes) > 1:
        for exhibit, well, seconds in outcomes:
            print(
                f"{exhibit.id} {exhibit.name:18} {'as described' if well else 'NOT as described':16} {seconds:4.0f} s"
            )
    return status.OK if all(well for _, well, _ in outcomes) else status.FAILED


def _list() -> None:
    from acceptance.museum.exhibits import whole
    from vhca.lab.table import aligned

    rows = [(exhibit.id, exhibit.name, exhibit.kernel, exhibit.title) for exhibit in whole()[0]]
    for line in aligned(("id", "name", "shown on", "what"), rows):
        print(line)


def _shown(exhibit: Exhibit, kernel: str | None) -> tuple[bool, float]:
    from acceptance.museum.show import show
    from vhca.lab.errors import printable

    began_s = time.monotonic()
    well = show(exhibit, lambda line: print(printable(line), flush=True), kernel)
    return well, time.monotonic() - began_s
