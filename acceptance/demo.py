"""The demonstration: two guests exchange RDMA over their cards, and one table says how it went.

Assumes a :class:`vhca.lab.Lab` of at least two guests with a card each, not started yet. Guarantees: every row of
the table comes from a command that ran and ended well, and from figures that it printed; the first step that does
not end well ends the run with its name and the last lines of the log that tells why.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TextIO

from vhca.lab import (
    Completed,
    Hca,
    Lab,
    LabError,
    Progress,
    aligned,
    kernel_log_trouble,
    last_lines,
    printable,
)
from vhca.lab.perftest import (
    DEVICE,
    TCP_PORT,
    Exchange,
    devinfo_figure,
    perftest,
    pingpong,
    run_exchange,
    wait_port_active,
)

_STEP_TIMEOUT_S: Final = 60.0
_TAIL_LINES: Final = 12


class DemoFailed(Exception):
    """A step failed. The text names it and ends with the last lines of the log that tells why."""

    def __init__(self, step: str, why: str, log_dir: object = None) -> None:
        text = f"FAILED at: {step}\n" + "\n".join("  " + line for line in why.rstrip().splitlines())
        super().__init__(printable(text + (f"\nthe logs of this run are in {log_dir}" if log_dir else "")))
        self.step = step
        self.why = why


@dataclass(slots=True)
class Row:
    """One line of the table."""

    what: str
    where: str
    load: str
    figure: str
    took_s: float


EXCHANGES: Final = (
    pingpong("rc", 4096, 200),
    pingpong("ud", 1024, 200),
    perftest("ib_write_bw", 65536, 300),
    perftest("ib_read_bw", 65536, 300),
    perftest("ib_send_bw", 65536, 300),
    perftest("ib_write_lat", 8, 200),
    perftest("ib_send_lat", 8, 200),
)


# ---- running them ----


@dataclass(slots=True)
class _Run:
    """The state of one run."""

    lab: Lab
    stopwatch: Stopwatch
    rows: list[Row] = field(default_factory=list)
    step: str = "start"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.step = name
        with self.stopwatch.running(name):
            yield

    def add(self, what: str, where: str, load: str, figure: str, started_s: float) -> None:
        self.rows.append(Row(what, where, load, figure, time.monotonic() - started_s))


def run(lab: Lab, progress: Progress, prepare: Callable[[], object], stream: TextIO | None = None) -> str:
    """Prepare, start the lab, run everything, stop the lab; returns the table. Raises :class:`DemoFailed`.

    `prepare` makes ready what the lab needs and may print progress lines of its own.
    """
    state = _Run(lab, Stopwatch(stream if stream is not None else sys.stderr, progress))
    started_s = time.monotonic()
    try:
        state.step = "fetch QEMU, kernel and guest"
        prepare()
        with state.stage(f"boot {lab.guest_count} guests and load mlx5_ib"):
            lab.start()
        _run_steps(state)
    except (LabError, OSError, ValueError) as error:
        evidence = _evidence(state)
        lab.stop(failed=True)
        raise DemoFailed(state.step, f"{error}{evidence}", lab.log_dir) from error
    except BaseException:
        lab.stop(failed=True)
        raise
    lab.stop()
    return table(state.rows, time.monotonic() - started_s) + f"logs: {lab.log_dir}\n"


def _run_steps(state: _Run) -> None:
    guests = state.lab.guests[:2]
    started_s = time.monotonic()
    with state.stage("wait until both ports are ACTIVE"):
        for guest in guests:
            wait_port_active(guest)
    state.add("ports", "fabric", "", "both ACTIVE, set up by the subnet manager", started_s)
    for guest in guests:
        with state.stage(f"ibv_devinfo on {guest.name}"):
            started_s = time.monotonic()
            done = guest.run(["ibv_devinfo", "-d", DEVICE], timeout_s=_STEP_TIMEOUT_S, check=True)
            state.add("ibv_devinfo", guest.name, "", devinfo_figure(done.stdout), started_s)
    server, client = guests
    for number, exchange in enumerate(EXCHANGES):
        with state.stage(f"{exchange.program} {client.name} -> {server.name}"):
            started_s = time.monotonic()
            figure = _judged(state.lab, run_exchange(server, client, exchange, TCP_PORT + number), exchange)
            state.add(exchange.program, f"{client.name} -> {server.name}", exchange.load, figure, started_s)
    with state.stage("compare the cards' counters"):
        started_s = time.monotonic()
        state.add("card counters", "h0 <-> h1", "", _agreement(state.lab.hcas), started_s)
    for guest in guests:
        with state.stage(f"kernel log of {guest.name}"):
            started_s = time.monotonic()
            found = kernel_log_trouble(guest.run(["dmesg"], check=True).stdout)
            if found:
                raise LabError("the kernel complained:\n" + "\n".join(found[-_TAIL_LINES:]))
            state.add("kernel log", guest.name, "", "no warning, no error", started_s)


def _agreement(hcas: Sequence[Hca]) -> str:
    """What the cards of the two guests count together; `LabError` if one received other data than was sent."""
    counters = [hca.counters() for hca in hcas]
    sums = {
        way: [
            sum(card.get(f"{way}_{kind}{unit}", 0) for card in counters for kind in ("", "ud_"))
            for unit in ("packets", "bytes")
        ]
        for way in ("tx", "rx")
    }
    (sent, sent_bytes), (received, received_bytes) = sums["tx"], sums["rx"]
    if (sent, sent_bytes) != (received, received_bytes) or not sent:
        raise LabError(
            f"the cards sent {sent} packets ({sent_bytes} bytes) and received {received} ({received_bytes} bytes)"
        )
    return f"{sent} packets, {sent_bytes / 2**20:.1f} MiB sent, all received"


def _judged(lab: Lab, ends: tuple[Completed, Completed], exchange: Exchange) -> str:
    """The figure of an exchange that went well; else `LabError` with what both ends said."""
    server, client = ends
    said = []
    for guest, end in zip(lab.guests, ends, strict=False):
        text = f"$ {' '.join(end.args)}\n{end.stdout}{end.stderr}"
        (lab.log_dir / f"{guest.name}-{exchange.program}.log").write_text(text)
        said.append(f"{guest.name} ended with {end.returncode}:\n{last_lines(text, _TAIL_LINES)}")
    if server.returncode or client.returncode:
        raise LabError("\n".join(said))
    try:
        return exchange.figure(client.stdout)
    except (ValueError, IndexError, KeyError) as error:
        raise LabError(f"{error}\n" + "\n".join(said)) from error


def _evidence(state: _Run) -> str:
    """The last lines of the kernel logs and of the cards' logs, as far as they can be had."""
    parts = []
    for guest in state.lab.guests[:2]:
        if not guest.alive:
            continue
        try:
            log = guest.run(["dmesg"], timeout_s=10).stdout
        except (LabError, OSError):
            log = guest.console_log
        parts.append(f"kernel log of {guest.name}:\n" + _indented(log))
    for hca in state.lab.hcas[:2]:
        try:
            lines = hca.trace_tail(_TAIL_LINES)
        except Exception as error:  # a card that cannot be asked must not hide why the step failed
            lines = [f"cannot be read: {error!r}"]
        parts.append(f"log of card {hca.name}:\n" + _indented("\n".join(lines)))
    return "".join("\n" + part for part in parts)


def _indented(text: str) -> str:
    return last_lines(text, _TAIL_LINES, "  ")


# ---- showing it ----


def table(rows: Sequence[Row], total_s: float) -> str:
    """The rows as one aligned table, with the time that everything took below it."""
    cells = [(row.what, row.where, row.load, "ok", row.figure, f"{row.took_s:.1f} s") for row in rows]
    lines = aligned(("what", "where", "load", "result", "figure", "took"), cells)
    return "\n".join([*lines, "", f"everything worked, in {total_s:.1f} s"]) + "\n"


class Stopwatch:
    """Shows which step runs, and for how long. On a terminal the line is redrawn; elsewhere each step is a line."""

    def __init__(self, stream: TextIO, progress: Progress) -> None:
        self._stream = stream
        self._progress = progress
        self._tty = stream.isatty()

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Show this step while the body runs."""
        started_s = time.monotonic()
        self._progress.step(name)
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(started_s, ended), daemon=True)
        if self._tty:
            watcher.start()
        try:
            yield
        finally:
            ended.set()
            if self._tty:
                watcher.join()

    def _watch(self, started_s: float, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            self._stream.write(f"\r           ... {time.monotonic() - started_s:.0f} s\r")
            self._stream.flush()
