"""The rows of a structure's bit map: where one field lies, and how wide it is.

Offsets are written as the device manual writes them: the byte offset of a 32-bit big-endian dword and the
bits inside it, 31 being the most significant; or a plain byte offset for whole bytes and words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

Kind = Literal["bits", "u8", "u16", "u32", "u64", "raw", "sub"]


class LayoutError(ValueError):
    """A declaration that cannot be right, or a buffer too short for its structure."""


class Structure(Protocol):
    """What has fields: :class:`vhca.layout.Layout`, as its fields and packers need it."""

    SIZE: ClassVar[int]

    @classmethod
    def fields(cls) -> tuple[Field, ...]:
        """All declared fields in wire order."""


SubLayout = TypeVar("SubLayout", bound=Structure)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `offset` in bytes (of the dword for `bits`), `hi`..`lo` inside it, `width` in bits.

    For kinds other than `bits` the field starts at byte `offset`, and `hi` is `width - 1`.
    """

    name: str
    offset: int
    hi: int
    lo: int
    width: int
    kind: Kind
    layout: type[Structure] | None = None

    @property
    def start(self) -> int:
        """Bit position counted from the most significant bit of byte 0 (the manual's "bit offset")."""
        return self.offset * 8 + 31 - self.hi if self.kind == "bits" else self.offset * 8

    @property
    def end(self) -> int:
        """Bit position just behind the field."""
        return self.start + self.width

    @property
    def is_integer(self) -> bool:
        """True if the field reads as an `int`."""
        return self.kind not in ("raw", "sub")

    def fits(self, value: int) -> bool:
        """Tell whether `value` can be stored without losing bits."""
        return not value >> self.width

    def where(self) -> str:
        """Position in the manual's notation, such as `0x004 23:0` or `0x0a0`."""
        if self.kind != "bits":
            return f"0x{self.offset:03x}"
        span = f"{self.hi}:{self.lo}" if self.hi != self.lo else f"{self.hi}"
        return f"0x{self.offset:03x} {span}"


def bits(offset: int, hi: int, lo: int | None = None) -> int:
    """Bits `hi` down to `lo` (one bit if `lo` is left out) of the dword at byte `offset`."""
    low = hi if lo is None else lo
    if offset < 0 or offset % 4:
        raise LayoutError(f"bits(0x{offset:x}, {hi}, {low}): the offset must be that of a dword (multiple of 4)")
    if not 31 >= hi >= low >= 0:
        raise LayoutError(f"bits(0x{offset:x}, {hi}, {low}): need 31 >= hi >= lo >= 0")
    return cast(int, Field("", offset, hi, low, hi - low + 1, "bits"))


def _whole(offset: int, kind: Kind, width: int, layout: Any = None) -> Any:
    if offset < 0 or width <= 0:
        raise LayoutError(f"{kind}(0x{offset:x}): offset must not be negative, nor the field empty")
    return Field("", offset, width - 1, 0, width, kind, layout)


def u8(offset: int) -> int:
    """One byte at `offset`."""
    return cast(int, _whole(offset, "u8", 8))


def u16(offset: int) -> int:
    """A big-endian 16-bit word at byte `offset`."""
    return cast(int, _whole(offset, "u16", 16))


def u32(offset: int) -> int:
    """A big-endian 32-bit word at byte `offset`."""
    return cast(int, _whole(offset, "u32", 32))


def u64(offset: int) -> int:
    """A big-endian 64-bit word at byte `offset`."""
    return cast(int, _whole(offset, "u64", 64))


def raw(offset: int, size: int) -> bytes:
    """`size` bytes at byte `offset`, read and written as `bytes` of exactly that length."""
    return cast(bytes, _whole(offset, "raw", size * 8))


def sub(offset: int, layout: type[SubLayout]) -> SubLayout:
    """Embed another structure at byte `offset`; reading it gives a view that writes through."""
    return cast(SubLayout, _whole(offset, "sub", layout.SIZE * 8, layout))
