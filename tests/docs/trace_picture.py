"""The picture of a ladder, from a capture of two cards: `python -m tests.docs.trace_picture docs/images/trace.svg`."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from html import escape
from pathlib import Path

from tests.support.recorded import small_capture
from vhca.lab.traced import explaining
from vhca.trace.ladder import Ladder, cards_of
from vhca.trace.reading import gather

CHARACTER = 6.7
LINE = 17
COLOURS = {"36": "#1b7c83", "32": "#1a7f37", "33": "#9a6700", "35": "#8250df", "31;1": "#cf222e"}
_PAINTED = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m")


def picture() -> str:
    """The SVG: what a terminal shows, with its colours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.pcapng"
        small_capture(path)
        events = gather([path], meaning=explaining()).events
    ladder = Ladder(cards_of(events), colours=True)
    lines = ladder.header() + [line for event in events for line in ladder.lines(event)]
    lines = [re.sub(r"\.py:\d+", ".py", line) for line in lines]
    columns = max(len(_PAINTED.sub(r"\2", line)) for line in lines)
    width, height = round(columns * CHARACTER) + 20, len(lines) * LINE + 20
    body = "".join(f'<text x="10" y="{LINE * (row + 1) + 6}">{_spans(line)}</text>\n' for row, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        "<title>A ladder of two cards: a SEND, a WRITE whose key is gone, two refused commands</title>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        '<g font-family="ui-monospace, DejaVu Sans Mono, monospace" font-size="11" fill="#1f2328">\n'
        f"{body}</g>\n</svg>\n"
    )


def _spans(line: str) -> str:
    """A line with its colours; words stay where they are, whatever the font."""
    spans = []
    at = 0
    column = 0
    for match in [*_PAINTED.finditer(line), None]:
        plain = line[at : match.start() if match else len(line)]
        for colour, text in ((None, plain), (match[1], match[2]) if match else (None, "")):
            for word in re.finditer(r"\S+(?: \S+)*", text):
                x = 10 + (column + word.start()) * CHARACTER
                fill = f' fill="{COLOURS[colour]}"' if colour else ""
                length = f' textLength="{len(word[0]) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
                spans.append(f'<tspan x="{x:.1f}"{fill}{length}>{escape(word[0])}</tspan>')
            column += len(text)
        at = match.end() if match else at
    return "".join(spans)


def main(arguments: list[str]) -> int:
    """Write the picture, or tell whether it is as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file differs")
    options = parser.parse_args(arguments)
    drawn = picture()
    if options.check:
        if not options.path.exists() or options.path.read_text() != drawn:
            print(f"{options.path} is stale; run: make formats")
            return 1
        return 0
    options.path.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
