"""Options that say what a capture is to have, and the fields of the order that they become."""

from __future__ import annotations

import argparse
from typing import Any, Final

from vhca.cli.options import memory, seconds, whole

_SERVICES: Final = ("RC", "UC", "UD", "XRC", "DC")
_MIB: Final = 1 << 20


def number(high: int) -> Any:
    """A type for a number in 0 .. `high`, decimal or with 0x."""

    def convert(text: str) -> int:
        try:
            value = int(text, 0)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number: give 17, or 0x11") from None
        if not 0 <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not in 0 .. {high:#x}")
        return value

    return convert


def opcode(text: str) -> str:
    """A type for the name of an opcode, or its beginning."""
    from vhca.fabric.capture_filter import CaptureFilter

    try:
        CaptureFilter(opcode=text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_what(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that say what is recorded, and where that ends."""
    where = parser.add_argument_group("where")
    where.add_argument(
        "--port",
        action="append",
        metavar="NAME",
        help="record here only: a card (h0), a port of a switch (leaf1/3), a switch or simulated host (leaf1: all its"
        " ports), or all, which is every cable of the fabric; may be given again (default: all cards)",
    )
    where.add_argument(
        "--both-ends",
        action="store_true",
        help="record each packet also where it arrives, behind all faults: one that is lost on the way is there once",
    )
    where.add_argument(
        "--records",
        action="store_true",
        help="record what the cards do, too: commands, doorbells, work requests, completions, events, interrupts",
    )
    which = parser.add_argument_group("which packets (all of these must hold)")
    which.add_argument("--direction", choices=("in", "out"), help="what the ports are sent, or what they send")
    which.add_argument(
        "--lid", type=number(0xFFFF), action="append", metavar="N", help="from or to this LID; may be given again"
    )
    which.add_argument(
        "--qpn",
        type=number(0xFFFFFF),
        action="append",
        metavar="N",
        help="to this queue pair, or a datagram from it; may be given again",
    )
    which.add_argument(
        "--opcode", type=opcode, metavar="NAME", help="an opcode, or its beginning: RDMA_WRITE, RC_SEND_ONLY"
    )
    which.add_argument("--service", choices=_SERVICES, help="of this transport service")
    kind = which.add_mutually_exclusive_group()
    kind.add_argument(
        "--only-management", dest="management", action="store_const", const=True, help="datagrams of QP0 and QP1"
    )
    kind.add_argument(
        "--no-management", dest="management", action="store_const", const=False, help="everything but those"
    )
    which.add_argument(
        "--management-class",
        type=number(0xFF),
        metavar="N",
        help="management of this class: 0x01 and 0x81 SMPs, 0x03 the SA, 0x04 performance, 0x07 the CM",
    )
    which.add_argument(
        "--no-acks",
        dest="acknowledgements",
        action="store_const",
        const=False,
        help="leave acknowledgements out, negative ones, too",
    )
    which.add_argument(
        "--snap-length",
        type=whole(8, 65535),
        metavar="BYTES",
        help="keep so much of each packet, from its LRH on (default: all of it)",
    )
    end = parser.add_argument_group("where it ends by itself")
    end.add_argument("-c", "--count", type=whole(1, 1 << 62), metavar="N", help="after so many packets and records")
    end.add_argument("--duration", type=seconds, metavar="TIME", help="after this time: 90, 2m, 1h")


def add_ring(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that make a capture several files."""
    ring = parser.add_argument_group("several files")
    ring.add_argument(
        "--file-size",
        type=memory(1),
        metavar="SIZE",
        help="begin another file when one has so much: 100M, 1G; they are called FILE_00001_20261130120000.pcapng ...",
    )
    ring.add_argument(
        "--files",
        type=whole(1, 100_000),
        metavar="N",
        help="keep the last N files and delete older ones (default: keep all)",
    )


def fields(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of an order that begins a capture; those that are None are for nobody."""
    found = {
        "ports": options.port,
        "both_ends": options.both_ends or None,
        "records": options.records or None,
        "direction": options.direction,
        "lids": options.lid,
        "qpns": options.qpn,
        "opcode": options.opcode,
        "service": options.service,
        "management": options.management,
        "management_class": options.management_class,
        "acknowledgements": options.acknowledgements,
        "snap_bytes": options.snap_length,
        "packets": options.count,
        "seconds": options.duration,
    }
    if getattr(options, "file_size", None) is not None:
        found["file_bytes"] = options.file_size * _MIB
    if getattr(options, "files", None) is not None:
        found["files"] = options.files
    return found
