"""Options that say what guests are made of: packages and their suite, tools, modules beyond the usual ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _checked(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type whose :class:`LabError` becomes a sentence about the command line."""

    def converted(text: str) -> Any:
        from vhca.lab.errors import LabError

        try:
            return convert(text)
        except LabError as error:
            raise argparse.ArgumentTypeError(f"{error.what}; {error.remedy}") from None

    return converted


@_checked
def suite(text: str) -> str:
    """A type for a suite of Debian that guests can be made of."""
    from vhca.lab import suites

    return suites.checked(text)


@_checked
def root(text: str) -> Path:
    """A type for a folder that can be a guest's root."""
    from vhca.lab import roots

    found = roots.checked(text)
    assert found is not None
    return found


@_checked
def kept_name(text: str) -> str:
    """A type for a name of kept files."""
    from vhca.lab import kept

    return kept.checked(text) or ""


@_checked
def tools(text: str) -> list[str]:
    """A type for programs of the trade, joined by commas."""
    from vhca.lab import sets

    return sets.tools(text)


def add_extra_options(group: argparse._ActionsContainer) -> None:
    """Give a command the options that put more into guests than is usual."""
    group.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="put this module of the kernel, and all that it needs, into guests, too; may be given again (`vhca guest`"
        " lists the usual ones; a program in the guest loads it)",
    )
    group.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="put this Debian package, or this set of packages and modules (ucx, libfabric, mpi, storage: `vhca guest"
        " sets`), and all that it needs, into guests, too; may be given again (its installation scripts are not run,"
        " and no service of it is started)",
    )
    group.add_argument(
        "--tools",
        type=tools,
        action="extend",
        default=[],
        metavar="NAME,...",
        help="put these programs into guests, too: gdb, perf, trace-cmd, bpftrace",
    )
    add_suite_option(group)


def add_suite_option(group: argparse._ActionsContainer) -> None:
    """Give a command the option that says of which suite guests are."""
    group.add_argument(
        "--suite",
        type=suite,
        metavar="NAME",
        help="make guests of the packages of this Debian suite, all of them: rdma-core, perftest, Python and what"
        " --package names (trixie, trixie-backports, bookworm, bookworm-backports, forky, sid, experimental; default:"
        " trixie)",
    )


def add_root_options(group: argparse._ActionsContainer) -> None:
    """Give a command with guests the options that say what their root is, and what becomes of it."""
    group.add_argument(
        "--root",
        type=root,
        metavar="DIR",
        help="take this folder of the host for the guests' root instead of their own system: a tree that debootstrap"
        " made, an unpacked image of a container, or / of this host; guests cannot change it, but read all of it that"
        " you may read",
    )
    group.add_argument(
        "--keep",
        type=kept_name,
        metavar="NAME",
        help="keep what guests change in their root (but in /tmp and /run) for the next run with this name, in the"
        " cache, at most 4 GiB for each guest (`vhca guest kept` lists and removes)",
    )


def extras(options: argparse.Namespace) -> dict[str, Any]:
    """What the options say of it, as arguments of :class:`vhca.lab.Lab` and :func:`vhca.lab.prepare`."""
    return {
        "extra_modules": options.module,
        "extra_packages": [*options.package, *options.tools],
        "suite": options.suite,
    }
