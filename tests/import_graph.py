"""Who imports whom, as a page: rooms, floors and circles of the packages, and a picture of the firmware.

`python -m tests.import_graph docs/imports.md` writes the page; `--check` only tells whether it is up to date.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import grimp

# Sheets: a package, and what its rooms are (its children).
SHEETS = (
    "firmware",
    "firmware.model",
    "firmware.transport",
    "firmware.commands",
    "vhca",
    "vhca.chip",
    "vhca.fabric",
    "vhca.subnet",
    "vhca.management",
    "vhca.wire",
    "vhca.wire.connectx",
    "vhca.layout",
    "vhca.vfio_user",
    "vhca.lab",
    "acceptance",
    "acceptance.claims",
    "acceptance.conformance",
)
PICTURES = ("firmware", "vhca")
HEAD = """# Who imports whom

This page is generated from the code; `make imports-page` writes it.

A *room* is a module or package directly inside the one named; an *arrow* says that one imports another, however often.
*Floors* is the longest chain of rooms that import each other downwards.  A *circle* is a set of rooms that all reach
each other: those can only be understood, tested and changed together.

| package | rooms | floors | arrows | circles |
|---|---|---|---|---|
"""


def arrows_of(graph: grimp.ImportGraph, package: str) -> tuple[list[str], Counter[tuple[str, str]]]:
    """The rooms of a package, and how many imports there are from one to another."""
    rooms = sorted(child.rsplit(".", 1)[1] for child in graph.find_children(package))
    arrows: Counter[tuple[str, str]] = Counter()
    depth = package.count(".") + 1
    for module in graph.find_descendants(package):
        for other in graph.find_modules_directly_imported_by(module):
            if other.startswith(f"{package}."):
                pair = module.split(".")[depth], other.split(".")[depth]
                if pair[0] != pair[1]:
                    arrows[pair] += 1
    return rooms, arrows


def circles_of(rooms: list[str], arrows: Counter[tuple[str, str]]) -> list[list[str]]:
    """Sets of rooms that reach each other."""
    below: dict[str, set[str]] = {room: {to for frm, to in arrows if frm == room} for room in rooms}
    changed = True
    while changed:
        changed = False
        for room in rooms:
            more = set().union(*(below[other] for other in below[room])) - below[room]
            if more:
                below[room] |= more
                changed = True
    found: dict[str, list[str]] = {}
    for room in rooms:
        if room in below[room]:
            circle = [other for other in rooms if other in below[room] and room in below[other]]
            found[circle[0]] = circle
    return list(found.values())


def floors_of(rooms: list[str], arrows: Counter[tuple[str, str]], circles: list[list[str]]) -> int:
    """The longest chain; rooms of one circle are on one floor."""
    home = {room: circle[0] for circle in circles for room in circle}
    edges = {(home.get(a, a), home.get(b, b)) for a, b in arrows}
    height: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in height:
            height[room] = 1 + max((floor(b) for a, b in edges if a == room and b != room), default=0)
        return height[room]

    return max((floor(home.get(room, room)) for room in rooms), default=0)


def picture(rooms: list[str], arrows: Counter[tuple[str, str]]) -> str:
    """A diagram; arrows that a longer way implies are left out."""
    reach: dict[str, set[str]] = {room: {b for a, b in arrows if a == room} for room in rooms}
    for _ in rooms:
        for room in rooms:
            reach[room] = reach[room].union(*(reach[other] for other in reach[room]))
    lines = ["```mermaid", "flowchart TB"]
    for a, b in sorted(arrows):
        if not any((a, c) in arrows and c not in (a, b) and b in reach[c] and a not in reach[c] for c in rooms):
            lines.append(f"    {a} --> {b}")
    return "\n".join([*lines, "```", ""])


def page() -> str:
    """The whole page."""
    graph = grimp.build_graph("vhca", "firmware", "acceptance", cache_dir=None)
    rows, pictures = [], []
    for package in SHEETS:
        rooms, arrows = arrows_of(graph, package)
        circles = circles_of(rooms, arrows)
        names = "; ".join(" ".join(circle) for circle in circles) or "none"
        floors = floors_of(rooms, arrows, circles)
        rows.append(f"| `{package}` | {len(rooms)} | {floors} | {len(arrows)} | {names} |")
        if package in PICTURES:
            title = f"## {package}\n\nArrows that a longer way implies are left out.\n\n"
            pictures.append(title + picture(rooms, arrows))
    return HEAD + "\n".join(rows) + "\n\n" + "\n".join(pictures)


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="only tell whether the page is up to date")
    options = parser.parse_args()
    text = page()
    if not options.check:
        options.file.write_text(text, "utf-8")
    elif not options.file.exists() or options.file.read_text("utf-8") != text:
        print(f"{options.file} is stale; run: make imports-page", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
