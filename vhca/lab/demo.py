"""The acceptance run of a bench: two guests exchange RDMA over their cards, and one table says how it went.

Assumes a :class:`vhca.lab.Lab` of at least two guests with a card each, not started yet.  Guarantees: every row of
the table comes from a command that ran and ended well, and from figures that it printed; the first step that does
not end well ends the run with its name and the last lines of the log that tells why.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO

from vhca.lab.errors import Completed, LabError, last_lines, printable
from vhca.lab.table import aligned

if TYPE_CHECKING:
    from vhca.lab.cache import Progress
    from vhca.lab.lab import Guest, Lab

DEVICE: Final = "mlx5_0"
_PORT_STATE: Final = f"/sys/class/infiniband/{DEVICE}/ports/1/state"
_FIRST_TCP_PORT: Final = 18515
_STEP_TIMEOUT_S: Final = 60.0
_TAIL_LINES: Final = 12
#: What must not stand in a kernel log after a run that went well.
TROUBLE_IN_KERNEL_LOG: Final = re.compile(
    r"WARNING:|BUG:|Oops|Call Trace|timed? ?out|timeout\b.*command|health|leaked|refcount|unregister_netdevice"
    r"|mlx5.*(?:failed|error|syndrome)",
    re.IGNORECASE,
)
#: What a card without the vendor-specific PCI capability makes the driver say (docs/limits.md).
EXPECTED_IN_KERNEL_LOG: Final = re.compile(r"mlx5_pci_vsc_init\b.*Failed to get valid vendor specific ID")


class DemoFailed(Exception):
    """A step failed.  The text names it and ends with the last lines of the log that tells why."""

    def __init__(self, step: str, why: str, log_dir: object = None) -> None:
        text = f"FAILED at: {step}\n" + "\n".join("  " + line for line in why.rstrip().splitlines())
        super().__init__(printable(text + (f"\nthe logs of this run are in {log_dir}" if log_dir else "")))
        self.step = step
        self.why = why


@dataclass(slots=True, frozen=True)
class Exchange:
    """A program that runs as a server in one guest and as a client in another, and what to read in its output."""

    program: str
    arguments: tuple[str, ...]
    what: str  # how much of what is exchanged, for the table
    figure: Callable[[str], str]


@dataclass(slots=True)
class Row:
    """One line of the table."""

    what: str
    where: str
    load: str
    figure: str
    took_s: float


# -- reading what programs print ---------------------------------------------------------------------


def devinfo_figure(output: str) -> str:
    """``ibv_devinfo`` of an active InfiniBand port in a few words; ``ValueError`` if it is not that."""
    fields = dict(re.findall(r"^\s*(\w+):\s+(.+?)\s*$", output, re.MULTILINE))
    state, layer = fields.get("state", "no state"), fields.get("link_layer", "no link layer")
    if not state.startswith("PORT_ACTIVE") or layer != "InfiniBand":
        raise ValueError(f"the port is {state}, {layer}; it should be PORT_ACTIVE, InfiniBand")
    return f"ACTIVE, LID {fields['port_lid']}, SM {fields['sm_lid']}, MTU {fields['active_mtu'].split()[0]}"


def pingpong_figure(output: str) -> str:
    """Throughput and time per round of an ``ibv_*_pingpong``."""
    rate = re.search(r"bytes in [\d.]+ seconds = ([\d.]+) Mbit/sec", output)
    each = re.search(r"iters in [\d.]+ seconds = ([\d.]+) usec/iter", output)
    if not rate or not each:
        raise ValueError("it printed no result")
    return f"{float(each[1]):.0f} us per round, {float(rate[1]):.1f} Mbit/s"


def bandwidth_figure(output: str) -> str:
    """Average bandwidth and message rate of an ``ib_*_bw``."""
    values = perftest_values(output, "BW average")
    return f"{float(values[3]):.1f} MiB/s, {float(values[4]) * 1e6:.0f} msg/s"


def latency_figure(output: str) -> str:
    """Typical and least latency of an ``ib_*_lat``."""
    values = perftest_values(output, "t_typical")
    return f"{float(values[4]):.0f} us typical, {float(values[2]):.0f} us least"


def perftest_values(output: str, heading: str) -> list[str]:
    """The words of perftest's result line, found by a word of its heading; ``ValueError`` if there is none."""
    lines = output.splitlines()
    at = next((number for number, line in enumerate(lines) if heading in line), None)
    values = lines[at + 1].split() if at is not None and at + 1 < len(lines) else []
    if len(values) < 5 or not all(re.fullmatch(r"[\d.]+", value) for value in values[:5]):
        raise ValueError("it printed no result")
    return values


def kernel_log_trouble(log: str) -> list[str]:
    """The lines of a kernel log that must not be in it."""
    return [
        line
        for line in log.splitlines()
        if TROUBLE_IN_KERNEL_LOG.search(line) and not EXPECTED_IN_KERNEL_LOG.search(line)
    ]


def _perftest(program: str, size_bytes: int, rounds: int, figure: Callable[[str], str]) -> Exchange:
    arguments = ("-d", DEVICE, "-F", "-s", str(size_bytes), "-n", str(rounds))
    return Exchange(program, arguments, f"{rounds} x {_size(size_bytes)}", figure)


def _pingpong(program: str, size_bytes: int, rounds: int) -> Exchange:
    arguments = ("-d", DEVICE, "-s", str(size_bytes), "-n", str(rounds))
    return Exchange(program, arguments, f"{rounds} x {_size(size_bytes)}", pingpong_figure)


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 10} KiB" if size_bytes >= 1024 and size_bytes % 1024 == 0 else f"{size_bytes} B"


EXCHANGES: Final = (
    _pingpong("ibv_rc_pingpong", 4096, 200),
    _pingpong("ibv_ud_pingpong", 1024, 200),
    _perftest("ib_write_bw", 65536, 300, bandwidth_figure),
    _perftest("ib_read_bw", 65536, 300, bandwidth_figure),
    _perftest("ib_send_bw", 65536, 300, bandwidth_figure),
    _perftest("ib_write_lat", 8, 200, latency_figure),
    _perftest("ib_send_lat", 8, 200, latency_figure),
)


# -- running them ------------------------------------------------------------------------------------


def wait_port_active(guest: Guest, timeout_s: float = 30.0) -> None:
    """Wait until the guest's kernel calls the port ACTIVE; ``LabError`` with its state if it does not."""
    rounds = max(1, int(timeout_s * 10))
    script = (
        f'i=0; while [ $i -lt {rounds} ]; do read -r s <{_PORT_STATE} && [ "$s" = "4: ACTIVE" ] && exit 0;'
        f' usleep 100000; i=$((i + 1)); done; echo "${{s:-no {_PORT_STATE}}}"; exit 1'
    )
    done = guest.run(["sh", "-c", script], timeout_s=timeout_s + 30)
    if done.returncode:
        raise LabError(
            f"{guest.name}: the port of {DEVICE} is not ACTIVE after {timeout_s:.0f} s: {done.stdout.strip()}"
        )


def wait_listening(guest: Guest, tcp_port: int, pid: int, timeout_s: float = 20.0) -> bool:
    """Wait until something in the guest listens on a TCP port; False if process ``pid`` ends before that."""
    script = (
        f"i=0; while [ $i -lt {int(timeout_s * 20)} ]; do"
        f" grep -qE ':{tcp_port:04X} [0-9A-F:]+ 0A' /proc/net/tcp /proc/net/tcp6 2>/dev/null && exit 0;"
        f" [ -d /proc/{pid} ] || exit 1; usleep 50000; i=$((i + 1)); done; exit 2"
    )
    return guest.run(["sh", "-c", script], timeout_s=timeout_s + 30).returncode == 0


def run_exchange(
    server: Guest, client: Guest, exchange: Exchange, tcp_port: int, timeout_s: float = _STEP_TIMEOUT_S
) -> tuple[Completed, Completed]:
    """Run a program in both guests and return what became of it: server's, client's.

    Raises ``CommandTimeout`` if it takes too long; a status that is not 0 is the caller's to judge.
    """
    command = [exchange.program, *exchange.arguments, "-p", str(tcp_port)]
    listening = server.popen(command)
    try:
        if not wait_listening(server, tcp_port, listening.pid):
            listening.kill()
            code = listening.wait(10)
            none = Completed([*command, server.name], -1, "", "not started: the server did not listen")
            return _completed(command, code, listening.stdout.read_all(), listening.stderr.read_all()), none
        asked = client.run([*command, server.name], timeout_s=timeout_s)
        if asked.returncode:
            listening.terminate()
        code = listening.wait(20)
    except BaseException:
        listening.kill()
        raise
    return _completed(command, code, listening.stdout.read_all(), listening.stderr.read_all()), asked


def _completed(command: Sequence[str], code: int, out: bytes, err: bytes) -> Completed:
    return Completed(list(command), code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


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
    """Prepare, start the lab, run everything, stop the lab; returns the table.  Raises :class:`DemoFailed`.

    ``prepare`` makes ready what the lab needs and may print progress lines of its own.
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
            figure = _judged(state.lab, run_exchange(server, client, exchange, _FIRST_TCP_PORT + number), exchange)
            state.add(exchange.program, f"{client.name} -> {server.name}", exchange.what, figure, started_s)
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


def _agreement(hcas: Sequence[Any]) -> str:
    """What the cards of the two guests count together; ``LabError`` if one received other data than was sent."""
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
    """The figure of an exchange that went well; else ``LabError`` with what both ends said."""
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


# -- showing it --------------------------------------------------------------------------------------


def table(rows: Sequence[Row], total_s: float) -> str:
    """The rows as one aligned table, with the time that everything took below it."""
    cells = [(row.what, row.where, row.load, "ok", row.figure, f"{row.took_s:.1f} s") for row in rows]
    lines = aligned(("what", "where", "load", "result", "figure", "took"), cells)
    return "\n".join([*lines, "", f"everything worked, in {total_s:.1f} s"]) + "\n"


class Stopwatch:
    """Shows which step runs, and for how long.  On a terminal the line is redrawn; elsewhere each step is a line."""

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
