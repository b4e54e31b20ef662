"""What a command line may say of machine and kernel, how a wrong one is answered, and how signals end a command."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from vhca.cli import status
from vhca.cli.main import main, parser
from vhca.cli.options import make_lab, memory
from vhca.lab import Progress
from vhca.lab import qemu as machine
from vhca.lab.errors import QemuError


def _refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == status.USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "ibstat"], "vhca run -- ibstat"),
        (["run", "--guests", "2", "ibv_devinfo", "-l"], "vhca run -- ibv_devinfo -l"),
        (["shell", "python3"], "vhca shell -- python3"),
        (["run", "--qemu-args", "-s"], "did you mean --qemu-arg?"),
        (["run", "--qemu-arg", "-s"], "--qemu-arg=-s"),
        (["serve", "--dir", "d", "--hca", "1", "--capturing=x"], "did you mean --capture?"),
    ],
)
def test_the_command_s_own_usage_and_what_would_be_right(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _refused(words, capsys)
    assert said.startswith(f"usage: vhca {words[0]} ")
    assert hint in said
    assert f"vhca {words[0]} --help" in said


def test_a_command_without_a_guest_has_no_hint_at_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`--`" not in _refused(["doctor", "now"], capsys)


@pytest.mark.parametrize(
    ("text", "mib"),
    [("2048", 2048), ("2G", 2048), ("2g", 2048), ("1.5GiB", 1536), ("768M", 768), ("768 MiB", 768), ("1024K", 1)],
)
def test_amounts_of_memory(text: str, mib: int) -> None:
    assert memory(1)(text) == mib


@pytest.mark.parametrize("text", ["", "G", "-1G", "2X", "1K", "1.0001G", "nan", "inf", "2GG", "1e3"])
def test_no_amounts_of_memory(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="2048M or 2G"):
        memory(1)(text)


@pytest.mark.parametrize("text", ["383", "100M", "2000000T"])
def test_memory_has_limits(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not in 384M"):
        memory(384)(text)


def test_words_for_kernel_and_qemu_reach_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}
    monkeypatch.setattr("vhca.lab.Lab", lambda **arguments: got.update(arguments))
    words = ["run", "--append", "loglevel=7 ftrace=function", "--append", "nosmp", "--qemu-arg=-d", "--qemu-arg", "int"]
    make_lab(parser().parse_args([*words, "--memory", "2G"]), Progress(quiet=True))
    assert got["guest"].kernel_arguments == "loglevel=7 ftrace=function nosmp"
    assert got["guest"].qemu_arguments == ["-d", "int"]
    assert got["guest"].memory_mib == 2048


@pytest.mark.parametrize("text", ["", " ", "a\nb", "a\0b"])
def test_no_words_for_a_kernel(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "command line" in _refused(["run", "--append", text, "--", "x"], capsys)


def test_a_kernel_s_command_line_is_not_cut_silently() -> None:
    config = machine.MachineConfig("g0", Path("/k"), Path("/i"), 6, 7, 8, {"index": "0"})
    rest = machine.COMMAND_LINE_MAX - 1 - len(_append(config)) - len(" ")
    config.extra_kernel_arguments = "x" * rest
    assert len(_append(config)) == machine.COMMAND_LINE_MAX - 1
    config.extra_kernel_arguments += "x"
    with pytest.raises(QemuError, match=f"at most {rest} bytes"):
        machine.command_line(config)


def _append(config: machine.MachineConfig) -> str:
    arguments = machine.command_line(config)
    return arguments[arguments.index("-append") + 1]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, status.INTERRUPTED)]
)
def test_a_signal_s_own_status(number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(_: argparse.Namespace) -> int:
        os.kill(os.getpid(), number)
        signal.pause()
        return status.OK

    monkeypatch.setattr("vhca.cli.commands.doctor.execute", execute)
    # Who starts the tests in the background of a shell has them ignore SIGINT.
    was = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        before = signal.getsignal(number)
        assert main(["doctor"]) == code
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, was)


@pytest.mark.parametrize(("words", "port"), [([], None), (["--gdb"], 0), (["--gdb", "1234"], 1234)])
def test_gdb_reaches_the_lab(words: list[str], port: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}
    monkeypatch.setattr("vhca.lab.Lab", lambda **arguments: got.update(arguments))
    make_lab(parser().parse_args(["run", *words]), Progress(quiet=True))
    assert got["gdb"] == port
