"""What `make bench` says while it runs, and that each engine has its turn at each case."""

import io

import pytest

from firmware.native.library import loaded
from tests.bench import __main__ as bench
from tests.bench import bench_engine, goals
from tests.bench.results import PYTHON, C, Results
from vhca.lab import Progress


def test_it_says_how_long_it_will_take_still(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    said = io.StringIO()
    pace = bench.Pace(Progress(said), 10, begin=0.0, said=0.0)

    def work() -> None:
        now[0] += 15

    for number in range(10):
        pace.step(f"step {number}", work)
    lines = said.getvalue().splitlines()
    assert [line.rpartition("] ")[2] for line in lines] == [
        "2 of 10: step 1; about 2 min left",
        "4 of 10: step 3; about 90 s left",
        "6 of 10: step 5; about 60 s left",
        "8 of 10: step 7; about 30 s left",
        "10 of 10: step 9; about 0 s left",
    ]


def test_each_engine_has_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bench_engine, "measure", lambda kind, size, seconds, trains: bench_engine.Result(kind, size, 2.0, 0.5, 0.1)
    )
    results = Results()
    for _, call in bench.engine_steps(results):
        call()
    engines = {C, PYTHON} if loaded().there else {PYTHON}
    assert results.samples.keys() - {f"copy/{size}" for _, size in bench_engine.CASES} == {
        f"engine/{kind}/{size}/{engine}" for kind, size in bench_engine.CASES for engine in engines
    }
    if loaded().there:
        rows = {what: figure for of, what, figure, _, _ in goals.rows(results) if of == goals.ENGINE}
        assert rows["WRITE 64 B"] == "0.50 M/s"
        assert rows["WRITE 1 MiB"] == "0.25 of one copy"
        assert "not measured" not in rows.values()


def test_the_tables_are_printed() -> None:
    results = Results({"processors": 2})
    results.add("boot/whole", [5.5])
    printed = bench.show(results)
    assert "from command to ACTIVE" in printed
    assert "5.50 s" in printed
