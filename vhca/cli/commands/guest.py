"""`vhca guest`: what is in a guest, before one is booted."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import TYPE_CHECKING, Final

from vhca.cli import status
from vhca.cli.options import add_kernel_options

if TYPE_CHECKING:
    from vhca.lab.manifest import Manifest

NAME: Final = "guest"
SUMMARY: Final = "list what is in a guest: packages, programs, kernel, modules"
DESCRIPTION: Final = """\
List what is in a guest: the Debian suite its packages are from, the packages with their versions, the programs, the
kernel and the modules that it loads or can load.  Nothing is booted; what is not in the cache yet is fetched.

What is not there can be brought in: `vhca run --module NAME --package NAME` puts a module of the kernel and a Debian
package of that suite into guests, and --share shows them a folder."""
EPILOG: Final = f"""\
examples:
  vhca guest
  vhca guest --kernel ~/linux
  vhca guest | grep -w strace

exit codes:
  0    listed
{status.EPILOG_COMMON}"""

_WIDTH: Final = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    add_kernel_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab import Cache, Progress, kernels
    from vhca.lab.manifest import manifest

    cache, progress = Cache(), Progress(sys.stderr)
    kernel = kernels.resolve(options.kernel, cache, progress, options.modules)
    print(report(manifest(kernel, cache, progress)))
    return status.OK


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
