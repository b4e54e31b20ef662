"""`vhca kernels`: which kernels guests can have here."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Final

from vhca.cli import status

NAME: Final = "kernels"
SUMMARY: Final = "list the kernels that guests can have, and which are in the cache"
DESCRIPTION: Final = """\
List the kernels that --kernel can be given here: those of the mirror that the host's own apt uses (Debian bookworm and
trixie, their backports, forky, sid and experimental, as far as the mirror has them), those in the cache, and those that
are installed on this host.  Nothing but the suites' indexes is fetched (10 MB each; again after half a day).

--kernel takes more than is listed: a build tree, a bzImage with its modules, a package of a kernel (.deb, .rpm) or a
folder with its packages, a folder or archive laid out like an installed kernel."""
EPILOG: Final = f"""\
examples:
  vhca kernels
  vhca kernels 6.12
  vhca kernels --cached
  vhca run --kernel 6.12.107 -- uname -r
  vhca run --kernel /boot/vmlinuz-6.1.0-50-amd64 -- uname -r
  vhca run --kernel linux-image-6.19.0-mine_amd64.deb -- uname -r

exit codes:
  0    there is one
  1    there is none
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("version", nargs="?", help="only what this version means: 6.12, 6.12.107 (default: all)")
    parser.add_argument("--cached", action="store_true", help="do not ask the mirror: what needs no network")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab import Cache, Progress, aligned
    from vhca.lab.kernel_list import chosen, offers

    found, trouble = offers(Cache(), Progress(sys.stderr), mirror=not options.cached)
    if options.version:
        found = chosen(found, options.version)
    if options.json:
        print(json.dumps([asdict(offer) for offer in found], indent=1))
    elif found:
        rows = [(offer.release, offer.state, offer.origin or "-", f"--kernel {offer.spec}") for offer in found]
        print("\n".join(aligned(("release", "state", "from", "take it by"), rows)))
    if trouble:
        print(f"vhca kernels: {trouble}", file=sys.stderr)
    return status.OK if found else status.FAILED
