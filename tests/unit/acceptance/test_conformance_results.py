"""The record of a conformance run: lines from a guest, storage, comparison."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptance.conformance.results import (
    CRASHED,
    ERROR,
    FAILED,
    OUTCOMES,
    PASSED,
    SKIPPED,
    TIMEOUT,
    DeviceRun,
    EventLog,
    FileRun,
    Outcome,
    RecordError,
    from_json,
    regressions,
    to_json,
)


def feed(log: EventLog, *events: dict[str, Any]) -> None:
    for event in events:
        log.take(json.dumps(event))


def result(test_id: str, outcome: str = PASSED, reason: str = "") -> dict[str, Any]:
    return {"event": "result", "id": test_id, "outcome": outcome, "reason": reason, "seconds": 0.5}


def device(name: str = "hca", crash: str = "", **tests: Outcome) -> DeviceRun:
    run = FileRun("test_mr", {f"tests.test_mr.T.{test}": outcome for test, outcome in tests.items()}, crash)
    return DeviceRun(name, {"kernel": "6.19"}, {"test_mr": run})


def test_lines_become_outcomes() -> None:
    log = EventLog(FileRun("test_mr"))
    feed(log, {"event": "loaded", "ids": ["a", "b"]}, {"event": "start", "id": "a"}, result("a"))
    assert log.missing() == ["b"]
    assert not log.ended
    feed(log, {"event": "start", "id": "b"}, result("b", SKIPPED, "no such thing"), {"event": "end"})
    assert (log.ended, log.missing()) == (True, [])
    assert {name: test.outcome for name, test in log.run.tests.items()} == {"a": PASSED, "b": SKIPPED}
    assert log.run.tests["b"].reason == "no such thing"
    assert (log.run.count(PASSED), log.run.count(PASSED, SKIPPED)) == (1, 2)


def test_a_process_that_dies_in_a_test_leaves_the_rest_to_be_run() -> None:
    log = EventLog(FileRun("test_mr"))
    feed(log, {"event": "loaded", "ids": ["a", "b", "c"]}, {"event": "start", "id": "a"}, result("a"))
    feed(log, {"event": "start", "id": "b"})
    log.died("the interpreter died of signal 11", CRASHED, "Segmentation fault\n  in b")
    assert log.run.tests["b"].outcome == CRASHED
    assert "signal 11" in log.run.tests["b"].gist
    assert "in b" in log.run.tests["b"].reason
    assert log.missing() == ["c"]
    assert log.run.crash == ""


def test_a_process_that_dies_after_its_tests_is_a_crash_of_the_file() -> None:
    log = EventLog(FileRun("test_mr"))
    feed(log, {"event": "loaded", "ids": ["a"]}, {"event": "start", "id": "a"}, result("a"), {"event": "end"})
    log.died("the interpreter died of signal 11", CRASHED, "")
    assert log.run.crash == "the interpreter died of signal 11"
    assert log.run.tests["a"].outcome == PASSED


def test_a_file_that_cannot_be_loaded_is_an_error() -> None:
    log = EventLog(FileRun("test_mr"))
    log.died("the interpreter exited with 1", CRASHED, "ImportError: no pyverbs")
    [outcome] = log.run.tests.values()
    assert outcome.outcome == ERROR
    assert outcome.gist == "ImportError: no pyverbs"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "not JSON",
        "[]",
        "7",
        "null",
        '{"event": "surprise"}',
        '{"event": "result"}',
        '{"event": "loaded", "ids": 7}',
        '{"event": "result", "id": "a", "outcome": "splendid", "reason": "", "seconds": 1}',
        '{"event": "result", "id": "a", "outcome": "passed", "reason": "", "seconds": "long"}',
    ],
)
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(RecordError, match="guest sent"):
        EventLog(FileRun("test_mr")).take(line)


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_any_line_is_taken_or_refused(line: str) -> None:
    log = EventLog(FileRun("test_mr"))
    with pytest.raises(RecordError):
        log.take(line)


def test_the_gist_is_what_was_raised_or_why_it_was_skipped() -> None:
    trace = "Traceback (most recent call last):\n  File x\npyverbs.PyverbsRDMAError: Failed. Errno: 22\n\n"
    assert Outcome(ERROR, trace).gist == "pyverbs.PyverbsRDMAError: Failed. Errno: 22"
    assert Outcome(SKIPPED, "no card\nmore").gist == "no card"
    assert Outcome(TIMEOUT, "took longer than 60 s\nstack").gist == "took longer than 60 s"
    assert Outcome(PASSED).gist == ""


outcomes = st.builds(Outcome, st.sampled_from(OUTCOMES), st.text(max_size=30).map(str.strip))


@settings(max_examples=50)
@given(st.dictionaries(st.text(min_size=1, max_size=20), outcomes, max_size=6), st.text(max_size=10))
def test_what_is_stored_comes_back(tests: dict[str, Outcome], crash: str) -> None:
    run = DeviceRun("hca", {"kernel": "6.19"}, {"test_a": FileRun("test_a", tests, crash), "test_b": FileRun("test_b")})
    back = from_json(to_json([run, DeviceRun("soft-roce")]))
    assert list(back) == ["hca", "soft-roce"]
    assert back["hca"].about == run.about
    assert back["hca"].files["test_a"].crash == crash
    expected = {name: (test.outcome, test.gist) for name, test in tests.items()}
    assert {name: (test.outcome, test.reason) for name, test in back["hca"].tests().items()} == expected
    assert to_json(back.values()) == to_json([run, DeviceRun("soft-roce")])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99, "devices": {}}', '{"format": 1, "devices": 3}'])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(RecordError):
        from_json(text)


def test_times_and_order_do_not_show_in_the_document() -> None:
    slow = device(a=Outcome(PASSED, "", 9.0), b=Outcome(PASSED))
    quick = device(b=Outcome(PASSED), a=Outcome(PASSED, "", 1.0))
    assert to_json([slow]) == to_json([quick])


def test_the_same_again_is_no_regression() -> None:
    run = device(a=Outcome(PASSED), b=Outcome(SKIPPED, "x"), c=Outcome(FAILED, "y"))
    assert regressions(run, run) == []


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (Outcome(PASSED), Outcome(FAILED, "AssertionError: 3"), "was passed, is failed: AssertionError: 3"),
        (Outcome(PASSED), Outcome(SKIPPED, "no XRC"), "was passed, is skipped: no XRC"),
        (Outcome(SKIPPED), Outcome(ERROR, "boom"), "was skipped, is error: boom"),
        (Outcome(SKIPPED), Outcome(CRASHED, "signal 11"), "was skipped, is crashed"),
        (None, Outcome(TIMEOUT, "took long"), "is new and timeout"),
        (Outcome(SKIPPED), None, "is not there any more"),
    ],
)
def test_worse_is_a_regression(before: Outcome | None, now: Outcome | None, said: str) -> None:
    old = device(a=before) if before else device()
    new = device(a=now) if now else device()
    [line] = regressions(old, new)
    assert line.startswith("tests.test_mr.T.a: ")
    assert said in line


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Outcome(FAILED, "x"), Outcome(PASSED)),
        (Outcome(FAILED, "x"), Outcome(ERROR, "y")),
        (Outcome(SKIPPED), Outcome(PASSED)),
        (None, Outcome(PASSED)),
        (None, Outcome(SKIPPED, "x")),
    ],
)
def test_better_or_as_bad_is_none(before: Outcome | None, now: Outcome) -> None:
    assert regressions(device(a=before) if before else device(), device(a=now)) == []


def test_a_file_that_did_not_run_does_not_count_and_a_new_crash_does() -> None:
    stored = device(a=Outcome(PASSED))
    assert regressions(stored, DeviceRun("hca")) == []
    [line] = regressions(stored, device(a=Outcome(PASSED), crash="died of signal 11"))
    assert "died of signal 11" in line
    crashing = device(a=Outcome(PASSED), crash="died of signal 11")
    assert regressions(crashing, crashing) == []
