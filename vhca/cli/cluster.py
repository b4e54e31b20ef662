"""Cells of a matrix on a Dask cluster: who may take them, what became of each, and their files brought here.

Dask places the cells, tries those of a worker that died elsewhere, and speaks TLS if its configuration has
certificates. Guarantees: a worker with another vhca gets none; each cell ends with an outcome, also if no worker is
left; what a worker hands back is written to the folder of its cell and nowhere else, and is bounded.
"""

from __future__ import annotations

import os
import re
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from vhca.cli import sources, status
from vhca.cli.cells import Cell, file_name
from vhca.cli.cluster_worker import FILES_MAX, LOGS, OUTPUT, Order, Outcome, run_cell

if TYPE_CHECKING:
    from distributed import Client, Future

    from vhca.lab import Progress

_PORT: Final = 8786  # of a Dask scheduler
_ADDRESS: Final = re.compile(r"dask://(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?/?")
_CONNECT_S: Final = 15.0
_WORKERS_S: Final = 60.0
_LOOK_S: Final = 0.2
_NAME_MAX: Final = 100
_FETCH_S: Final = 120.0
_PASSED_ON: Final = ("CI", "VHCA_ACCEL")  # they say what a run does; others are the worker's own


@dataclass(slots=True, frozen=True)
class Work:
    """What is the same for all cells: see :class:`vhca.cli.cluster_worker.Order`."""

    words: Sequence[str]
    into: Sequence[tuple[str, str]]
    command: Sequence[str]
    modules: Path | None
    guests: int
    limit_s: float
    bring_bytes: int


def address(text: str) -> str:
    """Where `dask://HOST[:PORT]` is, as Dask says it but for the protocol; ValueError if it is no such address."""
    match = _ADDRESS.fullmatch(text)
    port = int(match["port"] or _PORT) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise ValueError(f"{text!r} is no cluster: give dask://HOST or dask://HOST:PORT, that of its scheduler")
    return f"{match['host']}:{port}"


def connect(where: str) -> Client:
    """A client of the cluster whose scheduler is at `where`, by TLS if Dask's configuration has certificates.

    :raises LabError: there is no Dask here, or no scheduler there.
    """
    from vhca.lab import LabError

    try:
        import dask
        from distributed import Client, Security
    except ImportError as error:
        raise LabError("--on needs Dask, which is not installed", "pip install 'vhca[dask]'") from error
    try:
        security = Security()  # from the files and variables that Dask's own documentation names
        encrypted = security.require_encryption or bool(dask.config.get("distributed.comm.tls.client.cert"))
        scheme = "tls" if encrypted else "tcp"
        return Client(f"{scheme}://{where}", security=security, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise LabError(
            f"no Dask scheduler answers at {scheme}://{where}: {error}",
            "start one (`dask scheduler`), name its host and port, and for TLS Dask's certificates (docs/kernels.md)",
        ) from error


def check_workers(client: Client) -> int:
    """How many workers there are; all of them have this vhca.

    :raises LabError: there is none, or one has another vhca.
    """
    from vhca.lab import LabError

    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except TimeoutError as error:
        raise LabError("the cluster has no worker", "start one beside vhca: `dask worker SCHEDULER`") from error
    # The number first, by a function of Python's own: a worker may have no vhca at all.
    mine = metadata.version("vhca")
    for question, right in (((metadata.version, "vhca"), mine), ((sources.digest,), sources.digest())):
        answers: dict[str, Any] = client.run(*question, on_error="return")
        wrong = [f"\n  {worker}: {_answer(answer)}" for worker, answer in answers.items() if answer != right]
        if wrong:
            what = f"vhca {mine}" if right == mine else f"vhca {mine} with these very sources ({right})"
            raise LabError(f"each worker must have {what}; it is not so:{''.join(wrong)}", "install the same there")
    return len(answers)


def _answer(answer: object) -> str:
    if isinstance(answer, metadata.PackageNotFoundError):
        return "no vhca"
    return f"another vhca ({answer!r})" if isinstance(answer, Exception) else f"{answer}"


class ClusterRunner:
    """Runs cells on a cluster; `folder` gets what they print and leave, named as those of a run here."""

    def __init__(self, client: Client, work: Work, folder: Path, progress: Progress) -> None:
        self._client = client
        self._work = work
        self._folder = folder
        self._progress = progress
        self._topic = f"vhca-matrix-{uuid.uuid4().hex}"
        self._alone_s = 0.0
        self._owners: dict[str, str] = {}  # names of files, and the kernel that was asked for

    def run_all(self, specs: Sequence[str], tell: Callable[[Cell], None]) -> list[Cell]:
        """Run on all of them, and return the cells in this order; `tell` is called as each ends."""
        waiting = {
            number: self._client.submit(
                run_cell, self._order(number, spec), key=f"{self._topic}-{number}", pure=False, retries=0
            )
            for number, spec in enumerate(specs)
        }
        cells: dict[int, Cell] = {}
        started_s = time.monotonic()
        try:
            while waiting:
                time.sleep(_LOOK_S)
                none_left = self._none_left()
                for number, future in list(waiting.items()):
                    cell = self._ended(number, specs[number], future, none_left, time.monotonic() - started_s)
                    if cell is not None:
                        cells[number] = cell
                        del waiting[number]
                        tell(cell)
        finally:
            if waiting:
                self._client.cancel(list(waiting.values()), force=True)  # workers see it, and end their runs
        return [cells[number] for number in range(len(specs))]

    def _order(self, number: int, spec: str) -> Order:
        work = self._work
        return Order(
            number=number,
            kernel=spec,
            words=tuple(work.words),
            into=tuple(work.into),
            command=tuple(work.command),
            modules=None if work.modules is None else str(work.modules),
            guests=work.guests,
            limit_s=work.limit_s,
            bring_bytes=work.bring_bytes,
            folder=os.getcwd(),
            environment={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            sources=sources.digest(),
            topic=self._topic,
        )

    def _none_left(self) -> bool:
        """Whether the cluster has had no worker for a while."""
        now_s = time.monotonic()
        if self._client.status != "running" or self._client.scheduler_info(n_workers=1)["workers"]:
            self._alone_s = 0.0
        elif not self._alone_s:
            self._alone_s = now_s
        return bool(self._alone_s) and now_s - self._alone_s > _WORKERS_S

    def _ended(self, number: int, spec: str, future: Future[Outcome], none_left: bool, seconds: float) -> Cell | None:
        """The cell of a future that is done; None if it is not."""
        from distributed import KilledWorker

        if future.status == "pending":
            if not none_left:
                return None
            why = f"no worker is left, for {_WORKERS_S:.0f} s"
        else:
            try:
                outcome = future.result(timeout=_FETCH_S)
                return self._brought(spec, outcome, self._where(number))
            except TimeoutError:
                return None  # its worker died before it was fetched: Dask runs it again
            except KilledWorker as error:
                why = f"given up: {error.allowed_failures + 1} workers died while they had it"
            except Exception as error:  # of whatever kind the worker's was
                lost = future.status in ("cancelled", "lost")
                why = "the scheduler has gone" if lost else f"the worker could not run it: {error}"
        return Cell(spec, spec, status.TROUBLE, seconds, why, self._where(number))

    def _where(self, number: int) -> str:
        """The worker that had the cell last, and which died with it before."""
        if self._client.status != "running":
            return ""
        events = self._client.get_events(self._topic)
        began = [event["worker"] for _, event in events if event["cell"] == number]
        if len(began) < 2:
            return "".join(began)
        return f"{began[-1]} (tried {len(began)} times: lost with {', '.join(began[:-1])})"

    def _brought(self, spec: str, outcome: Outcome, where: str) -> Cell:
        """Write a cell's files to its places: OUTPUT is RELEASE.log, the logs are in the folder RELEASE.

        They are at most as much, and as many, as a worker may send.
        """
        from vhca.lab.errors import printable

        outcome = replace(outcome, release=printable(outcome.release)[:_NAME_MAX])
        name = file_name(outcome.release) or "_"
        if self._owners.setdefault(name, spec) != spec:  # a worker says so; the other cell's files stay
            name = f"{name}-{len(self._owners)}"
            self._owners[name] = spec
        room, output = self._work.bring_bytes, ""
        for count, (path, packed) in enumerate(outcome.files.items()):
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(packed, room + 1)
            room -= len(data)
            parts = PurePosixPath(path).parts
            if room < 0 or count >= FILES_MAX or not _harmless(parts):
                outcome = replace(outcome, left=f"not written: {path}: too much, or a strange name")
                break
            if path == OUTPUT:
                output = data.decode("utf-8", "replace")
                place = self._folder / f"{name}.log"
            else:
                place = self._folder.joinpath(name, *parts[1:])
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        if outcome.left:
            self._progress.insist(f"  {outcome.release}: {outcome.left}")
        return Cell(spec, outcome.release, outcome.code, outcome.seconds, output, where)


def _harmless(parts: Sequence[str]) -> bool:
    """Whether a name stays in its folder."""
    if parts == (OUTPUT,):
        return True
    return len(parts) > 1 and parts[0] == LOGS and ".." not in parts and not any("\0" in part for part in parts)
