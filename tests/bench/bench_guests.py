"""Many guests on one fabric: how long they take to boot, what memory they take, and an exchange of all with all.

Each guest writes into each other guest's memory (`ib_write_bw`), in rounds in which every guest has one partner (a
round-robin tournament); rounds follow one another, the pairs of a round run side by side. Memory is that of the QEMU
processes and of this one, as the host counts it (proportional set size: what they share is counted once).

    python -m tests.bench.bench_guests [--guests 16] [--memory 384] [--kernel KERNEL]
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

from vhca import DEFAULT_KERNEL
from vhca.lab import Guest, GuestConfig, Lab, LabError, Progress, aligned, prepare
from vhca.lab.perftest import Exchange, perftest, run_exchange

WRITES: Final = 20
SIZE_BYTES: Final = 64 << 10
EXCHANGE: Final = perftest("ib_write_bw", SIZE_BYTES, WRITES, "-t", "8")


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every two of `count` once, in rounds in which nobody is twice (the circle method)."""
    players = [*range(count), *([-1] if count % 2 else [])]
    found = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        found.append([(one, two) for one, two in pairs if min(one, two) >= 0])
        players.insert(1, players.pop())
    return found


def memory_mib(process: int) -> float:
    """What a process takes of the host's memory."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text("ascii")
    found = re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def exchange(pair: tuple[Guest, Guest], what: Exchange = EXCHANGE) -> str:
    """One pair's work; what went wrong, or nothing."""
    server, client = pair
    done, asked = run_exchange(server, client, what, timeout_s=120)
    if done.returncode or asked.returncode:
        return f"{client.name} to {server.name}: {asked.stderr or done.stderr}"
    return ""


def all_to_all(guests: Sequence[Guest]) -> int:
    """Let every guest write to every other one; the number of pairs. `LabError` if one could not."""
    pairs = 0
    with ThreadPoolExecutor(max_workers=len(guests)) as pool:
        for numbers in rounds(len(guests)):
            chosen = [(guests[one], guests[two]) for one, two in numbers]
            if failures := [text for text in pool.map(exchange, chosen) if text]:
                raise LabError("\n".join(failures))
            pairs += len(chosen)
    return pairs


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--guests", type=int, default=16)
    parser.add_argument("--memory", type=int, default=384, help="of each guest, in MiB")
    parser.add_argument("--kernel", default=DEFAULT_KERNEL)
    options = parser.parse_args()
    prepare(Progress(), kernel=options.kernel)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", flush=True)
    began_s = time.monotonic()
    config = GuestConfig(memory_mib=options.memory, boot_timeout_s=600)
    with Lab(guests=options.guests, kernel=options.kernel, guest=config) as lab:
        booted_s = time.monotonic()
        fresh = [memory_mib(guest.pid) for guest in lab.guests]
        written_before = sum(hca.counters().get("tx_bytes", 0) for hca in lab.hcas)
        pairs = all_to_all(lab.guests)
        done_s = time.monotonic()
        written = sum(hca.counters().get("tx_bytes", 0) for hca in lab.hcas) - written_before
        each = [memory_mib(guest.pid) for guest in lab.guests]
        own = memory_mib(os.getpid())
        rows = [
            ("from the command until all ports are ACTIVE", f"{booted_s - began_s:.0f} s"),
            (f"all to all: {pairs} pairs, {WRITES} x {SIZE_BYTES >> 10} KiB each", f"{done_s - booted_s:.0f} s"),
            ("bytes that cards sent meanwhile", f"{written / 1e6:.0f} MB"),
            ("memory of a guest's QEMU, booted, median", f"{median(fresh):.0f} MiB"),
            ("memory of a guest's QEMU, at the end, median", f"{median(each):.0f} MiB"),
            ("memory of the rack's process", f"{own:.0f} MiB"),
            ("memory of all together", f"{sum(each) + own:.0f} MiB"),
        ]
        assert written >= pairs * WRITES * SIZE_BYTES
    print("\n".join(aligned((f"{options.guests} guests of {options.memory} MiB", ""), rows)))


if __name__ == "__main__":
    main()
