"""`vhca matrix --on`: a Dask cluster of two worker processes on this host, over runs that boot nothing."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from distributed import Client

from tests.unit.lab.test_kernels import installed
from vhca.cli import cluster, cluster_worker
from vhca.cli.cluster import address
from vhca.cli.cluster_worker import Budget, Cancelled, Outcome, gather
from vhca.cli.main import main
from vhca.lab import Progress
from vhca.lab.cache import Cache

STAND_IN = Path(__file__).with_name("cluster_stand_in.py")
DASK = (sys.executable, "-m", "dask")
RELEASES = ("6.1.0-a", "6.2.0-b")
PATIENCE_S = 60.0


class Cluster:
    """A scheduler and its workers, each a process that is ended at the end."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, {**os.environ, **environment}
        self.workers: list[subprocess.Popen[bytes]] = []
        self._scheduler = self._start("scheduler", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.address = self._said("scheduler", "Scheduler at:").split("//")[-1].strip()

    def add_worker(self, *words: str, preload: Path = STAND_IN) -> None:
        """Start a worker with one thread, without a nanny, and wait for it."""
        name = f"worker{len(self.workers)}"
        scheme = "tls" if "DASK_DISTRIBUTED__COMM__TLS__CA_FILE" in self._environment else "tcp"
        line = ("worker", f"{scheme}://{self.address}", "--no-nanny", "--nthreads", "1", "--no-dashboard", *words)
        folders = ("--local-directory", str(self._folder / name), "--preload", str(preload))
        self.workers.append(self._start(name, *line, *folders))
        self._said(name, "Registered to:")

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([*DASK, *words], stdout=log, stderr=log, env=self._environment, cwd=self._folder)

    def _said(self, name: str, what: str) -> str:
        log = self._folder / f"{name}.log"
        until(lambda: what in log.read_text(), lambda: log.read_text())
        return log.read_text().split(what)[1].splitlines()[0]

    def stop(self) -> None:
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()


def until(true: Callable[[], object], why: Callable[[], str] = str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s, why()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with these kernels."""
    root = tmp_path_factory.mktemp("stock")
    for release in RELEASES:
        installed(Cache(root).path("kernels", release), release)
    return root


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, stock: Path) -> Iterator[Cluster]:
    """Two workers, for tests that leave them alive."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), {"VHCA_CACHE": str(stock)})
    try:
        made.add_worker()
        made.add_worker()
        yield made
    finally:
        made.stop()


@pytest.fixture
def fresh(tmp_path: Path, stock: Path) -> Iterator[Cluster]:
    """One without workers yet."""
    made = Cluster(tmp_path, {"VHCA_CACHE": str(stock)})
    try:
        yield made
    finally:
        made.stop()


def matrix(on: Cluster, *words: str) -> int:
    return main(["matrix", "--on", f"dask://{on.address}", *words])


def pids(path: Path) -> list[int]:
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_cells_run_on_workers_and_their_files_come_back(
    lasting: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [
        "--kernels",
        "6.1,6.2,6.9x",
        "--log-dir",
        str(tmp_path),
        "--junit",
        str(tmp_path / "m.xml"),
        "--append",
        "a b",
    ]
    assert matrix(lasting, *line, "--bring", "2M", "--capture", "run.pcapng", "--", "say", "x") == 1
    captured = capsys.readouterr()
    rows = {row.split()[0]: row for row in captured.out.splitlines()[2:]}
    assert "ok" in rows["6.1.0-a"]
    assert "failed (7)" in rows["6.2.0-b"]
    assert "trouble" in rows["6.9x"]
    assert all("tcp://127.0.0.1:" in row for row in rows.values())
    log = (tmp_path / "6.1.0-a.log").read_text()
    assert log.startswith("--append a b --capture ")
    assert (tmp_path / "6.2.0-b" / "h0.log").read_text() == "card of 6.2\n"
    assert (tmp_path / "6.2.0-b" / "run.pcapng").read_text() == "packets"
    assert not (tmp_path / "6.2.0-b" / "link").exists()
    assert not (tmp_path / "6.2.0-b" / "deep").exists()
    assert "6.2.0-b: not brought: logs/deep/big (3.1 MB); all of it is in " in captured.err
    properties = [case.find("properties/property") for case in ElementTree.parse(tmp_path / "m.xml").getroot()]
    assert all("tcp://" in (item.get("value") or "") for item in properties if item is not None)
    assert None not in properties


def test_all_of_it_comes_back_if_it_is_not_too_much(lasting: Cluster, tmp_path: Path) -> None:
    assert matrix(lasting, "--kernels", "6.1", "--log-dir", str(tmp_path), "--", "say", "x") == 0
    assert (tmp_path / "6.1.0-a" / "deep" / "big").stat().st_size == 3 << 20


def test_workers_that_share_a_cache_fill_it_once(lasting: Cluster, stock: Path, tmp_path: Path) -> None:
    """Both cells want a kernel that the cache lacks, at the same time: one makes it, both have it."""
    tree = installed(tmp_path / "tree", "6.5.0-new")
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        archive.add(tree, ".")
    specs = f"{tmp_path}/new.tar,{tmp_path}/./new.tar"
    assert matrix(lasting, "--kernels", specs, "--junit", str(tmp_path / "m.xml"), "--", "say", "x") == 0
    assert (tmp_path / "m.xml").read_text().count("unpacking") == 1
    assert len([entry for entry in (stock / "kernel-archives").iterdir() if entry.name[0] != "."]) == 1


def test_a_cell_that_takes_too_long_is_ended(
    lasting: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert matrix(lasting, "--kernels", "6.1", "--cell-timeout", "1", "--", "wait", str(tmp_path / "pids")) == 1
    assert "timed out" in capsys.readouterr().out
    assert all(gone(pid) for pid in pids(tmp_path / "pids"))


def test_a_worker_that_dies_loses_no_cell(fresh: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both workers have a cell when one is killed: its run ends, and the other worker takes its cell."""
    fresh.add_worker()
    fresh.add_worker()
    noted = tmp_path / "pids"
    codes: list[int] = []

    def kill() -> None:
        until(lambda: len(pids(noted)) == 2)
        fresh.workers[0].kill()
        until(lambda: len(pids(noted)) == 3 or sum(map(gone, pids(noted))) >= 1)
        for pid in pids(noted):  # what the other worker ran may end now
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    codes.append(matrix(fresh, "--kernels", "6.1,6.2", "--", "die", str(noted)))
    killer.join()
    out = capsys.readouterr().out
    assert "(tried 2 times: lost with tcp://127.0.0.1:" in out
    assert "the second time it works" in out
    assert all(gone(pid) for pid in pids(noted))


def test_a_cell_that_kills_its_workers_is_given_up(
    fresh: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is left in the end: the cell is trouble, and the matrix ends."""
    monkeypatch.setattr(cluster, "_WORKERS_S", 3.0)
    fresh.add_worker()
    noted = tmp_path / "pids"

    def kill() -> None:
        until(lambda: pids(noted))
        fresh.workers[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    assert matrix(fresh, "--kernels", "6.1", "--", "wait", str(noted)) == 1
    killer.join()
    captured = capsys.readouterr()
    assert "trouble" in captured.out
    assert "no worker is left" in captured.out
    until(lambda: gone(pids(noted)[0]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_runs_end_when_whoever_asked_ends(number: signal.Signals, lasting: Cluster, tmp_path: Path) -> None:
    """Ctrl-C, and a client that is killed."""
    noted = tmp_path / "pids"
    asked = [sys.executable, "-m", "vhca.cli.main", "matrix", "--kernels", "6.1,6.2"]
    process = subprocess.Popen([*asked, "--on", f"dask://{lasting.address}", "--", "wait", str(noted)])
    until(lambda: len(pids(noted)) == 2)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == (130 if number == signal.SIGINT else -number)
    until(lambda: all(gone(pid) for pid in pids(noted)))


def test_a_worker_with_another_vhca_is_named(
    fresh: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.py"
    other.write_text("from vhca.cli import sources\nsources.digest = lambda: 'other'\n")
    fresh.add_worker(preload=other)
    assert matrix(fresh, "--kernels", "6.1", "--", "say", "x") == 125
    said = capsys.readouterr().err
    assert "with these very sources" in said
    assert "tcp://127.0.0.1:" in said
    older = tmp_path / "older.py"
    older.write_text("from importlib import metadata\nmetadata.version = lambda name: '0.0.1'\n")
    fresh.workers[0].kill()
    fresh.workers[0].wait()
    fresh.add_worker(preload=older)
    until(lambda: matrix(fresh, "--kernels", "6.1", "--", "say", "x") == 125)
    assert ": 0.0.1" in capsys.readouterr().err


def test_it_speaks_tls_if_dask_has_certificates(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own: Dask reads its configuration once."""
    pem = str(tmp_path / "pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=vhca"]
        + ["-keyout", pem, "-out", f"{pem}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    with open(pem, "a") as both:
        both.write(Path(f"{pem}.crt").read_text())
    names = ("CA_FILE", *(f"{who}__{what}" for who in ("SCHEDULER", "WORKER", "CLIENT") for what in ("CERT", "KEY")))
    tls = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": pem for name in names} | {
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"
    }
    made = Cluster(tmp_path, {"VHCA_CACHE": str(stock), **tls})
    try:
        made.add_worker()
        line = [sys.executable, "-m", "vhca.cli.main", "matrix", "--kernels", "6.1", "--on", f"dask://{made.address}"]
        done = subprocess.run(
            [*line, "--", "say", "x"], env={**os.environ, **tls}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "tls://127.0.0.1:" in done.stdout
        assert main(["matrix", "--kernels", "6.1", "--on", f"dask://{made.address}", "--", "say", "x"]) == 125
        assert "no Dask scheduler answers" in capsys.readouterr().err
    finally:
        made.stop()


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_S", 0.5)
    assert main(["matrix", "--kernels", "6.1", "--on", "dask://127.0.0.1:1", "--", "say", "x"]) == 125
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in capsys.readouterr().err


def test_without_dask_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["matrix", "--kernels", "6.1", "--on", "dask://127.0.0.1", "--", "say", "x"]) == 125
    assert "pip install 'vhca[dask]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--jobs", "2", "--on", "dask://h"], "--jobs is for this machine"),
        (["--bring", "2M"], "--bring is for --on"),
        (["--cell-timeout", "2"], "--cell-timeout is for --on"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "--kernels", "6.1", *words, "--", "x"]) == 2
    assert why in capsys.readouterr().err


def test_addresses() -> None:
    assert address("dask://build1") == "build1:8786"
    assert address("dask://[::1]:99/") == "[::1]:99"
    for text in ("build1", "tcp://build1", "dask://", "dask://a:0", "dask://a:70000", "dask://a b"):
        with pytest.raises(ValueError, match="is no cluster"):
            address(text)


def test_a_budget_is_never_exceeded() -> None:
    budget, running, most = Budget(), 0, 0
    lock = threading.Lock()

    def cell(wanted: int) -> None:
        nonlocal running, most
        with budget.hold(wanted, 4, lambda: False):
            with lock:
                running += min(wanted, 4)
                most = max(most, running)
            time.sleep(0.01)
            with lock:
                running -= min(wanted, 4)

    threads = [threading.Thread(target=cell, args=(wanted,)) for wanted in (2, 3, 1, 9, 2, 2, 1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 4
    with budget.hold(4, 4, lambda: False), pytest.raises(Cancelled), budget.hold(1, 4, lambda: True):
        pass


def test_small_files_come_first_and_the_end_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_worker, "_OUTPUT_MAX_BYTES", 10)
    (tmp_path / "output.log").write_bytes(b"0123456789end")
    (tmp_path / "logs").mkdir()
    for name, size in (("a", 60), ("b", 20), ("c", 50)):
        (tmp_path / "logs" / name).write_bytes(bytes(size))
    taken, left = gather(tmp_path, 80)
    assert sorted(taken) == ["logs/b", "logs/c", "output.log"]
    assert left == "not brought: the beginning of output.log, logs/a (0.0 MB)"


@pytest.mark.parametrize("name", ["../x", "/x", "logs/../../x", "x", "logs", "logs/a/../../../x"])
def test_a_worker_writes_nowhere_else(name: str, tmp_path: Path) -> None:
    said = io.StringIO()
    work = cluster.Work([], [], [], None, 1, 1.0, 100)
    runner = cluster.ClusterRunner(Client.__new__(Client), work, tmp_path / "in", Progress(said))
    files = {"output.log": zlib.compress(b"ok"), name: zlib.compress(b"bad")}
    assert runner._brought("6.1", Outcome(0, "6.1", 1.0, files), "").output == "ok"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["6.1.log", "in"]
    assert "not written" in said.getvalue()
    bomb = Outcome(0, "6.2", 1.0, {"output.log": zlib.compress(bytes(1 << 20))})
    assert runner._brought("6.2", bomb, "").output == ""


def test_a_worker_chooses_neither_names_nor_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of releases that a terminal would obey or that another cell has, and of very many empty files."""
    monkeypatch.setattr(cluster, "FILES_MAX", 5)
    runner = cluster.ClusterRunner(
        Client.__new__(Client), cluster.Work([], [], [], None, 1, 1.0, 100), tmp_path, Progress(io.StringIO())
    )
    said = {"output.log": zlib.compress(b"mine")}
    assert runner._brought("6.1", Outcome(0, "6.1\x1b[2J", 1.0, said), "").release == "6.1\\x1b[2J"
    runner._brought("6.2", Outcome(0, "r" * 5000, 1.0, said), "")
    runner._brought("6.3", Outcome(0, "same", 1.0, said), "")
    runner._brought("6.4", Outcome(0, "same", 1.0, {"output.log": zlib.compress(b"other")}), "")
    assert (tmp_path / "same.log").read_text() == "mine"
    assert sum("other" in path.read_text() for path in tmp_path.glob("same-*.log")) == 1
    runner._brought("6.5", Outcome(0, "many", 1.0, {f"logs/{n}": zlib.compress(b"") for n in range(100)}), "")
    assert len(list((tmp_path / "many").iterdir())) == 5
