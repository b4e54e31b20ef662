"""The big-endian view: a structure the size of the declared one, whose attributes are its fields.

A `Layout` subclass *is* a packed `ctypes.BigEndianStructure`, so that reading or writing a field costs one
C descriptor call (about 35 ns). It owns its bytes: `from_bytes` copies, and nothing here keeps a reference to
guest memory. Like any ctypes integer, a field keeps the low bits of a value that is too large; the constructor
and the generated packers raise `ValueError` instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vhca.layout.codec import Buffer, make_iterator, make_packer, make_unpacker
from vhca.layout.fields import Field, LayoutError, Structure

if TYPE_CHECKING:
    # A type checker shall see plain attributes, not the catch-all of the ctypes stubs.
    _MetaBase = type

    class _Base:
        def __buffer__(self, flags: int, /) -> memoryview: ...

else:
    _MetaBase = type(ctypes.BigEndianStructure)
    _Base = ctypes.BigEndianStructure

_PLAIN: dict[str, Any] = {"u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64}


class LayoutMeta(_MetaBase):
    """Turns a class body of field declarations into a ctypes structure, and checks it on the way."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], body: dict[str, Any], *, size: int = 0, partial: bool = False
    ) -> Any:
        """Create the class without the declarations; `__init__` puts real fields in their place."""
        kept = {key: value for key, value in body.items() if not isinstance(value, Field)}
        # No instance dict: a misspelled field name must raise, not create an attribute.
        # _layout_ names the algorithm that _pack_ has always implied (3.14 asks for it).
        kept |= {"__slots__": (), "_pack_": 1, "_layout_": "ms"}
        return super().__new__(mcls, name, bases, kept)

    def __init__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], *, size: int = 0, partial: bool = False
    ) -> None:
        """Collect, check and install the fields of the class and of its partial bases."""
        super().__init__(name, bases, body)
        table: list[Field] = []
        for base in bases:
            inherited = getattr(base, "_table", ())
            if inherited and not getattr(base, "_partial", False):
                raise LayoutError(f"{name}: {base.__name__} is a complete structure; only partial ones extend")
            table += inherited
        for key, value in body.items():
            if isinstance(value, Field):
                if key.startswith("_") or hasattr(Layout, key):
                    raise LayoutError(f"{name}.{key}: this name is taken by the layout machinery")
                table.append(Field(key, value.offset, value.hi, value.lo, value.width, value.kind, value.layout))
        cls._table = tuple(table)
        if len({field.name for field in table}) < len(table):
            raise LayoutError(f"{name}: a field of a partial base is declared again")
        cls._by_name = {field.name: field for field in table}
        cls._partial = partial
        if partial or not bases or bases == (_Base,):
            return
        if size <= 0:
            raise LayoutError(f"{name}: a structure needs its size in bytes, as in class {name}(Layout, size=64)")
        _check(name, cls._table, size)
        cls.SIZE = size
        _install(cls, name, cls._table, size)

    if TYPE_CHECKING:
        _table: tuple[Field, ...]
        _by_name: dict[str, Field]
        _partial: bool
        SIZE: int


def _check(name: str, table: tuple[Field, ...], size: int) -> None:
    """Raise LayoutError unless the fields are in wire order, apart from each other and inside `size`."""
    previous: Field | None = None
    for field in table:
        if previous is not None and field.start < previous.end:
            what = "overlaps" if field.end > previous.start else "is declared behind (wire order is required)"
            raise LayoutError(f"{name}.{field.name} at {field.where()} {what} {previous.name} at {previous.where()}")
        if field.end > size * 8:
            raise LayoutError(f"{name}.{field.name} at {field.where()} ends behind the {size} bytes of the structure")
        previous = field
    bit_dwords = {field.offset // 4 for field in table if field.kind == "bits"}
    if bit_dwords and (max(bit_dwords) + 1) * 4 > size:
        raise LayoutError(f"{name}: the last dword with bit fields ends behind the {size} bytes of the structure")
    for field in table:
        if _shares_dword(field, bit_dwords) and not _inside_dword(field):
            raise LayoutError(
                f"{name}.{field.name} at {field.where()} shares a dword with bit fields; only whole bytes can do so"
            )


def _shares_dword(field: Field, bit_dwords: set[int]) -> bool:
    return any(dword in bit_dwords for dword in {field.start // 32, (field.end - 1) // 32})


def _inside_dword(field: Field) -> bool:
    return field.kind in ("bits", "u8", "u16", "u32") and field.start // 32 == (field.end - 1) // 32


def _ctypes_fields(table: tuple[Field, ...], size: int) -> Iterator[tuple[Any, ...]]:
    """Yield the `_fields_` entries, reserved gaps included, so that every dword is filled exactly."""
    bit_dwords = {field.offset // 4 for field in table if field.kind == "bits"}
    at = 0  # bit position behind what was yielded so far
    gaps = 0

    def advance(to: int) -> Iterator[tuple[Any, ...]]:
        """Fill from `at` up to bit `to`: bit fields inside a dword with bit fields, bytes elsewhere."""
        nonlocal at, gaps
        while at < to:
            gaps += 1
            if at // 32 in bit_dwords:
                stop = min(to, (at // 32 + 1) * 32)
                yield f"_gap{gaps}", ctypes.c_uint32, stop - at
            else:
                stop = min([to, *(dword * 32 for dword in bit_dwords if dword * 32 > at)])
                yield f"_gap{gaps}", ctypes.c_uint8 * ((stop - at) // 8)
            at = stop

    for field in table:
        yield from advance(field.start)
        if field.kind == "raw":
            yield f"_raw_{field.name}", ctypes.c_uint8 * (field.width // 8)
        elif field.kind == "sub":
            yield field.name, field.layout
        elif field.width < 32 and field.start // 32 in bit_dwords:
            yield field.name, ctypes.c_uint32, field.width
        else:
            yield field.name, _PLAIN[f"u{field.width}"]
        at = field.end
    yield from advance(size * 8)


def _install(cls: Any, name: str, table: tuple[Field, ...], size: int) -> None:
    """Give the class its ctypes fields, and verify that ctypes placed them where they were declared."""
    cls._fields_ = list(_ctypes_fields(table, size))
    for field in table:
        attribute = f"_raw_{field.name}" if field.kind == "raw" else field.name
        descriptor = getattr(cls, attribute)
        # The unit that ctypes reads starts at the dword for bit fields, at the field itself otherwise.
        if descriptor.offset not in (field.start // 32 * 4, field.start // 8):
            raise LayoutError(f"{name}.{field.name}: placed at 0x{descriptor.offset:x}, not at {field.where()}")
        if field.kind == "raw":
            setattr(cls, field.name, _raw_property(attribute, field))
    if ctypes.sizeof(cls) != size:
        raise LayoutError(f"{name}: {ctypes.sizeof(cls)} bytes in memory instead of {size}")


def _raw_property(attribute: str, field: Field) -> property:
    size = field.width // 8
    array: Any = ctypes.c_uint8 * size

    def get(self: Any) -> bytes:
        return bytes(getattr(self, attribute))

    def put(self: Any, value: Buffer) -> None:
        if len(memoryview(value).cast("B")) != size:
            raise ValueError(f"{field.name} takes exactly {size} bytes, not {len(memoryview(value).cast('B'))}")
        setattr(self, attribute, array.from_buffer_copy(value))

    return property(get, put)


class Layout(_Base, metaclass=LayoutMeta, partial=True):
    """Base of all structures; subclass it with `size=` in bytes and one declaration per field.

    `partial=True` instead of a size declares fields that only subclasses have (a common header).
    """

    SIZE: ClassVar[int]
    """Size of the structure in bytes."""

    if TYPE_CHECKING:
        _table: ClassVar[tuple[Field, ...]]
        _by_name: ClassVar[dict[str, Field]]
        _partial: ClassVar[bool]

    def __init__(self, **values: int | Buffer | Layout) -> None:
        """Zeroed, except for the given fields; ValueError if a value does not fit its field."""
        if self._partial:
            raise TypeError(f"{type(self).__name__} is a partial structure and has no instances")
        super().__init__()
        for name, value in values.items():
            field = self._by_name.get(name)
            if field is None:
                raise LayoutError(f"{type(self).__name__} has no field {name}")
            if isinstance(value, int) and field.is_integer and not field.fits(value):
                raise ValueError(f"{name} has {field.width} bits; {value:#x} does not fit")
            setattr(self, name, value)

    @classmethod
    def from_bytes(cls, buf: Buffer, offset: int = 0) -> Self:
        """Copy `SIZE` bytes out of `buf` at `offset`; LayoutError if there are fewer."""
        try:
            copy: Self = cls.from_buffer_copy(buf, offset)  # type: ignore[attr-defined]
        except ValueError:
            available = len(buf) - offset
            raise LayoutError(f"{cls.__name__} needs {cls.SIZE} bytes; offset {offset} leaves {available}") from None
        return copy

    def to_bytes(self) -> bytes:
        """The `SIZE` bytes as the card and its host see them."""
        return bytes(self)

    @classmethod
    def fields(cls) -> tuple[Field, ...]:
        """All declared fields in wire order; embedded structures count as one field."""
        return cls._table

    @classmethod
    def packer(cls, *names: str) -> Callable[..., bytes]:
        """Return a function that takes the named fields in this order and gives `SIZE` bytes, others zero.

        Fields of embedded structures are named with dots. Values that do not fit raise ValueError.
        """
        return make_packer(cls, names)

    @classmethod
    def unpacker(cls, *names: str) -> Callable[..., tuple[Any, ...]]:
        """Return a function `(buf, offset=0)` that gives the named fields as a tuple.

        Raises LayoutError if fewer than `SIZE` bytes follow `offset`, which must not be negative.
        """
        return make_unpacker(cls, names)

    @classmethod
    def iterator(cls, *names: str) -> Callable[[Buffer], Iterator[tuple[Any, ...]]]:
        """Return a function that gives the named fields of one structure after the other, as tuples.

        Fields must be whole bytes or words, and named in wire order (LayoutError). A buffer that is not a multiple of
        `SIZE` raises `struct.error`.
        """
        return make_iterator(cls, names)

    def dump(self, *, zeros: bool = False) -> str:
        """One aligned line per field (non-zero ones only, unless `zeros`), embedded structures indented."""
        rows = list(_rows(self, zeros, ""))
        width = max((len(name) for name, _, _ in rows), default=0)
        lines = [f"  {name:<{width}}  {where:<11}  {value}".rstrip() for name, where, value in rows]
        return "\n".join([type(self).__name__, *lines])

    def __repr__(self) -> str:
        shown = (f"{name}={value}" for name, where, value in _rows(self, False, "") if where)
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[bytes]]:
        return type(self).from_bytes, (bytes(self),)


def _rows(view: Layout, zeros: bool, prefix: str) -> Iterator[tuple[str, str, str]]:
    for field in view.fields():
        value = getattr(view, field.name)
        if field.layout is not None:
            if zeros or any(bytes(value)):
                yield from _rows(value, zeros, f"{prefix}{field.name}.")
        elif field.kind == "raw":
            if zeros or any(value):
                yield prefix + field.name, field.where(), value.hex(" ", 4)
        elif zeros or value:
            yield prefix + field.name, field.where(), f"{value:#x}" if value > 9 else str(value)


def reserved_nonzero(view: Layout) -> bool:
    """Tell whether any bit that no field covers is set, in embedded structures too."""
    return bool(int.from_bytes(bytes(view), "big") & ~_declared_mask(type(view)))


@cache
def _declared_mask(cls: type[Structure]) -> int:
    mask = 0
    for field in cls.fields():
        ones = (1 << field.width) - 1 if field.layout is None else _declared_mask(field.layout)
        mask |= ones << (cls.SIZE * 8 - field.end)
    return mask
