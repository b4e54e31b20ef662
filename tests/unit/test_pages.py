"""The documentation's examples: each says how it is run or why not; those that need no guest are run here."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import PAGES, Example, agrees, examples, parse

#: blocks that are run somewhere, and those that are only shown
COUNTS = {
    "README.md": (4, 2),
    "docs/fabric.md": (8, 0),
    "docs/capture.md": (3, 2),
    "docs/topologies.md": (5, 0),
    "docs/cluster.md": (1, 1),
    "docs/runs.md": (8, 2),
    "docs/kernels.md": (4, 4),
    "docs/kernel-debugging.md": (15, 2),
    "docs/ci.md": (7, 0),
    "docs/lessons.md": (19, 2),
    "docs/tutorials.md": (7, 0),
    "docs/upper-protocols.md": (22, 7),
    "docs/faults.md": (6, 0),
    "docs/findings.md": (2, 2),
    "docs/adversary.md": (1, 1),
    "docs/museum.md": (0, 1),
    "docs/trace.md": (2, 2),
}
ALONE = [example for page in PAGES for example in examples(page) if example.mode == "alone"]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    found = examples(page)
    not_run = sum(1 for example in found if example.reason)
    assert (len(found) - not_run, not_run) == COUNTS[page]


@pytest.mark.parametrize("page", PAGES)
def test_python_examples_are_python(page: str) -> None:
    for example in examples(page):
        if example.language == "python":
            ast.parse(example.text, str(example))


@pytest.mark.parametrize("example", ALONE, ids=str)
def test_an_example_without_guests(example: Example, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    command = [sys.executable, "-c"] if example.language == "python" else ["sh", "-ec"]
    done = subprocess.run(
        [*command, example.text], capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path, env={"PATH": path, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert example.output is None or agrees(example.output, done.stdout), done.stdout


def test_blocks_are_read_with_their_outputs() -> None:
    text = "# T\n```sh g0\nls\n```\n```text output\na ... b\n```\n```text\nplain\n```\n"
    text += "```sh not run: it needs a card\nx\n```\n```sh host needs sh, /nowhere, python:nothing\ny\n```\n"
    first, second, third = parse("p.md", text)
    assert (first.line, first.mode, first.text, first.output, first.reason) == (2, "g0", "ls\n", "a ... b\n", "")
    assert (second.output, second.reason) == (None, "it needs a card")
    assert (third.mode, third.missing, first.missing) == ("host", "/nowhere, python:nothing", "")
    with pytest.raises(ValueError, match=r"p\.md:1"):
        parse("p.md", "```text output\nx\n```\n")
    for mode in ("", "somewhere", "not run: why"):
        with pytest.raises(ValueError, match="neither run nor said why not"):
            parse("p.md", f"```sh {mode}\nx\n```\n")


def test_an_output_agrees_but_for_the_dots() -> None:
    assert agrees("a ... b\n...\nend", "a   1 2 b\nmore\nlines\nend\n")
    assert not agrees("a ... b", "a 1 c")
    assert not agrees("a", "a\nb")
    assert not agrees("a.b", "axb")
