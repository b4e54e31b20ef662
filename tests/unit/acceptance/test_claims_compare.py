"""Records of several kernels side by side: what differs is found, whatever the order of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.claims.compare import changed, load_all, page
from acceptance.claims.report import Outcome, Record, write
from acceptance.claims.verdict import Status, Verdict
from vhca.cli.main import main

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
    assert (stored / "kernels.md").read_text() == page(load_all(stored)), "run vhca validate --compare"
