"""Declarations that cannot be right are refused when the class is created."""

import ctypes
from typing import Any

import pytest

from vhca.layout import Layout, LayoutError, bits, raw, reserved_nonzero, sub, u8, u16, u32, u64

META: Any = type(Layout)


class Inner(Layout, size=8):
    """Embedded."""

    flag: int = bits(0x000, 31)
    low: int = bits(0x004, 15, 0)


class Outer(Layout, size=64):
    """Every kind of field, and gaps before, between and behind them."""

    state: int = bits(0x000, 27, 24)
    kind: int = u8(0x001)
    middle: int = bits(0x000, 12, 8)
    last: int = u8(0x003)
    number: int = bits(0x004, 23, 0)
    inner: Inner = sub(0x008, Inner)
    byte: int = u8(0x015)
    word: int = u16(0x016)
    address: int = u64(0x01C)
    name: bytes = raw(0x024, 6)
    odd: int = u16(0x02B)
    dword: int = u32(0x030)


def test_every_bit_lies_where_it_was_declared() -> None:
    view = Outer(state=0xA, kind=0xBB, middle=0x15, last=0xDD, number=0x123456, byte=0xEE, word=0xF00D)
    view.inner.flag = 1
    view.inner.low = 0x7777
    view.address = 0x1122334455667788
    view.name = b"abcdef"
    view.odd = 0x9876
    view.dword = 0xCAFEBABE
    expected = bytearray(64)
    expected[0x00:0x08] = bytes.fromhex("0abb15dd 00123456")
    expected[0x08:0x10] = bytes.fromhex("80000000 00007777")
    expected[0x15:0x18] = bytes.fromhex("eef00d")
    expected[0x1C:0x24] = bytes.fromhex("1122334455667788")
    expected[0x24:0x2A] = b"abcdef"
    expected[0x2B:0x2D] = bytes.fromhex("9876")
    expected[0x30:0x34] = bytes.fromhex("cafebabe")
    assert view.to_bytes() == bytes(expected)
    assert Outer.from_bytes(expected) == view


def test_fields_describe_the_table() -> None:
    table = {field.name: field for field in Outer.fields()}
    assert list(table) == [
        *("state", "kind", "middle", "last", "number", "inner", "byte", "word", "address", "name", "odd", "dword"),
    ]
    assert (table["number"].offset, table["number"].hi, table["number"].lo, table["number"].width) == (4, 23, 0, 24)
    assert table["number"].start == 0x28
    assert (table["inner"].kind, table["inner"].layout, table["inner"].width) == ("sub", Inner, 64)
    assert table["number"].where() == "0x004 23:0"
    assert table["address"].where() == "0x01c"


def test_a_layout_is_a_packed_big_endian_structure() -> None:
    assert issubclass(Outer, ctypes.BigEndianStructure)
    structure: Any = Outer
    assert ctypes.sizeof(structure) == Outer.SIZE == 64


@pytest.mark.parametrize(
    ("size", "body", "message"),
    [
        (8, {"a": u32(0), "b": bits(0, 7, 0)}, "overlaps"),
        (8, {"a": bits(0, 31, 8), "b": bits(0, 8)}, "overlaps"),
        (8, {"a": u32(4), "b": u32(0)}, "wire order"),
        (8, {"a": bits(0, 7, 0), "b": bits(0, 15, 8)}, "wire order"),
        (8, {"a": u64(4)}, "ends behind"),
        (6, {"a": bits(4, 31, 24)}, "ends behind"),
        (8, {"a": raw(2, 4), "b": bits(4, 7, 0)}, "shares a dword"),
        (8, {"a": bits(0, 31, 24), "b": u16(3)}, "shares a dword"),
        (8, {"to_bytes": u32(0)}, "taken"),
        (8, {"_hidden": u32(0)}, "taken"),
        (0, {"a": u32(0)}, "needs its size"),
    ],
)
def test_wrong_declarations_raise(size: int, body: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        META("Wrong", (Layout,), body, size=size)


def test_wrong_positions_raise() -> None:
    for offset, hi, lo in ((2, 3, 0), (0, 32, 0), (0, 3, 4), (-4, 0, 0)):
        with pytest.raises(LayoutError):
            bits(offset, hi, lo)
    with pytest.raises(LayoutError):
        raw(0, 0)
    with pytest.raises(LayoutError):
        u8(-1)


def test_only_partial_structures_extend() -> None:
    class Header(Layout, partial=True):
        """Common start."""

        code: int = u16(0x000)

    class Message(Header, size=8):
        """A message with that start."""

        value: int = u32(0x004)

    assert Message(code=0x1234, value=5).to_bytes() == bytes.fromhex("1234000000000005")
    with pytest.raises(TypeError, match="partial"):
        Header()
    with pytest.raises(LayoutError, match="only partial"):
        META("More", (Message,), {"extra": u8(0x002)}, size=8)
    with pytest.raises(LayoutError, match="declared again"):
        META("Twice", (Header,), {"code": u16(0x002)}, size=8)


def test_values_that_do_not_fit_are_refused_by_the_constructor() -> None:
    with pytest.raises(ValueError, match="24 bits"):
        Outer(number=1 << 24)
    with pytest.raises(ValueError, match="does not fit"):
        Outer(byte=-1)
    with pytest.raises(ValueError, match="exactly 6 bytes"):
        Outer(name=b"abc")
    with pytest.raises(LayoutError, match="no field"):
        Outer(nonsense=1)


def test_a_misspelled_field_is_an_error() -> None:
    with pytest.raises(AttributeError):
        Outer().nmuber = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("length", "offset"), [(63, 0), (64, 1), (0, 0), (200, 137), (64, -1)])
def test_a_short_buffer_is_an_error(length: int, offset: int) -> None:
    with pytest.raises(LayoutError, match="needs 64 bytes"):
        Outer.from_bytes(bytes(length), offset)


def test_from_bytes_copies() -> None:
    buffer = bytearray(70)
    view = Outer.from_bytes(buffer, 6)
    buffer[6:] = bytes(range(64))
    assert view == Outer()
    buffer.extend(b"still resizable: no view is held")


def test_reserved_bits_are_noticed() -> None:
    ones = Outer.from_bytes(b"\xff" * 64)
    assert reserved_nonzero(ones)
    assert not reserved_nonzero(Outer(state=0xF, name=b"\xff" * 6))
    in_gap = bytearray(64)
    in_gap[0x0C] = 0x80  # reserved inside the embedded structure
    assert reserved_nonzero(Outer.from_bytes(in_gap))


def test_dump_shows_set_fields_aligned() -> None:
    view = Outer(state=3, number=0x123)
    view.inner.low = 16
    assert view.dump().splitlines() == [
        "Outer",
        "  state      0x000 27:24  3",
        "  number     0x004 23:0   0x123",
        "  inner.low  0x004 15:0   0x10",
    ]
    assert len(view.dump(zeros=True).splitlines()) == 1 + len(Outer.fields()) + 1
    assert repr(view) == "Outer(state=3, number=0x123, inner.low=0x10)"
