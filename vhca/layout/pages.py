"""The pages of the formats: one page of tables for each module of declared structures.

`python -m vhca.layout.pages PACKAGE FOLDER` writes the pages of everything under a package; `--check`
writes nothing and exits with 1 if a page is missing, out of date or left over.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from types import ModuleType

from vhca.layout.fields import Field
from vhca.layout.structure import Layout

_NOTE = "This page is generated from the declarations; change those and run `make formats`."
_DIAGRAM_BYTES = 64  # longer structures would need a diagram that nobody reads


def modules(root: str) -> Iterator[ModuleType]:
    """Import `root` and all modules below it, in name order."""
    package = importlib.import_module(root)
    yield package
    for info in sorted(pkgutil.walk_packages(package.__path__, f"{root}."), key=lambda item: item.name):
        yield importlib.import_module(info.name)


def layouts(module: ModuleType) -> list[type[Layout]]:
    """Complete structures that `module` itself declares, in the order of their declaration."""
    return [
        item
        for item in vars(module).values()
        if isinstance(item, type)
        and issubclass(item, Layout)
        and item.__module__ == module.__name__
        and hasattr(item, "SIZE")
    ]


def render_all(root: str) -> dict[str, str]:
    """File name to text of every page, the index `README.md` included."""
    pages: dict[str, str] = {}
    index = ["# Formats", "", _NOTE, "", "| Page | What it is | Structures |", "|---|---|---|"]
    for module in modules(root):
        found = layouts(module)
        if not found:
            continue
        title = module.__name__.removeprefix(f"{root}.")
        name = title.replace(".", "-") + ".md"
        pages[name] = render(module)
        summary = (inspect.getdoc(module) or "").split("\n", 1)[0]
        index.append(f"| [{title}]({name}) | {summary} | {', '.join(f'`{item.__name__}`' for item in found)} |")
    pages["README.md"] = "\n".join(index) + "\n"
    return pages


def render(module: ModuleType) -> str:
    """The page of one module: its docstring, then its structures and its codes."""
    lines = [f"# {module.__name__}", "", inspect.getdoc(module) or "", "", _NOTE, ""]
    for layout in layouts(module):
        lines += _structure(layout)
    for item in vars(module).values():
        if isinstance(item, type) and issubclass(item, IntEnum) and item.__module__ == module.__name__:
            lines += _codes(item)
    return "\n".join(lines).rstrip() + "\n"


def _structure(layout: type[Layout]) -> list[str]:
    lines = [f"## {layout.__name__} ({layout.SIZE} bytes)", "", inspect.getdoc(layout) or "", ""]
    if not layout.fields():
        return [*lines, "No fields.", ""]
    if layout.SIZE <= _DIAGRAM_BYTES and layout.SIZE % 4 == 0:
        lines += ["```text", *_diagram(layout), "```", ""]
    lines += ["| Offset | Bits | Field | Width |", "|---|---|---|---|"]
    for field in layout.fields():
        span = "" if field.kind != "bits" else field.where().split(" ")[1]
        lines.append(f"| 0x{field.offset:03x} | {span} | `{field.name}`{_target(field)} | {_width(field)} |")
    return [*lines, ""]


def _target(field: Field) -> str:
    return f" ({field.layout.__name__})" if field.layout is not None else ""


def _width(field: Field) -> str:
    return f"{field.width // 8} bytes" if field.kind in ("raw", "sub") else f"{field.width}"


def _diagram(layout: type[Layout]) -> list[str]:
    """One row per dword: bit spans as `[hi:lo name]`, reserved bits as dots; empty runs are folded."""
    rows: list[tuple[int, str]] = []
    for offset in range(0, layout.SIZE, 4):
        cells: list[str] = []
        at = offset * 8
        for field in layout.fields():
            start, end = max(field.start, offset * 8), min(field.end, offset * 8 + 32)
            if start >= end:
                continue
            if start > at:
                cells.append("." * 3)
            high, low = 31 - start % 32, 31 - (end - 1) % 32
            part = "" if field.start >= offset * 8 else " ..."
            cells.append(f"[{high}:{low} {field.name}{part}]" if high != low else f"[{high} {field.name}]")
            at = end
        if at < offset * 8 + 32:
            cells.append("." * 3)
        rows.append((offset, " ".join(cells)))
    lines: list[str] = []
    previous = ""
    for offset, text in rows:
        if text == previous == "...":
            if lines[-1] != "  :":
                lines.append("  :")
        else:
            lines.append(f"0x{offset:03x}  {text}")
        previous = text
    return lines


def _codes(codes: type[IntEnum]) -> list[str]:
    lines = [f"## {codes.__name__}", "", inspect.getdoc(codes) or "", "", "| Value | Name |", "|---|---|"]
    lines += [f"| 0x{code.value:x} | `{code.name}` |" for code in codes]
    return [*lines, ""]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m vhca.layout.pages", description="Write the format pages.")
    parser.add_argument("package", help="the package whose structures are shown, such as vhca.wire")
    parser.add_argument("folder", type=Path, help="where the pages live, usually docs/formats")
    parser.add_argument("--check", action="store_true", help="only tell whether the pages are up to date")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    wanted = render_all(options.package)
    present = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")}
    changed = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
    if options.check:
        for name in changed:
            print(
                f"{folder / name} is stale; run: python -m vhca.layout.pages {options.package} {folder}",
                file=sys.stderr,
            )
        return 1 if changed else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        if name in wanted:
            (folder / name).write_text(wanted[name], "utf-8")
        else:
            (folder / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
