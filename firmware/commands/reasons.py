"""What each syndrome of a refused command means: found again in the sources of this program.

The syndrome is a checksum of the text that refuses a command (:mod:`firmware.commands.registry`), so the texts that
stand in the sources are all that it can mean. Nothing of this runs in a card: it is for whoever reads a guest's log.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from firmware.model.budget import OBJECT_BYTES
from vhca.wire.connectx.cmd import Op

_TRANSITION = ("_QP", "_2ERR", "_2RST")


@dataclass(slots=True, frozen=True)
class Reason:
    """Why a command was refused, and where in the sources that stands."""

    text: str
    place: str  # file below the package's parent, and line: "firmware/commands/mkey.py:48"


@cache
def reasons() -> Mapping[int, Reason]:
    """All refusals by syndrome."""
    found: dict[int, Reason] = {}
    constants: list[Reason] = []
    composed: list[tuple[ast.JoinedStr, str]] = []
    for place, tree in _sources(files("firmware"), "firmware"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                constants.append(Reason(node.value, f"{place}:{node.lineno}"))
            elif isinstance(node, ast.JoinedStr):
                composed.append((node, place))
    choices = {
        "table.kind": tuple(OBJECT_BYTES),
        "op.name": tuple(op.name for op in Op if op.name.endswith(_TRANSITION)),
        "qp.refusal": tuple(reason.text for reason in constants if reason.place.startswith("firmware/transport/")),
    }
    for reason in constants:
        found.setdefault(zlib.crc32(reason.text.encode()), reason)
    for node, place in composed:
        for text in _texts(node.values, choices):
            found.setdefault(zlib.crc32(text.encode()), Reason(text, f"{place}:{node.lineno}"))
    return found


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, ast.Module]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        place = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, place)
        elif entry.name.endswith(".py"):
            yield place, ast.parse(entry.read_text(encoding="utf-8"))


def _texts(parts: list[ast.expr], choices: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """What a composed text can be; nothing if it holds what `choices` does not know."""
    if not parts:
        yield ""
        return
    first = parts[0]
    if isinstance(first, ast.Constant):
        heads: tuple[str, ...] = (str(first.value),)
    else:
        assert isinstance(first, ast.FormattedValue)
        heads = choices.get(ast.unparse(first.value), ())
    for head in heads:
        for tail in _texts(parts[1:], choices):
            yield head + tail
