"""The validation report: nothing is lost in the record, and page and XML say the same."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from acceptance.claims.framework import Claim, all_claims
from acceptance.claims.report import Record, from_json, junit, load, markdown, to_json, write
from acceptance.claims.source import line_of
from acceptance.claims.verdict import Evidence, Statement, Status, Verdict
from vhca.cli.main import main
from vhca.lab.errors import LabError

CHECKOUT = Path(__file__).parents[3]
CASES = {
    "A01": (Status.CONFIRMED, "it is so"),
    "B02": (Status.CONTRADICTED, "it is <otherwise> | indeed"),
    "B03": (Status.NOT_OBSERVABLE, "too dark"),
    "C04": (Status.FAILED, "GuestError: gone"),
}


def record() -> Record:
    made = Record("6.19.14+deb13-amd64", {"kernel": "6.19.14+deb13-amd64", "date": "2026-01-02"})
    for name, (status, summary) in CASES.items():
        statements = [Statement("one", True), Statement("two", False, "three"), Statement("four", None, "why")]
        evidence = [Evidence("g0", "ls\x1b", "```\nfile & \x00 <tag>\n")]
        verdict = Verdict(status, summary, statements, evidence, 1.25)
        made.add(Claim(name, f"claim {name}", frozenset(), lambda bench: Verdict(Status.FAILED, "not run")), verdict)
    return made


def test_the_record_comes_back_as_it_was() -> None:
    assert to_json(from_json(to_json(record()))) == to_json(record())
    assert from_json(to_json(record())).outcomes["B02"].verdict.statements[1].instead == "three"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kernel": "6", "about": {}, "claims": {"A01": {}}}'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(LabError, match="no record"):
        from_json(text)


def test_the_page_has_a_row_and_a_section_for_each_claim() -> None:
    page = markdown(record())
    assert page.startswith("# The claims on Linux 6.19\n")
    assert "4 claims: 1 confirmed, 1 contradicted, 1 not observable, 1 failed." in page
    for name in CASES:
        assert page.count(f"\n| [{name}](#{name.lower()}) | claim {name} |") == 1
        assert page.count(f"\n### {name}\n") == 1
    assert "it is &lt;otherwise> \\| indeed" in page
    assert page.count("```") == 2 * len(CASES)  # evidence cannot close its own block
    assert "\n## B. Queue pairs\n" in page


def test_junit_counts_and_kinds() -> None:
    suite = ElementTree.fromstring(junit(record()))
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]
    kinds = {case.get("name", "")[:3]: next(child.tag for child in case) for case in suite}
    assert kinds == {"A01": "system-out", "B02": "failure", "B03": "skipped", "C04": "error"}


def test_files_are_named_after_the_kernel(tmp_path: Path) -> None:
    assert load(tmp_path, "6.19") is None
    assert [path.name for path in write(record(), tmp_path)] == ["6.19.md", "6.19.json", "6.19.xml"]
    stored = load(tmp_path, "6.19")
    assert stored is not None
    assert to_json(stored) == to_json(record())


def test_lines_are_found_by_number() -> None:
    text = "struct a {\n\tint b;\n};\nstruct ab {\n"
    assert line_of(text, r"struct a \{") == [1]
    assert line_of(text, r"\s*int\s+b;") == [2]
    assert line_of(text, r"struct c") == []


def test_the_command_lists_claims_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--list", "--only", "A02"]) == 0
    assert capsys.readouterr().out.startswith("A02  the driver's probe")
    assert main(["validate", "--only", "Z99"]) == 2
    assert "no claim Z99" in capsys.readouterr().err


def test_the_stored_record_has_every_claim_and_the_readme_counts_it() -> None:
    stored = load(CHECKOUT / "docs/validation", "6.19")
    assert stored is not None
    assert sorted(stored.outcomes) == [claim.id for claim in all_claims()]
    counts = stored.counts()
    row = f"| {len(stored.outcomes)} claims of an article on RDMA | {counts[Status.CONFIRMED]} confirmed,"
    row += f" {counts[Status.CONTRADICTED]} contradicted on Linux 6.19,"
    assert row in (CHECKOUT / "README.md").read_text()


def test_a_failure_is_told_without_the_folders_of_this_machine() -> None:
    try:
        json.loads("no")
    except ValueError as error:
        (evidence,) = Verdict.failed(error).evidence
    assert 'File "tests/unit/acceptance/test_claims_report.py", line' in evidence.output
    assert 'json.loads("no")' in evidence.output
    assert 'File "decoder.py", line' in evidence.output
    assert str(CHECKOUT) not in evidence.output


@pytest.mark.parametrize("path", sorted((CHECKOUT / "docs/validation").glob("*.json")), ids=lambda path: path.stem)
def test_no_stored_failure_has_a_folder_of_a_machine(path: Path) -> None:
    stored = load(path.parent, path.stem)
    assert stored is not None
    told = [seen.output for one in stored.outcomes.values() for seen in one.verdict.evidence if seen.where == "host"]
    assert not [text for text in told if 'File "/' in text]
