"""From the command to guests that can be used: the medians of several `vhca run -v --guests N -- true`.

What each took is what `vhca run -v` prints; a row is the median over all guests and runs, so that rows need not add up
to the last one. Processor time is that of the command and all its children, QEMU above all; it depends less on what
else runs on the host. Run it on a quiet one: the load before each run is printed.

    python -m tests.bench.bench_boot [--runs 5] [--guests 2] [--vhca vhca] [-- OPTION...]
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from vhca.lab import aligned
from vhca.lab.boot_times import STAGES, WHOLE

ROWS: Final = (*STAGES.values(), WHOLE)
TIMEOUT_S: Final = 300


@dataclass(slots=True)
class Run:
    """One run: seconds by row for each guest, and processor time."""

    rows: dict[str, list[float]]
    processor_s: float


def read_table(printed: str) -> dict[str, list[float]]:
    """The rows of the table in what `vhca run -v` printed; a stage that a run did not have is not there."""
    found = {}
    for line in printed.splitlines():
        name, *cells = re.split(r"\s{2,}", line.rstrip())
        if name in ROWS:
            found[name] = [float(cell) for cell in cells if cell]
    return found


def run(command: list[str]) -> Run:
    """Run it once. Raises if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return Run(read_table(done.stderr), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--guests", type=int, default=2)
    parser.add_argument("--vhca", default=str(Path(sys.executable).with_name("vhca")), help="the program")
    parser.add_argument("options", nargs="*", help="more for `vhca run`, behind `--`")
    options = parser.parse_args()
    command = [options.vhca, "run", "-v", "--guests", str(options.guests), *options.options, "--", "true"]
    run(command)  # fills the cache, and the host's own
    runs = []
    for number in range(options.runs):
        load = os.getloadavg()[0]
        runs.append(run(command))
        whole = runs[-1].rows.get(WHOLE, [])
        figures = f"{max(whole, default=0):.2f} s, processor {runs[-1].processor_s:.2f} s, load before {load:.1f}"
        print(f"run {number + 1}: {figures}", flush=True)
    rows = [
        (name, f"{median(seconds):.2f}")
        for name in ROWS
        if (seconds := [second for one in runs for second in one.rows.get(name, [])])
    ]
    rows.append(("processor time of the whole run", f"{median(one.processor_s for one in runs):.2f}"))
    print("\n".join(aligned((f"median of {options.runs} runs of {options.guests} guests", "s"), rows)))


if __name__ == "__main__":
    main()
