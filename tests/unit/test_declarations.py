"""Each fact of the formats stands in one place: what is declared in `vhca/wire` is used, and nobody spells it again."""

import ast
import re
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from importlib import import_module
from pathlib import Path

from vhca.layout import Layout

ROOT = Path(__file__).parents[2]
WIRE = "vhca/wire"
# Who executes the formats: here, a number that a declaration has is a second place that knows it.
EXECUTORS = ("firmware", "vhca/chip", "vhca/management")


def sources(*folders: str) -> dict[str, ast.Module]:
    """Syntax trees of the product's modules, by path."""
    return {
        str(path.relative_to(ROOT)): _tree(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
    }


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def names_in(node: ast.AST) -> set[str]:
    """Names that are used in a piece of code; importing and exporting a name is no use."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
    return found


def declarations() -> Iterator[tuple[str, type]]:
    """Layouts and enumerations of the formats: path and class."""
    for path in sources(WIRE):
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for cls in vars(import_module(name)).values():
            if isinstance(cls, type) and cls.__module__ == name and issubclass(cls, Layout | IntEnum):
                yield path, cls


def test_every_layout_and_enumeration_has_a_user() -> None:
    users = set()
    for path, tree in sources("firmware", "vhca").items():
        if not path.startswith(WIRE):
            users |= names_in(tree)
    # Inside the formats, what is used uses others: as parts, bases, or in a function.
    inside = {}
    for _, tree in sources(WIRE).items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                inside[node.name] = names_in(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in [node.target] if isinstance(node, ast.AnnAssign) else node.targets:
                    if isinstance(target, ast.Name):
                        inside.setdefault(target.id, set()).update(names_in(node.value))
    fresh = set(users)
    while fresh:
        fresh = {name for user in fresh for name in inside.get(user, ())} - users
        users |= fresh
    idle = [f"{path}: {cls.__name__}" for path, cls in declarations() if cls.__name__ not in users]
    assert not idle, "declared, and used by nobody:\n" + "\n".join(idle)


def members() -> dict[int, set[tuple[str, ...]]]:
    """Names of all members of enumerations, in words, by value."""
    found: dict[int, set[tuple[str, ...]]] = {}
    for _, cls in declarations():
        if issubclass(cls, IntEnum):
            for member in cls:
                found.setdefault(int(member), set()).add(tuple(member.name.split("_")))
    return found


def literals(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Module constants that are spelled as a number."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant) and type(node.value.value) is int:
                yield target.id, node.value.value


def test_no_executor_spells_a_code_that_is_declared() -> None:
    declared = members()
    twice = []
    for path, tree in sources(*EXECUTORS).items():
        for name, value in literals(tree):
            words = tuple(name.strip("_").split("_"))
            for member in declared.get(value, ()):
                if words[-len(member) :] == member:
                    twice.append(f"{path}: {name} = {value:#x} is {'_'.join(member)}")
                    break
    assert not twice, "spelled a second time:\n" + "\n".join(twice)


def test_no_executor_spells_a_structure() -> None:
    """Of `struct`, executors use single numbers; what has fields is a layout."""
    several = re.compile(r"[<>!=][\dxbBhHiIqQsc]{2,}")
    spelled = [
        f"{path}:{node.lineno}: {node.value}"
        for path, tree in sources(*EXECUTORS).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and several.fullmatch(node.value)
    ]
    assert not spelled, "structures that belong to vhca/wire:\n" + "\n".join(spelled)


def test_no_constant_is_idle() -> None:
    """Constants of the firmware and the board; the formats also declare what readers of their pages look up."""
    used: set[str] = set()
    exported: set[str] = set()
    for tree in sources("firmware", "vhca").values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                exported.add(node.value)
    idle = []
    for path, tree in sources("firmware", "vhca").items():
        if path.startswith(WIRE):
            continue
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if isinstance(target, ast.Name) and target.id.isupper() and target.id not in used | exported:
                    idle.append(f"{path}: {target.id}")
    assert not idle, "constants that nobody uses:\n" + "\n".join(idle)


def test_no_two_modules_of_the_firmware_define_one_name() -> None:
    """Either two values have one name, or one fact stands in two places."""
    defined: dict[str, list[str]] = {}
    for path, tree in sources("firmware").items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]+", target.id):
                    defined.setdefault(target.id, []).append(path)
    assert len(defined) > 300
    twice = [f"{name}: {', '.join(paths)}" for name, paths in defined.items() if len(paths) > 1]
    assert not twice, "defined more than once:\n" + "\n".join(twice)
