"""What is declared of the museum, without a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.museum.exhibits import choose, load, whole
from acceptance.museum.page import page
from acceptance.places import museum
from vhca.chip.fault_rules import parse_rule
from vhca.cli.main import main
from vhca.lab import LabError

ROOT = Path(__file__).resolve().parents[3]
ONE = """
[M01]
name = "one"
title = "A title"
where = "a.c: b()"
wrong = "words"
seen = "words"
versions = "1"
references = ["somewhere"]
script = "optional_counter.sh"
kernel = "6.19"
signs = ["oops"]
"""
MENDED = '[M01.mended]\nhow = "otherwise"\nsigns = ["well"]\n'


def test_the_page_is_what_is_declared() -> None:
    assert (ROOT / "docs" / "museum.md").read_text("utf-8") == page(*whole())


def test_there_are_twelve_and_each_is_told_in_full() -> None:
    exhibits, absent = whole()
    assert len(exhibits) >= 12
    for exhibit in exhibits:
        for rule in (*exhibit.faults, *((exhibit.mended.faults or ()) if exhibit.mended else ())):
            parse_rule(rule)
    assert any(exhibit.quick for exhibit in exhibits)
    assert all(each.what and each.why for each in absent)


def test_every_script_belongs_to_an_exhibit() -> None:
    exhibits, _ = whole()
    used = {name for exhibit in exhibits for name in (exhibit.script, exhibit.peer)}
    helpers = {"common.sh", "pair.py", "raw.py"}
    there = {path.name for path in museum().iterdir() if path.suffix in (".sh", ".py")}
    assert there == (used | helpers) - {""}
    for name in there:
        assert name in helpers or name.endswith(".py") or (museum() / name).stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ONE, "give mended, or no_mended"),
        (ONE + MENDED + 'strange = "x"\n', "no such field"),
        (ONE.replace("optional_counter.sh", "none.sh") + MENDED, "there is no none.sh"),
        (ONE.replace('["oops"]', "[]") + MENDED, "may not be empty"),
        (ONE.replace('title = "A title"\n', "") + MENDED, "title is missing"),
        (ONE.replace("M01", "X1") + MENDED.replace("M01", "X1"), "exhibits are called"),
        (ONE.replace("kernel =", 'peer = "common.sh"\nkernel =') + MENDED, "two guests"),
    ],
)
def test_a_declaration_that_lacks_something_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(text, museum())


def test_exhibits_are_found_by_number_and_by_name() -> None:
    assert choose(["m02"]) == choose(["second-srq"])
    with pytest.raises(LabError, match="no exhibit M99"):
        choose(["M99"])


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["museum"]) == 0
    printed = capsys.readouterr().out
    assert all(exhibit.id in printed for exhibit in whole()[0])
