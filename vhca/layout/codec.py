"""Generated packers and unpackers: one `struct` call and the shifts, for paths that run per packet or WQE.

The function for a set of field names is written out as source on first use and kept. A five-field CQE packs in
about 0.4 us; the check that values fit costs one shift per bit field and nothing for whole bytes and words,
which `struct` checks itself.
"""

from __future__ import annotations

import keyword
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeAlias

from vhca.layout.fields import Field, LayoutError, Structure

Buffer: TypeAlias = "bytes | bytearray | memoryview"

_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A field named by the caller, at its place in the outermost structure (`start` in bits)."""

    name: str
    argument: str
    field: Field
    start: int

    @property
    def end(self) -> int:
        return self.start + self.field.width

    @property
    def shift(self) -> int:
        return (32 - self.end % 32) % 32

    @property
    def is_whole(self) -> bool:
        """True if `struct` has a format code for exactly these bits."""
        return not self.start % 8 and (not self.field.is_integer or self.field.width in _CODES)

    @property
    def code(self) -> str:
        return _CODES[self.field.width] if self.field.is_integer else f"{self.field.width // 8}s"


@dataclass(frozen=True, slots=True)
class _Unit:
    """One value of the `struct` format: a whole field, or a dword shared by bit fields."""

    start: int
    code: str
    leaves: tuple[_Leaf, ...]

    @property
    def is_shared(self) -> bool:
        return not self.leaves[0].is_whole or len(self.leaves) > 1


def _find(cls: type[Structure], name: str, number: int) -> _Leaf:
    """Follow a dotted name down to its field."""
    layout: type[Structure] | None = cls
    base = 0
    field: Field | None = None
    for part in name.split("."):
        base += field.start if field is not None else 0
        field = {item.name: item for item in layout.fields()}.get(part) if layout is not None else None
        if field is None:
            raise LayoutError(f"{cls.__name__} has no field {name}")
        layout = field.layout
    assert field is not None
    argument = name.replace(".", "__")
    return _Leaf(name, f"{argument}_{number}" if keyword.iskeyword(argument) else argument, field, base + field.start)


def _units(cls: type[Structure], leaves: tuple[_Leaf, ...]) -> tuple[str, list[_Unit]]:
    """Group the leaves into struct values; returns the format, which always spans the whole structure."""
    ordered = sorted(leaves, key=lambda leaf: leaf.start)
    for before, after in pairwise(ordered):
        if after.start < before.end:
            raise LayoutError(f"{cls.__name__}: {before.name} and {after.name} are the same bits")
    shared = {leaf.start // 32 for leaf in ordered if not leaf.is_whole}
    units: list[_Unit] = []
    for dword in sorted(shared):
        units.append(_Unit(dword * 32, "I", tuple(leaf for leaf in ordered if leaf.start // 32 == dword)))
    units += [_Unit(leaf.start, leaf.code, (leaf,)) for leaf in ordered if leaf.start // 32 not in shared]
    units.sort(key=lambda unit: unit.start)
    form = ">"
    at = 0
    for unit in units:
        form += f"{unit.start // 8 - at}x" * (unit.start // 8 > at) + unit.code
        at = unit.start // 8 + struct.calcsize(">" + unit.code)
    return form + f"{cls.SIZE - at}x" * (at < cls.SIZE), units


def _resolve(cls: type[Structure], names: tuple[str, ...]) -> tuple[_Leaf, ...]:
    if not names:
        raise LayoutError(f"{cls.__name__}: name at least one field")
    return tuple(_find(cls, name, number) for number, name in enumerate(names))


@cache
def make_packer(cls: type[Structure], names: tuple[str, ...]) -> Callable[..., bytes]:
    """Write and compile the packer behind `Layout.packer`."""
    leaves = _resolve(cls, names)
    form, units = _units(cls, leaves)
    checks: list[str] = []
    values: list[str] = []
    for unit in units:
        terms: list[str] = []
        for leaf in unit.leaves:
            if not leaf.field.is_integer:
                checks.append(f"_len({leaf.argument}) != {leaf.field.width // 8}")
            elif unit.is_shared and leaf.start % 32:
                # A field at the top of its dword overflows the dword, which struct refuses by itself.
                checks.append(f"{leaf.argument} >> {leaf.field.width}")
            terms.append(f"{leaf.argument} << {leaf.shift}" if unit.is_shared and leaf.shift else leaf.argument)
        values.append(" | ".join(terms))
    arguments = ", ".join(leaf.argument for leaf in leaves)
    source = f"def pack({arguments}):\n"
    if checks:
        source += f"    if {' or '.join(checks)}:\n        raise _misfit(({arguments},))\n"
    source += f"    try:\n        return _pack({', '.join(values)})\n"
    source += f"    except _StructError:\n        raise _misfit(({arguments},)) from None\n"

    def misfit(given: tuple[Any, ...]) -> ValueError:
        for leaf, value in zip(leaves, given, strict=True):
            field = leaf.field
            if not field.is_integer:
                if not isinstance(value, bytes | bytearray) or len(value) * 8 != field.width:
                    return ValueError(f"{cls.__name__}.{leaf.name} takes exactly {field.width // 8} bytes")
            elif not isinstance(value, int) or not field.fits(value):
                return ValueError(f"{cls.__name__}.{leaf.name} has {field.width} bits; {value!r} does not fit")
        return ValueError(f"{cls.__name__}: values do not fit")

    return _compile(
        cls, source, "pack", {"_pack": struct.Struct(form).pack, "_misfit": misfit, "_StructError": struct.error}
    )


@cache
def make_unpacker(cls: type[Structure], names: tuple[str, ...]) -> Callable[..., tuple[Any, ...]]:
    """Write and compile the unpacker behind `Layout.unpacker`."""
    leaves = _resolve(cls, names)
    form, units = _units(cls, leaves)
    results: dict[str, str] = {}
    for number, unit in enumerate(units):
        word = f"w{number}"
        for leaf in unit.leaves:
            value = f"{word} >> {leaf.shift}" if unit.is_shared and leaf.shift else word
            if unit.is_shared and leaf.start % 32:
                value = f"({value}) & {(1 << leaf.field.width) - 1:#x}"
            results[leaf.name] = value
    words = "".join(f"w{number}, " for number in range(len(units)))
    ordered = "".join(f"{results[leaf.name]}, " for leaf in leaves)
    fetch = "return" if ordered == words else f"{words}="
    source = f"def unpack(buf, offset=0):\n    try:\n        {fetch} _unpack_from(buf, offset)\n"
    source += "    except _StructError:\n        raise _too_short(buf, offset) from None\n"
    if ordered != words:
        source += f"    return {ordered}\n"

    def too_short(buf: Buffer, offset: int) -> LayoutError:
        return LayoutError(f"{cls.__name__} needs {cls.SIZE} bytes; offset {offset} leaves {len(buf) - offset}")

    unpack_from = struct.Struct(form).unpack_from
    names_used = {"_unpack_from": unpack_from, "_too_short": too_short, "_StructError": struct.error}
    return _compile(cls, source, "unpack", names_used)


@cache
def make_iterator(cls: type[Structure], names: tuple[str, ...]) -> Callable[[Buffer], Iterator[tuple[Any, ...]]]:
    """Make the function behind `Layout.iterator`: `struct`'s own, so only for whole fields in wire order."""
    leaves = _resolve(cls, names)
    form, units = _units(cls, leaves)
    if any(unit.is_shared for unit in units) or [unit.leaves[0] for unit in units] != list(leaves):
        raise LayoutError(f"{cls.__name__}: only whole fields in wire order can be iterated over")
    return struct.Struct(form).iter_unpack


def _compile(cls: type[Structure], source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    scope: dict[str, Any] = {"_len": len, **names}
    exec(compile(source, f"<{name} of {cls.__name__}>", "exec"), scope)
    function: Callable[..., Any] = scope[name]
    function.__doc__ = source
    return function
