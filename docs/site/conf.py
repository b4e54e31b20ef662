"""Settings of the site that `make docs` builds: the Markdown pages as they are, and the library's reference."""

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

project = "vhca"
author = "the vhca authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "guest-tests/README.md", "qemu-scripts/README.md"]

html_theme = "furo"
html_title = "vhca"

# Docstrings write code in single backticks, too.
default_role = "literal"
autodoc_member_order = "bysource"

# Anchors as GitHub makes them.
myst_heading_anchors = 6
# A page may leave out a level.
suppress_warnings = ["myst.header"]

# The side bar: readers of the files find their way by links, which have no order.
_BAR = {
    "Use": "tutorials lessons upper-protocols runs capture trace faults replay findings ci kernels kernel-debugging"
    " host limits museum adversary",
    "Library": "api fabric topologies cluster vfio-user counters formats/README",
    "Inside": "architecture how-a-write-travels qp-states decisions security fuzzing mutants imports",
    "Evidence": "speed validation/* conformance/*",
}


def _add_bar(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == root_doc:
        for caption, pages in _BAR.items():
            source[0] += _toctree(caption, [f"docs/{page}" for page in pages.split()])
        source[0] += _toctree("Project", ["guest-tests/README", "qemu-scripts/README", "CONTRIBUTING", "CHANGELOG"])
    elif docname == "docs/formats/README":
        source[0] += _toctree("Formats", ["*"])


def _toctree(caption: str, pages: list[str]) -> str:
    return f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def _begin_at_readme(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        page = '<!doctype html><meta http-equiv="refresh" content="0; url=README.html"><a href="README.html">vhca</a>\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    # Diagrams are shown as text: what draws them would have to be fetched.
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _add_bar)
    app.connect("build-finished", _begin_at_readme)
