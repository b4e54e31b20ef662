"""The record of a conformance run: what became of each test, on disk and in comparison.

No guest, clock or socket here: lines that the half of the run in the guest wrote go in, outcomes, a JSON document
and a list of regressions come out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PASSED: Final = "passed"
FAILED: Final = "failed"
ERROR: Final = "error"
CRASHED: Final = "crashed"  # the interpreter died in the test
TIMEOUT: Final = "timeout"
SKIPPED: Final = "skipped"
OUTCOMES: Final = (PASSED, FAILED, ERROR, CRASHED, TIMEOUT, SKIPPED)
BAD: Final = frozenset((FAILED, ERROR, CRASHED, TIMEOUT))
FORMAT: Final = 1


class RecordError(ValueError):
    """A stored record, or a line from the guest, is not what it should be."""


@dataclass(slots=True)
class Outcome:
    """What became of one test. `reason`: why it was skipped, or the traceback."""

    outcome: str
    reason: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """Is it a failure of any kind?"""
        return self.outcome in BAD

    @property
    def gist(self) -> str:
        """The reason in one line: for a traceback, what was raised."""
        lines = [line.strip() for line in self.reason.strip().splitlines() if line.strip()]
        if not lines:
            return ""
        return lines[-1] if self.outcome in (FAILED, ERROR) else lines[0]


@dataclass(slots=True)
class FileRun:
    """What became of one file of the suite. `crash`: how its process died with all tests done, if it did."""

    name: str
    tests: dict[str, Outcome] = field(default_factory=dict)
    crash: str = ""
    seconds: float = 0.0

    def count(self, *outcomes: str) -> int:
        """How many tests had one of these outcomes."""
        return sum(1 for test in self.tests.values() if test.outcome in outcomes)


@dataclass(slots=True)
class DeviceRun:
    """What became of the suite on one device. `about`: kernel, suite and device versions."""

    device: str
    about: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileRun] = field(default_factory=dict)

    def totals(self) -> Counter[str]:
        """Tests by outcome."""
        return Counter(test.outcome for run in self.files.values() for test in run.tests.values())

    def tests(self) -> dict[str, Outcome]:
        """All tests by id."""
        return {name: test for run in self.files.values() for name, test in run.tests.items()}


class EventLog:
    """Collects the lines of one process of the half in the guest into a :class:`FileRun`.

    The lines come from a guest: anything that is not an event of ours is a :class:`RecordError`.
    """

    def __init__(self, run: FileRun) -> None:
        self.run = run
        self.current = ""
        self.planned: list[str] = []
        self.loaded = False
        self.ended = False

    def take(self, line: str) -> None:
        """Take one line."""
        try:
            event: dict[str, Any] = json.loads(line)
            kind = event["event"]
            if kind == "loaded":
                self.planned, self.loaded = [str(name) for name in event["ids"]], True
            elif kind == "start":
                self.current = str(event["id"])
            elif kind == "result":
                outcome = Outcome(str(event["outcome"]), str(event["reason"]), float(event["seconds"]))
                if outcome.outcome not in OUTCOMES:
                    raise RecordError(f"unknown outcome {outcome.outcome!r}")
                self.run.tests[str(event["id"])] = outcome
                self.current = ""
            elif kind == "end":
                self.ended = True
            else:
                raise RecordError(f"unknown event {kind!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"the guest sent {line[:200]!r}: {error}") from error

    def died(self, how: str, outcome: str, noise: str) -> None:
        """The process is gone before its `end`, or badly after it: put it where it belongs."""
        last_words = "\n".join(noise.rstrip().splitlines()[-25:])
        if self.ended:
            self.run.crash = how
        elif self.current:
            self.run.tests[self.current] = Outcome(outcome, f"{how}\n{last_words}")
            self.current = ""
        elif not self.loaded:
            self.run.tests[f"tests.{self.run.name}"] = Outcome(
                ERROR, f"the file could not be loaded: {how}\n{last_words}"
            )
            self.ended = True
        else:
            self.run.crash = f"{how}, between tests"

    def missing(self) -> list[str]:
        """Planned tests that have no outcome yet."""
        return [name for name in self.planned if name not in self.run.tests]


# ---- on disk ----


def to_json(runs: Iterable[DeviceRun]) -> str:
    """The document: one line a test, sorted, without times, so that two runs of the same differ in nothing."""
    devices = []
    for run in runs:
        files = []
        for name, file in sorted(run.files.items()):
            tests = [
                f"    {json.dumps(test_id)}: {json.dumps([test.outcome, test.gist])}"
                for test_id, test in sorted(file.tests.items())
            ]
            crash = json.dumps(file.crash)
            files.append(f'   {json.dumps(name)}: {{"crash": {crash}, "tests": {{\n' + ",\n".join(tests) + "\n   }}")
        about = json.dumps(run.about, sort_keys=True)
        devices.append(f'  {json.dumps(run.device)}: {{"about": {about}, "files": {{\n' + ",\n".join(files) + "\n  }}")
    return f'{{"format": {FORMAT},\n "devices": {{\n' + ",\n".join(devices) + "\n }}\n"


def from_json(text: str) -> dict[str, DeviceRun]:
    """Read a document back: device name -> run."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise RecordError(f"format {document['format']}, not {FORMAT}")
        runs = {}
        for device, body in document["devices"].items():
            run = runs[device] = DeviceRun(device, dict(body["about"]))
            for name, file in body["files"].items():
                tests = {test_id: Outcome(outcome, reason) for test_id, (outcome, reason) in file["tests"].items()}
                run.files[name] = FileRun(name, tests, file["crash"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"not a conformance record: {error}") from error
    return runs


def load(path: Path) -> dict[str, DeviceRun]:
    """Read a stored document; none there is an empty record."""
    return from_json(path.read_text(encoding="utf-8")) if path.exists() else {}


# ---- comparison ----


def regressions(stored: DeviceRun, now: DeviceRun) -> list[str]:
    """Say, one line each, where `now` is worse than `stored`. Files that `now` did not run do not count."""
    found = []
    for name, run in sorted(now.files.items()):
        before = stored.files.get(name, FileRun(name))
        found += _file_regressions(before.tests, run.tests)
        if run.crash and not before.crash:
            found.append(f"{name}: {run.crash} after its tests; it did not before")
    return found


def _file_regressions(before: Mapping[str, Outcome], now: Mapping[str, Outcome]) -> list[str]:
    found = []
    for test_id in sorted(before.keys() | now.keys()):
        was, is_now = before.get(test_id), now.get(test_id)
        if is_now is None:
            found.append(f"{test_id}: was {was.outcome if was else '?'}, is not there any more")
        elif was is None:
            if is_now.bad:
                found.append(f"{test_id}: is new and {is_now.outcome}: {is_now.gist}")
        elif (is_now.bad and not was.bad) or (was.outcome == PASSED and is_now.outcome != PASSED):
            found.append(f"{test_id}: was {was.outcome}, is {is_now.outcome}: {is_now.gist}")
    return found
