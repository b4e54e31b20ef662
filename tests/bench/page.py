"""The results of a run as a page: of Markdown with pictures for the documentation, of HTML for a look at once.

    python -m tests.bench.page RESULTS.json docs [--check]

writes `docs/speed.md`, the pictures `docs/images/speed-*.svg`, a copy of the results `docs/speed.json` and the table in
the README beside the folder; with `--check` it says whether what is there is what the results say, and writes nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Final

from acceptance.benchmark import RACES
from tests.bench import bench_breakdown, goals
from tests.bench.bench_breakdown import Measured
from tests.bench.chart import Chart, Line, quantity
from tests.bench.results import PYTHON, SOFT, C, Results
from vhca.lab import aligned

WHO: Final = ((C, "card, C", 0), (PYTHON, "card, Python", 1), (SOFT, "Soft-RoCE", 2))
CASES: Final = ("WRITE", "SEND", "READ", "ATOMIC", "DATAGRAM")
README_TABLE: Final = re.compile(r"\(`make bench`; medians of \w+\):\n\n```text\n.*?```", re.DOTALL)
BUSY: Final = "The machine had other work at the time: these figures show what the bench prints, and are no claim."
Grid = tuple[Sequence[str], Sequence[Sequence[str]]]


def size_name(size: float) -> str:
    """As people write it."""
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size:g} B"


def _line(results: Results, prefix: str, who: str, name: str, colour: int, scale: bool = False) -> Line:
    points = []
    for x in results.sizes(prefix, who):
        values = results.samples[f"{prefix}/{x}/{who}"]
        factor = x if scale else 1
        points.append((float(x), median(values) * factor, min(values) * factor, max(values) * factor))
    return Line(name, points, colour)


def charts(results: Results) -> dict[str, Chart]:
    """The pictures, by name; those of what was not measured are left out."""
    sizes = sorted({size for who, _, _ in WHO for size in results.sizes("curve", who)})
    by_size = [(float(size), size_name(size)) for size in sizes]
    made = {
        "rate": Chart(
            "RDMA WRITE between two guests: message rate", "message size", "messages per second", "/s",
            [_line(results, "curve", *who) for who in WHO], by_size,
        ),
        "bandwidth": Chart(
            "RDMA WRITE between two guests: bandwidth", "message size", "bytes per second", "B/s",
            [_line(results, "curve", *who, scale=True) for who in WHO], by_size,
        ),
        "qps-guests": Chart(
            "64 B WRITEs between two guests over several queue pairs", "queue pairs", "messages per second", "/s",
            [_line(results, "qps/guests", *who) for who in WHO],
            [(float(count), str(count)) for count in results.sizes("qps/guests", C)],
        ),
        "qps-engine": Chart(
            "64 B WRITEs, the engine alone, queue pairs in random order", "queue pairs", "messages per second", "/s",
            [_line(results, "qps/engine", who, f"engine in {who}", colour) for who, _, colour in WHO[:2]],
            [(float(count), f"{count:,}") for count in results.sizes("qps/engine", C)],
        ),
        "cards": Chart(
            "WRITEs between pairs of cards in one rack, all at once", "cards", "messages per second", "/s",
            [_line(results, f"cards/{size}", C, size_name(size), colour) for size, colour in ((64, 0), (65536, 3))],
            [(float(count), str(count)) for count in results.sizes("cards/64", C)],
        ),
    }  # fmt: skip
    return {name: chart for name, chart in made.items() if any(line.points for line in chart.lines)}


def races(results: Results) -> Grid:
    """perftest on the card and on Soft-RoCE."""
    rows = []
    for race in RACES:
        figures = [results.of("guests", race.program, race.size_bytes, who) for who in (C, SOFT)]
        ratio = goals.against_soft_roce(race.program, race.size_bytes)(results)
        if ratio is not None:
            ours, theirs = (f"{figure:,.1f} {race.unit}" for figure in figures)
            rows.append((race.program, size_name(race.size_bytes), ours, theirs, f"{ratio:.1f}x"))
    return ("program", "size", "card, engine in C", "Soft-RoCE", "card is better by"), rows


def failures(results: Results) -> list[str]:
    """What has to be said beside the table."""
    count = len(results.samples.get(f"failed/{SOFT}", ()))
    return [f"Runs on Soft-RoCE that ended with an error and were tried again: {count}.", ""] if count else []


def engines(results: Results) -> Grid:
    """The engine alone."""
    rows = []
    for kind in CASES:
        for size in results.sizes(f"engine/{kind}", PYTHON):
            copy = results.of("copy", size)
            cells = [kind, size_name(size)]
            for who in (C, PYTHON):
                us = results.of("engine", kind, size, who)
                cells.append("-" if us is None else f"{us:.2f} us")
                cells.append("-" if us is None else quantity(1e6 / us, "/s"))
                cells.append("-" if us is None or not copy or size < 4096 else f"{copy / us:.2f}")
            rows.append(cells)
    return ("what", "size", "C", "C, rate", "C, of one copy", "Python", "Python, rate", "Python, of one copy"), rows


def breakdowns(results: Results) -> list[tuple[str, Grid, tuple[str, ...]]]:
    """Title, table and notes of each."""
    by_engine = {engine: [Measured.from_json(one) for one in all_] for engine, all_ in results.breakdown.items()}
    found: list[tuple[str, Grid, tuple[str, ...]]] = []
    for table in bench_breakdown.tables(by_engine):
        rows = [(who, f"{us:.2f} us", f"{us / table.whole:.0%}", what) for who, what, us in table.rows]
        rows.append(("together", f"{table.whole:.2f} us", "", ""))
        found.append((f"{table.engine}: {table.title}", (("", "time", "share", "what"), rows), table.notes))
    return found


# ---- Markdown ----


def _markdown_table(grid: Grid) -> list[str]:
    header, rows = grid
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = []
    for column, width in enumerate(widths):
        is_number = bool(rows) and all(re.match(r"[-\d]|$|not", row[column]) for row in rows)
        rule.append("-" * (width + 1) + (":" if is_number and column else "-"))
    return [line(header), "|" + "|".join(rule) + "|", *map(line, rows), ""]


def markdown(results: Results) -> str:
    """The page of the documentation."""
    lines = [
        "# Speed", "",
        f"One run of `make bench` on one machine: medians of {results.machine.get('repeats')} samples each.  Ratios"
        " travel, absolute numbers do not.",
        "The page is made of [the samples](speed.json) by `python -m tests.bench.page`.", "",
        *([f"**{BUSY}**", ""] if results.busy else []),
        *_markdown_table((("machine", ""), [(name, str(value)) for name, value in results.machine.items()])),
        "## Goals", "",
        *_markdown_table((goals.HEADER, goals.rows(results))),
        "## Against Soft-RoCE, in the same two guests", "",
        *_markdown_table(races(results)),
        *failures(results),
    ]  # fmt: skip
    for name, chart in charts(results).items():
        lines += [f"![{chart.title}](images/speed-{name}.svg)", ""]
    lines += ["Dots are medians, bars reach from the least to the most.", "", "## The engine alone", ""]
    lines += _markdown_table(engines(results))
    lines += ["## Where the time of a 64 B WRITE goes", ""]
    for title, grid, notes in breakdowns(results):
        lines += [f"{title[0].upper()}{title[1:]}", "", *_markdown_table(grid)]
        lines += [f"- {note}" for note in notes] + ([""] if notes else [])
    return "\n".join(lines).rstrip() + "\n"


# ---- HTML ----

STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1f2328; background: #fff }
table { border-collapse: collapse; margin: .6rem 0 1.6rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #d1d9e0; text-align: left }
.number { text-align: right; white-space: nowrap }
.yes { color: #1a7f37; font-weight: 600 } .no { color: #cf222e; font-weight: 600 }
svg { width: 100%; max-width: 50rem; display: block; margin: 1rem 0 }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 } th, td { border-color: #30363d }
  .yes { color: #3fb950 } .no { color: #f85149 }
}
"""


def _html_table(grid: Grid) -> list[str]:
    header, rows = grid
    numbers = [
        bool(rows) and all(re.match(r"[-\d]|$|not", row[column]) for row in rows) for column in range(len(header))
    ]

    def cell(kind: str, text: str, column: int) -> str:
        classes = [text] if text in ("yes", "no") else ["number"] if numbers[column] and column else []
        attribute = f' class="{classes[0]}"' if classes else ""
        return f"<{kind}{attribute}>{escape(text)}</{kind}>"

    lines = ["<table>"]
    for kind, cells in (("th", header), *(("td", row) for row in rows)):
        lines.append("<tr>" + "".join(cell(kind, text, column) for column, text in enumerate(cells)) + "</tr>")
    return [*lines, "</table>"]


def html(results: Results) -> str:
    """The page for a browser, pictures in it."""
    body = ["<h1>Speed</h1>", *([f"<p><b>{BUSY}</b></p>"] if results.busy else [])]
    body += _html_table((("machine", ""), [(name, str(value)) for name, value in results.machine.items()]))
    body += ["<h2>Goals</h2>", *_html_table((goals.HEADER, goals.rows(results)))]
    body += ["<h2>Against Soft-RoCE, in the same two guests</h2>", *_html_table(races(results))]
    body += [f"<p>{line}</p>" for line in failures(results) if line]
    body += [chart.svg() for chart in charts(results).values()]
    body += ["<p>Dots are medians, bars reach from the least to the most.</p>"]
    body += ["<h2>The engine alone</h2>", *_html_table(engines(results))]
    body += ["<h2>Where the time of a 64 B WRITE goes</h2>"]
    for title, grid, notes in breakdowns(results):
        body += [f"<h3>{escape(title[0].upper() + title[1:])}</h3>", *_html_table(grid)]
        body += [f"<p>{escape(note)}</p>" for note in notes]
    head = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>vhca: speed</title>\n<style>{STYLE}</style>'
    return "\n".join([head, *body, "</html>"]) + "\n"


def readme(results: Results, text: str) -> str:
    """The README with the table of races of these results, unless a busy machine made them."""
    if results.busy:
        return text
    table = "\n".join(aligned(*races(results)))
    said = f"(`make bench`; medians of {results.machine['repeats']}):\n\n```text\n{table}\n```"
    return README_TABLE.sub(lambda _: said, text, count=1)


def files(results: Results, folder: Path) -> dict[str, str]:
    """What the documentation in `folder` has of it, by path from there."""
    pictures = {f"images/speed-{name}.svg": chart.svg() for name, chart in charts(results).items()}
    made = {"speed.md": markdown(results), "speed.json": results.to_json(), **pictures}
    front = folder.parent / "README.md"
    return {**made, "../README.md": readme(results, front.read_text())} if front.exists() else made


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m tests.bench.page`; the exit status is 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    wanted = files(Results.from_json(options.results.read_text()), options.folder)
    old = {f"images/{path.name}" for path in (options.folder / "images").glob("speed-*.svg")} - wanted.keys()
    if options.check:
        wrong = [name for name, text in wanted.items() if not _is(options.folder / name, text)] + sorted(old)
        for name in wrong:
            print(f"{options.folder / name} is not what {options.results} says; run {' '.join(sys.argv[:3])}")
        return 1 if wrong else 0
    for name, text in wanted.items():
        (options.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (options.folder / name).write_text(text)
    for name in old:
        (options.folder / name).unlink()
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
