"""The display of a bench: rows of words, in aligned columns."""

from __future__ import annotations

from collections.abc import Sequence

from vhca.lab.errors import printable


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: header, rule, rows.  Every row has as many cells as the header."""
    everything = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in everything) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in everything]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return [line.rstrip() for line in lines]
