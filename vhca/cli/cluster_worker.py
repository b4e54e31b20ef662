"""What a worker of a Dask cluster does for `vhca matrix --on`: runs one cell in a process, and hands back its files.

Guarantees: the process and its guests end when the cell's time is over, when whoever asked cancels or goes away, and
when the worker dies; guests that run at the same time are not more than the worker's threads, one cell apart; what is
handed back is not more than was asked for, and what was left is named.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Final

from vhca.cli import cells, sources, status

OUTPUT: Final = "output.log"
LOGS: Final = "logs"
_PROCESS: Final = (
    sys.executable,
    "-c",
    "import sys; from vhca.cli.cluster_process import main; main(sys.argv[1:])",
)
_LOOK_S: Final = 0.25
_GRACE_S: Final = 30.0
_OUTPUT_MAX_BYTES: Final = 8 << 20
FILES_MAX: Final = 1000


class OtherVhca(Exception):
    """The worker has other sources than whoever asked."""


class Cancelled(Exception):
    """Nobody wants the cell any more."""


@dataclass(slots=True, frozen=True)
class Order:
    """A cell, as it is sent to a worker.

    `words` are those for `vhca run`; `into` are options whose value is a file in the cell's folder, with its name;
    `topic` is where the worker says that it has begun; `sources` is whose vhca it must have.
    """

    number: int
    kernel: str
    words: tuple[str, ...]
    into: tuple[tuple[str, str], ...]
    command: tuple[str, ...]
    modules: str | None
    guests: int
    limit_s: float
    bring_bytes: int
    folder: str
    environment: dict[str, str]
    sources: str
    topic: str


@dataclass(slots=True)
class Outcome:
    """How a cell ended on a worker. `files` are compressed, by their names in the cell's folder; `left` says what of
    them was too much, and where it is."""

    code: int
    release: str
    seconds: float
    files: dict[str, bytes] = field(default_factory=dict)
    left: str = ""


class Budget:
    """Processors of this worker, of which a cell takes one for each guest, or all, and waits until they are free."""

    def __init__(self) -> None:
        self._taken = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def hold(self, wanted: int, total: int, unwanted: Callable[[], bool]) -> Iterator[None]:
        """Wait for processors, and hold them; :class:`Cancelled` if meanwhile nobody wants the cell any more."""
        wanted = min(wanted, total)
        with self._changed:
            while self._taken + wanted > total:
                if unwanted():
                    raise Cancelled
                self._changed.wait(_LOOK_S)
            self._taken += wanted
        try:
            yield
        finally:
            with self._changed:
                self._taken -= wanted
                self._changed.notify_all()


_BUDGET: Final = Budget()


def run_cell(order: Order) -> Outcome:
    """Run a cell; called by Dask, in a thread of the worker.

    :raises OtherVhca: this worker's vhca is another one.
    """
    from distributed import get_worker

    if order.sources != sources.digest():
        raise OtherVhca(f"the worker's vhca has other sources ({sources.digest()}, not {order.sources})")
    worker = get_worker()
    key = worker.get_current_task()

    def unwanted() -> bool:
        # Dask does not end a thread; it takes the task off the worker's books when nobody waits for it any more.
        task = worker.state.tasks.get(key)
        return task is None or task.state in ("cancelled", "released", "forgotten")

    with _BUDGET.hold(order.guests, worker.state.nthreads, unwanted):
        worker.log_event(order.topic, {"cell": order.number, "worker": worker.address})
        folder = Path(tempfile.mkdtemp(prefix="vhca-cell-", dir=worker.local_directory))
        keep = False
        try:
            outcome = run_in(folder, order, unwanted)
            if outcome.left:
                keep = True  # until the worker ends: Dask removes its folder
                outcome.left += f"; all of it is in {folder} on {worker.address} until that worker ends"
            return outcome
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)


def run_in(folder: Path, order: Order, unwanted: Callable[[], bool]) -> Outcome:
    """Run a cell in a process with this folder for what it leaves, and gather that.

    :raises Cancelled: nobody wants it any more; the process has ended.
    """
    logs, release = folder / LOGS, folder / "release"
    logs.mkdir()
    files = [word for option, name in order.into for word in (option, str(logs / name))]
    line = [*cells.SELF, "run", *order.words, *files, "--kernel", order.kernel, "--log-dir", str(logs), "--"]
    words = {
        "parent": os.getpid(),
        "kernel": order.kernel,
        "modules": order.modules,
        "release": str(release),
        "line": [*line, *order.command],
    }
    started_s = time.monotonic()
    with (folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            [*_PROCESS, json.dumps(words)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=order.folder if Path(order.folder).is_dir() else folder,
            env={**os.environ, **order.environment},
            start_new_session=True,
        )
        code = _wait(process, started_s + order.limit_s, unwanted)
        if code is None:
            output.write(f"vhca matrix: killed: it took more than {order.limit_s:g} s (--cell-timeout)\n".encode())
    seconds = time.monotonic() - started_s
    named = release.read_text(encoding="utf-8") if release.exists() else order.kernel
    release.unlink(missing_ok=True)
    taken, left = gather(folder, order.bring_bytes)
    return Outcome(status.TIMED_OUT if code is None else status.of_command(code), named, seconds, taken, left)


def _wait(process: subprocess.Popen[bytes], deadline_s: float, unwanted: Callable[[], bool]) -> int | None:
    """The process's return code; None if it was ended at the deadline."""
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_S)
            if unwanted():
                raise Cancelled
            if time.monotonic() >= deadline_s:
                return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process: it takes its guests down itself; if it does not in time, all of its session is killed."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def gather(folder: Path, limit_bytes: int) -> tuple[dict[str, bytes], str]:
    """The files in a folder, compressed, by name, not more than `limit_bytes` of them; and a text: what is left.

    The run's output comes first, the end of it if it is long; then the others, the smallest first, each whole or not.
    """
    output = folder / OUTPUT
    said = _end_of(output, min(_OUTPUT_MAX_BYTES, limit_bytes))
    taken = {OUTPUT: zlib.compress(said)}
    left = [] if len(said) == output.stat().st_size else [f"the beginning of {OUTPUT}"]
    room = limit_bytes - len(said)
    for size, path in sorted((size, path) for path, size in _files(folder) if path != output):
        name = path.relative_to(folder).as_posix()
        if size > room or len(taken) >= FILES_MAX:
            left.append(f"{name} ({size / 1e6:.1f} MB)")
            continue
        data = _end_of(path, size)
        room -= len(data)
        taken[name] = zlib.compress(data, 1)
    shown = ", ".join(left[:10]) + (f" and {len(left) - 10} more" if len(left) > 10 else "")
    return taken, f"not brought: {shown}" if left else ""


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in folder.rglob("*"):
        seen = path.lstat()
        if S_ISREG(seen.st_mode):
            yield path, seen.st_size


def _end_of(path: Path, limit_bytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - limit_bytes))
        return file.read(limit_bytes)
