"""`vhca tshark`: the decoder that `vhca fetch` put into the cache, or the host's own."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from vhca.cli import status

NAME: Final = "tshark"
SUMMARY: Final = "decode captures with the tshark of the cache"
DESCRIPTION: Final = """\
Start tshark: the host's, if it has one, else the one in the cache, which is fetched if it is not there.  Everything
behind `tshark` is for tshark; its own help is `vhca tshark -- --help`."""
EPILOG: Final = f"""\
examples:
  vhca tshark -r run.pcapng
  vhca tshark -r run.pcapng -Y 'frame.interface_name == "h1" && infiniband.bth.opcode == 6'
  vhca tshark -r run.pcapng -V -c 1

exit codes:
  tshark's own
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.usage = "vhca tshark ARG..."


def execute(options: argparse.Namespace) -> int:
    """Become tshark; returns only if that is not possible."""
    from vhca.lab import Cache, Progress
    from vhca.lab.tshark import find_tshark

    decoder = find_tshark(Cache(), Progress(sys.stderr))
    arguments = [*decoder.command, *(options.guest_command or [])]
    sys.stdout.flush()
    os.execve(arguments[0], arguments, {**os.environ, **decoder.environment})
