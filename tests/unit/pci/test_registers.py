"""Register spaces: masks, strobes, byte enables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.pci import Register, RegisterSpace


def space(*registers: Register) -> RegisterSpace:
    return RegisterSpace(16, registers)


def test_each_bit_obeys_its_kind() -> None:
    strobes: list[tuple[str, int]] = []
    registers = RegisterSpace(
        16,
        [Register("r", 4, 4, reset=0x11223344, rw=0x0000FFFF, w1c=0x00FF0000, strobe=0x80000000)],
        lambda name, bits: strobes.append((name, bits)),
    )
    registers.write(4, b"\xcd\xab\x02\x7f")
    assert registers.value("r") == 0x1120ABCD
    assert strobes == []
    registers.write(4, b"\xff\xff\xff\xff")
    assert registers.value("r") == 0x1100FFFF
    assert strobes == [("r", 0x80000000)]
    registers.write(6, b"\x00\x80")
    assert strobes[1:] == [("r", 0x80000000)]
    registers.reset()
    assert registers.value("r") == 0x11223344


def test_a_narrow_write_touches_its_bytes_only() -> None:
    registers = space(Register("a", 0, 4, rw=0xFFFFFFFF), Register("b", 4, 2, rw=0xFFFF, reset=0x5555))
    registers.write(1, b"\xaa")
    assert registers.read(0, 8) == bytes.fromhex("00aa000055550000")
    registers.write(3, b"\x11\x22")
    assert registers.read(0, 8) == bytes.fromhex("00aa001122550000")


def test_holes_and_the_end() -> None:
    registers = space(Register("a", 12, 4, rw=0xFFFFFFFF))
    registers.write(0, b"\xff" * 12)
    assert registers.read(0, 12) == bytes(12)
    registers.write(14, b"\x01\x02\x03\x04")
    assert registers.read(14, 4) == b"\x01\x02\0\0"
    registers.write(16, b"x")
    registers.write(1000, b"x")
    assert registers.read(1000, 2) == b"\0\0"


def test_a_strobe_of_another_register_in_the_same_write() -> None:
    strobes: list[str] = []
    registers = RegisterSpace(
        16,
        [Register("a", 0, 2, strobe=1), Register("b", 2, 2, strobe=1)],
        lambda name, bits: strobes.append(name),
    )
    registers.write(0, b"\1\0\1\0")
    assert strobes == ["a", "b"]
    registers.write(2, b"\1")
    assert strobes == ["a", "b", "b"]


def test_the_hardware_sets_what_the_host_cannot() -> None:
    registers = space(Register("status", 0, 2, w1c=0x00FF))
    registers.set("status", 0x1234)
    registers.write(0, b"\x30\xff")
    assert registers.value("status") == 0x1204


@pytest.mark.parametrize(
    "registers",
    [
        [Register("a", 0, 4), Register("b", 3, 1)],
        [Register("a", 0, 1), Register("a", 1, 1)],
        [Register("a", 15, 2)],
    ],
    ids=["overlap", "same name", "outside"],
)
def test_bad_layouts(registers: list[Register]) -> None:
    with pytest.raises(ValueError, match=r"overlap|twice|outside"):
        space(*registers)


@pytest.mark.parametrize(
    "fields",
    [
        {"rw": 1, "w1c": 1},
        {"rw": 1, "strobe": 1},
        {"w1c": 1, "strobe": 1},
        {"reset": 256},
        {"rw": 256},
        {"reset": 1, "strobe": 1},
        {"offset": -1},
        {"size": 0},
    ],
)
def test_bad_registers(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a"):
        Register("a", **({"offset": 0, "size": 1} | fields))


@given(
    writes=st.lists(st.tuples(st.integers(0, 20), st.binary(max_size=20)), max_size=10),
    rw=st.integers(0, 0xFFFFFFFF),
    w1c=st.integers(0, 0xFFFFFFFF),
    reset=st.integers(0, 0xFFFFFFFF),
)
def test_any_writes_agree_with_a_model_bit_by_bit(
    writes: list[tuple[int, bytes]], rw: int, w1c: int, reset: int
) -> None:
    w1c &= ~rw
    registers = space(Register("r", 6, 4, reset=reset, rw=rw, w1c=w1c))
    model = [reset >> bit & 1 for bit in range(32)]
    for offset, data in writes:
        registers.write(offset, data)
        for bit in range(32):
            at = 6 + bit // 8 - offset
            if 0 <= at < len(data):
                written = data[at] >> bit % 8 & 1
                if rw >> bit & 1:
                    model[bit] = written
                elif w1c >> bit & 1 and written:
                    model[bit] = 0
    assert registers.value("r") == sum(value << bit for bit, value in enumerate(model))
    assert registers.read(0, 6) + registers.read(10, 6) == bytes(12)
