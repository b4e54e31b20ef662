"""What the numbers in a guest's log mean."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import pytest

from vhca.cli import status
from vhca.cli.main import main
from vhca.lab.explain import completion, firmware_explainer, in_text, syndrome

_TEXT = "mkc.access_mode: not supported"
_SYNDROME = zlib.crc32(_TEXT.encode())
_LINE = (
    "<4>[    3.2] mlx5_core 0000:00:04.0: mlx5_cmd_out_err:839:(pid 5): CREATE_MKEY(0x200) op_mod(0x0) failed,"
    f" status bad parameter(0x3), syndrome ({_SYNDROME:#x}), err(-22)"
)


@pytest.mark.parametrize(
    "text",
    [
        _TEXT,
        "mkey: no such object",
        "no qp is left",
        "RTR2RTS_QP: the queue pair is not in a state that this command starts from",
        "QP_2ERR: the queue pair is not in a state that this command starts from",
    ],
)
def test_a_syndrome_leads_to_its_text_and_to_the_line_that_refuses(text: str) -> None:
    words, where = syndrome(zlib.crc32(text.encode()), firmware_explainer())
    assert words == text
    file, line = where.removeprefix("refused by ").split(":")
    around = (Path(__file__).parents[3] / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert "refuse" in around or text in around


def test_a_line_of_the_kernel_s_log() -> None:
    (found,) = in_text(f"harmless\n{_LINE}\r\nmore", firmware_explainer())
    assert found.line == _LINE
    assert found.meanings[0].startswith("CREATE_MKEY: a field of the command")
    assert found.meanings[1] == _TEXT


def test_a_line_with_a_syndrome_of_somebody_else_s_firmware() -> None:
    line = "FOO(0x9) op_mod(0x0) failed, status odd(0xee), syndrome (0x1), err(-5)"
    (found,) = in_text(line, firmware_explainer())
    assert found.meanings == (
        "the command: status 0xee",
        "no command of this firmware is refused with that syndrome",
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("infiniband mlx5_0: mlx5_poll_one:529: WC error: 4, Message: local protection error", "LOC_PROT_ERR"),
        (" Failed status 12: wr_id 0", "RETRY_EXC_ERR"),
    ],
)
def test_completions(line: str, name: str) -> None:
    (found,) = in_text(line, firmware_explainer())
    assert found.meanings[0].startswith(f"IBV_WC_{name}: ")


def test_there_are_no_other_completions() -> None:
    assert completion(0) == () == completion(22)
    assert all(completion(number) for number in range(1, 22))


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert main(["explain", hex(_SYNDROME), "13"]) == status.OK
    said = capsys.readouterr().out
    assert _TEXT in said
    assert "IBV_WC_RNR_RETRY_EXC_ERR" in said
    monkeypatch.setattr("sys.stdin", io.StringIO(_LINE))
    assert main(["explain", "-"]) == status.OK
    assert _TEXT in capsys.readouterr().out
    (tmp_path / "log").write_text(_LINE)
    assert main(["explain", "--log", str(tmp_path / "log")]) == status.OK
    assert _TEXT in capsys.readouterr().out


@pytest.mark.parametrize("words", [["0x1"], ["99"], ["a line without numbers"]])
def test_the_command_says_what_it_does_not_know(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words]) == status.FAILED
    assert f"nothing is known of: {words[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--log", "/nowhere/at/all"]])
def test_the_command_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", *words])
    assert "vhca explain" in capsys.readouterr().err
