"""Records of several kernels side by side: what differs is found, whatever the order of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.claims.compare import changed, load_all, page, parts_that_changed, reasons
from acceptance.claims.report import Outcome, Record, write
from acceptance.claims.verdict import Statement, Status, Verdict
from vhca.cli.main import main
from vhca.lab import LabError

YES, NO, UNSEEN = Status.CONFIRMED, Status.CONTRADICTED, Status.NOT_OBSERVABLE
RECORDS = {
    "6.19.14+deb13-amd64": {"A01": YES, "B13": NO, "C04": YES},
    "6.1.0-50-amd64": {"A01": YES, "B13": NO, "C04": UNSEEN},
    "6.12.7+deb13-amd64": {"A01": YES, "B13": YES},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for kernel, outcomes in RECORDS.items():
        record = Record(kernel, {"date": "2026-01-02"})
        for name, status in outcomes.items():
            record.outcomes[name] = Outcome(f"says {name}", Verdict(status, f"{name} on {kernel} | <so>"))
        write(record, tmp_path)
    return tmp_path


def test_records_are_in_the_order_of_their_kernels(folder: Path) -> None:
    assert [record.name for record in load_all(folder)] == ["6.1", "6.12", "6.19"]


def test_claims_that_come_out_differently_are_named(folder: Path) -> None:
    records = load_all(folder)
    assert changed(records) == ["B13", "C04"]
    assert changed(records[:1]) == []


def test_the_page_has_every_claim_and_what_was_seen_of_those_that_differ(folder: Path) -> None:
    lines = page(load_all(folder)).splitlines()
    assert "3 claims; 2 of them not the same on all kernels." in lines
    assert "| A01 | says A01 | yes | yes | yes |" in lines
    assert "| [B13](#b13) | says B13 | **no** | yes | **no** |" in lines
    assert "| [C04](#c04) | says C04 | not seen | - | yes |" in lines
    assert "| 6.1.0-50-amd64 | 2026-01-02 | ? | 1 | 1 | 1 | 0 |" in lines
    assert "- 6.12: yes. B13 on 6.12.7+deb13-amd64 | &lt;so>" in lines
    assert not [line for line in lines if line.startswith("### A01")]


def test_the_page_is_written_of_the_records_that_are_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--compare", "--output", str(folder)]) == 0
    assert capsys.readouterr().out == f"written: {folder / 'kernels.md'}\n"
    assert (folder / "kernels.md").read_text() == page(load_all(folder))


def test_the_stored_page_is_that_of_the_stored_records() -> None:
    stored = Path(__file__).parents[3] / "docs/validation"
    records, why = load_all(stored), reasons(stored)
    assert (stored / "kernels.md").read_text() == page(records, why), "run vhca validate --compare"
    needed = set(changed(records)) | {name for name, _ in parts_that_changed(records)}
    assert set(why) == needed, "each difference has its reason in why.toml, and nothing else has"


def test_a_difference_has_its_reason(folder: Path) -> None:
    (folder / "why.toml").write_text('[B13]\nwhy = """drained\nsince 6.12 <x>"""\n')
    text = page(load_all(folder), reasons(folder))
    assert "says B13.\n\n**Why**: drained since 6.12 &lt;x>\n\n- 6.1:" in text
    (folder / "why.toml").write_text("[B13]\n")
    with pytest.raises(LabError, match=r"why.toml"):
        reasons(folder)


def test_a_part_that_differs_in_a_claim_that_does_not_is_named(folder: Path) -> None:
    for kernel, holds in (("6.1.0-a", True), ("6.12.7-b", None)):
        record = Record(kernel)
        verdict = Verdict(YES, "so", [Statement("it sleeps", holds), Statement("it wakes", True)])
        record.outcomes["A01"] = Outcome("says A01", verdict)
        write(record, folder)
    records = load_all(folder)
    assert parts_that_changed(records) == [("A01", "it sleeps")]
    assert "- A01, it sleeps: 6.1: holds, 6.12: not seen.  by chance" in page(records, {"A01": "by chance"})
