"""The same perftest runs on the HCA and on Soft-RoCE, between the same two guests, side by side.

Soft-RoCE is what a user would take instead. Each pair of runs follows at once, so that a busy host slows both; what
counts is the ratio, not the figures. Assumes a started :class:`vhca.lab.Lab` of two guests with a card each.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from vhca import DEFAULT_KERNEL
from vhca.lab import Guest, Lab, LabError, Progress, aligned, prepare
from vhca.lab.perftest import DEVICE, perftest, perftest_values, run_exchange, wait_port_active

SOFT_DEVICE: Final = "rxe0"
FIRST_TCP_PORT: Final = 19100
RUN_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Race:
    """One perftest run; `unit` says what its figure is, `higher_is_better` how to read the ratio."""

    program: str
    size_bytes: int
    rounds: int
    unit: str

    @property
    def higher_is_better(self) -> bool:
        """Bandwidths and rates are; latencies are not."""
        return self.unit != "us"

    def figure(self, output: str) -> float:
        """The figure in `unit` from what the client printed; ValueError if it printed none."""
        if self.unit == "us":
            return float(perftest_values(output, "t_typical")[4])
        values = perftest_values(output, "BW average")
        return float(values[3]) if self.unit == "MiB/s" else float(values[4]) * 1e3


RACES: Final = (
    Race("ib_write_bw", 65536, 300, "MiB/s"),
    Race("ib_read_bw", 65536, 300, "MiB/s"),
    Race("ib_send_bw", 65536, 300, "MiB/s"),
    Race("ib_write_bw", 1 << 20, 50, "MiB/s"),
    Race("ib_write_bw", 64, 5000, "kmsg/s"),
    Race("ib_read_bw", 64, 5000, "kmsg/s"),
    Race("ib_send_bw", 64, 5000, "kmsg/s"),
    Race("ib_atomic_bw", 8, 5000, "kmsg/s"),
    Race("ib_write_lat", 8, 300, "us"),
    Race("ib_send_lat", 8, 300, "us"),
)


@dataclass(slots=True)
class Result:
    """All figures of one race; `ratio` is above 1 where the HCA is better."""

    race: Race
    figures: dict[str, list[float]]

    @property
    def hca(self) -> float:
        """The HCA's median."""
        return median(self.figures[DEVICE])

    @property
    def soft(self) -> float:
        """Soft-RoCE's median."""
        return median(self.figures[SOFT_DEVICE])

    @property
    def ratio(self) -> float:
        """How many times better the HCA is."""
        if not self.hca or not self.soft:
            return 0.0
        return self.hca / self.soft if self.race.higher_is_better else self.soft / self.hca


def add_soft_roce(guest: Guest) -> None:
    """Put Soft-RoCE on the guest's management network, beside the HCA."""
    guest.run(["modprobe", "rdma_rxe"], timeout_s=60, check=True)
    guest.run(["rdma", "link", "add", SOFT_DEVICE, "type", "rxe", "netdev", "eth0"], timeout_s=60, check=True)
    state = guest.run(["rdma", "link", "show", f"{SOFT_DEVICE}/1"], timeout_s=60, check=True).stdout
    if not re.search(r"state ACTIVE", state):
        raise LabError(f"{guest.name}: Soft-RoCE is not ACTIVE: {state.strip()}")


def prepare_guests(guests: Sequence[Guest]) -> None:
    """Wait for the HCAs' ports and set Soft-RoCE up."""
    for guest in guests:
        wait_port_active(guest)
        add_soft_roce(guest)


def run_race(guests: Sequence[Guest], race: Race, device: str, tcp_port: int) -> float:
    """One run; raises LabError with what was printed if it did not end well."""
    exchange = perftest(race.program, race.size_bytes, race.rounds, device=device)
    served, asked = run_exchange(guests[1], guests[0], exchange, tcp_port, RUN_TIMEOUT_S)
    for done in (asked, served):
        if done.returncode:
            raise LabError(f"{' '.join(done.args)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return race.figure(asked.stdout)


def run(lab: Lab, repeats: int, progress: Progress) -> list[Result]:
    """Run all races `repeats` times, HCA and Soft-RoCE in turn."""
    guests = lab.guests[:2]
    prepare_guests(guests)
    tcp_port = FIRST_TCP_PORT
    results = []
    for race in RACES:
        figures: dict[str, list[float]] = {DEVICE: [], SOFT_DEVICE: []}
        for _ in range(repeats):
            for device, seen in figures.items():
                tcp_port += 1
                seen.append(run_race(guests, race, device, tcp_port))
        result = Result(race, figures)
        progress.say(f"{race.program} {race.size_bytes} B: {result.ratio:.1f}x")
        results.append(result)
    return results


def table(results: Sequence[Result]) -> str:
    """All results, aligned."""
    header = ("what", "size", "HCA", "Soft-RoCE", "unit", "HCA is better by")
    rows = [
        (
            result.race.program,
            f"{result.race.size_bytes} B",
            f"{result.hca:.1f}",
            f"{result.soft:.1f}",
            result.race.unit,
            f"{result.ratio:.2f}x",
        )
        for result in results
    ]
    return "\n".join(aligned(header, rows))


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m acceptance.benchmark`; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m acceptance.benchmark",
        description="Run perftest on the HCA and on Soft-RoCE between the same two guests and print the ratios.",
    )
    parser.add_argument("--kernel", default=DEFAULT_KERNEL, help="kernel of the guests (default: %(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=5, help="runs of each kind; medians count (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    progress = Progress()
    try:
        prepare(progress, kernel=options.kernel)
        with Lab(guests=2, kernel=options.kernel) as lab:
            print(table(run(lab, options.repeats, progress)))
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
