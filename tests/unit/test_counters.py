"""Every counter is declared, counted by the product, and on the page."""

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from firmware.model import counters
from firmware.model.counters import Count, CountOf, QCount, SmpCountOf
from tests import counters_page
from vhca.counting import Family, Name, Tally, shown
from vhca.wire.connectx.cmd import Op, QueryQCounterOut

ROOT = Path(__file__).parents[2]
ENUMS: tuple[type[Name] | type[Family], ...] = tuple(
    dict.fromkeys(
        enum for section in counters_page.SECTIONS for enum in (section.names, section.families) if enum is not None
    )
)

# Members of Count that have a name of their own, for those who count often.
SHORT = {name for name in Count.__members__ if hasattr(counters, name)}


def product() -> Iterator[ast.Module]:
    for folder in ("firmware", "vhca"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            if path.name == "counters.py":
                # Its other names for members count for nothing; who uses those is looked at instead.
                tree.body = [
                    part for part in tree.body if isinstance(part, ast.AnnAssign) and "DMA_MAP" in ast.dump(part)
                ]
            yield tree


def counted_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Members that are counted: each use of `Enum.MEMBER`, or of a member's other name, but a look at its value."""
    looks = {
        id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(tree):
        if id(node) in looks:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr
        elif isinstance(node, ast.Name) and node.id in SHORT:
            yield "Count", node.id


def test_every_declared_counter_is_counted_by_the_product() -> None:
    counted = {use for tree in product() for use in counted_in(tree)}
    never = [
        f"{enum.__name__}.{member.name}"
        for enum in ENUMS
        for member in enum
        if (enum.__name__, member.name) not in counted
    ]
    assert not never


def test_every_declaration_is_on_the_page() -> None:
    declared: set[type] = {*Name.__subclasses__(), *Family.__subclasses__()}
    assert declared == set(ENUMS)
    assert counters_page.main([str(ROOT / "docs" / "counters.md"), "--check"]) == 0


def sentences_of(members: Iterable[Name | Family]) -> list[str]:
    return [member.sentence for member in members]


def test_every_counter_has_a_sentence_of_its_own() -> None:
    for enum in ENUMS:
        sentences = sentences_of(enum)
        assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in sentences)
        assert len(set(sentences)) == len(sentences)


def test_counters_of_a_card_have_different_names() -> None:
    card = [section for section in counters_page.SECTIONS if section.where.startswith(counters_page.CARD)]
    names = Counter(section.prefix + name for section in card for name in section.names)
    names.update(family.value for section in card for family in section.families or ())
    assert max(names.values()) == 1


def test_counter_sets_have_the_fields_of_the_command() -> None:
    assert {name.value for name in QCount} <= {field.name for field in QueryQCounterOut.fields()}


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("counts[Count.COMMANDS] += 1", False),
        ("counts[Count.COMMANDZ] += 1", True),
        ('counts["commands"] += 1', True),
        ('counts["commandz"] += 1', True),
        ("counts[QCount.OUT_OF_BUFFER] += 1", True),
        ("tally.add(CountOf.SEND_ERRORS, 5)", False),
        ('tally.add("send_errors_{}", 5)', True),
    ],
)
def test_a_misspelt_counter_is_a_type_error(line: str, refused: bool, types: dict[str, bool]) -> None:
    assert types[line] == refused


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """What mypy says of each line of the test above: True if it refuses it."""
    mark = next(mark for mark in test_a_misspelt_counter_is_a_type_error.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    lines = [line for line, _ in mark.args[1]]
    head = (
        "from collections import Counter\n"
        "from firmware.model.counters import Count, CountOf, QCount\n"
        "from vhca.counting import Tally\n"
        "counts: Counter[Count] = Counter()\n"
        "tally: Tally[CountOf] = Tally()\n"
    )
    program = tmp_path_factory.mktemp("types") / "program.py"
    program.write_text(head + "\n".join(lines) + "\n")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", os.devnull, str(program)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, "MYPYPATH": str(ROOT)},
    )  # fmt: skip
    found = {int(line.split(":")[1]) for line in run.stdout.splitlines() if line.startswith(str(program))}
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return {line: number in found for number, line in enumerate(lines, head.count("\n") + 1)}


def test_what_others_choose_among_many_is_bounded() -> None:
    tally: Tally[SmpCountOf] = Tally()
    for number in range(1000):
        tally.add(SmpCountOf.UNSUPPORTED_ATTRIBUTE, number)
    tally.add(SmpCountOf.UNSUPPORTED_ATTRIBUTE, 31)
    names = shown({}, tally)
    assert len(names) == 33
    assert names["smp_unsupported_attribute"] == 968
    assert names["smp_unsupported_attribute_0x001f"] == 2


def test_names_are_those_of_the_numbers() -> None:
    tally: Tally[CountOf] = Tally()
    tally.add(CountOf.COMMAND_UNKNOWN, Op.CREATE_RMP)
    tally.add(CountOf.EVENT_UNCLAIMED, 9)
    names = shown({Count.COMMANDS: 3}, tally)
    assert names == {"commands": 3, "command_unknown_CREATE_RMP": 1, "event_0x09_unclaimed": 1}
    assert {type(name) for name in names} == {str}
