"""`vhca capture`: record packets of a running rack."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from vhca.cli import running, status
from vhca.cli.options import add_capture_choice, capture_file

NAME: Final = "capture"
SUMMARY: Final = "record packets of a running fabric, from now on"
DESCRIPTION: Final = f"""\
Record packets of guests that are running, for Wireshark, from another terminal; beside --capture, which records from
the first packet on.  One capture at a time is started so.  It ends with `vhca capture stop`, or with the rack.

{running.CARDS_AND_RACKS}"""
EPILOG: Final = f"""\
examples:
  vhca capture start run.pcapng
  vhca capture start h1.pcapng --capture-port h1
  vhca capture start run.pcapng --capture-both-ends
  vhca capture stop

exit codes:
  0    done
  {status.FAILED}    the file ended before the capture was stopped (a full disk); the message says why
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    running.add_rack_option(parser, default=None)
    orders = parser.add_subparsers(metavar="start|stop", required=True, help="start a capture, or stop it")
    start = orders.add_parser("start", help="record to FILE from now on; what was in it is lost")
    start.add_argument("file", type=capture_file, metavar="FILE.pcapng", help="the file to write")
    add_capture_choice(start)
    running.add_rack_option(start)
    start.set_defaults(order=_start)
    stop = orders.add_parser("stop", help="stop recording and close the file")
    running.add_rack_option(stop)
    stop.set_defaults(order=_stop)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    return int(options.order(options))


def _start(options: argparse.Namespace) -> int:
    from vhca.lab.errors import printable

    ends = options.capture_both_ends or None
    running.order(options.rack, "capture_start", file=str(options.file), ports=options.capture_port, both_ends=ends)
    print(printable(f"recording to {options.file}; `vhca capture stop` ends it"))
    return status.OK


def _stop(options: argparse.Namespace) -> int:
    from vhca.lab.errors import printable

    capture = running.order(options.rack, "capture_stop")
    print(printable(f"{capture['file']}: {capture['packets']} packets"))
    if capture["trouble"]:
        print(printable(f"vhca: {capture['file']} ended early: {capture['trouble']}"), file=sys.stderr)
        return status.FAILED
    return status.OK
