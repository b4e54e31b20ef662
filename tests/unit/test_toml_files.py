"""What `tomllib` has no bounds for, in files that people hand in."""

from pathlib import Path

import pytest

from vhca.fabric import schedule, topology_toml
from vhca.fabric.topology import TopologyError
from vhca.toml_files import MOST_DOTS, read_toml
from vhca.trunk.rack_file import RackFileError, read_rack_file

WILD = {
    "a key of many parts": ("a." * 100_000 + "b = 1", "line 1 has more than"),
    "a table of many parts": ("b = 1\n[" + "a." * 100_000 + "b]", "line 2 has more than"),
    "lists in lists": ("a = " + "[" * 100_000, "nested too deeply"),
    "tables in tables": ("a = " + "{a = " * 3_000, "nested too deeply"),
    "a long number": ("a = " + "9" * 100_000, "digits"),
}


@pytest.mark.parametrize(("text", "why"), WILD.values(), ids=WILD)
def test_wild_documents_are_refused_at_once(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_toml(text)
    with pytest.raises(TopologyError, match=why):
        topology_toml.read(text)
    with pytest.raises(schedule.ScheduleError, match=why):
        schedule.read(text)
    with pytest.raises(RackFileError, match=why):
        read_rack_file(text, Path("/nowhere"))


def test_as_many_dots_as_there_may_be_are_read() -> None:
    assert read_toml('a = "' + "." * MOST_DOTS + '"') == {"a": "." * MOST_DOTS}
