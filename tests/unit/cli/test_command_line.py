"""The command line: what is accepted, what is refused and with which words, which status a command ends with."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vhca.cli import status
from vhca.cli.main import main, parser, split_at_dashes
from vhca.cli.options import capture_file, existing_folder, rack_config, seconds, whole
from vhca.lab import CaptureConfig, CardConfig, GuestConfig, LabError

COMMANDS = ["demo", "run", "shell", "serve", "fabric", "fault", "capture", "guest", "doctor", "fetch"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"vhca {command}" in text.split("examples:")[1]
    assert "exit codes:" in text
    assert "125" in text.split("exit codes:")[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    choices = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    for action in choices[command]._actions:
        assert action.help, action.option_strings


@pytest.mark.parametrize("words", [["nonsense"], [], ["run", "--guests", "0", "--", "x"], ["run", "ls"], ["serve"]])
def test_a_wrong_command_line_is_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == status.USAGE


@pytest.mark.parametrize("words", [["run"], ["run", "--"]])
def test_run_without_a_command_says_how(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == status.USAGE
    assert "vhca run -- ibv_devinfo" in capsys.readouterr().err


def test_what_stands_behind_the_dashes_is_the_guests() -> None:
    assert split_at_dashes(["run", "-q", "--", "sh", "-c", "--", "-v"]) == (["run", "-q"], ["sh", "-c", "--", "-v"])
    assert split_at_dashes(["doctor"]) == (["doctor"], None)


def test_options_are_typed() -> None:
    got = parser().parse_args(
        ["run", "--guests", "3", "--timeout", "2m", "--memory", "512", "--cpus", "2", "--each", "--kernel", "6.12"]
    )
    assert (got.guests, got.timeout, got.memory, got.cpus, got.each, got.kernel) == (3, 120.0, 512, 2, True, "6.12")


@pytest.mark.parametrize(("text", "value"), [("90", 90.0), ("1.5", 1.5), ("2s", 2.0), ("2m", 120.0), ("1h", 3600.0)])
def test_times(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "m", "two", "1e999"])
def test_no_times(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give seconds"):
        seconds(text)


def test_whole_numbers_have_limits() -> None:
    convert = whole(1, 64)
    assert [convert("1"), convert("64")] == [1, 64]
    for text, words in [("0", "not in 1 .. 64"), ("65", "not in 1 .. 64"), ("1.0", "whole number"), ("", "whole")]:
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            convert(text)


def test_folders_and_capture_files(tmp_path: Path) -> None:
    assert existing_folder(str(tmp_path)) == tmp_path
    assert capture_file(str(tmp_path / "a.pcapng")) == tmp_path / "a.pcapng"
    with pytest.raises(argparse.ArgumentTypeError, match="no folder"):
        existing_folder(str(tmp_path / "absent"))
    with pytest.raises(argparse.ArgumentTypeError, match="must end in"):
        capture_file(str(tmp_path / "a.pcap"))
    with pytest.raises(argparse.ArgumentTypeError, match="no folder"):
        capture_file(str(tmp_path / "absent" / "a.pcapng"))


# ---- what a command ends with ----


def _with_execute(monkeypatch: pytest.MonkeyPatch, execute: Callable[[argparse.Namespace], int]) -> None:
    monkeypatch.setattr("vhca.cli.commands.doctor.execute", execute)


def _raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def execute(_: argparse.Namespace) -> int:
        raise error

    return execute


def test_trouble_is_one_message_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_execute(monkeypatch, _raising(LabError("no space", "free some")))
    assert main(["doctor"]) == status.TROUBLE
    assert capsys.readouterr().err == "vhca: no space\n  -> free some\n"


def test_verbose_shows_where_trouble_came_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_execute(monkeypatch, _raising(LabError("no space")))
    assert main(["-v", "doctor"]) == status.TROUBLE
    assert "Traceback" in capsys.readouterr().err


def test_a_fault_of_ours_is_named_and_traced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_execute(monkeypatch, _raising(ZeroDivisionError("x")))
    assert main(["doctor"]) == status.TROUBLE
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "a fault of vhca" in said


@pytest.mark.parametrize("error", [OSError("\x1b[2J said the guest"), ValueError("\x1b[2J said the guest")])
def test_no_message_drives_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)

    def execute(_: argparse.Namespace) -> int:
        logging.getLogger("card").error("\x1b[2J in a log")
        raise error

    _with_execute(monkeypatch, execute)
    assert main(["doctor"]) == status.TROUBLE
    said = capsys.readouterr().err
    assert said.count(r"\x1b[2J") >= 2
    assert "\x1b" not in said


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_execute(monkeypatch, _raising(KeyboardInterrupt()))
    assert main(["doctor"]) == status.INTERRUPTED


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3), (255, 255), (-9, 137), (-2, 130)])
def test_status_of_a_command(code: int, expected: int) -> None:
    assert status.of_command(code) == expected


@pytest.mark.parametrize(("codes", "expected"), [([], 0), ([0, 0], 0), ([0, 4, 5], 4), ([-15, 1], 143)])
def test_status_of_several(codes: list[int], expected: int) -> None:
    assert status.of_all(codes) == expected


# ---- doctor and fetch ----


@pytest.mark.parametrize("level", ["ok", "warn", "fail"])
def test_doctor_says_what_and_how(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vhca.lab.doctor import Finding, Level

    findings = [Finding(Level.OK, "python", "3.11"), Finding(Level(level), "qemu", "seen", "get one")]
    monkeypatch.setattr("vhca.lab.doctor.check", lambda **_: findings)
    assert main(["doctor"]) == (1 if level == "fail" else 0)
    text = capsys.readouterr().out
    assert "  qemu: get one" in text
    assert ("MISSING" in text) == (level == "fail")
    assert text.splitlines()[-1].startswith("guests cannot run here: qemu" if level == "fail" else "guests can run")


def test_options_reach_the_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vhca.cli.options import make_lab
    from vhca.lab import Progress

    got: dict[str, Any] = {}
    monkeypatch.setattr("vhca.lab.Lab", lambda **arguments: got.update(arguments))
    words = ["--guests", "2", "--hcas", "3", "--memory", "700", "--cpus", "4", "--kernel", "bz", "--no-autoload"]
    words += ["--share", str(tmp_path), "--modules", str(tmp_path), "--keep-logs", "--log-dir", str(tmp_path / "logs")]
    words += [
        "--module",
        "rpcrdma",
        "--module",
        "nfsd",
        "--package",
        "nvme-cli",
        "--tools",
        "gdb,perf",
        "--suite",
        "forky",
    ]
    make_lab(parser().parse_args(["run", *words, "--boot-timeout", "9", "--card-memory", "512M"]), Progress(quiet=True))
    assert (got["guests"], got["hcas_per_guest"], got["kernel"], got["modules_dir"]) == (2, 3, "bz", tmp_path)
    assert got["guest"] == GuestConfig(
        memory_mib=700, cpus=4, autoload=False, share=tmp_path, boot_timeout_s=9.0, qemu_arguments=[]
    )
    assert got["card"] == CardConfig(memory=512 << 20)
    assert (got["keep_logs"], got["log_dir"]) == (True, tmp_path / "logs")
    assert (got["extra_modules"], got["extra_packages"]) == (["rpcrdma", "nfsd"], ["nvme-cli", "gdb", "perf"])
    assert got["suite"] == "forky"


def test_serve_advises_a_card_of_each_socket() -> None:
    from types import SimpleNamespace

    from vhca.cli.commands.serve import advice

    text = advice([SimpleNamespace(name="h0", socket_path="/x/h0.sock"), SimpleNamespace(name="h1", socket_path="/y")])
    assert "2 cards are waiting" in text
    assert "share=on" in text
    assert text.count("vfio-user-pci") == 2
    assert '"path": "/x/h0.sock"' in text


# ---- serve's folder ----


def _serve(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    monkeypatch.setattr("vhca.cli.commands.serve.wait_for_signal", lambda serving: None)
    return main(["serve", "--dir", str(folder), *words])


def test_serve_makes_its_folder_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _serve(monkeypatch, tmp_path / "new", "--hcas", "40", "--quiet") == status.OK
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert len(list((tmp_path / "new").glob("*.log"))) == 40
    assert not list((tmp_path / "new").glob("*.sock"))


def test_serve_refuses_a_folder_that_others_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert _serve(monkeypatch, tmp_path / "open") == status.TROUBLE
    assert "chmod go-w" in capsys.readouterr().err
    assert not list((tmp_path / "open").iterdir())


def test_serve_that_cannot_start_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h1.sock").write_text("no socket")
    assert _serve(monkeypatch, tmp_path) == status.TROUBLE
    assert "h1.sock: exists and is not a socket" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["h1.sock"]


def test_tshark_gets_its_arguments_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from vhca.lab.tshark import Tshark

    decoder = Tshark(("/x/ld.so", "--library-path", "/x", "/x/tshark"), {"WIRESHARK_DATA_DIR": "/x/data"})
    monkeypatch.setattr("vhca.lab.tshark.find_tshark", lambda _cache, _progress: decoder)
    begun: list[tuple[str, list[str], str]] = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        begun.append((path, arguments, environment["WIRESHARK_DATA_DIR"]))
        raise SystemExit(7)

    monkeypatch.setattr(os, "execve", execve)
    for words, theirs in (
        (["-r", "a.pcapng", "-v", "--", "x"], ["-r", "a.pcapng", "-v", "--", "x"]),
        (["--", "--help"], ["--help"]),
        ([], []),
    ):
        with pytest.raises(SystemExit, match="7"):
            main(["tshark", *words])
        assert begun.pop() == ("/x/ld.so", [*decoder.command, *theirs], "/x/data")


def test_the_tshark_of_the_cache_starts() -> None:
    from vhca.lab.cache import Cache
    from vhca.lab.tshark import ready_tshark

    if ready_tshark(Cache()) is None:
        pytest.skip("no tshark on the host or in the cache (vhca fetch)")
    command = [sys.executable, "-m", "vhca.cli.main", "tshark", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout[:6]) == (0, "TShark"), done.stderr


def test_ports_to_capture_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--capture", str(tmp_path / "a.pcapng")]
    for words, complaint in (
        ([*file, "--capture-port", "h2"], "there are h0 to h1"),
        (["--capture-port", "h0"], "name a file with --capture"),
        (["--capture-both-ends"], "name a file with --capture"),
        (["--capture-records"], "name a file with --capture"),
    ):
        assert main(["serve", "--hcas", "2", "--dir", str(tmp_path / "d"), *words]) == status.TROUBLE
        assert complaint in capsys.readouterr().err
    options = parser().parse_args(["run", "--guests", "2", *file, "--capture-port", "h0", "--capture-port", "h1"])
    assert rack_config(options, 2).capture == CaptureConfig(tmp_path / "a.pcapng", ["h0", "h1"])
    topology = tmp_path / "f.toml"
    topology.write_text(
        'switch = [{name = "leaf"}]\nhost = [{name = "n1"}, {name = "n2"}]\n'
        'cable = [{ends = ["leaf/1", "n1/1"]}, {ends = ["leaf/2", "n2/1"]}]\n'
    )
    more = ["--topology", str(topology), "--capture-records"]
    for name in ("leaf/2", "n2", "all", "h1"):
        options = parser().parse_args(["run", "--guests", "2", *file, *more, "--capture-port", name])
        assert rack_config(options, 2).capture == CaptureConfig(tmp_path / "a.pcapng", [name], records=True)
    words = ["serve", "--hcas", "1", "--dir", str(tmp_path / "d"), *file, *more, "--capture-port", "leaf/3"]
    assert main(words) == status.TROUBLE
    assert "there is no port leaf/3" in capsys.readouterr().err


def test_faults_reach_the_cards_that_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vhca.cli.options import make_lab
    from vhca.lab import Progress

    got: dict[str, Any] = {}
    monkeypatch.setattr("vhca.lab.Lab", lambda **arguments: got.update(arguments))

    def cards(*rules: str) -> list[list[list[str]]]:
        words = [word for rule in rules for word in ("--fault", rule)]
        make_lab(parser().parse_args(["run", "--guests", "2", "--hcas", "2", *words]), Progress(quiet=True))
        return [[list(card.faults) for card in own] for own in got["guest_cards"]]

    every, others = "command any lost nth=9", "event CMD lost"
    assert cards(every, f"g1 {others}") == [[[every], [every]], [[every, others], [every]]]
    assert cards(f"g0/2 {others}", f"h3 {others}") == [[[], [others]], [[], [others]]]
    with pytest.raises(LabError, match="--fault g2: there is no such card"):
        cards(f"g2 {others}")
    got.clear()
    make_lab(parser().parse_args(["run", "--fault", others]), Progress(quiet=True))
    assert got["card"].faults == (others,)
    assert "guest_cards" not in got
    with pytest.raises(SystemExit):
        main(["serve", "--dir", "x", "--fault", "h0 command any lots"])
    assert "knows no 'lots' (did you mean lost?)" in capsys.readouterr().err


def test_sets_and_kept_files_are_listed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vhca.lab import Cache, kept

    monkeypatch.setenv("VHCA_CACHE", str(tmp_path))
    assert main(["guest", "sets"]) == 0
    assert "openmpi-bin python3-mpi4py" in capsys.readouterr().out
    kept.claim(Cache(), "work", "packages of trixie").close()
    assert main(["guest", "kept"]) == 0
    assert "packages of trixie" in capsys.readouterr().out
    assert main(["guest", "kept", "--remove", "work"]) == 0
    assert main(["guest", "kept"]) == 0
    assert capsys.readouterr().out == "nothing is kept\n"
    with pytest.raises(SystemExit):
        main(["guest", "sets", "--remove", "work"])
    assert "vhca guest kept --remove NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--root", "/nowhere"], "there is no folder /nowhere that could be a root"),
        (["--keep", "../x"], "is no name for kept files"),
        (["--suite", "woody"], "guests cannot be made of a suite 'woody'; there are trixie"),
        (["--tools", "vi"], "there is no tool vi; there are gdb, perf"),
    ],
)
def test_what_guests_cannot_be_made_of_is_told_by_the_command_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", *words, "--", "true"])
    assert why in capsys.readouterr().err
