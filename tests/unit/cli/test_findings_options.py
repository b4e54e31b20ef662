"""Findings on the command line: a table at the end of a run, its exit status, and orders to a running rack."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.unit.cli.fakes import FakeLab
from vhca.chip.rack import Rack
from vhca.chip.rack_config import CardConfig, RackConfig
from vhca.cli import status
from vhca.cli.findings_options import add_findings_option, with_findings
from vhca.cli.main import main
from vhca.hw.findings import FINDING_RULES, Finding, FindingKind, ObjectEvent, ObjectLife

ROOT = Path(__file__).resolve().parents[3]
LIFE = ObjectLife("mkey", 0x12, 0, False, (ObjectEvent(5_000, "created", "CREATE_MKEY"),))
FOUND = Finding("h0", FindingKind.DOUBLE_DESTROY, 7_000_000, "mkey", 0x12, "DESTROY_MKEY names \x1b[2Jmkey 0x12", LIFE)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_findings_option(parser)
    return parser.parse_args(words)


@pytest.fixture
def lab(tmp_path: Path) -> FakeLab:
    return FakeLab(lambda guest, argv: (0, ""), tmp_path)


@pytest.mark.parametrize(
    ("words", "found", "code", "expected"),
    [
        ([], (FOUND,), 0, 0),
        (["--findings"], (), 0, 0),
        (["--findings"], (FOUND,), 0, status.FINDINGS),
        (["--findings=pedantic"], (FOUND,), 3, 3),
    ],
)
def test_findings_make_the_exit_status_of_what_went_well(
    lab: FakeLab, words: list[str], found: tuple[Finding, ...], code: int, expected: int
) -> None:
    lab.found = found
    assert with_findings(lab, options(*words), code) == expected  # type: ignore[arg-type]
    assert lab.failed == bool(words and found)


def test_what_is_printed(lab: FakeLab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.found = (FOUND,)
    with_findings(lab, options("--findings"), 0)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "double-destroy" in said
    assert "created by CREATE_MKEY" in said
    assert "which means: a command destroys what was destroyed before" in said
    assert "\x1b" not in said
    lab.found = ()
    with_findings(lab, options("--findings"), 0)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "no findings\n"


def test_a_rack_is_told_to_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Rack([CardConfig(), CardConfig(findings="pedantic")], tmp_path, RackConfig(logs=False)) as rack:
        where = ["--rack", str(tmp_path)]
        assert main(["findings", *where]) == status.OK
        assert capsys.readouterr().out == "no findings\n"
        assert main(["findings", "keep", "normal", "--card", "h0", *where]) == status.OK
        assert capsys.readouterr().out == "1 card: normal\n"
        assert [card.findings() for card in rack.hcas] == [(), ()]
        assert main(["findings", "lives", "--kind", "qp", *where]) == status.OK
        assert capsys.readouterr().out == "nothing is known\n"
        assert main(["findings", "list", "--card", "h7", *where]) == status.TROUBLE
        assert "there is no card 'h7'; there are h0, h1" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["findings", "keep", *where])


def test_the_page_has_every_kind_as_it_is() -> None:
    text = (ROOT / "docs/findings.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{kind}` | {rule.level.name.lower()} | {rule.meaning} |" for kind, rule in FINDING_RULES.items()
    ]


def test_there_is_no_other_strictness() -> None:
    with pytest.raises(ValueError, match="'strict' is no strictness: there are off, normal, pedantic"):
        CardConfig(findings="strict")
