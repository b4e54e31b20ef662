"""Small changes to a program, each of which a test should notice: where they can be made, and the making of one.

A mutant is one change at one place in a function. Places are counted in the order of the text, so that a number names a
mutant as long as the file does not change; :func:`sample` chooses by what a mutant says, and not by numbers. What only
tells and decides nothing is left alone: the card's notes and its drop counters, texts, annotations. So are constants
and tables of a module.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

_COMPARE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_BINARY: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES: Final = {"min": "max", "max": "min"}
# Calls and subscripts that only tell.
_TELLING: Final = ("hca.note", "hca.trace", "hca.count", "hca.count_of.add", "counters")
_DROPPED: Final = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Return)


@dataclass(frozen=True)
class Mutant:
    """One change: number in its file, line, function around it, and the statement or condition before and after.

    `function` is the qualified name of the outermost function, as `co_qualname` has it; `within` has the first lines
    of the statements around this one, outermost first.
    """

    file: str
    number: int
    line: int
    function: str
    old: str
    new: str
    within: str = ""

    def __str__(self) -> str:
        old, new = _around_change(self.old, self.new)
        return f"{self.file}:{self.line} in {self.function} (mutant {self.number})\n  - {old}\n  + {new}"


def _around_change(old: str, new: str, room: int = 50) -> tuple[str, str]:
    """Of two long texts that part where they differ, with some text around."""
    shorter = min(len(old), len(new))
    same = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    behind = next((at for at in range(shorter - same) if old[-1 - at] != new[-1 - at]), shorter - same)
    first = max(0, same - room)
    return tuple(text[first : len(text) - max(0, behind - room)] for text in (old, new))  # type: ignore[return-value]


@dataclass
class _Change:
    """What stands at an attribute of a node, or at an index of a list, and what shall."""

    holder: Any
    key: str | int
    value: object

    def swap(self) -> None:
        """Make the change; the second time, take it back."""
        if isinstance(self.key, int):
            self.holder[self.key], self.value = self.value, self.holder[self.key]
        else:
            before = getattr(self.holder, self.key)
            setattr(self.holder, self.key, self.value)
            self.value = before


@dataclass
class _Site:
    node: ast.AST
    # The statement whose text shows the change.
    statement: ast.stmt
    function: str
    within: str
    change: _Change

    def texts(self) -> tuple[str, str]:
        """The statement before and after."""
        old = _shown(self.statement)
        if isinstance(self.change.value, ast.Pass):
            return old, "pass"
        self.change.swap()
        new = _shown(self.statement)
        self.change.swap()
        return old, new


class _Walk:
    """Yields every place of a tree where a change can be made."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._function = ""
        self._within: list[str] = []

    def block(self, body: list[ast.stmt]) -> Iterator[_Site]:
        for index, statement in enumerate(body):
            if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass | ast.Assert) or _is_text(statement):
                continue
            if isinstance(statement, ast.If) and _named(statement.test) == "TYPE_CHECKING":
                continue
            if _tells(statement):
                continue
            yield from self._statement(body, index, statement)

    def _statement(self, body: list[ast.stmt], index: int, statement: ast.stmt) -> Iterator[_Site]:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            outermost = isinstance(statement, ast.FunctionDef) and not self._function
            self._names.append(statement.name)
            if outermost:
                self._function = ".".join(self._names)
            yield from self.block(statement.body)
            self._names.pop()
            if outermost:
                self._function = ""
            return
        if not self._function:
            return
        if isinstance(statement, _DROPPED) and _may_be_dropped(statement):
            yield self._site(statement, statement, _Change(body, index, _pass(statement)))
        if isinstance(statement, ast.If | ast.While):
            yield self._site(statement, statement, _Change(statement, "test", _negated(statement.test)))
        for name, value in ast.iter_fields(statement):
            if name == "annotation":
                continue
            if isinstance(value, ast.expr):
                yield from self._expression(value, statement)
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr):
                for item in value:
                    yield from self._expression(item, statement)
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._within.append("else:" if name == "orelse" else _shown(statement))
                yield from self.block(value)
                self._within.pop()
            elif isinstance(value, list) and value and isinstance(value[0], ast.ExceptHandler):
                for handler in value:
                    yield from self.block(handler.body)
        if isinstance(statement, ast.AugAssign) and type(statement.op) in _BINARY:
            yield self._site(statement, statement, _Change(statement, "op", _BINARY[type(statement.op)]()))

    def _site(self, node: ast.AST, statement: ast.stmt, change: _Change) -> _Site:
        return _Site(node, statement, self._function, " ".join(self._within), change)

    def _expression(self, expression: ast.expr, statement: ast.stmt) -> Iterator[_Site]:
        for node in _subexpressions(expression):
            yield from (self._site(node, statement, change) for change in _changes(node))


def _subexpressions(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is in it, in a fixed order; texts and lambdas' arguments have nothing to change."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.JoinedStr | ast.arguments):
            yield from _subexpressions(child)


def _changes(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            yield _Change(node.ops, index, _COMPARE[type(op)]())
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        yield _Change(node, "op", _BINARY[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _Change(node, "op", ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        # bool(x): the negation has gone.
        yield _Change(node, "operand", _negated(node.operand))
    elif isinstance(node, ast.IfExp):
        yield _Change(node, "test", _negated(node.test))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _Change(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield _Change(node, "value", node.value + 1)
        yield _Change(node, "value", node.value - 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES:
        yield _Change(node.func, "id", _NAMES[node.func.id])


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _pass(statement: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Pass(), statement)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript | ast.Call):
        return _named(node.value if isinstance(node, ast.Subscript) else node.func)
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _tells(statement: ast.stmt) -> bool:
    """Is this a note of the card, or one of its drop counters?"""
    if isinstance(statement, ast.Expr):
        return _named(statement.value) in _TELLING
    return isinstance(statement, ast.AugAssign) and _named(statement.target) in _TELLING


def _may_be_dropped(statement: ast.stmt) -> bool:
    """Names that a function gives itself are needed behind; what it stores elsewhere may be forgotten."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    if isinstance(statement, ast.Return):
        # The last value of a function has nothing to fall through to.
        return statement.value is None
    return True


def _shown(statement: ast.stmt) -> str:
    """The first line of a statement in one line of text."""
    return ast.unparse(statement).splitlines()[0]


def _sites(tree: ast.Module) -> Iterator[_Site]:
    return _Walk().block(tree.body)


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of their numbers."""
    found = []
    for number, site in enumerate(list(_sites(ast.parse(source)))):
        line = getattr(site.node, "lineno", site.statement.lineno)
        found.append(Mutant(file, number, line, site.function, *site.texts(), site.within))
    return found


def mutated(source: str, number: int) -> ast.Module:
    """The tree of the file with the change `number`, ready to be compiled."""
    tree = ast.parse(source)
    list(_sites(tree))[number].change.swap()
    return ast.fix_missing_locations(tree)


def sample(everything: Sequence[Mutant], seed: int, count: int) -> list[Mutant]:
    """`count` of the mutants, in their order: those whose texts, with the seed, have the lowest hashes.

    A statement that is added, changed or moved elsewhere draws no others: it only comes in, or goes, itself.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    ranks = []
    for at, mutant in enumerate(everything):
        names = mutant.file, mutant.function, mutant.old, mutant.new
        seen[names] += 1
        key = "\0".join((str(seed), *names, str(seen[names])))
        ranks.append((hashlib.sha256(key.encode()).digest(), at))
    return [everything[at] for at in sorted(at for _, at in sorted(ranks)[:count])]
