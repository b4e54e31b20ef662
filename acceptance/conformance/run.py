"""The conformance run: rdma-core's own suite, file by file, on the card and on Soft-RoCE.

`python -m acceptance.conformance` writes rdma-core.md and rdma-core.json: in a checkout to docs/conformance,
elsewhere to the folder that is named. Ends with 0 if the card has no failure and every skip is explained, with 1 if
not, with 2 if the machine itself is in trouble.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from acceptance.conformance.machine import DEVICES, HCA, PassthroughMachine, SuiteConfig, SuiteMachine, suite_files
from acceptance.conformance.report import markdown, unexplained
from acceptance.conformance.results import OUTCOMES, DeviceRun, FileRun, RecordError, load, regressions, to_json
from acceptance.places import results_folder, stored_results
from vhca import DEFAULT_KERNEL
from vhca.lab import Cache, LabError, Progress, printable

KIND: Final = "conformance"
"""The folder of a checkout's documentation that has page and record."""
RECORD: Final = "rdma-core.json"
PAGE: Final = "rdma-core.md"
#: Tests that take longer than this are named.
SLOW_S: Final = 10.0
#: Files that drive the card from user space, so that it may have no driver in the kernel.
PASSTHROUGH: Final = ("test_mlx5_vfio",)

#: The files that `--fast` runs, and why: together they use each kind of object and transport once or more, and
#: leave out what is slow, what is only skipped on InfiniBand, and what another file shows as well.
FAST: Final = {
    "test_addr": "address handles and query of GIDs",
    "test_atomic": "responder resources, RC, XRC and the access rights of atomics",
    "test_cq": "completion queues: creation at the limits, resize",
    "test_cq_events": "arming, interrupts and solicited events",
    "test_cqex": "extended completions, RC, UD and XRC",
    "test_device": "capabilities, port attributes, device memory",
    "test_mlx5_devx": "commands passed through by user space",
    "test_mlx5_mkey": "keys with gaps and strides, made by work requests",
    "test_mlx5_raw_wqe": "work requests built by hand",
    "test_mr": "registration, re-registration, memory windows, device memory",
    "test_pd": "protection domains",
    "test_qp": "queue pairs of every type and all attributes of modify and query",
    "test_qpex": "every work request through the extended interface",
    "test_rdmacm": "connections made by the manager over IPoIB's addresses",
    "test_srq": "shared receive queues, limit and resize",
}


@dataclass(slots=True)
class Settings:
    """What a run was asked for."""

    devices: Sequence[str] = DEVICES
    only: Sequence[str] = ()
    matching: str = ""
    fast: bool = False
    compare: bool = False
    machine: SuiteConfig = field(default_factory=SuiteConfig)
    output: Path | None = None  # the checkout's documentation
    verbose: bool = False
    update: bool = False

    @property
    def partial(self) -> bool:
        """Does it run less than everything? Then nothing is written, unless `update`."""
        return bool(self.only or self.matching or self.fast or self.compare)

    @property
    def writes(self) -> bool:
        """Does it write page and record?"""
        return self.update or not self.partial

    def folder(self) -> Path | None:
        """Where page and record are; None if there is none and none is needed.

        :raises LabError: none is there, and one is needed.
        """
        if self.output is None and not self.writes and not self.compare:
            return stored_results(KIND)
        return results_folder(KIND, self.output)


@dataclass(slots=True)
class Verdict:
    """What is wrong with a run; nothing, if all lists are empty."""

    failures: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    regressions: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Is nothing wrong?"""
        return not (self.failures or self.unexplained or self.regressions)


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Turn a command line into settings."""
    parser = argparse.ArgumentParser(
        prog="python -m acceptance.conformance",
        description="Run rdma-core's own test suite in a guest, on the card and on Soft-RoCE.",
        epilog="A full run writes page and record; one with --fast, --only, --matching or --compare does not.",
    )
    parser.add_argument("--device", choices=DEVICES, action="append", help="only this device (default: both)")
    parser.add_argument("--only", metavar="FILE", action="append", default=[], help="only this file, such as test_mr")
    parser.add_argument("--matching", metavar="TEXT", default="", help="only tests whose id contains TEXT")
    parser.add_argument("--fast", action="store_true", help="only the files chosen for every change, on the card only")
    parser.add_argument("--update", action="store_true", help="with --only or --fast: store what these files gave")
    parser.add_argument("--compare", action="store_true", help="fail on anything worse than the stored outcomes")
    parser.add_argument("--kernel", default=DEFAULT_KERNEL, metavar="SPEC", help="kernel of the guests")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where page and record are (default: docs/conformance, in a checkout)",
    )
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="where console and device logs go, and stay")
    parser.add_argument("--test-timeout", type=float, default=180.0, metavar="S", help="longest time for one test")
    parser.add_argument("--seed", default="0", help="what the suite's random choices depend on")
    parser.add_argument("--firmware", default="firmware", metavar="NAME", help="package of the card's firmware")
    parser.add_argument("-v", "--verbose", action="store_true", help="print whole tracebacks, not the last line")
    options = parser.parse_args(arguments)
    if options.update and (options.matching or options.compare):
        parser.error("--update stores whole files: it does not go with --matching or --compare")
    devices = tuple(options.device or ((HCA,) if options.fast else DEVICES))
    return Settings(
        devices=devices,
        only=[name.removesuffix(".py") for name in options.only],
        matching=options.matching,
        fast=options.fast,
        compare=options.compare,
        machine=SuiteConfig(
            kernel=options.kernel,
            log_dir=options.log_dir,
            test_timeout_s=options.test_timeout,
            seed=options.seed,
            firmware=options.firmware,
        ),
        output=options.output,
        verbose=options.verbose,
        update=options.update,
    )


def choose_files(settings: Settings, present: Sequence[str]) -> list[str]:
    """The files to run. Raises :class:`LabError` for a name that the suite does not have."""
    wanted = list(settings.only) or (list(FAST) if settings.fast else list(present))
    if absent := sorted(set(wanted) - set(present)):
        raise LabError(f"the suite has no file {', '.join(absent)}", f"choose from {', '.join(present)}")
    return wanted


def judge(run: DeviceRun, stored: DeviceRun | None, compare: bool) -> Verdict:
    """Say what is wrong. With `compare` what failed before may fail again; Soft-RoCE, a baseline, always may."""
    verdict = Verdict(unexplained=unexplained(run))
    if compare:
        if stored is None:
            verdict.regressions.append(f"there is no stored outcome for {run.device}: run without --compare first")
        else:
            verdict.regressions += regressions(stored, run)
    elif run.device == HCA:
        verdict.failures += [f"{name}: {test.outcome}: {test.gist}" for name, test in run.tests().items() if test.bad]
        verdict.failures += [f"{file.name}: {file.crash}" for file in run.files.values() if file.crash]
    return verdict


def line_of(file: FileRun, number: int, count: int) -> str:
    """The line of progress for a finished file."""
    counts = ", ".join(f"{file.count(outcome)} {outcome}" for outcome in OUTCOMES if file.count(outcome))
    crash = f"  [{file.crash}]" if file.crash else ""
    return f"  {number:2d}/{count} {file.name:22s} {file.seconds:6.1f} s  {counts or 'no test'}{crash}"


def run_device(device: str, settings: Settings, cache: Cache, say: Callable[[str], None]) -> DeviceRun:
    """Run the chosen files on one device, printing a line for each."""
    progress = Progress()
    files = choose_files(settings, suite_files(cache, progress))
    handed_over = [name for name in files if device == HCA and name in PASSTHROUGH]
    run = DeviceRun(device)
    if kernel_driven := [name for name in files if name not in handed_over]:
        say(f"{device}: booting a guest")
        with SuiteMachine(device, settings.machine, progress=progress, cache=cache, say=say) as machine:
            run.about = machine.about
            about = ", ".join(f"{name} {value}" for name, value in sorted(machine.about.items()) if value)
            say(f"{device}: {machine.device_name} is up, {about}")
            run_files(machine, run, kernel_driven, len(files), settings, say)
    if handed_over:
        say(f"{device}: booting a guest that hands its card to user space")
        with PassthroughMachine(settings.machine, progress=progress, cache=cache, say=say) as machine:
            run_files(machine, run, handed_over, len(files), settings, say)
    return run


def run_files(
    machine: SuiteMachine,
    run: DeviceRun,
    names: Sequence[str],
    count: int,
    settings: Settings,
    say: Callable[[str], None],
) -> None:
    """Run files on a machine that is up and add them to `run`."""
    for name in names:
        if not machine.usable():
            machine.replace_guest()
        file = run.files[name] = machine.run_file(name, settings.matching)
        say(line_of(file, len(run.files), count))
        for test_id, test in file.tests.items():
            if test.bad:
                say(f"       {test.outcome} {test_id}: {test.reason if settings.verbose else test.gist}")
            elif test.seconds > SLOW_S:
                say(f"       {test.seconds:.0f} s for {test_id}")


def write(settings: Settings, runs: dict[str, DeviceRun], folder: Path) -> None:
    """Write page and record; a device or a file that was not run keeps what is stored of it."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = load(folder / RECORD)
    merged = {**stored, **runs}
    if settings.partial:
        for device, run in runs.items():
            before = stored.get(device, DeviceRun(device))
            merged[device] = DeviceRun(device, run.about or before.about, {**before.files, **run.files})
    ordered = [merged[device] for device in DEVICES if device in merged]
    (folder / RECORD).write_text(to_json(ordered), encoding="utf-8")
    (folder / PAGE).write_text(markdown(merged), encoding="utf-8")


def report(verdict: Verdict, say: Callable[[str], None]) -> None:
    """Print what is wrong."""
    for heading, lines in (
        ("failed", verdict.failures),
        ("skipped without an explanation (add one to acceptance/conformance/skips.py)", verdict.unexplained),
        ("worse than before", verdict.regressions),
    ):
        if lines:
            say(f"{heading}: {len(lines)}")
            for line in lines:
                say(f"  {line}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    settings = parse(arguments)
    started_s = time.monotonic()
    runs: dict[str, DeviceRun] = {}
    good = True

    def say(text: str) -> None:
        print(printable(text), flush=True)

    try:
        folder = settings.folder()
        stored = load(folder / RECORD) if folder is not None else {}
        for device in settings.devices:
            run = runs[device] = run_device(device, settings, Cache(), say)
            verdict = judge(run, stored.get(device), settings.compare)
            totals = run.totals()
            counts = ", ".join(f"{totals[outcome]} {outcome}" for outcome in OUTCOMES if totals[outcome])
            say(f"{device}: {totals.total()} tests: {counts}")
            report(verdict, say)
            good = good and verdict.good
    except (LabError, RecordError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    if settings.writes and folder is not None:
        write(settings, runs, folder)
        say(f"written: {folder / PAGE}, {folder / RECORD}")
    say(f"{time.monotonic() - started_s:.0f} s")
    return 0 if good else 1
