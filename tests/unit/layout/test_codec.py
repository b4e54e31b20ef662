"""Generated packers and unpackers do what the view does, and refuse what does not fit."""

import timeit

import pytest

from vhca.layout import Layout, LayoutError, bits, raw, sub, u8, u16, u32, u64


class Part(Layout, size=12):
    """Embedded."""

    flag: int = bits(0x000, 31)
    low: int = bits(0x004, 15, 0)
    tail: bytes = raw(0x008, 4)


class Whole(Layout, size=48):
    """Fields at both ends of dwords, in the middle, and whole ones."""

    top: int = bits(0x000, 31, 28)
    middle: int = bits(0x000, 23, 16)
    bottom: int = bits(0x000, 7, 0)
    alone: int = bits(0x004, 23, 0)
    part: Part = sub(0x008, Part)
    byte: int = u8(0x015)
    word: int = u16(0x016)
    dword: int = u32(0x018)
    qword: int = u64(0x01C)
    name: bytes = raw(0x024, 4)


def test_packs_what_the_view_packs() -> None:
    pack = Whole.packer("alone", "top", "bottom", "part.low", "part.tail", "word", "qword", "name")
    view = Whole(alone=0x123456, top=0xF, bottom=0xEE, word=0xABCD, qword=1 << 63, name=b"wxyz")
    view.part = Part(low=0x7777, tail=b"1234")
    packed = pack(0x123456, 0xF, 0xEE, 0x7777, b"1234", 0xABCD, 1 << 63, b"wxyz")
    assert packed == view.to_bytes()


def test_unpacks_in_the_order_asked_for() -> None:
    view = Whole(alone=0x123456, top=0xF, middle=0xAB, bottom=0xEE, qword=5, name=b"wxyz")
    view.part.flag = 1
    unpack = Whole.unpacker("name", "alone", "middle", "top", "part.flag", "qword", "bottom")
    expected = (b"wxyz", 0x123456, 0xAB, 0xF, 1, 5, 0xEE)
    assert unpack(view.to_bytes()) == expected
    assert unpack(bytearray(b"junk") + view.to_bytes(), 4) == expected
    assert Whole.unpacker("qword")(memoryview(view.to_bytes())) == (5,)


def test_an_embedded_structure_packs_as_bytes() -> None:
    part = Part(flag=1, low=2)
    packed = Whole.packer("part", "byte")(part.to_bytes(), 3)
    assert packed == Whole(part=part, byte=3).to_bytes()
    assert Whole.unpacker("part")(packed) == (part.to_bytes(),)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top", 16),
        ("top", -1),
        ("middle", 256),
        ("middle", -1),
        ("bottom", 256),
        ("alone", 1 << 24),
        ("alone", -1),
        ("byte", 256),
        ("word", -1),
        ("dword", 1 << 32),
        ("qword", 1 << 64),
        ("part.flag", 2),
        ("part.low", 1 << 16),
        ("name", b"abc"),
        ("name", b"abcde"),
    ],
)
def test_a_value_that_does_not_fit_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"Whole\.{name} "):
        Whole.packer(name)(value)
    with pytest.raises(ValueError, match=rf"Whole\.{name} "):
        Whole.packer("middle", name)(0, value) if name != "middle" else Whole.packer("top", name)(0, value)


def test_unknown_and_double_names_are_refused() -> None:
    for names in (("nonsense",), ("part.nonsense",), ("byte.nonsense",), ()):
        with pytest.raises(LayoutError):
            Whole.packer(*names)
        with pytest.raises(LayoutError):
            Whole.unpacker(*names)
    with pytest.raises(LayoutError, match="same bits"):
        Whole.unpacker("part", "part.low")


@pytest.mark.parametrize(("length", "offset"), [(47, 0), (48, 1), (0, 0)])
def test_a_short_buffer_is_an_error(length: int, offset: int) -> None:
    with pytest.raises(LayoutError, match="needs 48 bytes"):
        Whole.unpacker("top")(bytes(length), offset)


def test_the_function_is_written_once() -> None:
    assert Whole.packer("top", "word") is Whole.packer("top", "word")


def test_print_times() -> None:
    """Only informs (`pytest -s`): times depend on the machine."""
    pack = Whole.packer("alone", "top", "bottom", "part.low", "word", "qword")
    unpack = Whole.unpacker("alone", "top", "bottom", "part.low", "word", "qword")
    view = Whole()
    buffer = view.to_bytes()
    for what, call in {
        "pack 6 fields": lambda: pack(1, 2, 3, 4, 5, 6),
        "unpack 6 fields": lambda: unpack(buffer),
        "read a field": lambda: view.alone,
        "copy out": lambda: Whole.from_bytes(buffer),
    }.items():
        print(f"{what}: {timeit.timeit(call, number=2000) / 2000 * 1e9:.0f} ns")
