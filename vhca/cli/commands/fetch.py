"""`vhca fetch`: fill the cache, so that later commands start at once and need no network."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from vhca.cli import status
from vhca.cli.guest_options import add_extra_options, extras
from vhca.cli.options import add_kernel_options

NAME: Final = "fetch"
SUMMARY: Final = "fetch QEMU, a kernel and the guest's packages into the cache"
DESCRIPTION: Final = """\
Fetch everything that guests need into the cache: QEMU (if the host has none that is new enough), the kernel, and the
packages of the guest system, of which the guest image is built; tshark (if the host has none), with which tests decode
captures; and the InfiniBand tools that `vhca fabric exec` runs.  Nothing is installed on the host.  Files come from the
mirror that the host's own apt uses and are verified.  What is there already is not fetched again."""
EPILOG: Final = f"""\
examples:
  vhca fetch
  vhca fetch --kernel 6.12
  vhca fetch --package nvme-cli --package ucx
  vhca fetch --suite forky
  VHCA_CACHE=/srv/vhca vhca fetch

exit codes:
  0    everything is there
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    add_kernel_options(parser)
    add_extra_options(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing if all goes well")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab import Cache, Progress, prepare
    from vhca.lab.host_tools import find_host_tools
    from vhca.lab.tshark import find_tshark

    cache = Cache()
    progress = Progress(sys.stderr, quiet=options.quiet)
    done = prepare(
        progress,
        options.kernel,
        modules_dir=options.modules,
        **extras(options),
        cache=cache,
    )
    decoder = find_tshark(cache, progress)
    tools = find_host_tools(cache, progress)
    if not options.quiet:
        version = ".".join(map(str, done.qemu.version))
        print(f"QEMU    {version} ({done.qemu.origin})")
        print(f"kernel  {done.kernel.release} ({done.kernel.origin})")
        print(f"image   {done.image}")
        print(f"tshark  {decoder.command[-1]} ({decoder.origin})")
        print(f"tools   {tools.folder}")
    return status.OK
