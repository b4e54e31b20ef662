"""Finds where a scenario makes or changes what is inside a card, instead of coming through the card's door."""

import ast
from collections.abc import Iterator

MARK = "# Past the door: "
"""A comment that begins so says why the line below it does."""

MODEL = "firmware.model"
CHANGES = frozenset({"add", "remove", "append", "extend", "clear", "pop", "popleft", "update", "insert"})
# Where the inside of a card begins.
INSIDE = frozenset({"hca", "qp", "cq", "srq", "dct", "port", "firmware", "counter"})
# Attributes that a scenario may set: of the stage, of packets, of itself.
OWN = frozenset(
    {
        "at_once",
        "cable",
        "dest_qp",
        "dlid",
        "eq_consumer",
        "fault",
        "now_ns",
        "posted",
        "queue",
        "rails_by_default",
        "ring",
    }
    | {"route", "rq_posted", "slid", "sq_posted", "step"}
)
# Views of what goes to the card.
VIEWS = frozenset({"view", "info"})


def past_the_door(source: str) -> Iterator[tuple[int, str]]:
    """Lines of `source`, and what they do, that make or change objects of the model and do not say why."""
    tree = ast.parse(source)
    lines = source.splitlines()
    makers, modules = _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr) and _is_past(node, makers, modules) and not _says_why(lines, node):
            yield node.lineno, ast.unparse(node)


def _imported(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names of the model's classes, and of its modules."""
    makers, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(MODEL):
            for alias in node.names:
                name = alias.asname or alias.name
                if node.module == MODEL:
                    modules.add(name)
                elif alias.name[0].isupper() and not alias.name.isupper():
                    makers.add(name)
    return makers, modules


def _says_why(lines: list[str], node: ast.stmt | ast.expr) -> bool:
    at = node.lineno - 2
    while at >= 0 and lines[at].lstrip().startswith("#"):
        if lines[at].lstrip().startswith(MARK):
            return True
        at -= 1
    return False


def _is_past(node: ast.stmt | ast.expr, makers: set[str], modules: set[str]) -> bool:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
        return any(_changes(target) for outer in targets for target in ast.walk(outer))
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        return function.id in makers
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id in modules:
        return function.attr[0].isupper()
    return function.attr == "inside" or (function.attr in CHANGES and bool(_chain(function.value) & INSIDE))


def _changes(target: ast.AST) -> bool:
    if isinstance(target, ast.Subscript):
        return not isinstance(target.ctx, ast.Load) and bool(_chain(target.value) & INSIDE)
    if not isinstance(target, ast.Attribute) or isinstance(target.ctx, ast.Load):
        return False
    chain = _chain(target.value)
    own = chain in ({"self"}, {"packet"}) or (chain & VIEWS and not chain & INSIDE)
    return not own and target.attr not in OWN


def _chain(node: ast.AST) -> set[str]:
    """The names on the way to what an expression stands for."""
    names: set[str] = set()
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        names.add(node.id)
    return names
