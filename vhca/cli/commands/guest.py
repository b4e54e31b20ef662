"""`vhca guest`: what is in a guest, before one is booted."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import TYPE_CHECKING, Final

from vhca.cli import status
from vhca.cli.guest_options import add_suite_option
from vhca.cli.options import add_kernel_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vhca.lab.kept import Entry
    from vhca.lab.manifest import Manifest

NAME: Final = "guest"
SUMMARY: Final = "list what is in a guest: packages, programs, kernel, modules"
DESCRIPTION: Final = """\
List what is in a guest: the Debian suite its packages are from, the packages with their versions, the programs, the
kernel and the modules that it loads or can load.  Nothing is booted; what is not in the cache yet is fetched.

What is not there can be brought in: `vhca run --module NAME --package NAME` puts a module of the kernel and a Debian
package of that suite into guests, or one of the sets that `vhca guest sets` lists; --suite makes guests of another
suite; --root takes a folder of the host for their root; and --share shows them a folder."""
EPILOG: Final = f"""\
examples:
  vhca guest
  vhca guest sets
  vhca guest kept
  vhca guest kept --remove work
  vhca guest --kernel ~/linux
  vhca guest --suite forky | grep rdma-core
  vhca guest | grep -w strace

exit codes:
  0    listed
{status.EPILOG_COMMON}"""

_WIDTH: Final = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("system", "sets", "kept"),
        default="system",
        help="system: all that a guest has; sets: what --package and --tools know by one name; kept: what --keep has"
        " kept (default: %(default)s)",
    )
    parser.add_argument("--remove", metavar="NAME", help="with kept: remove what was kept under this name")
    parser.set_defaults(refuse=parser.error)
    add_kernel_options(parser)
    add_suite_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab import Cache, Progress, aligned, kept, kernels, sets, suites
    from vhca.lab.manifest import manifest

    if options.remove is not None:
        if options.what != "kept":
            options.refuse("--remove is for what was kept: vhca guest kept --remove NAME")
        kept.discard(Cache(), options.remove)
        return status.OK
    if options.what == "kept":
        print("\n".join(kept_table(kept.entries(Cache()))))
        return status.OK
    if options.what == "sets":
        print("\n".join(aligned(("set", "packages", "modules", "what"), sets.rows())))
        return status.OK
    cache, progress = Cache(), Progress(sys.stderr)
    kernel = kernels.resolve(options.kernel, cache, progress, options.modules)
    print(report(manifest(kernel, cache, progress, suites.checked(options.suite))))
    return status.OK


def kept_table(entries: Sequence[Entry]) -> list[str]:
    """The lines of a table of kept files."""
    from vhca.lab import aligned

    rows = [
        (one.name, " ".join(one.guests), f"{one.size_bytes / 1e6:.0f} MB", one.over, "yes" if one.in_use else "no")
        for one in entries
    ]
    return aligned(("name", "guests", "on disk", "over", "in use"), rows) if rows else ["nothing is kept"]


def report(found: Manifest) -> str:
    """The list as text."""
    kernel = found.kernel
    lines = [
        f"system: packages of Debian {found.suite}; /etc/os-release has ID=vhca and VERSION_CODENAME={found.suite}",
        f"kernel: {kernel.release} ({kernel.origin})",
        f"modules loaded at boot, in a guest with a card: {' '.join(found.autoloaded)} (not with --no-autoload)",
    ]
    for title, names in (
        ("modules that can be loaded", found.modules),
        ("built into this kernel", found.builtin),
        ("modules that this kernel does not have", found.absent),
        ("programs", found.programs),
        ("small programs of busybox", found.applets),
    ):
        if names:
            lines += ["", f"{title} ({len(names)}):"]
            lines += textwrap.wrap(
                " ".join(names),
                _WIDTH,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
                break_long_words=False,
            )
    width = max((len(name) for name, _ in found.packages), default=0)
    lines += ["", f"packages ({len(found.packages)}):"]
    lines += [f"  {name.ljust(width)}  {version}" for name, version in found.packages]
    return "\n".join(lines)
