"""``vhca fetch``: fill the cache, so that later commands start at once and need no network."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from vhca.cli import status
from vhca.cli.options import add_kernel_options

NAME: Final = "fetch"
SUMMARY: Final = "fetch QEMU, a kernel and the guest's packages into the cache"
DESCRIPTION: Final = """\
Fetch everything that guests need into the cache: QEMU (if the host has none that is new enough), the kernel, the
packages of the guest system; and build the guest image.  Nothing is installed on the host.  Files come from the
mirror that the host's own apt uses and are verified.  What is there already is not fetched again."""
EPILOG: Final = f"""\
examples:
  vhca fetch
  vhca fetch --kernel 6.12
  VHCA_CACHE=/srv/vhca vhca fetch

exit codes:
  0    everything is there
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    add_kernel_options(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing if all goes well")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab import Cache, Progress, prepare

    cache = Cache()
    done = prepare(Progress(sys.stderr, quiet=options.quiet), options.kernel, modules_dir=options.modules, cache=cache)
    if not options.quiet:
        version = ".".join(map(str, done.qemu.version))
        print(f"QEMU    {version} ({done.qemu.origin})")
        print(f"kernel  {done.kernel.release} ({done.kernel.origin})")
        print(f"image   {done.image}")
    return status.OK
