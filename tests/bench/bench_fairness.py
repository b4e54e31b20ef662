"""How long an idle card's register access takes while another card works: mean, 99th percentile and worst.

The rack runs in a process of its own (`vhca serve`), the loads of :mod:`tests.bench.fairness_loads` in this one, and
the register accesses in a third, one a millisecond: each is one REGION_READ of configuration space, which QEMU's whole
machine waits for. The first row is a rack where nobody works. A second table is of racks of many cards
(:mod:`tests.bench.many_cards`); `--only cards` prints it alone.

    python -m tests.bench.bench_fairness [--seconds 3] [--repeats 5] [--only TEXT] [--vhca COMMAND]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import tests.bench.socket_loads  # noqa: F401 (adds its loads)
from tests.bench import many_cards
from tests.bench.fairness_loads import HOSTILE, LEGITIMATE, Load, Stage
from tests.support.remote import RemoteDriver
from tests.wire.client import Client
from vhca.lab.table import aligned
from vhca.pci.function import CONFIG_REGION

MEMORY_BYTES = 1 << 30
PAUSE_S = 0.001
LIMITS_MS = {"idle": (5.0, 100.0), "legitimate": (5.0, 100.0), "hostile": (20.0, 100.0)}
"""Mean and worst that the project wants on a quiet machine."""


def probe(path: str, seconds: float) -> None:
    """Read a register again and again; print the waits in ms as JSON."""
    import socket

    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    client = Client(sock, lambda: None)
    client.negotiate()
    print("ready", flush=True)
    sys.stdin.readline()
    waits = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        client.region_read(CONFIG_REGION, 0, 4)
        waits.append((time.perf_counter() - begin) * 1e3)
        time.sleep(PAUSE_S)
    print(json.dumps(waits))


@contextmanager
def rack(command: str, cards: int = 3) -> Iterator[Path]:
    """Cards in a process of their own; gives the folder of their sockets."""
    with server(command, cards) as (folder, _):
        yield folder


@contextmanager
def server(command: str, cards: int) -> Iterator[tuple[Path, int]]:
    """As :func:`rack`, with the number of the process."""
    with tempfile.TemporaryDirectory(prefix="vhca-fairness-") as name:
        folder = Path(name) / "rack"
        with subprocess.Popen([command, "serve", "--hcas", str(cards), "--dir", str(folder), "--quiet"]) as process:
            try:
                yield folder, process.pid
            finally:
                process.terminate()


def watch(path: Path, seconds: float, steps: Iterator[None]) -> list[float]:
    """Waits in ms of another process for registers of the card at `path`, while `steps` are taken."""
    command = [sys.executable, "-m", "tests.bench.bench_fairness", "--probe", str(path), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        begin = time.monotonic()
        child.stdin.write("\n")
        child.stdin.flush()
        while time.monotonic() < begin + seconds:
            next(steps)
        waits: list[float] = json.loads(child.stdout.readline())
        return waits


def measure(command: str, load: Load | None, seconds: float) -> tuple[list[float], float]:
    """Waits in ms of the idle card under a load, and what the load moved in MiB/s."""
    with rack(command) as folder:
        a = RemoteDriver(folder / "h0.sock", MEMORY_BYTES)
        c = RemoteDriver(folder / "h2.sock", MEMORY_BYTES)
        stage = Stage(a, c, {})
        for driver in (a, c):
            driver.start()
        stage.lids = {driver: driver.lid() for driver in (a, c)}
        steps = load(stage) if load is not None else iter(lambda: time.sleep(PAUSE_S), 0)
        next(steps)
        before, begin = stage.moved(), time.monotonic()
        waits = watch(folder / "h1.sock", seconds, steps)
        moved = (stage.moved() - before) / (time.monotonic() - begin) / (1 << 20)
        for driver in (a, c):
            driver.close()
        return waits, moved


def show(kind: str, name: str, waits: list[float], moved: float) -> list[str]:
    """One line of the table."""
    waits = sorted(waits)
    mean, worst = sum(waits) / len(waits), waits[-1]
    most_mean, most_worst = LIMITS_MS[kind]
    verdict = "ok" if mean <= most_mean and worst <= most_worst else "above"
    return [
        kind,
        name,
        f"{mean:.2f}",
        f"{waits[int(len(waits) * 0.99)]:.1f}",
        f"{worst:.1f}",
        f"{moved:.0f}" if moved else "",
        str(len(waits)),
        verdict,
    ]


def main() -> None:
    """Run the loads one after the other and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="time per load (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of many cards (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="loads with this in their name")
    parser.add_argument("--vhca", default=str(Path(sys.executable).with_name("vhca")), help="the command to measure")
    parser.add_argument("--probe", nargs=2, metavar=("SOCKET", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(options.probe[0], float(options.probe[1]))
        return
    loads: list[tuple[str, str, Load | None]] = [("idle", "nobody works", None)]
    loads += [("legitimate", name, load) for name, load in LEGITIMATE.items()]
    loads += [("hostile", name, load) for name, load in HOSTILE.items()]
    rows = []
    for kind, name, load in loads:
        if options.only in name:
            try:
                rows.append(show(kind, name, *measure(options.vhca, load, options.seconds)))
            except Exception as error:
                rows.append([kind, name, "", "", "", "", "", f"{type(error).__name__}: {error}"[:60]])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    if rows:
        print("A register access of an idle card while another works, in ms; what the load moved, in MiB/s")
        print("\n".join(aligned(["kind", "load", "mean", "99 %", "worst", "moved", "accesses", "goal"], rows)))
    if options.only in ("", "cards"):
        print(f"Many cards; medians of {options.repeats}")
        many = many_cards.report(partial(server, options.vhca), watch, options.seconds, options.repeats)
        print("\n".join(aligned(["what", "", "goal"], many)))


if __name__ == "__main__":
    main()
