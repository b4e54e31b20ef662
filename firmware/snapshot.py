"""The whole state of a card's program as bytes: dumped between two steps, compared, restored on this board or another.

What the board gave (its memories, identity, trace, memory limit) is not part of it: a snapshot names those, and takes
them from the board that it is restored on. Guest memory is the machine's. Snapshots are for the process that made them,
and for its tests: they are pickles, which nobody reads who does not trust the writer.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import Structure
from types import MethodType
from typing import Any, Final

from firmware.model.block import Scratch
from firmware.model.hca import Hca

_MAX_DIFFERENCES: Final = 100

SCRATCH: Final = "scratch"

Outside = Mapping[str, object]
"""What the board gave, by name."""


def outside_of(hca: Hca) -> Outside:
    """What the board gave to this state."""
    return {
        "memory": hca.memory,
        "device_memory": hca.chip.memory,
        "info": hca.info,
        "trace": hca.trace,
        "memory_limit": hca.budget.ask,
        "through": hca.through,
        "native": hca.native,
    }


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, outside: Outside) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names = {id(thing): name for name, thing in outside.items() if thing is not None}

    def persistent_id(self, obj: object) -> str | None:
        """Name what is the board's, and what is no state."""
        name = self._names.get(id(obj))
        return SCRATCH if name is None and isinstance(obj, Scratch) else name


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, outside: Outside) -> None:
        super().__init__(file)
        self._outside = outside

    def persistent_load(self, pid: str) -> object:
        """Take what is the board's from this board."""
        return None if pid == SCRATCH else self._outside[pid]


def dump(state: object, outside: Outside) -> bytes:
    """The state as bytes."""
    file = io.BytesIO()
    _Writer(file, outside).dump(state)
    return file.getvalue()


def load(image: bytes, outside: Outside) -> Any:
    """The state of :func:`dump`, as new objects."""
    return _Reader(io.BytesIO(image), outside).load()


def differences(one: object, other: object, skip: frozenset[str] = frozenset()) -> list[str]:
    """Where two states differ, as paths with both values, 100 at the most; attributes named in `skip` are left out.

    Circles are followed once. Two states are the same if their objects have the same values and refer to each other in
    the same way.
    """
    found: list[str] = []
    partners: dict[int, int] = {}
    todo: list[tuple[str, Any, Any]] = [("", one, other)]
    while todo and len(found) < _MAX_DIFFERENCES:
        path, a, b = todo.pop()
        if type(a) is not type(b):
            found.append(f"{path}: {type(a).__name__} and {type(b).__name__}")
            continue
        parts = _parts(a)
        if parts is None:
            if a != b:
                found.append(f"{path}: {a!r} and {b!r}"[:200])
            continue
        if id(a) in partners:
            if partners[id(a)] != id(b):
                found.append(f"{path}: refers to another object")
            continue
        partners[id(a)] = id(b)
        mine, theirs = dict(parts(a)), dict(parts(b))
        for name in mine.keys() | theirs.keys():
            if name in skip or isinstance(mine.get(name), Scratch) or isinstance(theirs.get(name), Scratch):
                continue
            if name not in mine or name not in theirs:
                found.append(f"{path}{name}: only in the {'first' if name in mine else 'second'}")
            else:
                todo.append((path + str(name), mine[name], theirs[name]))
    return sorted(found)


def _parts(thing: object) -> Callable[[Any], Iterator[tuple[object, Any]]] | None:
    """How to take an object apart; None for plain values."""
    if isinstance(thing, dict):
        return lambda d: ((f"[{key!r}]", value) for key, value in d.items())
    if isinstance(thing, Structure | bytes | bytearray | str | int | float | None):
        return None
    if isinstance(thing, MethodType):
        return lambda method: iter(((".__func__", method.__func__), (".__self__", method.__self__)))
    if isinstance(thing, tuple):
        return _items
    if not callable(thing) and type(thing).__module__.startswith(("firmware.", "vhca.")):
        return _attributes
    if isinstance(thing, list) or hasattr(thing, "popleft"):
        return _items
    return None


def _items(things: Iterable[Any]) -> Iterator[tuple[object, Any]]:
    return ((f"[{index}]", item) for index, item in enumerate(things))


def _attributes(thing: object) -> Iterator[tuple[object, Any]]:
    for cls in type(thing).__mro__:
        for name in getattr(cls, "__slots__", ()):
            if name != "__weakref__" and hasattr(thing, name):
                yield f".{name}", getattr(thing, name)
    for name, value in getattr(thing, "__dict__", {}).items():
        yield f".{name}", value


_MAX_LINES: Final = 400
_MAX_VALUE: Final = 120


def describe(hca: Hca, kind: str, number: int | None) -> list[str]:
    """The objects of a kind, or one of them, as lines `name = value`; what they refer to is named, not shown.

    :raises LookupError: there is no such kind, or no such object.
    """
    tables = {table.kind: table for table in hca.tables()}
    if kind not in tables:
        raise LookupError(f"there is no kind {kind}; there are {', '.join(tables)}")
    found = list(tables[kind]) if number is None else [tables[kind].get(number)]
    lines: list[str] = []
    for thing in found:
        if thing is None:
            raise LookupError(f"there is no {kind} {number:#x}")
        lines.append(f"{kind} {thing.handle:#x}")
        _describe(thing, "  ", lines, 2)
        if len(lines) > _MAX_LINES:
            return [*lines[:_MAX_LINES], f"... {len(found)} in all"]
    return lines


def _describe(thing: object, indent: str, lines: list[str], depth: int) -> None:
    for name, value in _attributes(thing):
        plain = _parts(value) is None or (isinstance(value, list | dict | tuple) and not value)
        if plain:
            lines.append(f"{indent}{str(name)[1:]} = {_value(value)}")
            continue
        handle = getattr(value, "handle", None)
        if handle is not None:
            lines.append(f"{indent}{str(name)[1:]} = {type(value).__name__.lower()} {handle:#x}")
        elif hasattr(value, "__len__"):
            lines.append(f"{indent}{str(name)[1:]} = {len(value)} of them")
        elif depth and len(lines) <= _MAX_LINES:
            lines.append(f"{indent}{str(name)[1:]}: {type(value).__name__}")
            _describe(value, indent + "  ", lines, depth - 1)


def _value(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes {bytes(value[:32]).hex()}"
    if type(value) is int:
        return f"{value} ({value:#x})" if value > 9 else str(value)
    return repr(value)[:_MAX_VALUE]
