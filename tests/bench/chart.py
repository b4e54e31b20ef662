"""Charts as SVG: lines over logarithmic axes, for eyes in the light and in the dark.

Colours are chosen by the style sheet in the picture, by what the reader's system prefers; nothing has a background. The
same chart always gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 780
HEIGHT: Final = 400
LEFT, RIGHT, TOP, BOTTOM = 96, 132, 44, 56
LABEL_GAP: Final = 17
PREFIXES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"))
STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.minor { stroke: #1f2328; stroke-opacity: .07 }
.major { stroke: #1f2328; stroke-opacity: .2 }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round }
.range { stroke-width: 1.4; stroke-opacity: .55 }
.s0 { stroke: #0969da } .f0 { fill: #0969da }
.s1 { stroke: #bc4c00 } .f1 { fill: #bc4c00 }
.s2 { stroke: #6e7781 } .f2 { fill: #6e7781 }
.s3 { stroke: #1a7f37 } .f3 { fill: #1a7f37 }
text.f0, text.f1, text.f2, text.f3 { font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.minor, .major { stroke: #e6edf3 }
.s0 { stroke: #58a6ff } .f0 { fill: #58a6ff }
.s1 { stroke: #f0883e } .f1 { fill: #f0883e }
.s2 { stroke: #9da7b3 } .f2 { fill: #9da7b3 }
.s3 { stroke: #3fb950 } .f3 { fill: #3fb950 }
}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing over x: points (x, median, least, most). `colour` is 0 to 3."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    colour: int


@dataclass(frozen=True, slots=True)
class Chart:
    """Both axes are logarithmic. `ticks` of x are (value, label); labels of y get a prefix and `y_unit`."""

    title: str
    x_label: str
    y_label: str
    y_unit: str
    lines: Sequence[Line]
    ticks: Sequence[tuple[float, str]]

    def svg(self) -> str:
        """The picture; a chart without points is one with a title."""
        lines = [line for line in self.lines if line.points]
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
            f' aria-label="{escape(self.title, {chr(34): "&quot;"})}">\n<style>{STYLE}</style>\n'
        )
        body = [_text(LEFT, 24, self.title, "title")]
        if lines:
            body += _Axes(self, lines).draw()
        return head + "\n".join(body) + "\n</svg>\n"


def quantity(value: float, unit: str = "") -> str:
    """A number with a prefix, such as "20 k/s"."""
    factor, prefix = next(((factor, prefix) for factor, prefix in PREFIXES if value >= factor * 0.9999), PREFIXES[-1])
    return f"{value / factor:.3g} {prefix}{unit}".rstrip()


class _Axes:
    """Where things are."""

    def __init__(self, chart: Chart, lines: Sequence[Line]) -> None:
        self._chart = chart
        self._lines = lines
        xs = [point[0] for line in lines for point in line.points] + [value for value, _ in chart.ticks]
        lows = [point[2] for line in lines for point in line.points]
        highs = [point[3] for line in lines for point in line.points]
        self._x = (math.log(min(xs)), math.log(max(xs) if max(xs) > min(xs) else max(xs) * 2))
        low, high = math.log10(min(lows)), math.log10(max(highs))
        # To the next 1, 2 or 5.
        self._y = (_step_below(low - 0.02), -_step_below(-high - 0.02))
        self.right, self.bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(self, value: float) -> float:
        """Of a value of x."""
        begin, end = self._x
        return LEFT + (math.log(value) - begin) / (end - begin) * (self.right - LEFT)

    def y(self, value: float) -> float:
        """Of a value of y."""
        begin, end = self._y
        return self.bottom - (math.log10(value) - begin) / (end - begin) * (self.bottom - TOP)

    def draw(self) -> list[str]:
        """Everything but the title."""
        return [*self._grid(), *(part for line in self._lines for part in self._line(line)), *self._names()]

    def _grid(self) -> list[str]:
        chart, parts = self._chart, []
        begin, end = self._y
        for decade in range(math.floor(begin), math.ceil(end) + 1):
            for step in (1, 2, 5):
                value = step * 10.0**decade
                if not begin - 1e-9 <= math.log10(value) <= end + 1e-9:
                    continue
                labelled = step == 1 or end - begin < 2.5
                parts.append(_rule(LEFT, self.y(value), self.right, self.y(value), "major" if step == 1 else "minor"))
                if labelled:
                    parts.append(_text(LEFT - 8, self.y(value) + 4, quantity(value, chart.y_unit), anchor="end"))
        for value, label in chart.ticks:
            parts.append(_rule(self.x(value), TOP, self.x(value), self.bottom, "minor"))
            parts.append(_text(self.x(value), self.bottom + 18, label, anchor="middle"))
        parts.append(_text((LEFT + self.right) / 2, HEIGHT - 12, chart.x_label, anchor="middle"))
        parts.append(
            f'<text transform="translate(16 {(TOP + self.bottom) / 2:.1f}) rotate(-90)" text-anchor="middle">'
            f"{escape(chart.y_label)}</text>"
        )
        return parts

    def _line(self, line: Line) -> list[str]:
        spots = [(self.x(x), self.y(y)) for x, y, _, _ in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts = [f'<polyline class="line s{line.colour}" points="{path}"/>']
        for (x, y), (_, _, low, high) in zip(spots, line.points, strict=True):
            parts.append(_rule(x, self.y(low), x, self.y(high), f"range s{line.colour}"))
            parts.append(f'<circle class="f{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>')
        return parts

    def _names(self) -> list[str]:
        """Beside the last points, not on each other."""
        wanted = sorted((self.y(line.points[-1][1]) + 4, number) for number, line in enumerate(self._lines))
        parts = []
        free = float(TOP)
        for y, number in wanted:
            line = self._lines[number]
            at = max(y, free)
            free = at + LABEL_GAP
            parts.append(_text(self.x(line.points[-1][0]) + 10, at, line.name, f"f{line.colour}"))
        return parts


def _step_below(log: float) -> float:
    """The logarithm of the next 1, 2 or 5 at or below. They are their own mirror: of the negative, the next above."""
    decade = math.floor(log)
    return decade + max(step for step in (0.0, math.log10(2), math.log10(5)) if decade + step <= log + 1e-9)


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'
