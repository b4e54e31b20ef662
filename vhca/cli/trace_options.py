"""The option `--trace` of commands with guests, and the options that choose what a trace shows."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vhca.cli.capture_options import number
from vhca.cli.options import whole

if TYPE_CHECKING:
    from vhca.lab import Lab
    from vhca.trace.events import Selection

MOST_SECONDS = 1e9


def html_file(text: str) -> Path:
    """A type for the page that is to be written."""
    path = Path(text).expanduser()
    if path.suffix != ".html":
        raise argparse.ArgumentTypeError(f"{text}: a page's name ends in .html")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.absolute().parent}")
    return path


def seconds_after(text: str) -> int:
    """A type for a time in seconds behind the first event, such as 1.25; gives ns."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds behind the first event, such as 1.25")
    return round(value * 1e9)


def add_trace_option(parser: argparse._ActionsContainer) -> None:
    """Give a command with guests the option that makes a page of what their cards did."""
    parser.add_argument(
        "--trace",
        type=html_file,
        metavar="FILE.html",
        help="write a page at the end: commands, doorbells, work requests, packets, completions and interrupts of all"
        " cards on one clock, from when the guests are up; guests are slower meanwhile (docs/trace.md)",
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that say which events are shown."""
    from vhca.trace.events import KINDS

    which = parser.add_argument_group("which events (all of these must hold)")
    which.add_argument(
        "--qp", type=number(0xFFFFFF), action="append", default=[], metavar="N", help="of this queue pair; may be again"
    )
    which.add_argument(
        "--card", action="append", default=[], metavar="NAME", help="of this card (h0) or port; may be given again"
    )
    which.add_argument(
        "--kind", action="append", default=[], choices=KINDS, metavar="KIND", help=f"of this kind: {', '.join(KINDS)}"
    )
    which.add_argument("--from", dest="from_ns", type=seconds_after, default=0, metavar="S", help="from this second on")
    which.add_argument("--until", dest="until_ns", type=seconds_after, metavar="S", help="before this second")
    which.add_argument(
        "--most", type=whole(1, 1 << 20), default=10_000, metavar="N", help="the last N of them (default: %(default)s)"
    )


def selection(options: argparse.Namespace) -> Selection:
    """What the options choose."""
    from vhca.trace.events import Selection

    return Selection(
        frozenset(options.qp), frozenset(options.card), frozenset(options.kind), options.from_ns, options.until_ns
    )


@contextlib.contextmanager
def traced(lab: Lab, options: argparse.Namespace) -> Iterator[None]:
    """Trace what the lab does meanwhile, if the option asks for it, and write the page however it ends."""
    if options.trace is None:
        yield
        return
    from vhca.lab.errors import printable
    from vhca.lab.traced import LabTrace
    from vhca.trace.reading import TraceError

    trace = LabTrace(lab)
    try:
        yield
    finally:
        try:
            found = trace.write(options.trace, f"vhca run: {options.trace.stem}")
            told = "".join(f"; {note}" for note in found.notes())
            said = f"vhca: {options.trace}: {len(found.events)} events{told}"
        except (OSError, TraceError) as error:
            said = f"vhca: no trace in {options.trace}: {error}"
        finally:
            trace.discard()
        print(printable(said), file=sys.stderr)
