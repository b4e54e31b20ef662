"""Mutation testing of the transport: change the engine a little, and see whether a test notices.

Each mutant is one small change in one function (:mod:`tests.mutants.operators`). The tests are collected and run once,
and for each it is noted which functions it calls. Then a process is forked for each mutant: it gives the function its
changed code and runs the tests that call it, up to the first that fails. A mutant that no test notices must be
explained in `explained.toml`, or the run fails. See docs/mutants.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import os
import resource
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Final

import pytest

from tests.mutants.operators import Mutant, mutants, mutated, sample

ROOT: Final = Path(__file__).parents[2]
TARGETS: Final = "firmware/transport/*.py firmware/model/psn.py firmware/model/qp.py firmware/model/se*.py"
TESTS: Final = ("tests/scenario", "tests/unit/transport")
EXPLAINED: Final = Path(__file__).with_name("explained.toml")

# A mutant may take so long, in seconds of the processor: the tests together take less than a third of it.
SECONDS: Final = 30
MEMORY_BYTES: Final = 4 << 30
SURVIVED: Final = 0
KILLED: Final = 1
# The mutant could not be made: says nothing about the tests.
BROKEN: Final = 2

Place = tuple[str, str]
"""A function: path of its file, qualified name."""


@dataclass(frozen=True)
class Explanation:
    """Why no test can notice some mutants: patterns of file, function, text before, after, around, and the reason."""

    file: str
    function: str
    old: str
    reason: str
    new: str = "*"
    within: str = "*"

    def covers(self, mutant: Mutant) -> bool:
        """Tell whether this is about `mutant`: `old`, `new`, `within` are in its texts; `*` stands for anything."""
        pairs = ((mutant.file, self.file), (mutant.function, self.function), (mutant.old, f"*{self.old}*"),
                 (mutant.new, f"*{self.new}*"), (mutant.within, f"*{self.within}*"))  # fmt: skip
        return all(fnmatch.fnmatchcase(text, _literal(pattern)) for text, pattern in pairs)


def _literal(pattern: str) -> str:
    return pattern.replace("[", "[[]").replace("?", "[?]")


def explanations() -> list[Explanation]:
    """What `explained.toml` says."""
    return [Explanation(**row) for row in tomllib.loads(EXPLAINED.read_text("utf-8")).get("explained", [])]


def sources(pattern: str = TARGETS) -> dict[str, str]:
    """Text of the files that the patterns name, by path: read once, since a file may be edited during a run."""
    paths = sorted(path for part in pattern.split() for path in ROOT.glob(part))
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}


def all_mutants(texts: Mapping[str, str]) -> list[Mutant]:
    """All mutants of these files."""
    return [mutant for file, text in texts.items() for mutant in mutants(file, text)]


def _place(code: CodeType) -> Place:
    """The outermost function that `code` belongs to."""
    return code.co_filename, code.co_qualname.split(".<locals>")[0]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """All code in a module's code, but for what is inside functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            if not inner.co_flags & 2:
                # a class
                yield from _codes(inner)


class Session:
    """A plugin of pytest: runs the tests once to learn who calls what, then once more for each mutant."""

    def __init__(
        self, texts: Mapping[str, str], chosen: Sequence[Mutant], explained: Sequence[Explanation], jobs: int
    ) -> None:
        self.alive: list[Mutant] = []
        self._texts = texts
        self._chosen = chosen
        self._explained = explained
        self._jobs = jobs
        self._files = {str(ROOT / mutant.file) for mutant in chosen}
        self._callers: defaultdict[Place, list[pytest.Item]] = defaultdict(list)
        self._functions: defaultdict[Place, list[FunctionType]] = defaultdict(list)
        self._running: dict[int, Mutant] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop."""
        times: dict[pytest.Item, float] = {}
        for item in session.items:
            start = time.process_time()
            for place in self._watched(item):
                self._callers[place].append(item)
            times[item] = time.process_time() - start
            if session.testsfailed:
                raise session.Failed("the tests fail on the program as it is")
        for items in self._callers.values():
            items.sort(key=times.__getitem__)
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__code__.co_filename in self._files:
                self._functions[_place(function.__code__)].append(function)
        # A collection in a child would copy all that it looks at.
        gc.collect()
        gc.freeze()
        self._run(session)
        return True

    def _watched(self, item: pytest.Item) -> set[Place]:
        """Run a test; the places that it calls."""
        codes: set[CodeType] = set()

        def watch(frame: FrameType, event: str, _argument: object) -> None:
            codes.add(frame.f_code)

        sys.setprofile(watch)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        finally:
            sys.setprofile(None)
        return {_place(code) for code in codes if code.co_filename in self._files}

    def _run(self, session: pytest.Session) -> None:
        left, done = list(reversed(self._chosen)), 0
        while left or self._running:
            while left and len(self._running) < self._jobs:
                mutant = left.pop()
                child = os.fork()
                if not child:
                    self._try(session, mutant)
                self._running[child] = mutant
            child, status = os.wait()
            mutant = self._running.pop(child)
            done += 1
            outcome = os.waitstatus_to_exitcode(status)
            if outcome == BROKEN:
                raise session.Failed(f"cannot be made: {mutant}")
            if outcome == SURVIVED:
                self.alive.append(mutant)
                reason = next((row.reason for row in self._explained if row.covers(mutant)), "NOT EXPLAINED")
                print(f"\n[{done}/{len(self._chosen)}] survived: {mutant}\n    {reason}", flush=True)
            elif done % 50 == 0:
                print(f"\n[{done}/{len(self._chosen)}] {len(self.alive)} survived", flush=True)

    def _try(self, session: pytest.Session, mutant: Mutant) -> None:
        """In a process of its own: run the tests on the changed program; never returns."""
        status = BROKEN
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            place = self._put_in_place(mutant)
            status = KILLED
            for item in self._callers[place]:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                if session.testsfailed:
                    break
            else:
                status = SURVIVED
        finally:
            os._exit(status)

    def _put_in_place(self, mutant: Mutant) -> Place:
        """Give the functions at the mutant's place its code."""
        path = str(ROOT / mutant.file)
        place = path, mutant.function
        tree = mutated(self._texts[mutant.file], mutant.number)
        changed = next(code for code in _codes(compile(tree, path, "exec")) if _place(code) == place)
        for function in self._functions[place]:
            if function.__code__.co_firstlineno == changed.co_firstlineno:
                function.__code__ = changed
        return place


def main() -> int:
    """Run and report; 1 if a survivor is not explained."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="which mutants are chosen (default: %(default)s)")
    parser.add_argument("--count", type=int, default=200, help="how many; 0 for all (default: %(default)s)")
    parser.add_argument("--files", default=TARGETS, help="patterns of the files to change (default: %(default)s)")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the mutants of one file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="show the chosen mutants and run nothing")
    args = parser.parse_args()
    os.chdir(ROOT)
    texts = sources(args.files)
    everything = all_mutants(texts)
    chosen = everything
    if args.only:
        chosen = [mutant for mutant in everything if mutant.number in args.only]
    elif 0 < args.count < len(everything):
        chosen = sample(everything, args.seed, args.count)
    print(f"{len(chosen)} of {len(everything)} mutants")
    if args.list:
        print(*chosen, sep="\n")
        return 0
    explained = explanations()
    session = Session(texts, chosen, explained, args.jobs)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *TESTS]
    if pytest.main(options, plugins=[session]) != pytest.ExitCode.OK:
        return 1
    unexplained = [mutant for mutant in session.alive if not any(row.covers(mutant) for row in explained)]
    explained_count = len(session.alive) - len(unexplained)
    print(f"{len(chosen) - len(session.alive)} killed, {explained_count} explained, {len(unexplained)} not explained")
    print(*unexplained, sep="\n")
    return bool(unexplained)


if __name__ == "__main__":
    sys.exit(main())
