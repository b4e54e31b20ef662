"""The examples of the documentation: fenced blocks whose info string says how they are run.

The words behind the language::

    sh alone | python alone     on the host, no guest is needed
    sh host | python host       on the host; it may boot guests of its own
    sh rack                     on the host; orders (vhca fabric, fault, findings, capture) go to the pages' lab
    python pytest               a test file, run by pytest
    sh g0 (g1, ...)             in that guest of the pages' lab, which has two guests
    python lab                  with `lab`, the pages' lab; what a block names, later ones of its page know
    ... needs A, B              skipped where a program, path or module (python:NAME) is not there
    ... not run: REASON         shown only, for that reason
    text output                 what the block before printed; `...` stands for anything

Blocks of a page run in order. Their folder is /mnt/share in the lab's guests; `.venv` in it is this one. A page may
have a lab of its own (tests/guest/test_pages.py).
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

PAGES = ("README.md", "docs/fabric.md", "docs/topologies.md", "docs/cluster.md", "docs/capture.md", "docs/runs.md",
         "docs/kernels.md", "docs/kernel-debugging.md", "docs/ci.md", "docs/lessons.md", "docs/tutorials.md",
         "docs/upper-protocols.md", "docs/faults.md", "docs/findings.md", "docs/trace.md", "docs/adversary.md",
         "docs/museum.md")  # fmt: skip
"""Those whose every block of sh and Python is run, or says why it is not."""

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\S*) *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = "not run: "
_MODE = re.compile(r"(alone|host|rack|pytest|lab|g\d)(?: needs (\S+(?:, \S+)*))?|not run: \S.{9,}")


@dataclass
class Example:
    """One block: `language` and `mode` say how it is run, `needs` what the host must have for that."""

    page: str
    line: int
    language: str
    mode: str
    text: str
    needs: tuple[str, ...] = ()
    output: str | None = None

    @property
    def reason(self) -> str:
        """Why the block is not run anywhere; empty if it is."""
        return self.mode.removeprefix(_NOT_RUN).strip() if self.mode.startswith(_NOT_RUN) else ""

    @property
    def missing(self) -> str:
        """What of its needs this host does not have; empty if it has all."""
        return ", ".join(need for need in self.needs if not _is_here(need))

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language} {self.mode})"


def examples(page: str) -> list[Example]:
    """The marked blocks of a page, in order, with the output that follows them.

    :raises ValueError: an output that follows no block which is run, or a block that does not say how it is run.
    """
    return parse(page, (ROOT / page).read_text("utf-8"))


def parse(page: str, text: str) -> list[Example]:
    """:func:`examples` of a page's text."""
    found: list[Example] = []
    for match in _FENCE.finditer(text):
        language, mode, body = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if mode == "output":
            if not found or found[-1].reason or found[-1].output is not None:
                raise ValueError(f"{page}:{line}: the output of nothing that is run")
            found[-1].output = body
        elif mode or language in {"sh", "python"}:
            known = _MODE.fullmatch(mode)
            if known is None:
                raise ValueError(f"{page}:{line}: neither run nor said why not: {mode!r}")
            needs = tuple(known[2].split(", ")) if known[2] else ()
            found.append(Example(page, line, language, known[1] or mode, body, needs))
    return found


def _is_here(need: str) -> bool:
    if need.startswith("python:"):
        return importlib.util.find_spec(need.removeprefix("python:")) is not None
    return Path(need).expanduser().exists() if "/" in need else shutil.which(need) is not None


def agrees(expected: str, printed: str) -> bool:
    """Whether this was printed; runs of spaces are one, `...` stands for anything, many lines too."""
    pattern = r".*".join(re.escape(part) for part in _plain(expected).split("..."))
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
