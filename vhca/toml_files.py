"""TOML that people hand in: topologies, rack files, schedules. `tomllib`, with bounds where it has none."""

import tomllib
from typing import Any, Final

MOST_DOTS: Final = 256
"""In a line: the time and memory for a key of many parts go with their square."""


def read_toml(text: str) -> dict[str, Any]:
    """The document in a text.

    :raises ValueError: it is not TOML, nested too deeply, or has a line with too many dots.
    """
    # Lines as TOML has them; others within them are strings' or wrong.
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MOST_DOTS:
            raise ValueError(f"line {number} has more than {MOST_DOTS} dots; make several of it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
