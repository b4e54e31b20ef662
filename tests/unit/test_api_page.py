"""The library's page names what is there, and all that people are meant to use."""

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
NAMED = re.findall(r"^\.\. auto(module|class|exception|function):: (\S+)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_what_is_named_is_there(kind: str, name: str) -> None:
    if kind == "module":
        assert import_module(name).__doc__
    else:
        module, _, attribute = name.rpartition(".")
        assert getattr(import_module(module), attribute).__doc__


def test_the_lab_s_classes_are_named() -> None:
    lab = import_module("vhca.lab")
    public = {name for name in lab.__all__ if isinstance(getattr(lab, name), type)}
    named = {name.removeprefix("vhca.lab.") for _, name in NAMED}
    assert public - named == set()
