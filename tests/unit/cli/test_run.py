"""`vhca run` over guests that answer from a table."""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.cli.fakes import Answer, FakeLab, FakeProcess
from vhca.cli.commands import run
from vhca.cli.main import main
from vhca.lab import GuestError, KernelPanic, Report


@pytest.fixture
def options() -> Namespace:
    return Namespace(each=False, stdin=False, timeout=None)


def _lab(answer: Answer, tmp_path: Path) -> FakeLab:
    return FakeLab(answer, tmp_path)


def test_output_and_status_pass_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = _lab(lambda name, argv: (5, f"{name} {' '.join(argv)}\n"), tmp_path)
    monkeypatch.setattr(run, "make_lab", lambda *_: lab)
    assert main(["run", "-q", "--", "echo", "-n", "x"]) == 5
    assert capfd.readouterr().out == "g0 echo -n x\n"
    assert lab.failed
    assert [len(guest.processes) for guest in lab.guests] == [1, 0]
    assert lab.guests[0].processes[0].stdin_closed


def test_each_prefixes_whole_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = _lab(lambda name, argv: (0, "one\ntwo"), tmp_path)
    monkeypatch.setattr(run, "make_lab", lambda *_: lab)
    assert main(["run", "-q", "--guests", "2", "--each", "--", "x"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["g0| one", "g0| two", "g1| one", "g1| two"]
    assert not lab.failed


def test_lines_are_not_torn() -> None:
    got: list[bytes] = []
    lines = run.PrefixedLines(got.append, "g0| ")
    for part in (b"a", b"b\nc", b"", b"\n\nd"):
        lines(part)
    assert got == [b"g0| ab\n", b"g0| c\ng0| \n"]
    lines.end()
    lines.end()
    assert got[2:] == [b"g0| d\n"]


def test_a_command_that_takes_too_long_is_ended(
    options: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options.timeout = 1e-9
    lab = _lab(lambda name, argv: (None, ""), tmp_path)
    assert run.run_in(lab.guests, ["sleep", "9"], options) == 124  # type: ignore[arg-type]
    assert "g0, g1: killed sleep 9" in capsys.readouterr().err
    assert signal.SIGTERM in lab.guests[0].processes[0].signals


def test_ctrl_c_is_passed_on(options: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = _lab(lambda name, argv: (None, ""), tmp_path)

    def interrupted(processes: Sequence[FakeProcess], deadline_s: float | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run_in(lab.guests[:1], ["sleep"], options)  # type: ignore[arg-type]
    assert lab.guests[0].processes[0].signals[0] == signal.SIGINT


@pytest.mark.parametrize(("error", "code"), [(FileNotFoundError(2, "no"), 127), (PermissionError(13, "no"), 126)])
def test_a_command_that_cannot_start(options: Namespace, tmp_path: Path, error: OSError, code: int) -> None:
    def answer(name: str, argv: Sequence[str]) -> tuple[int, str]:
        raise error

    assert run.run_in(_lab(answer, tmp_path).guests[:1], ["nothing"], options) == code  # type: ignore[arg-type]


def test_a_guest_that_dies_is_trouble(options: Namespace) -> None:
    dead = FakeProcess(["x"], 0, GuestError("g0: the guest's machine has ended"))
    with pytest.raises(GuestError, match="has ended"):
        run._wait([dead], None)  # type: ignore[list-item]


def test_a_line_without_end_is_cut() -> None:
    got: list[bytes] = []
    lines = run.PrefixedLines(got.append, "g0| ")
    for _ in range(100):
        lines(bytes(10_000))
    assert len(got) > 10
    assert all(part.startswith(b"g0| ") and part.endswith(b"\n") for part in got)


_WARNS = Report("WARNING", "WARNING: CPU: 0 PID: 1 at x.c:1 f+0x1", ("...",))


@pytest.mark.parametrize(
    ("options", "ci", "code"),
    [
        ((), "", 5),
        ((), "true", 122),
        (("--no-fail-on-kernel-bug",), "true", 5),
        (("--fail-on-kernel-bug",), "", 122),
        (("--fail-on-kernel-bug", "--allow-kernel-bug", "y", "--allow-kernel-bug", "at x.c"), "", 5),
    ],
)
def test_what_a_kernel_reports_is_shown_and_may_decide(
    options: tuple[str, ...],
    ci: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lab = _lab(lambda name, argv: (5, ""), tmp_path)
    lab.guests[1].reports = [_WARNS]
    monkeypatch.setattr(run, "make_lab", lambda *_: lab)
    monkeypatch.setenv("CI", ci)
    assert main(["run", "-q", *options, "--", "x"]) == code
    assert f"vhca: g1: the kernel reported: {_WARNS.headline}" in capfd.readouterr().err


def test_a_report_keeps_the_logs_of_a_command_that_went_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = _lab(lambda name, argv: (0, ""), tmp_path)
    lab.guests[0].reports = [_WARNS]
    monkeypatch.setattr(run, "make_lab", lambda *_: lab)
    monkeypatch.delenv("CI", raising=False)
    assert main(["run", "-q", "--", "x"]) == 0
    assert lab.failed
    assert "the whole is in /logs/kernel.log" in capfd.readouterr().err


@pytest.mark.parametrize("in_the_command", [True, False])
def test_a_panic_has_a_status_of_its_own(
    in_the_command: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    panic = KernelPanic("g1", "Kernel panic - not syncing: X", "Call Trace:", "/c.log")

    def answer(name: str, argv: Sequence[str]) -> tuple[int, str]:
        if in_the_command:
            raise panic
        return 0, ""

    lab = _lab(answer, tmp_path)
    lab.guests[1].panic = panic
    lab.guests[0].reports = [_WARNS]
    monkeypatch.setattr(run, "make_lab", lambda *_: lab)
    assert main(["run", "-q", "--", "x"]) == 123
    said = capfd.readouterr().err
    for words in (_WARNS.headline, "g1: Kernel panic - not syncing: X", "Call Trace:", "/c.log"):
        assert words in said
    assert lab.stops == [True]


@pytest.mark.parametrize(("guests", "words"), [("1", "starting 1 guest\n"), ("2", "starting 2 guests\n")])
def test_one_guest_is_no_guests(
    guests: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = _lab(lambda name, argv: (0, ""), tmp_path)
    monkeypatch.setattr(run, "make_lab", lambda *_: lab)
    assert main(["run", "--guests", guests, "--", "x"]) == 0
    assert words in capfd.readouterr().err
