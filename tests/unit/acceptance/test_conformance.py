"""The conformance command without a guest: choices, verdicts, explanations, the page, and the machine's inside half."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from acceptance.conformance import agent
from acceptance.conformance.report import markdown, skip_groups, unexplained
from acceptance.conformance.results import FAILED, PASSED, SKIPPED, DeviceRun, FileRun, Outcome, load
from acceptance.conformance.run import FAST, PAGE, RECORD, Settings, Verdict, choose_files, judge, parse, write
from acceptance.conformance.skips import EXPLANATIONS, GAP, NOT_IN_SOFT_ROCE, NOT_ON_IB, Explanation, explain
from vhca.lab import LabError

DOCS = Path(__file__).resolve().parents[3] / "docs"


def device(name: str = "hca", crash: str = "", **tests: Outcome) -> DeviceRun:
    run = FileRun("test_efadv", {f"tests.test_efadv.T.{test}": outcome for test, outcome in tests.items()}, crash)
    return DeviceRun(name, {"kernel": "6.19", "firmware": ""}, {"test_efadv": run})


EFA = Outcome(SKIPPED, "Can not run the test over non EFA device")
STRANGE = Outcome(SKIPPED, "The moon | is full")


# ---- choices ----


def test_a_plain_run_covers_both_devices_and_writes() -> None:
    settings = parse([])
    assert settings.devices == ("hca", "soft-roce")
    assert not settings.partial


@pytest.mark.parametrize("extra", [["--fast"], ["--only", "test_mr"], ["--compare"], ["--matching", "xrc"]])
def test_less_than_everything_writes_nothing(extra: list[str]) -> None:
    assert parse(extra).partial


def test_fast_is_for_the_card_and_a_chosen_device_is_obeyed() -> None:
    assert parse(["--fast"]).devices == ("hca",)
    assert parse(["--fast", "--device", "soft-roce"]).devices == ("soft-roce",)
    assert parse(["--only", "test_mr.py"]).only == ["test_mr"]


def test_files_are_those_asked_for() -> None:
    present = [*FAST, "test_zebra"]
    assert choose_files(Settings(), present) == present
    assert choose_files(Settings(fast=True), present) == list(FAST)
    assert choose_files(Settings(only=["test_zebra"]), present) == ["test_zebra"]
    with pytest.raises(LabError, match="test_lion"):
        choose_files(Settings(only=["test_lion"]), present)


def test_every_fast_file_has_a_reason() -> None:
    assert all(len(why) > 10 for why in FAST.values())


# ---- verdicts ----


def test_a_clean_run_is_good() -> None:
    assert judge(device(a=Outcome(PASSED), b=EFA), None, compare=False).good


def test_an_unexplained_skip_is_not() -> None:
    verdict = judge(device(a=STRANGE), None, compare=False)
    assert verdict.unexplained == ["tests.test_efadv.T.a: The moon | is full"]
    assert not verdict.good


def test_failures_and_crashes_of_the_card_count_and_those_of_the_baseline_do_not() -> None:
    bad = Outcome(FAILED, "AssertionError: 1 != 2")
    verdict = judge(device(crash="died of signal 11", a=bad), None, compare=False)
    assert verdict.failures == [
        "tests.test_efadv.T.a: failed: AssertionError: 1 != 2",
        "test_efadv: died of signal 11",
    ]
    assert judge(device("soft-roce", crash="died of signal 11", a=bad), None, compare=False).good


def test_a_comparison_counts_only_what_became_worse() -> None:
    failing = device(a=Outcome(FAILED, "x"))
    assert judge(failing, failing, compare=True).good
    assert judge(failing, device(a=Outcome(PASSED)), compare=True).regressions
    assert "without --compare" in judge(failing, None, compare=True).regressions[0]
    assert not Verdict(regressions=["x"]).good


# ---- explanations ----


def test_an_explanation_fits_by_device_reason_and_test() -> None:
    entry = Explanation("hca", r"No \w+ here", NOT_ON_IB, "it is Ethernet", tests=r"\.FlowTest\.")
    assert entry.fits("hca", "tests.test_flow.FlowTest.a", "No frames here, none")
    assert not entry.fits("soft-roce", "tests.test_flow.FlowTest.a", "No frames here")
    assert not entry.fits("hca", "tests.test_mr.MRTest.a", "No frames here")
    assert not entry.fits("hca", "tests.test_flow.FlowTest.a", "There are No frames here")
    assert entry.line == "no real ConnectX on IB does this: it is Ethernet"


def test_the_table_is_in_order() -> None:
    for entry in EXPLANATIONS:
        assert entry.device in ("", "hca", "soft-roce")
        assert entry.kind in ((NOT_ON_IB, GAP) if entry.device == "hca" else (NOT_ON_IB, NOT_IN_SOFT_ROCE))
        assert bool(entry.gap) == (entry.kind == GAP)
        assert entry.text
        assert "\n" not in entry.line
        re.compile(entry.reason)
        re.compile(entry.tests)


def test_every_gap_is_a_heading_in_the_limits() -> None:
    gaps = {entry.gap for entry in EXPLANATIONS if entry.kind == GAP}
    headings = re.findall(r"^#+ (.+)$", (DOCS / "limits.md").read_text(encoding="utf-8"), re.MULTILINE) if gaps else []
    assert gaps <= set(headings)


def test_what_is_stored_has_no_unexplained_skip() -> None:
    stored = load(DOCS / "conformance" / RECORD)
    assert "soft-roce" in stored
    for run in stored.values():
        assert unexplained(run) == []


def test_an_unknown_skip_has_no_explanation() -> None:
    assert explain("hca", "tests.test_mr.MRTest.a", "The moon is full") is None


# ---- the page ----


def test_skips_are_grouped_and_the_unexplained_come_first() -> None:
    groups = skip_groups(device(a=EFA, b=EFA, c=STRANGE, d=Outcome(PASSED)))
    assert [(group.reason, len(group.tests)) for group in groups] == [(STRANGE.reason, 1), (EFA.reason, 2)]


def test_the_page_shows_both_devices_side_by_side() -> None:
    hca = device(a=Outcome(PASSED), b=EFA, c=STRANGE, d=Outcome(FAILED, "Traceback\nE: 1"), crash="died of signal 6")
    page = markdown({"soft-roce": device("soft-roce", a=EFA), "hca": hca})
    assert "| test_efadv | 1 | 1 | (died at its end) | 2 |  |  |  | 1 |" in page
    assert "| **all** | **1** | **1** | **0** | **2** | **0** | **0** | **0** | **1** |" in page
    assert "- `test_efadv.T.d` failed: `E: 1`" in page
    assert "- test_efadv: died of signal 6" in page
    assert "**The HCA** (kernel 6.19): 4 tests, **1 passed**, 1 failed, 2 skipped." in page
    assert "| 1 | `The moon \\| is full` | **unexplained** | c |" in page
    assert page.index("The HCA: what was skipped") < page.index("Soft-RoCE: what was skipped")


def test_writing_keeps_the_device_that_was_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    write(Settings(), {"hca": device(a=Outcome(PASSED))}, folder)
    write(Settings(), {"soft-roce": device("soft-roce", a=EFA)}, folder)
    stored = load(folder / RECORD)
    assert stored["hca"].totals()[PASSED] == 1
    assert stored["soft-roce"].totals()[SKIPPED] == 1
    assert "Soft-RoCE" in (folder / PAGE).read_text()


def test_an_update_keeps_the_files_that_were_not_run(tmp_path: Path) -> None:
    write(Settings(), {"hca": device(a=Outcome(PASSED))}, tmp_path)
    other = DeviceRun("hca", {"kernel": "6.20"}, {"test_pd": FileRun("test_pd", {"tests.test_pd.T.b": EFA})})
    write(Settings(only=["test_pd"], update=True), {"hca": other}, tmp_path)
    stored = load(tmp_path / RECORD)["hca"]
    assert list(stored.files) == ["test_efadv", "test_pd"]
    assert stored.about == {"kernel": "6.20"}


@pytest.mark.parametrize("other", [["--compare"], ["--matching", "xrc"]])
def test_an_update_stores_whole_files_only(other: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--only", "test_pd", "--update", *other])


# ---- inside the guest ----

PARSER = """
    class Parser:
        args = None
        def parse_args(self):
            import sys
            self.args = sys.argv[1:]
            del sys.argv[1:]
    parser = Parser()
"""


def run_inside(folder: Path, body: str, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run the inside half on a suite of one file; returns status, events, standard error."""
    (folder / "args_parser.py").write_text(textwrap.dedent(PARSER))
    (folder / "utils.py").write_text("")
    (folder / "test_it.py").write_text("import os, random, sys, time, unittest\n" + textwrap.dedent(body))
    command = [sys.executable, agent.__file__, *options, str(folder), "test_it", "--dev", "mlx5_0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def outcomes(events: list[dict[str, Any]]) -> dict[str, str]:
    return {e["id"].rpartition(".")[2]: e["outcome"] for e in events if e["event"] == "result"}


def test_each_outcome_is_told_as_it_happens(tmp_path: Path) -> None:
    body = """
        class T(unittest.TestCase):
            def test_passes(self): print("noise")
            def test_fails(self): self.assertEqual(1, 2)
            def test_breaks(self): raise ValueError("boom")
            def test_skips(self): self.skipTest("no such thing")
            def test_subs(self):
                for number in range(3):
                    with self.subTest(number=number): self.assertNotEqual(number, 1)
            @unittest.expectedFailure
            def test_wonder(self): pass
            def test_sees_the_arguments(self):
                from args_parser import parser
                self.assertEqual(parser.args, ["--dev", "mlx5_0"])
        class TearDown(unittest.TestCase):
            def tearDown(self): raise ValueError("late")
            def test_late(self): pass
        class SetUpClass(unittest.TestCase):
            @classmethod
            def setUpClass(cls): raise ValueError("early")
            def test_never(self): pass
    """
    status, events, errors = run_inside(tmp_path, body)
    assert status == 0
    assert "noise" in errors
    told = outcomes(events)
    assert told.pop("SetUpClass)") == "error"
    assert told == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_breaks": "error",
        "test_skips": "skipped",
        "test_subs": "failed",
        "test_wonder": "failed",
        "test_sees_the_arguments": "passed",
        "test_late": "error",
    }
    assert len(events[0]["ids"]) == 9
    assert events[-1] == {"event": "end"}
    reasons = {e["id"].rpartition(".")[2]: e["reason"] for e in events if e["event"] == "result"}
    assert reasons["test_skips"] == "no such thing"
    assert "ValueError: boom" in reasons["test_breaks"]


def test_a_file_that_skips_itself_at_import_is_one_skipped_test(tmp_path: Path) -> None:
    status, events, _ = run_inside(tmp_path, "raise unittest.SkipTest('scapy package is needed')")
    assert status == 0
    [result] = [e for e in events if e["event"] == "result"]
    assert (result["outcome"], result["reason"]) == ("skipped", "scapy package is needed")


def test_tests_already_done_and_tests_not_asked_for_stay_out(tmp_path: Path) -> None:
    body = """
        class T(unittest.TestCase):
            def test_one(self): pass
            def test_two(self): pass
            def test_three(self): pass
    """
    (tmp_path / "done").write_text("tests.test_it.T.test_one\n")
    _, events, _ = run_inside(tmp_path, body, "--without", str(tmp_path / "done"))
    assert outcomes(events) == {"test_two": "passed", "test_three": "passed"}
    _, events, _ = run_inside(tmp_path, body, "--matching", "two")
    assert outcomes(events) == {"test_two": "passed"}


def test_a_test_that_hangs_is_ended_with_its_stack(tmp_path: Path) -> None:
    body = """
        class T(unittest.TestCase):
            def test_hangs(self):
                while True: pass
    """
    status, events, errors = run_inside(tmp_path, body, "--test-timeout", "0.2")
    assert status == 1
    assert [e["event"] for e in events] == ["loaded", "start"]
    assert "Timeout (" in errors
    assert "test_hangs" in errors


def test_chance_depends_on_test_and_seed_alone(tmp_path: Path) -> None:
    body = """
        class T(unittest.TestCase):
            def test_a(self): self.skipTest(str(random.random()))
            def test_b(self): self.skipTest(str(random.random()))
    """

    def reasons(*options: str) -> list[str]:
        return [e["reason"] for e in run_inside(tmp_path, body, *options)[1] if e["event"] == "result"]

    first = reasons()
    assert first == reasons()
    assert first[0] != first[1]
    assert reasons("--matching", "test_b") == first[1:]
    assert reasons("--seed", "1") != first
