"""Driver reloads and machine resets, in several guests at once on one rack; what the rack's process holds stays flat.

Each guest unloads mlx5_ib and mlx5_core, whereupon its card must hold nothing, loads them, and uses the card (a
pingpong with itself). Between rounds of this, machines are reset without warning. After each round, with all guests up
and at rest, a row is printed: memory of the rack's process alone, its descriptors, live objects of the cards. The first
round warms up; after it descriptors and objects must be the same in every row, and memory may grow by a tenth.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.soak.distant import DistantRack, Figures
from vhca.lab import CardConfig, Guest, GuestConfig, Lab, aligned
from vhca.lab.perftest import pingpong, run_exchange, wait_port_active

SMALL: Final = GuestConfig(memory_mib=512)
PINGPONG: Final = pingpong("rc", 4096, 200)
HEADER: Final = ("after", "reloads", "resets", "rack's memory", "descriptors", "objects", "keys", "commands", "took")
GROWTH: Final = 0.1
# The driver makes its stock of keys in its own time, and a rack at rest may have work in hand for a moment.
SETTLE_S: Final = 60.0


class Leak(Exception):
    """Something was not given back; the text says what."""


@dataclass
class Soak:
    """One run: `reloads` and `resets` in all, spread over `rounds` and the guests.

    Without `stock`, a reload makes and destroys six thousand memory keys less: those that the driver keeps in stock.
    """

    reloads: int
    resets: int
    rounds: int
    lab: Lab
    rack: DistantRack
    stock: bool = True
    began_s: float = field(default_factory=time.monotonic)
    done: dict[str, int] = field(default_factory=lambda: {"reloads": 0, "resets": 0})
    rows: list[Figures] = field(default_factory=list)
    _lines: list[tuple[str, ...]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _port: int = 20000

    def run(self) -> None:
        """All rounds, with a row after each."""
        print("  ".join(HEADER), flush=True)
        self._each(self._use)
        self._row("the start")
        for number in range(1, self.rounds + 1):
            reloads = _share(self.reloads, number, self.rounds)
            resets = _share(self.resets, number, self.rounds)
            self._spread(reloads, self._reload)
            self._spread(resets, self._reset)
            self._each(self._use)
            self._row(f"round {number}")

    def table(self) -> list[str]:
        """What was printed, aligned."""
        return aligned(HEADER, self._lines)

    def judge(self) -> list[str]:
        """What grew after the first round."""
        steady = self.rows[1:]
        first, last = steady[0], steady[-1]
        found = []
        if len({row.descriptors for row in steady}) > 1:
            found.append(f"descriptors: {[row.descriptors for row in steady]}")
        for index in range(len(self.lab.guests)):
            objects = [_without_keys(row.objects[index]) for row in steady]
            if any(other != objects[0] for other in objects):
                found.append(f"objects of h{index}: {objects}")
        if last.anonymous_kib > first.anonymous_kib * (1 + GROWTH):
            found.append(f"memory: {first.anonymous_kib} KiB after the first round, {last.anonymous_kib} at the end")
        for index, counters in enumerate(last.counters):
            for name in ("firmware_failures", "leaked_objects"):
                if counters.get(name):
                    found.append(f"h{index} {name}: {counters[name]}")
        return found

    # ---- work of one guest ----

    def _reload(self, guest: Guest) -> None:
        guest.run(["rmmod", "mlx5_ib", "mlx5_core"], timeout_s=300, check=True)
        left = guest.hcas[0].objects()
        if left:
            raise Leak(f"{guest.name}: the card still holds {left} after the drivers were unloaded")
        if not self.stock:
            guest.run(["modprobe", "mlx5_core", "prof_sel=0"], timeout_s=300, check=True)
        guest.run(["modprobe", "mlx5_ib"], timeout_s=300, check=True)
        self._use(guest)
        self._count("reloads")

    def _reset(self, guest: Guest) -> None:
        guest.reset(600)
        wait_port_active(guest)
        self._count("resets")

    def _use(self, guest: Guest) -> None:
        wait_port_active(guest)
        with self._lock:
            self._port += 1
            port = self._port
        for end in run_exchange(guest, guest, PINGPONG, port, 300):
            if end.returncode:
                raise Leak(f"{guest.name}: {PINGPONG.program} ends with {end.returncode}: {end.stderr}")

    # ---- the whole ----

    def _count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    def _each(self, work: Callable[[Guest], None]) -> None:
        self._spread(len(self.lab.guests), work)

    def _spread(self, times: int, work: Callable[[Guest], None]) -> None:
        """Do `work` so often in all, in all guests at once."""
        guests = self.lab.guests

        def one(index: int) -> None:
            for _ in range(_share(times, index + 1, len(guests))):
                work(guests[index])

        with ThreadPoolExecutor(len(guests)) as pool:
            for end in [pool.submit(one, index) for index in range(len(guests))]:
                end.result()

    def _row(self, after: str) -> None:
        figures = self._settled()
        self.rows.append(figures)
        took_s = time.monotonic() - self.began_s
        row = (
            after,
            str(self.done["reloads"]),
            str(self.done["resets"]),
            f"{figures.anonymous_kib} KiB",
            str(figures.descriptors),
            str(sum(sum(_without_keys(objects).values()) for objects in figures.objects)),
            str(sum(objects.get("mkey", 0) for objects in figures.objects)),
            str(sum(counters.get("commands", 0) for counters in figures.counters)),
            f"{took_s:.0f} s",
        )
        self._lines.append(row)
        print("  ".join(row), flush=True)

    def _settled(self) -> Figures:
        """The figures when the drivers' stocks of keys no longer grow."""
        deadline_s = time.monotonic() + SETTLE_S
        before = self.rack.figures()
        while time.monotonic() < deadline_s:
            time.sleep(2)
            now = self.rack.figures()
            if now.objects == before.objects:
                return now
            before = now
        return before


def _share(whole: int, number: int, parts: int) -> int:
    """The size of part `number` (from 1) of `whole`, cut as evenly as it goes."""
    return whole * number // parts - whole * (number - 1) // parts


def _without_keys(objects: dict[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in objects.items() if kind != "mkey"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if everything stayed flat, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--reloads", type=int, default=500, help="driver reloads in all (default: %(default)s)")
    parser.add_argument("--resets", type=int, default=100, help="machine resets in all (default: %(default)s)")
    parser.add_argument("--guests", type=int, default=2, help="guests on the rack (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="rows of the table, at least 2 (default: %(default)s)")
    parser.add_argument(
        "--no-stock", action="store_true", help="reload the driver without its stock of 6000 keys: many times faster"
    )
    parser.add_argument("--logs", type=Path, help="folder for consoles and the cards' logs")
    options = parser.parse_args(arguments)
    racks: list[DistantRack] = []

    def rack(cards: Sequence[CardConfig], folder: Path) -> DistantRack:
        racks.append(DistantRack(len(cards), folder))
        return racks[-1]

    with Lab(guests=options.guests, rack_factory=rack, log_dir=options.logs, guest=SMALL) as lab:
        soak = Soak(options.reloads, options.resets, max(options.rounds, 2), lab, racks[0], not options.no_stock)
        try:
            soak.run()
        except Leak as leak:
            print(leak, file=sys.stderr)
            return 1
        print("\n" + "\n".join(soak.table()))
        found = soak.judge()
    print("\n".join(f"NOT FLAT: {line}" for line in found) or "\nflat: memory, descriptors and objects")
    return 1 if found else 0
