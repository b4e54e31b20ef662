"""The checker of the documentation's links finds what is broken, and only that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.check_docs import broken_links, main


def _page(folder: Path, text: str) -> list[str]:
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs" / "other.md").write_text("# Some *Heading*, twice\n\n## `code` & more\n\n# Some Heading, twice\n")
    (folder / "page.md").write_text(text)
    return list(broken_links(folder))


@pytest.mark.parametrize(
    "link",
    [
        "[a](docs/other.md)",
        "[a](docs/other.md#code--more)",
        "[a](docs/other.md#some-heading-twice)",
        "[a](docs/other.md#some-heading-twice-1)",
        "[a](docs)",
        "[a](https://example.org/nowhere)",
        "# Here\n[a](#here)",
        '<img src="docs/other.md" alt="x">',
        "`[a](nowhere.md)`",
        "```\n[a](nowhere.md)\n```",
    ],
)
def test_links_that_lead_somewhere(link: str, tmp_path: Path) -> None:
    assert _page(tmp_path, link) == []


@pytest.mark.parametrize(
    "link",
    [
        "[a](nowhere.md)",
        "[a](docs/other.md#nothing)",
        "[a](#nothing)",
        "![a](picture.svg)",
        '<img src="picture.svg">',
        "[a]: nowhere.md",
    ],
)
def test_links_that_lead_nowhere(link: str, tmp_path: Path) -> None:
    assert len(_page(tmp_path, link)) == 1
    assert main([str(tmp_path)]) == 1


def test_every_deviation_in_the_source_is_listed() -> None:
    root = Path(__file__).resolve().parents[3]
    listed = (root / "docs" / "limits.md").read_text().split("## Deviations")[1]
    marked = {
        path.relative_to(root).as_posix()
        for package in ("vhca", "firmware")
        for path in (root / package).rglob("*.py")
        if "DEVIATION:" in path.read_text()
    }
    assert marked
    assert marked == {path for path in marked if f"`{path}`" in listed}


def test_every_test_that_the_security_page_names_is_there() -> None:
    root = Path(__file__).resolve().parents[3]
    named = re.findall(r"`(tests/[^`:]+\.py)::(\w+)`", (root / "docs" / "security.md").read_text())
    assert len(named) > 20
    for file, test in named:
        text = (root / file).read_text() if (root / file).is_file() else ""
        assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file}::{test}"
