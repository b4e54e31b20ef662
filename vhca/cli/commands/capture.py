"""`vhca capture`: record packets of a running rack."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from vhca.cli import capture_options, running, status
from vhca.cli.options import capture_file

NAME: Final = "capture"
SUMMARY: Final = "record packets of a running fabric, from now on"
DESCRIPTION: Final = f"""\
Record packets of guests that are running, and what their cards do, for Wireshark, from another terminal; beside
--capture, which records from the first packet on.

`live` writes to standard output, for Wireshark to read as it comes, until Ctrl-C.  `start` lets the rack itself write a
file, or a ring of files, until `stop`, a limit, or its end; one at a time is started so.  Whoever reads or writes too
slowly gets fewer packets; it is said how many are missing, and no guest waits.

{running.CARDS_AND_RACKS}"""
EPILOG: Final = f"""\
examples:
  vhca capture live | wireshark -k -i -
  vhca capture live --port all --only-management | wireshark -k -i -
  vhca capture live --records --port h1 -c 1000 -w h1.pcapng
  vhca capture live --opcode RDMA_WRITE --no-acks | vhca tshark -r -
  vhca capture start run.pcapng
  vhca capture start run.pcapng --records --file-size 100M --files 10
  vhca capture stop

exit codes:
  0    done
  {status.FAILED}    the file ended before the capture was stopped (a full disk); the message says why
{status.EPILOG_COMMON}"""
_LIVE_EPILOG: Final = """\
examples:
  vhca capture live | wireshark -k -i -
  vhca capture live --records | vhca tshark -r -
  vhca capture live --port leaf1/3 --both-ends --duration 1m -w - > trunk.pcapng
  vhca capture live --service UD --management-class 0x07 -c 100 -w cm.pcapng"""
_START_EPILOG: Final = """\
examples:
  vhca capture start run.pcapng
  vhca capture start h1.pcapng --port h1 --records
  vhca capture start all.pcapng --port all --no-acks --snap-length 96
  vhca capture start ring.pcapng --file-size 100M --files 10"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    running.add_rack_option(parser, default=None)
    orders = parser.add_subparsers(metavar="live|start|stop", required=True, help="see, begin or end a capture")
    raw = argparse.RawDescriptionHelpFormatter
    live = orders.add_parser(
        "live", help="write to standard output, until Ctrl-C", epilog=_LIVE_EPILOG, formatter_class=raw
    )
    live.add_argument(
        "-w",
        dest="output",
        default="-",
        metavar="FILE",
        help="where to: - for standard output, the default, or a file",
    )
    capture_options.add_what(live)
    running.add_rack_option(live)
    live.set_defaults(order=_live)
    start = orders.add_parser(
        "start",
        help="record to FILE from now on; what was in it is lost",
        epilog=_START_EPILOG,
        formatter_class=raw,
    )
    start.add_argument("file", type=capture_file, metavar="FILE.pcapng", help="the file to write")
    capture_options.add_what(start)
    capture_options.add_ring(start)
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

    running.order(options.rack, "capture_start", file=str(options.file), **capture_options.fields(options))
    print(printable(f"recording to {options.file}; `vhca capture stop` ends it"))
    return status.OK


def _stop(options: argparse.Namespace) -> int:
    from vhca.lab.errors import printable

    capture = running.order(options.rack, "capture_stop")
    missing = f", {capture['dropped']} more are missing" if capture["dropped"] else ""
    print(printable(f"{capture['file']}: {capture['packets']} packets{missing}"))
    if capture["trouble"]:
        print(printable(f"vhca: {capture['file']} ended early: {capture['trouble']}"), file=sys.stderr)
        return status.FAILED
    return status.OK


def _live(options: argparse.Namespace) -> int:
    from vhca.cli import live_capture
    from vhca.lab.errors import LabError

    output = _open(options.output)
    path = running.find(options.rack)
    try:
        sock = live_capture.ask(path, capture_options.fields(options))
    except live_capture.Ended as error:
        raise LabError(str(error)) from error
    except OSError as error:
        what = f"the rack in {path.parent} does not answer: {error}"
        raise LabError(what, "only its owner gives it orders; it may have ended") from error
    with sock:
        live_capture.complain("recording; Ctrl-C ends it")
        try:
            tail = live_capture.pass_on(sock, output)
        except BrokenPipeError:
            # Who reads has seen enough; nothing is lost that anybody wants.
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
            return status.OK
        except OSError as error:
            live_capture.complain(f"vhca: {options.output} ended early: {error.strerror}")
            return status.FAILED
    counts = live_capture.summary(tail)
    if counts is None:
        live_capture.complain("vhca: the rack ended before the capture did")
        return status.FAILED
    seen, dropped = counts
    live_capture.complain(f"{seen - dropped} packets" + (f", {dropped} more are missing" if dropped else ""))
    return status.OK


def _open(name: str) -> int:
    """A descriptor for what is recorded."""
    from vhca.fabric.capture_writer import for_its_owner
    from vhca.lab.errors import LabError

    if name == "-":
        if sys.stdout.isatty():
            raise LabError("a capture is nothing to read on a terminal", "give it to a program: | wireshark -k -i -")
        return sys.stdout.fileno()
    try:
        return for_its_owner(Path(name).expanduser(), os.O_TRUNC)
    except OSError as error:
        raise LabError(f"{name}: {error.strerror}", "name a file that can be written") from error
