"""docs/museum.md from what is declared: `python -m acceptance.museum.page docs/museum.md [--check]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from acceptance.museum.exhibits import Absent, Exhibit, whole

HEAD = """\
# Museum

This page is generated from `museum/exhibits.toml`; change that and run `make formats`.

Faults of drivers, libraries and tools that this card makes visible, kept as exhibits: each is shown on a kernel or
library that has it, and its absence where it is mended, by one command.  They are not faults of the card, and a kernel
that is shown here is none the worse on a card that never says no.

```sh not run: boots two guests for each exhibit; tests/guest/test_museum.py shows one of them
vhca museum           # the list
vhca museum M02       # boots a kernel that has it, shows it, boots one that does not, and shows that
vhca museum M02 --kernel 6.12
vhca museum --all     # or: make museum
```

`vhca museum` ends with 0 if all was seen as described.  What it looks for are the *signs*, which stand in what the
exhibit's script prints and in the log of the guest's kernel.  Many of these faults leave a kernel damaged: each showing
has guests of its own.  `make museum` shows all, the regular tests show those that are marked with *.

"""


def page(exhibits: Sequence[Exhibit], absent: Sequence[Absent]) -> str:
    """The whole page."""
    parts = [HEAD, *_table(exhibits)]
    for exhibit in exhibits:
        parts += _section(exhibit)
    parts.append("\n## What is not shown\n\n| fault | why |\n|---|---|\n")
    parts += [f"| {each.what} | {each.why} |\n" for each in absent]
    return "".join(parts)


def _table(exhibits: Sequence[Exhibit]) -> list[str]:
    lines = ["| | exhibit | shown on | absent |\n|---|---|---|---|\n"]
    for each in exhibits:
        link = f"{each.id.lower()}-{each.name}"
        mended = "" if each.mended is None else _where_mended(each)
        star = "*" if each.quick else ""
        lines.append(f"| [{each.id}](#{link}){star} | {each.title} | {each.kernel} | {mended} |\n")
    return lines


def _where_mended(exhibit: Exhibit) -> str:
    assert exhibit.mended is not None
    return exhibit.mended.kernel or exhibit.mended.how


def _section(exhibit: Exhibit) -> list[str]:
    lines = [f"\n## {exhibit.id} {exhibit.name}\n\n**{exhibit.title}.**\n", f"{exhibit.wrong.rstrip()}\n\n"]
    lines.append(f"- where: {_source(exhibit.where)}\n- which: {exhibit.versions}\n- seen: {exhibit.seen}\n")
    lines += [f"- in public: {reference}\n" for reference in exhibit.references]
    run = [f"`museum/{exhibit.script}`", *([f"`museum/{exhibit.peer}` in the other guest"] if exhibit.peer else [])]
    lines.append(f"- shown by: {', '.join(run)} on {exhibit.kernel}\n")
    lines += [f"- in the card: `{rule}`\n" for rule in exhibit.faults]
    if exhibit.mended is None:
        lines.append(f"- its absence: not shown, {exhibit.no_mended}\n")
    else:
        on = f" (on {exhibit.mended.kernel})" if exhibit.mended.kernel else ""
        lines.append(f"- its absence: {exhibit.mended.how}{on}\n")
    return lines


def _source(where: str) -> str:
    place, colon, function = where.partition(": ")
    return f"`{place}`, `{function}`" if colon else f"`{place}`"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it with what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it would change")
    options = parser.parse_args(arguments)
    text = page(*whole())
    if options.check:
        if options.path.read_text("utf-8") != text:
            print(f"{options.path} is not what museum/exhibits.toml says: run `make formats`", file=sys.stderr)
            return 1
        return 0
    options.path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
