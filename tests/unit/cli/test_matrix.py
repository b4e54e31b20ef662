"""`vhca matrix` and `vhca bisect` over runs that end as their kernel's release says."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.lab.test_kernels import installed
from vhca.cli import cells
from vhca.cli.cells import Cell, jobs_at_once, kernel_names, words_of_run
from vhca.cli.commands import matrix
from vhca.cli.commands.bisect import Verdict, narrow
from vhca.cli.main import main
from vhca.lab.cache import Cache

#: Stands for `vhca run`: prints its line, and ends as the table says of the kernel.
RUN = """
import sys
words = sys.argv[2:]
kernel = words[words.index("--kernel") + 1]
print(*words)
print(f"on {kernel}")
sys.exit({"6.2.0-b": 7, "6.3.0-c": 122, "6.4.0-d": 125, "6.5.0-e": 127}.get(kernel, 0))
"""
RELEASES = ("6.1.0-a", "6.2.0-b", "6.3.0-c", "6.4.0-d", "6.5.0-e")


@pytest.fixture(autouse=True)
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with these kernels, and the program in place of `vhca run`."""
    cache = Cache(tmp_path / "cache")
    for release in RELEASES:
        installed(cache.path("kernels", release), release)
    monkeypatch.setenv("VHCA_CACHE", str(cache.root))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("VHCA_KERNEL_ARCHIVE", raising=False)
    monkeypatch.setattr(cells, "SELF", (sys.executable, "-c", RUN))
    return tmp_path


@pytest.mark.parametrize("jobs", [[], ["--jobs", "4"]])
def test_each_kernel_has_a_row_with_its_outcome(
    jobs: list[str], stock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["matrix", "--kernels", "6.1,6.2,6.3,6.4,6.5,6.9x", *jobs, "--junit", str(stock / "m.xml"), "--", "ls", "-l"]
    assert main(line) == 1
    captured = capsys.readouterr()
    rows = [row.split("  ") for row in captured.out.splitlines()[2:]]
    assert [(row[0], next(word for word in row[1:] if word).strip()) for row in rows] == [
        ("6.1.0-a", "ok"),
        ("6.2.0-b", "failed (7)"),
        ("6.3.0-c", "kernel bug"),
        ("6.4.0-d", "trouble"),
        ("6.5.0-e", "not there"),
        ("6.9x", "trouble"),
    ]
    assert "on 6.2.0-b" in captured.err
    suite = ElementTree.parse(stock / "m.xml").getroot()
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "6",
        "failures": "3",
        "errors": "2",
    }
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [["system-out"], *[["failure", "system-out"]] * 2, ["error", "system-out"]] + [
        ["failure", "system-out"],
        ["error", "system-out"],
    ]


def test_a_matrix_that_is_all_right_leaves_nothing(stock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(stock.iterdir())
    assert main(["matrix", "--kernels", "6.1.0-a", "--", "true"]) == 0
    assert sorted(stock.iterdir()) == before
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["6.1.0-a", "ok"]


def test_options_of_the_run_are_passed_on_and_the_matrix_own_are_not(stock: Path) -> None:
    logs = stock / "logs"
    line = ["matrix", "--guests", "2", "--kernels=6.1", "--jobs", "3", "--append", "a b", f"--log-dir={logs}", "--each"]
    assert main([*line, "--", "ls", "--jobs", "x"]) == 0
    said = (logs / "6.1.0-a.log").read_text().splitlines()[0]
    assert said == f"--guests 2 --append a b --each --kernel 6.1.0-a --log-dir {logs}/6.1.0-a -- ls --jobs x"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--kernels", "6.1"], "what shall be run"),
        (["--kernels", "6.1", "--kernel", "6.2", "--", "x"], "named together"),
        (["--kernels", "6.1", "--gdb", "--", "x"], "--gdb is for one run"),
        (["--kernels", "6.1", "-i", "--", "x"], "--stdin is for one run"),
    ],
)
def test_what_makes_no_sense_for_several_runs_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", ",", "6.1,6.1"])
def test_kernels_are_a_list_of_different_ones(text: str) -> None:
    with pytest.raises(SystemExit):
        main(["matrix", "--kernels", text, "--", "x"])
    assert kernel_names(" 6.1, ~/linux,") == ["6.1", "~/linux"]


def test_own_options_are_taken_out_of_a_line() -> None:
    own = matrix.add_own_arguments(ArgumentParser(add_help=False))
    assert words_of_run(["-q", "--kernels", "a", "--hcas", "2", "--jobs=3"], own) == ["-q", "--hcas", "2"]


def test_an_interrupted_matrix_ends_its_runs(stock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run interrupts as Ctrl-C does; the first one would go on for ever."""
    waits = """
import os, signal, sys, time
with open(sys.argv[-1], "a") as file:
    print(os.getpid(), file=file, flush=True)
    if len(open(sys.argv[-1]).readlines()) == 2:
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)
"""
    monkeypatch.setattr(cells, "SELF", (sys.executable, "-c", waits))
    assert main(["matrix", "--kernels", "6.1,6.2", "--jobs", "2", "--", str(stock / "pids")]) == 130
    pids = [int(line) for line in (stock / "pids").read_text().split()]
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_as_many_runs_at_once_as_the_machine_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable: {6 << 20} kB\n")
    assert jobs_at_once(1, 1024, meminfo) == 4  # 6 GiB for guests of 1 GiB and what is beside them
    assert jobs_at_once(4, 256, meminfo) == 2  # eight processors
    assert jobs_at_once(16, 1024, meminfo) == 1


# ---- bisection ----


@pytest.mark.parametrize("first_bad", range(1, 9))
@pytest.mark.parametrize("skipped", [(), (4,), (3, 4, 5)])
def test_the_first_bad_one_is_found_by_halves(first_bad: int, skipped: tuple[int, ...]) -> None:
    asked: list[int] = []

    def test(number: int) -> Verdict:
        asked.append(number)
        if number in skipped:
            return Verdict.SKIP
        return Verdict.BAD if number >= first_bad else Verdict.GOOD

    good, bad = narrow(9, test)
    assert good < first_bad <= bad
    assert set(range(good + 1, bad)) <= set(skipped)
    assert len(asked) == len(set(asked)) <= 3 + 2 * len(skipped)


def test_a_bisection_over_kernels_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", "--good", "6.1", "--bad", "6.3", "--cached", "--", "x"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "first bad: 6.2.0-b, last good: 6.1.0-a"


def test_a_bisection_goes_back_in_time_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cells, "SELF", (sys.executable, "-c", RUN.replace("6.2.0-b", "6.1.0-a")))
    assert main(["bisect", "--good", "6.2", "--bad", "6.1", "--cached", "--", "x"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "first bad: 6.1.0-a, last good: 6.2.0-b"


@pytest.mark.parametrize(
    ("good", "bad", "code", "said"),
    [
        ("6.2", "6.3", 1, "6.2.0-b is not good: it is bad"),
        ("6.1", "6.4", 1, "6.4.0-d is not bad: it is skip"),
        ("6.1", "6.5", 125, "not there: that says nothing"),
        ("6.1", "6.1", 125, "the same kernel"),
        ("6.1", "5.9", 125, "no packaged kernel 5.9"),
    ],
)
def test_ends_that_are_not_as_was_said(
    good: str, bad: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", "--good", good, "--bad", bad, "--cached", "--", "x"]) == code
    assert said in capsys.readouterr().err


def test_the_last_line_of_a_run_is_cut() -> None:
    cell = Cell("6.1", "6.1", 0, 1.0, "first\n" + "x" * 200 + "\n\n")
    assert len(cell.last_line) == 70
    assert Cell("6.1", "6.1", 0, 1.0, "").last_line == ""
    assert Cell("6.1", "6.1", 0, 1.0, "[   0.1 s] starting\nsaid\n[  19.6 s] running x\n").last_line == "said"
