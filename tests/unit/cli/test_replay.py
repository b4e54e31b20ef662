"""`vhca replay`: what it prints, where it stops, how it ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from firmware import commands
from firmware.model.hca import Hca
from tests.unit.replay.recorded import played, recorded_session
from vhca.cli.commands import replay
from vhca.cli.main import main
from vhca.hw.events import CommandPosted
from vhca.replay.breaks import FIELDS
from vhca.replay.forms import Read
from vhca.wire.connectx.cmd import Op


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    recorded_session(folder / "h0.vhcarec")
    return folder


def test_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"card h0\n22 steps played, the same\n", out)


def test_a_list_of_all_steps(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run / "h0.vhcarec"), "--list"]) == 0
    out = capsys.readouterr().out
    for line in (
        " 1 .* power: the program boots",
        " .* link of port 1: up",
        " .* command CREATE_CQ in slot 0: 280 bytes, room for 16",
        " +<- read of 4 bytes at 0x",
        " +-> CQE of CQ 0x000010: RESIZE_CQ",
        " +-> command in slot 0 ends: BAD_RES, syndrome 0x",
        " +-> EQE of EQ 1: PORT_CHANGE, port_num 1",
    ):
        assert re.search(line, out), line
    assert [int(number) for number in re.findall(r"^ +(\d+) +\d+\.\d{6} ", out, re.M)] == list(range(1, 23))


@pytest.mark.parametrize(
    ("condition", "last"),
    [
        ("command.opcode=CREATE_CQ", "command CREATE_CQ"),
        ("command.opcode=0x800", "command ALLOC_PD"),
        ("command.status=BAD_RES", "command DEALLOC_PD"),
        ("event.type=PORT_CHANGE", "link of port 1: down"),
        ("cqe.opcode=RESIZE_CQ", "command MODIFY_CQ"),
        ("cqe.cqn=0x10", "command MODIFY_CQ"),
    ],
)
def test_it_stops_where_a_condition_holds(
    run: Path, capsys: pytest.CaptureFixture[str], condition: str, last: str
) -> None:
    assert main(["replay", str(run), "--break-on", "packet.psn=5", "--break-on", condition, "--last", "1"]) == 0
    out = capsys.readouterr().out
    assert last in out.splitlines()[1]
    assert "the same; stopped on what it was to break on" in out


def test_an_address_is_found_inside_a_write_or_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (given,) = (given for step in played(run / "h0.vhcarec") for given in step.step.inputs if isinstance(given, Read))
    assert main(["replay", str(run), "--break-on", f"read.address={given.addr + 1:#x}"]) == 0
    assert "to break on" in capsys.readouterr().out
    assert main(["replay", str(run), "--break-on", f"read.address={given.addr + given.size:#x}"]) == 0
    assert "to break on" not in capsys.readouterr().out


def test_until_a_step_and_dumps(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posted = [step for step in played(run / "h0.vhcarec") if isinstance(step.step.event, CommandPosted)]
    until = str(posted[-1].number)
    dumps = ["cq", "cq 0x10", "pd", "objects", "counters", "trace"]
    assert main(["replay", str(run), "--until", until, *(word for dump in dumps for word in ("--dump", dump))]) == 0
    out = capsys.readouterr().out
    assert f"{until} steps played, the same; stopped where it was to stop" in out
    assert out.count("cq 0x10\n") == 2
    assert "cqe_bytes = 64 (0x40)" in out
    assert re.search(r"^pd = 1$", out, re.M)
    assert re.search(r"^memory_used_bytes = \d+$", out, re.M)
    assert main(["replay", str(run), "--until", "0ns", "--dump", "qp"]) == 0


def test_objects_that_are_not_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run), "--dump", "qp 0x47", "--dump", "spoon"]) == 0
    err = capsys.readouterr().err
    assert "there is no qp 0x47" in err
    assert "there is no kind spoon; there are pd, uar" in err


def test_a_difference_ends_with_1(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = commands.execute

    def other(hca: Hca, data: bytes, out_size: int) -> bytes:
        output = bytearray(execute(hca, data, out_size))
        if data[:2] == Op.CREATE_CQ.to_bytes(2, "big"):
            output[11] ^= 0x40
        return bytes(output)

    monkeypatch.setattr(commands, "execute", other)
    monkeypatch.setattr("vhca.replay.identity.firmware_hash", lambda _: "another")
    assert main(["replay", str(run)]) == 1
    out = capsys.readouterr().out
    assert "the firmware has changed since" in out
    assert re.search(r"step \d+ at \d\.\d{6} s \(handle\) differs: effect 1\n", out)
    assert "  expected: command in slot 0 ends: OK; output from byte 0xb on (cqn) 10 " in out
    assert "  got:      command in slot 0 ends: OK; output from byte 0xb on (cqn) 50 " in out


@pytest.mark.parametrize(
    "words",
    [
        ["--break-on", "cqe.spoon=1"],
        ["--break-on", "cqe.opcode=SPOON"],
        ["--break-on", "cqe.opcode"],
        ["--until", "5 o'clock"],
        ["--until", "1.5"],
        ["--dump", "qp spoon"],
    ],
)
def test_options_that_are_wrong(run: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(run), *words])
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_files_that_are_none(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path)]) == 125
    assert main(["replay", str(tmp_path / "none.vhcarec")]) == 125
    broken = tmp_path / "h0.vhcarec"
    data = bytearray((run / "h0.vhcarec").read_bytes())
    data[-200] ^= 1
    broken.write_bytes(data)
    assert main(["replay", str(broken)]) == 1
    broken.write_bytes(data[:-400])
    assert main(["replay", str(broken)]) == 0
    said = capsys.readouterr()
    assert "there are no recordings" in said.err
    assert "No such file" in said.err
    assert "damaged at byte" in said.out
    assert "nothing was played: the recording is cut off" in said.out
    assert "Traceback" not in said.err


def test_another_program_is_never_loaded_by_a_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run), "--firmware", "vhca.chip"]) == 125
    assert "another program than vhca.chip was recorded" in capsys.readouterr().err


def test_the_help_names_all_fields() -> None:
    for name, field in FIELDS.items():
        assert f"  {name:<18} {field.help}\n" in replay.EPILOG
