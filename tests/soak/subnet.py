"""Mixed traffic between guests at the leaves of a fat tree whose cables and managers change all the time.

`python -m tests.soak.subnet --minutes 30` (`make soak-subnet MINUTES=30`). Nothing may be lost: every exchange ends
well, and data is what was sent. Nothing may leak: what the rack's process holds (memory, descriptors, threads) is flat
once it is warm, cards hold what they held before, at both ends of every cable the packets add up, and the guests'
kernels have nothing to complain of. A row a minute, and a summary.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.soak.distant import DistantRack, Figures
from tests.soak.traffic import Traffic
from tests.soak.unrest import REIGN_S, Unrest
from vhca.fabric import shapes
from vhca.fabric.topology import Topology
from vhca.lab import CardConfig, Guest, GuestConfig, Lab, kernel_log_trouble
from vhca.lab.perftest import wait_port_active

LEAVES: Final = 4
TREE: Final = shapes.fat_tree(4 * LEAVES, radix=8, levels=2)
SMALL: Final = GuestConfig(memory_mib=512)
EXCHANGE_S: Final = 15.0
GROWTH: Final = 0.1
# A target of NVMe keeps a connection that broke until its keep-alive is over: a minute, by the guest's clock.
SETTLE_S: Final = 240.0
ROW_S: Final = 60.0
WARM: Final = 0.2
"""The part of the run in which memory may grow."""
FAILURES: Final = ("firmware_failures", "leaked_objects", "qp_events_without_row", "cqes_lost", "cq_errors")


def trunks(topology: Topology) -> list[str]:
    """The cables between switches, each by one of its ends."""
    kinds = {name: node.kind for name, node in topology.nodes.items()}
    return [str(cable.a) for cable in topology.cables if {kinds[cable.a.node], kinds[cable.b.node]} == {"switch"}]


def held(objects: dict[str, int]) -> dict[str, int]:
    """What a card holds but memory keys, of which the driver keeps a stock."""
    return {kind: count for kind, count in objects.items() if kind != "mkey"}


def held_by_all(figures: Figures) -> list[dict[str, int]]:
    """What each card holds."""
    return [held(objects) for objects in figures.objects]


@dataclass
class Run:
    """One run: `minutes` of traffic and unrest."""

    lab: Lab
    rack: DistantRack
    minutes: float
    seed: int
    reign_s: tuple[float, float] = REIGN_S
    rows: list[Figures] = field(default_factory=list)
    found: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """All of it; the lines of the summary. `found` has what is not as it should be."""
        guests = self.lab.guests
        traffic = Traffic(guests, EXCHANGE_S, random.Random(self.seed))
        traffic.prepare()
        traffic.once()
        before = self._settled()
        cards = [f"h{index}" for index in range(len(guests))]
        unrest = Unrest(self.rack, trunks(TREE), cards, guests[0], self.seed, self.reign_s)
        began_s = time.monotonic()
        traffic.start()
        unrest.start()
        end_s = began_s + 60 * self.minutes
        while time.monotonic() < end_s and not traffic.failed:
            time.sleep(max(0.0, min(ROW_S, end_s - time.monotonic())))
            self._row(traffic, unrest, time.monotonic() - began_s)
        unrest.stop()
        traffic.stop()
        took_s = time.monotonic() - began_s
        self.found += traffic.lost + unrest.trouble
        after = self._at_rest(guests, before)
        self._judge(before, after)
        traffic.clear()
        for guest in guests:
            self.found += [f"{guest.name}: {line}" for line in kernel_log_trouble(guest.kernel_log())]
        return self._summary(traffic, unrest, took_s, before, after)

    def _row(self, traffic: Traffic, unrest: Unrest, at_s: float) -> None:
        now = self.rack.figures()
        self.rows.append(now)
        exchanges = ", ".join(f"{stream.name} {stream.done}" for stream in traffic.streams)
        changes = ", ".join(f"{what} {count}" for what, count in sorted(unrest.done.items()))
        print(
            f"{at_s:5.0f} s  {now.anonymous_kib} KiB, {now.descriptors} descriptors, {now.threads} threads;"
            f" {exchanges}; {changes}; lost {len(traffic.lost)}",
            flush=True,
        )

    def _settled(self) -> Figures:
        deadline_s = time.monotonic() + SETTLE_S
        before = self.rack.figures()
        while True:
            time.sleep(2)
            now = self.rack.figures()
            if held_by_all(now) == held_by_all(before) or time.monotonic() > deadline_s:
                return now
            before = now

    def _at_rest(self, guests: Sequence[Guest], before: Figures) -> Figures:
        """The figures once all ports are up, and cards hold what they held, or do not after a minute."""
        for guest in guests:
            wait_port_active(guest, SETTLE_S)
        deadline_s = time.monotonic() + SETTLE_S
        while True:
            now = self.rack.figures()
            if (
                held_by_all(now) == held_by_all(before) and not self.rack.unbalanced()
            ) or time.monotonic() > deadline_s:
                return now
            time.sleep(1)

    def _judge(self, before: Figures, after: Figures) -> None:
        for index, (was, now) in enumerate(zip(before.objects, after.objects, strict=True)):
            if held(was) != held(now):
                self.found.append(f"h{index} held {held(was)} before, and {held(now)} behind")
        for index, counters in enumerate(after.counters):
            self.found += [f"h{index} {name}: {counters[name]}" for name in FAILURES if counters.get(name)]
        self.found += self.rack.unbalanced()
        if after.descriptors != before.descriptors:
            self.found.append(f"descriptors: {before.descriptors} before, {after.descriptors} behind")
        warm = self.rows[int(WARM * len(self.rows))] if self.rows else before
        if after.threads > warm.threads:
            self.found.append(f"threads: {warm.threads} when warm, {after.threads} behind")
        if after.anonymous_kib > warm.anonymous_kib * (1 + GROWTH):
            self.found.append(f"memory: {warm.anonymous_kib} KiB when warm, {after.anonymous_kib} KiB behind")

    def _summary(self, traffic: Traffic, unrest: Unrest, took_s: float, before: Figures, after: Figures) -> list[str]:
        counted = self.rack.counted()

        def total(*names: str) -> int:
            pairs = zip(after.counters, before.counters, strict=True)
            return sum(now.get(name, 0) - was.get(name, 0) for now, was in pairs for name in names)

        warm = self.rows[int(WARM * len(self.rows))] if self.rows else before
        same = held_by_all(after) == held_by_all(before)
        reconnects = self.lab.guests[-1].kernel_log().count("Successfully reconnected")
        errors = {name for card in after.counters for name in card if name.startswith("send_errors_")}
        return [
            f"{took_s / 60:.1f} minutes; {len(self.lab.guests)} guests, {len(TREE.nodes)} nodes,"
            f" {len(TREE.cables)} cables",
            "exchanges: "
            + ", ".join(f"{stream.name} {stream.done}" for stream in traffic.streams)
            + f"; programs that found no way and began again: {traffic.refused}; disks connected again: {reconnects}",
            "changes: " + ", ".join(f"{what} {count}" for what, count in sorted(unrest.done.items())),
            f"cards sent {total('tx_packets')} packets ({total('tx_bytes') >> 20} MiB) of connections, and"
            f" {total('tx_ud_packets')} datagrams ({total('tx_ud_bytes') >> 20} MiB); they went back to a packet"
            f" {total('retransmits')} times; {total(*errors)} sends failed",
            f"managers: {counted.get('sm.handovers', 0)} handovers, {counted.get('sm.takeovers', 0)} takeovers,"
            f" {counted.get('sm.heavy_sweeps', 0)} heavy sweeps of ours",
            f"rack: {warm.anonymous_kib} KiB when warm, {after.anonymous_kib} KiB at the end; {after.descriptors}"
            f" descriptors, {after.threads} threads; objects {'as before' if same else 'NOT as before'}",
        ]


def soak(
    minutes: float, guests: int, seed: int, logs: Path | None, reign_s: tuple[float, float] = REIGN_S
) -> tuple[list[str], list[str]]:
    """Boot, run, judge: the lines of the summary, and what is not as it should be."""
    racks: list[DistantRack] = []
    hosts = [f"h{4 * index}" for index in range(guests)]

    def rack(cards: Sequence[CardConfig], folder: Path) -> DistantRack:
        racks.append(DistantRack(len(cards), folder, TREE, hosts))
        return racks[-1]

    with Lab(guests, rack_factory=rack, log_dir=logs, guest=SMALL, extra_packages=("nvme-cli",)) as lab:
        run = Run(lab, racks[0], minutes, seed, reign_s)
        return run.run(), run.found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if nothing was lost or leaked, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.subnet", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of traffic (default: %(default)s)")
    parser.add_argument(
        "--guests", type=int, choices=range(2, LEAVES + 1), default=LEAVES, help="(default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of cables and managers (default: %(default)s)")
    parser.add_argument("--logs", type=Path, help="folder for consoles and the cards' logs")
    options = parser.parse_args(arguments)
    lines, found = soak(options.minutes, options.guests, options.seed, options.logs)
    print("\n" + "\n".join(lines))
    print("\n".join(f"LOST OR LEAKED: {line}" for line in found) or "nothing lost or leaked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
