"""`vhca trace`: what happened in cards and on cables, as a ladder or a page."""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vhca.cli import running, status
from vhca.cli.trace_options import add_selection, html_file, selection

if TYPE_CHECKING:
    from vhca.trace.events import Meaning, TraceEvent
    from vhca.trace.reading import Trace

NAME: Final = "trace"
SUMMARY: Final = "show commands, doorbells, packets, completions, interrupts on one clock"
DESCRIPTION: Final = f"""\
Show what cards and cables did, in the order in which it happened, as a ladder: a column for each of two cards, and the
wire between them.  What went wrong is explained.

WHAT is a capture with records of cards (`vhca run --capture FILE --capture-records`, `vhca capture start --records`;
several files of a ring in their order), or `live`: a rack that is running, until Ctrl-C.  --html makes one page of it
that needs nothing else, with a timeline, search and filters.

{running.CARDS_AND_RACKS}"""
EPILOG: Final = f"""\
examples:
  vhca run --capture run.pcapng --capture-records --guests 2 -- ping -c1 g1
  vhca trace run.pcapng
  vhca trace run.pcapng --qp 0x4b --kind packet --kind completion
  vhca trace run.pcapng --from 1.5 --until 1.6 --html run.html
  vhca trace live --card h0 --kind command
  vhca run --trace run.html -- ibv_devinfo

exit codes:
  0    done
  {status.FAILED}    the capture is damaged; what is before that is shown
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("what", nargs="+", metavar="FILE|live", help="a capture, or what is happening now")
    parser.add_argument("--html", type=html_file, metavar="FILE", help="write a page instead of a ladder")
    parser.add_argument("--no-explain", action="store_true", help="do not say what syndromes mean")
    add_selection(parser)
    running.add_rack_option(parser, default=None)
    parser.set_defaults(refuse=parser.error)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab.errors import LabError
    from vhca.trace.reading import TraceError, gather

    if options.what == ["live"]:
        return _live(options)
    if "live" in options.what:
        options.refuse("live, or captures; not both")
    try:
        trace = gather(map(Path, options.what), selection(options), _meaning(options), options.most)
    except TraceError as error:
        raise LabError(str(error), "give it a capture: vhca run --capture FILE.pcapng --capture-records") from error
    except OSError as error:
        raise LabError(f"{error.filename}: {error.strerror}", "name a capture") from error
    return _shown(trace, options)


def _meaning(options: argparse.Namespace) -> Meaning | None:
    """What explains what went wrong."""
    from vhca.lab.traced import explaining

    return None if options.no_explain else explaining()


def _shown(trace: Trace, options: argparse.Namespace) -> int:
    """Show what was gathered."""
    from vhca.lab.errors import LabError, printable
    from vhca.lab.traced import write_page
    from vhca.trace.ladder import Ladder, cards_of

    if options.html is not None:
        try:
            write_page(trace, options.html, f"vhca trace {' '.join(options.what)}")
        except OSError as error:
            raise LabError(f"{options.html}: {error.strerror}", "name a file that can be written") from error
        print(printable(f"{options.html}: {len(trace.events)} events"))
    elif trace.events:
        ladder = Ladder(cards_of(trace.events), sys.stdout.isatty())
        print("\n".join(ladder.header()))
        for event in trace.events:
            for line in ladder.lines(event):
                print(line)
    for note in trace.notes() or ([] if trace.events else ["no events"]):
        print(printable(f"vhca: {note}"), file=sys.stderr)
    return status.FAILED if trace.trouble else status.OK


def _live(options: argparse.Namespace) -> int:
    """Show what happens now, line by line; a page is written at the end."""
    from collections import deque

    from vhca.cli import live_capture
    from vhca.lab.errors import LabError
    from vhca.trace.ladder import Ladder
    from vhca.trace.reading import Trace, TraceError, events_of, explained

    path = running.find(options.rack)
    ports = running.order(options.rack, "show")["ports"]
    cards = options.card or [port["name"] for port in ports]
    wanted, meaning, trace = selection(options), _meaning(options), Trace()
    kept: deque[TraceEvent] = deque(maxlen=options.most)
    ladder = Ladder(cards[:2] if len(cards) == 2 else cards, sys.stdout.isatty())
    if options.html is None:
        print("\n".join(ladder.header()), flush=True)
    try:
        with _until_asked_to_end(path) as sock, sock.makefile("rb") as file:
            for event in events_of(file):
                trace.seen += 1
                trace.lost += event.lost
                if wanted.wants(event):
                    trace.wanted += 1
                    kept.append(explained(event, meaning))
                    if options.html is None:
                        print("\n".join(ladder.lines(kept[-1])), flush=True)
    except TraceError as error:
        trace.trouble = str(error)
    except (live_capture.Ended, ConnectionError) as error:
        raise LabError(f"the rack in {path.parent}: {error}", "only its owner gives it orders") from error
    trace.events = list(kept)
    if options.html is not None:
        return _shown(trace, options)
    if trace.trouble:
        live_capture.complain(f"vhca: {trace.trouble}")
    return status.FAILED if trace.trouble else status.OK


@contextlib.contextmanager
def _until_asked_to_end(path: Path) -> Iterator[socket.socket]:
    """A live capture; Ctrl-C asks the rack to end it, and then it comes to its end.

    :raises Ended: the rack refuses.
    """
    from vhca.cli import live_capture

    socks: list[socket.socket] = []
    asked = False

    def end() -> None:
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)

    def ask(_number: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        end()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the second time it is meant

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with live_capture.ask(path, {"records": True}) as sock:
            socks.append(sock)
            if asked:
                end()
            yield sock
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
