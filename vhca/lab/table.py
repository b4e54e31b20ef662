"""Rows of words, in aligned columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from vhca.lab.errors import printable

_LINE_MAX: Final = 120  # characters; a word that is longer is not cut
_LAST_MIN: Final = 40


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: header, rule, rows. Every row has as many cells as the header.

    A cell of several lines takes several, and a long one in the last column is wrapped.
    """
    cells = [[printable(cell).expandtabs().splitlines() or [""] for cell in row] for row in (header, *rows)]
    before = sum(max(len(line) for row in cells for line in row[column]) + 2 for column in range(len(header) - 1))
    room = max(_LAST_MIN, _LINE_MAX - before)
    for row in cells:
        row[-1] = [piece for line in row[-1] for piece in _wrapped(line, room)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(header))]
    table = []
    for row in cells:
        for pieces in zip_longest(*row, fillvalue=""):
            table.append("  ".join(piece.ljust(width) for piece, width in zip(pieces, widths, strict=True)))
    heading = max(map(len, cells[0]))
    table.insert(heading, "  ".join("-" * min(width, _LINE_MAX) for width in widths))
    return [line.rstrip() for line in table]


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
