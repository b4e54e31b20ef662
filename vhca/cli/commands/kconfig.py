"""`vhca kconfig`: what a kernel of one's own must be able to do."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from vhca.cli import status

NAME: Final = "kconfig"
SUMMARY: Final = "print the options that a kernel of your own needs for a guest"
DESCRIPTION: Final = """\
Print a fragment of a kernel's configuration: all that a guest needs, each group of options with its reason.  With
--debug also what finds faults of a driver: KASAN, lockdep, DMA-API debugging, kmemleak, fault injection, KCOV, and
debug information.

The kernel's own scripts/kconfig/merge_config.sh puts it over any configuration; `make tinyconfig` below it gives a
small kernel that builds in minutes.  --check FILE says what a .config lacks of it."""
EPILOG: Final = f"""\
examples:
  vhca kconfig --debug > vhca.config
  make -C ~/linux tinyconfig && cd ~/linux && scripts/kconfig/merge_config.sh .config ~/vhca.config
  vhca kconfig --check ~/linux/.config

exit codes:
  0    printed; with --check: nothing is missing
  1    with --check: something is missing
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("--debug", action="store_true", help="with what finds faults of a driver")
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="say what this .config lacks, and print nothing else"
    )
    parser.set_defaults(refuse=parser.error)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab import kconfig

    groups = (*kconfig.GUEST, *(kconfig.DEBUG if options.debug else ()))
    if options.check is None:
        sys.stdout.write(kconfig.fragment(groups))
        return status.OK
    try:
        text = options.check.expanduser().read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        options.refuse(f"--check {options.check}: {error.strerror}")
    lacks = kconfig.missing(groups, text)
    print("\n".join(lacks) if lacks else f"{options.check} has all that a guest needs")
    return status.FAILED if lacks else status.OK
