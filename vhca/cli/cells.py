"""The same run on several kernels: each is a `vhca run` of its own, so that one that goes wrong takes no other along.

Guarantees: what a run prints is in a file of its own; an interrupted matrix leaves no run behind.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from vhca.cli import status

if TYPE_CHECKING:
    from vhca.lab import Progress

#: Starts the command line of this very installation.
SELF: Final = (sys.executable, "-c", "import sys; from vhca.cli.main import main; sys.exit(main())")
_WORDS: Final = {
    status.OK: "ok",
    status.USAGE: "failed (2)",
    status.KERNEL_BUG: "kernel bug",
    status.KERNEL_PANIC: "panic",
    status.TIMED_OUT: "timed out",
    status.TROUBLE: "trouble",
    126: "cannot be run",
    127: "not there",
}
_GRACE_S: Final = 30.0
_TAIL_LINES: Final = 12
_LINE_MAX: Final = 70
_BESIDE_MIB: Final = 300  # what a guest takes beside its memory: QEMU, its card
_STEP: Final = re.compile(r"\[ *\d+\.\d s\] ")
_NO_XML: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd]")


@dataclass(slots=True, frozen=True)
class Cell:
    """A run on a kernel: what was asked for, what it came to, how it ended, and where its output is."""

    spec: str
    release: str
    code: int
    seconds: float
    output: str
    where: str = ""  # on which worker of a cluster, and what happened there

    @property
    def word(self) -> str:
        """The outcome for people."""
        return _WORDS.get(self.code, f"failed ({self.code})")

    @property
    def last_line(self) -> str:
        """What it said last, cut; that a step is begun says nothing."""
        lines = (line.strip() for line in reversed(self.output.split("\n")))
        said = next((line for line in lines if line and not _STEP.match(line)), "")
        return said if len(said) <= _LINE_MAX else f"{said[: _LINE_MAX - 3]}..."

    @property
    def tail(self) -> str:
        """The end of what it said."""
        return "\n".join(self.output.rstrip().splitlines()[-_TAIL_LINES:])


def kernel_names(text: str) -> list[str]:
    """A type for a list of kernels, with commas between."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r}: give different kernels with commas between, such as 6.12,6.19")
    return names


def file_name(release: str) -> str:
    """What the files of a run on this kernel are called."""
    return re.sub(r"[^\w.+-]", "_", release)


def words_of_run(words: Sequence[str], own: Sequence[argparse.Action]) -> list[str]:
    """What of a command line is for `vhca run`: all words but the command's name, and its own options with values."""
    mine = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for action in own:
        kind = "store_true" if action.nargs == 0 else "store"
        mine.add_argument(*action.option_strings, dest=action.dest, action=kind)
    return mine.parse_known_args(list(words))[1]


class Runner:
    """Runs cells, at most `jobs` at the same time; `folder` gets what they print, as RELEASE.log."""

    def __init__(
        self,
        words: Sequence[str],
        command: Sequence[str],
        folder: Path,
        progress: Progress,
        modules: Path | None,
        into: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`into` are options whose value is a file in the folder of a run's logs, with its name."""
        self._words = list(words)
        self._into = list(into)
        self._command = list(command)
        self._folder = folder
        self._progress = progress
        self._modules = modules
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._ending = False

    def run(self, spec: str) -> Cell:
        """Run on one kernel; what keeps it from running is the cell's outcome, too."""
        return self._run(spec, *self._resolved(spec))

    def run_all(self, specs: Sequence[str], jobs: int, tell: Callable[[Cell], None]) -> list[Cell]:
        """Run on all of them, and return the cells in this order; `tell` is called as each ends."""
        resolved = [self._resolved(spec) for spec in specs]  # one after the other: they may have to be fetched

        def one(spec: str, found: tuple[str, str, str]) -> Cell:
            cell = self._run(spec, *found)
            with self._lock:
                tell(cell)
            return cell

        with ThreadPoolExecutor(max_workers=jobs) as pool:
            futures = [pool.submit(one, spec, found) for spec, found in zip(specs, resolved, strict=True)]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self._end(cancel=pool)
                raise

    def _resolved(self, spec: str) -> tuple[str, str, str]:
        """The kernel's release, what the run shall take it by, and why there is none ("" if there is one)."""
        from vhca.lab import Cache, LabError
        from vhca.lab.kernels import resolve

        try:
            release = resolve(spec, Cache(), self._progress, self._modules).release
        except LabError as error:
            return spec, spec, str(error)
        return release, spec if Path(spec).expanduser().exists() else release, ""

    def _run(self, spec: str, release: str, taken_by: str, trouble: str) -> Cell:
        if trouble:
            return Cell(spec, release, status.TROUBLE, 0.0, trouble)
        name = file_name(release)
        log = self._folder / f"{name}.log"
        started_s = time.monotonic()
        logs = self._folder / name
        files = [word for option, file in self._into for word in (option, str(logs / file))]
        if files:
            logs.mkdir(mode=0o700, exist_ok=True)  # such an option asks for its file's folder
        line = [*SELF, "run", *self._words, *files, "--kernel", taken_by, "--log-dir", str(logs), "--"]
        with log.open("wb") as output:
            with self._lock:
                if self._ending:
                    raise KeyboardInterrupt
                process = subprocess.Popen(
                    [*line, *self._command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
                self._running.add(process)
            try:
                code = process.wait()
            except BaseException:
                self._end()
                raise
            finally:
                with self._lock:
                    self._running.discard(process)
        seconds = time.monotonic() - started_s
        said = log.read_text("utf-8", "replace")
        return Cell(spec, release, status.of_command(code), seconds, said)

    def _end(self, cancel: ThreadPoolExecutor | None = None) -> None:
        """End the runs that are under way: they take their guests down themselves."""
        with self._lock:
            self._ending = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        if cancel is not None:
            cancel.shutdown(wait=False, cancel_futures=True)


def jobs_at_once(guests: int, memory_mib: int, meminfo: Path = Path("/proc/meminfo")) -> int:
    """How many runs this machine can take at a time: a processor for each guest, and memory for all."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    available_mib = int(match[1]) >> 10 if match else 0
    by_memory = available_mib // (guests * (memory_mib + _BESIDE_MIB))
    return max(1, min((os.cpu_count() or 1) // guests, by_memory))


def table(cells: Iterable[Cell]) -> str:
    """All cells, aligned."""
    from vhca.lab import aligned
    from vhca.lab.errors import printable

    cells = list(cells)
    far = any(cell.where for cell in cells)
    rows = [
        (cell.release, cell.word, f"{cell.seconds:.0f} s", *([cell.where] if far else []), printable(cell.last_line))
        for cell in cells
    ]
    return "\n".join(aligned(("kernel", "outcome", "time", *(["worker"] if far else []), "said last"), rows))


def junit(cells: Sequence[Cell], command: Sequence[str]) -> str:
    """The cells as JUnit XML: a test case for each kernel; what kept it from running is an error, not a failure."""
    troubled = sum(cell.code == status.TROUBLE for cell in cells)
    failed = sum(cell.code not in (status.OK, status.TROUBLE) for cell in cells)
    suite = ElementTree.Element(
        "testsuite",
        name="vhca matrix",
        tests=str(len(cells)),
        failures=str(failed),
        errors=str(troubled),
        skipped="0",
        time=f"{sum(cell.seconds for cell in cells):.1f}",
    )
    for cell in cells:
        case = ElementTree.SubElement(
            suite, "testcase", classname=" ".join(command), name=cell.release, time=f"{cell.seconds:.1f}"
        )
        if cell.where:
            properties = ElementTree.SubElement(case, "properties")
            ElementTree.SubElement(properties, "property", name="worker", value=cell.where)
        if cell.code:
            kind = "error" if cell.code == status.TROUBLE else "failure"
            ElementTree.SubElement(case, kind, message=cell.word, type=cell.word)
        ElementTree.SubElement(case, "system-out").text = _NO_XML.sub("?", cell.output)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
