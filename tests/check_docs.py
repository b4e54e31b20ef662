"""Checks the links of the documentation: every relative link leads to a file, every `#anchor` to a heading.

Every page of docs/ is also named in the bar of the site, which is made only where its tools are.

`python tests/check_docs.py [FOLDER]` prints one line per broken link and exits with 1 if there is one. Links
to other sites are not followed: the check needs no network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|<img[^>]*\ssrc=\"([^\"]+)\"|<a[^>]*\shref=\"([^\"]+)\"")
_REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_SKIPPED_FOLDERS = {".venv", ".git", ".cache", "node_modules", ".pytest_cache"}


def pages(root: Path) -> Iterator[Path]:
    """The Markdown files below `root` that are the project's."""
    for path in sorted(root.rglob("*.md")):
        if not _SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            yield path


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings have."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        number, base = 0, slug
        while slug in found:
            number += 1
            slug = f"{base}-{number}"
        found.add(slug)
    return found | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def broken_links(root: Path) -> Iterator[str]:
    """One line for every link below `root` that leads nowhere."""
    for page in pages(root):
        text = _CODE.sub("", page.read_text("utf-8"))
        targets = [next(filter(None, match)) for match in _LINK.findall(text)] + _REFERENCE.findall(text)
        for target in targets:
            if not re.match(r"[a-z][a-z0-9+.-]*:", target) and (why := _trouble(page, target)):
                yield f"{page.relative_to(root)}: {target}: {why}"


def left_out(root: Path) -> Iterator[str]:
    """One line for every page of docs/ that the bar of the site does not name."""
    bar = root / "docs" / "site" / "conf.py"
    if bar.exists():
        words = set(re.findall(r"[\w-]+", bar.read_text("utf-8")))
        for page in sorted((root / "docs").glob("*.md")):
            if page.stem not in words:
                yield f"docs/{page.name}: not in the bar of docs/site/conf.py"


def _trouble(page: Path, target: str) -> str:
    name, _, anchor = unquote(target).partition("#")
    path = (page.parent / name) if name else page
    if not path.exists():
        return "there is no such file"
    if anchor and path.suffix == ".md" and anchor.lower() not in anchors(path.read_text("utf-8")):
        return "there is no such heading"
    return ""


def main(arguments: list[str]) -> int:
    """Check the folder named, or the whole project."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    broken = [*broken_links(root), *left_out(root)]
    for line in broken:
        print(line, file=sys.stderr)
    print(f"{sum(1 for _ in pages(root))} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
