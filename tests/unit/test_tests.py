"""The tests themselves: they are the same in every run."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.support.door import MARK, past_the_door

TESTS = Path(__file__).parents[1]
# Sources of chance that no seed makes repeatable.
SEEDLESS = ("urandom", "SystemRandom", "token_bytes", "token_hex", "uuid4")


def seedless(tree: ast.Module) -> list[ast.Call]:
    """Calls whose outcome no seed decides."""
    modules = {
        name.asname or name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute):
            name = function.attr
            of_module = isinstance(function.value, ast.Name) and function.value.id == "random" and "random" in modules
        else:
            name, of_module = getattr(function, "id", ""), False
        if name in SEEDLESS or (name == "Random" and not node.args) or (of_module and name != "Random"):
            found.append(node)
    return found


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("import os\nos.urandom(3)", 1),
        ("import random\nrandom.choice([1])\nrandom.Random(1).choice([1])", 1),
        ("from random import Random\nRandom()\nRandom(2)", 1),
        ("random.choice([1])", 0),
    ],
)
def test_chance_is_recognised(source: str, calls: int) -> None:
    assert len(seedless(ast.parse(source))) == calls


def test_no_test_depends_on_chance() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in seedless(ast.parse(path.read_text("utf-8")))
    ]
    assert not found, "seedless:\n" + "\n".join(found)


MAKE = "from firmware.model.objects import Mkey, Pd, MODE_PA\n"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (MAKE + "key: Mkey\nassert key.mode == MODE_PA", 0),
        (MAKE + "key = Mkey(mode=MODE_PA)", 1),
        (MAKE + f"{MARK}no command makes this.\nkey = Mkey(mode=MODE_PA)", 0),
        (MAKE + f"{MARK}no command makes this.\nx = 1\nkey = Mkey(mode=MODE_PA)", 1),
        ("from firmware.model import objects\nobjects.Mkey()", 1),
        ("card.hca.mkeys.add(key)", 1),
        ("del card.hca.mkeys[3]", 1),
        ("card.hca.multicast[gid] = group", 1),
        ("end.qp.requester.una += 1", 1),
        ("a.qp.pd, b = 1, 2", 1),
        ("qp.state = 3", 1),
        ("qp.responder.resources.append(5)", 1),
        ("view.ctx.state = 3", 0),
        ("view.hca.state = 3", 1),
        ("card.inside(lambda: fail(card.hca))", 1),
        ("world.fault = None\nself.state = 3\npacket.dlid = 1\nseen.append(end.qp.state)", 0),
        ("world.a.hca.count[Count.CQES] == end.qp.state", 0),
    ],
)
def test_what_goes_past_the_door_is_recognised(source: str, found: int) -> None:
    assert len(list(past_the_door(source))) == found


def test_scenarios_come_through_the_door() -> None:
    """Commands, doorbells and packets set the cards up; what does not says above it why not."""
    found = [
        f"{path.relative_to(TESTS)}:{line}: {text}"
        for path in sorted((TESTS / "scenario").glob("*.py"))
        for line, text in past_the_door(path.read_text("utf-8"))
    ]
    assert not found, "past the door:\n" + "\n".join(found)


def test_docstrings_and_comments_speak_one_dialect() -> None:
    """Names in single backticks, one space behind a stop, sections as `# ---- name ----`."""
    root = TESTS.parent
    strange = []
    for folder in ("vhca", "firmware", "acceptance", "tests", "guest-tests", "museum", "qemu-scripts"):
        for path in sorted((root / folder).rglob("*.py")):
            source = path.read_text("utf-8")
            docstrings = {
                node.value.lineno
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            }
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                docstring = token.type == tokenize.STRING and token.start[0] in docstrings
                if not docstring and token.type != tokenize.COMMENT:
                    continue
                words = [*re.findall(r"``\w[^`\n]*``", token.string), *re.findall(r"[a-z]\.  [A-Z]\w*", token.string)]
                if token.type == tokenize.COMMENT and re.match(r"# ?-{2,}", token.string):
                    words += [] if re.fullmatch(r"# ---- .* ----", token.string) else [token.string]
                strange += [f"{path.relative_to(root)}:{token.start[0]}: {word}" for word in words]
    assert not strange, "another dialect:\n" + "\n".join(strange)
