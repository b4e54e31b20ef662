"""The conformance run inside a guest: runs one file of rdma-core's suite and says what became of each test.

Runs in the guest, under the guest's Python, with nothing but the standard library and what the suite itself
imports. Assumes the suite's folder holds `args_parser.py` and the test files. Guarantees: standard output
carries one JSON object a line and nothing else (what tests print goes to standard error), a line is out before
the next test starts, and a test that hangs ends this process with a stack trace on standard error.

The garbage collector is off and the process ends without the interpreter's own tear-down: pyverbs objects that
an exception left in a reference cycle are finalized in no particular order, and destroying a queue after its
context is closed takes the interpreter down, whatever the device. The kernel cleans up instead.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import os
import random
import sys
import time
import types
import unittest
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

#: Worst first: what a test with several outcomes (sub-tests, tear-down) counts as.
SEVERITY = ("error", "failed", "passed", "skipped")
_TAIL_CHARACTERS = 6000
_READS_EVENTS = ("test_mlx5_vfio",)


def tests_of(suite: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    """All tests of a nested suite, in order."""
    if isinstance(suite, unittest.TestCase):
        yield suite
    else:
        for part in suite:
            yield from tests_of(part)


class Reporter(unittest.TestResult):
    """A test result that writes each outcome as a line the moment it is known."""

    def __init__(self, stream: TextIO, seed: str, test_timeout_s: float) -> None:
        super().__init__()
        self._out = stream
        self._seed = seed
        self._timeout_s = test_timeout_s
        self._parts: list[tuple[str, str]] = []
        self._started_s = 0.0
        self._running = False

    def say(self, event: str, **fields: Any) -> None:
        """Write one line."""
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()

    # ---- the protocol of unittest ----
    def startTest(self, test: unittest.TestCase) -> None:
        """Arm the watchdog and fix the dice: a test's random choices depend on its name and the seed only."""
        super().startTest(test)
        self._parts, self._running = [], True
        self._started_s = time.monotonic()
        random.seed(f"{self._seed}:{test.id()}")
        self.say("start", id=test.id())
        if self._timeout_s:
            faulthandler.dump_traceback_later(self._timeout_s, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        """Say the outcome."""
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)
        self._conclude(test.id())

    def _conclude(self, test_id: str) -> None:
        parts = self._parts or [("error", "the test ended without an outcome")]
        worst = min((outcome for outcome, _ in parts), key=SEVERITY.index)
        reason = "\n".join(text for outcome, text in parts if outcome == worst and text)
        seconds = round(time.monotonic() - self._started_s, 2)
        self.say("result", id=test_id, outcome=worst, reason=reason[-_TAIL_CHARACTERS:], seconds=seconds)
        self._parts, self._running = [], False

    def _note(self, test: Any, outcome: str, reason: str = "") -> None:
        self._parts.append((outcome, reason))
        if not self._running:  # a class or module fixture, which no start announces
            self.say("start", id=test.id())
            self._conclude(test.id())

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: D102
        self._note(test, "passed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: D102
        super().addError(test, err)
        self._note(test, "error", self.errors[-1][1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: D102
        super().addFailure(test, err)
        self._note(test, "failed", self.failures[-1][1])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: D102
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: D102
        self._note(test, "passed")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: D102
        self._note(test, "failed", "passed, but the suite expects it to fail")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: D102
        super().addSubTest(test, subtest, err)
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self._note(test, "failed" if failed else "error", (self.failures if failed else self.errors)[-1][1])


def load(suite_dir: str, name: str, arguments: list[str]) -> list[unittest.TestCase]:
    """Import one test file as the suite's own start-up would, without importing all the others first."""
    sys.path.insert(0, suite_dir)
    package = types.ModuleType("tests")
    package.__path__ = [suite_dir]
    sys.modules["tests"] = package
    parser = importlib.import_module("args_parser").parser
    sys.argv = ["run_tests.py", *arguments]
    parser.parse_args()
    try:
        # The suite's modules import each other in a circle that only holds if it is entered here.
        importlib.import_module("tests.utils")
        module = importlib.import_module(f"tests.{name}")
        if name in _READS_EVENTS:
            accept_short_events()
    except unittest.SkipTest as skip:
        reason = str(skip)

        def skipped(self: unittest.TestCase) -> None:
            raise unittest.SkipTest(reason)

        whole_file = type("WholeFile", (unittest.TestCase,), {"__module__": f"tests.{name}", "test_import": skipped})
        return [whole_file("test_import")]
    return list(tests_of(unittest.defaultTestLoader.loadTestsFromModule(module)))


def accept_short_events() -> None:
    """Let the suite read the first 8 bytes of an event queue entry alone, as it does.

    Up to version 2.5 scapy gave the fields behind the end of the bytes their defaults, which the suite relies
    on; later versions refuse.
    """
    entry = importlib.import_module("tests.mlx5_prm_structs").SwEqe
    size, dissect = len(entry()), entry.do_dissect
    entry.do_dissect = lambda self, data: dissect(self, data.ljust(size, b"\0"))


def main() -> NoReturn:
    """`conformance_agent.py [options] SUITE_DIR FILE [ARGUMENT...]`: run FILE (no `.py`) of the suite."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default="0")
    parser.add_argument("--test-timeout", type=float, default=0.0, metavar="S")
    parser.add_argument("--without", default="", metavar="FILE", help="ids of tests not to run, one a line")
    parser.add_argument("--matching", default="", metavar="TEXT", help="only tests whose id contains TEXT")
    parser.add_argument("suite_dir")
    parser.add_argument("name")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    without: set[str] = set()
    if options.without:
        with open(options.without, encoding="utf-8") as stream:
            without = set(stream.read().split("\n"))

    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what tests print is not a result
    sys.stdout = sys.stderr
    faulthandler.enable()
    gc.disable()
    reporter = Reporter(results, options.seed, options.test_timeout)
    tests = load(options.suite_dir, options.name, options.arguments)
    tests = [test for test in tests if test.id() not in without and options.matching in test.id()]
    reporter.say("loaded", ids=[test.id() for test in tests])
    unittest.TestSuite(tests).run(reporter)
    reporter.say("end")
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
