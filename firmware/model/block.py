"""Declared blocks: the part of an object that every message reads and writes, as numbers of a declared width.

A block is a data class whose fields are annotated with the types below. Python reads and writes it like any object with
slots, at their speed; :func:`c_struct` says what the same block is in C, and :func:`image` and :func:`fill` carry the
values over, so that an engine in C and the one in Python can work on one state.
"""

import struct
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class CType:
    """How C and :mod:`struct` call a type."""

    c_name: str
    code: str


Flag = Annotated[bool, CType("bool", "?")]
U8 = Annotated[int, CType("uint8_t", "B")]
U16 = Annotated[int, CType("uint16_t", "H")]
U32 = Annotated[int, CType("uint32_t", "I")]
I64 = Annotated[int, CType("int64_t", "q")]
U64 = Annotated[int, CType("uint64_t", "Q")]

T = TypeVar("T")


class Scratch:
    """What an engine keeps with an object to be faster; no state: a snapshot has None in its place."""

    __slots__ = ()


BLOCKS: Final[dict[str, type]] = {}
"""All declared blocks by the name of their class."""


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def block(cls: type[T]) -> type[T]:
    """Make a class a block: a data class with slots, all of whose own fields have a width. TypeError if one has not."""
    made = dataclass(slots=True, eq=False)(cls)
    BLOCKS[made.__name__] = made
    own_fields(made)
    return made


def own_fields(cls: type) -> list[tuple[str, CType]]:
    """Names and types of the fields that a block declares itself, in order."""
    hints = get_type_hints(cls, include_extras=True)
    inherited = {item.name for base in cls.__mro__[1:] for item in _fields(base)}
    found = []
    for item in _fields(cls):
        if item.name not in inherited:
            hint = hints[item.name]
            types = [part for part in get_args(hint) if isinstance(part, CType)] if get_origin(hint) else []
            if len(types) != 1:
                raise TypeError(f"{cls.__name__}.{item.name}: a block's fields have a type with a width")
            found.append((item.name, types[0]))
    return found


def _fields(cls: type) -> tuple[Any, ...]:
    return fields(cls) if "__dataclass_fields__" in vars(cls) else ()


def _format(cls: type) -> struct.Struct:
    # Native sizes and alignment, with the padding that C puts at the end.
    codes = [kind.code for _, kind in own_fields(cls)]
    return struct.Struct("@" + "".join(codes) + "0" + max(codes, key=struct.calcsize))


def image(obj: object, cls: type) -> bytes:
    """The values of `obj` in block `cls` as the C structure has them; struct.error if one does not fit its type."""
    return _format(cls).pack(*(getattr(obj, name) for name, _ in own_fields(cls)))


def fill(obj: object, cls: type, raw: bytes) -> None:
    """Set the fields of block `cls` in `obj` from an :func:`image`."""
    for (name, _), value in zip(own_fields(cls), _format(cls).unpack(raw), strict=True):
        setattr(obj, name, value)


def c_struct(cls: type) -> str:
    """The block as a structure in C11, named in lower case with underscores."""
    name = "".join("_" + letter.lower() if letter.isupper() else letter for letter in cls.__name__).lstrip("_")
    lines = [f"    {kind.c_name} {item};" for item, kind in own_fields(cls)]
    return "\n".join([f"struct {name} {{", *lines, "};"])
