"""Options of a kernel developer's bench: modules of one's own, and a dump of the memory of a guest that died."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vhca.lab.own_modules import OwnModule


def loaded_module(text: str) -> OwnModule:
    """A type for a module file, with parameters behind it."""
    from vhca.lab.errors import LabError
    from vhca.lab.own_modules import own_module

    try:
        path, *parameters = shlex.split(text)
        return own_module(path, parameters)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give FILE.ko, and parameters behind it") from None
    except LabError as error:
        raise argparse.ArgumentTypeError(error.what) from None


def replacing_module(text: str) -> OwnModule:
    """A type for a module file."""
    from vhca.lab.errors import LabError
    from vhca.lab.own_modules import own_module

    try:
        return own_module(Path(text))
    except LabError as error:
        raise argparse.ArgumentTypeError(error.what) from None


def add_bench_options(group: argparse._ActionsContainer) -> None:
    """Give a command with guests the options for somebody who works on a kernel or a module."""
    group.add_argument(
        "--insmod",
        type=loaded_module,
        action="append",
        default=[],
        metavar="'FILE.ko [NAME=VALUE ...]'",
        help="load this module file into every guest when it has booted, after what it needs; may be given again, and"
        " they are loaded in that order",
    )
    group.add_argument(
        "--replace-module",
        type=replacing_module,
        action="append",
        default=[],
        metavar="FILE.ko",
        help="put this module file in the place of the kernel's own of that name (`vhca build --module DIR` builds one"
        " for a packaged kernel); may be given again",
    )
    group.add_argument(
        "--vmcore",
        action="store_true",
        help="when a guest's kernel panics, write its memory beside its logs, as an ELF core (as large as the memory;"
        " the last panic of each guest); an oops is a panic then",
    )


def guest_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What these options say of each guest, for its configuration."""
    return {"insmod": tuple(options.insmod), "vmcore": options.vmcore}
