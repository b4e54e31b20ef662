"""Registers of a card as data: where they are, what they hold after reset, and what a write does to each bit.

A bit of a register is one of four kinds: read-only (the default), read-write, write-1-to-clear, or a
strobe, which starts something when 1 is written and always reads 0. One generic read and write serve
every register and every access: any length, any alignment, across registers, byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Register:
    """One little-endian register of `size` bytes at `offset`; the masks name the bits that are not read-only."""

    name: str
    offset: int
    size: int
    reset: int = 0
    rw: int = 0
    w1c: int = 0
    strobe: int = 0

    def __post_init__(self) -> None:
        bits = 8 * self.size
        masks = (self.rw, self.w1c, self.strobe)
        if self.offset < 0 or self.size <= 0:
            raise ValueError(f"{self.name}: bad place")
        if any(not 0 <= value < 1 << bits for value in (self.reset, *masks)):
            raise ValueError(f"{self.name}: a value or mask does not fit in {bits} bits")
        if self.rw & self.w1c or self.rw & self.strobe or self.w1c & self.strobe:
            raise ValueError(f"{self.name}: a bit has two kinds")
        if self.reset & self.strobe:
            raise ValueError(f"{self.name}: strobe bits read 0")


class RegisterSpace:
    """`size` bytes of registers; what no register covers reads 0 and ignores writes."""

    def __init__(
        self, size: int, registers: Iterable[Register], on_strobe: Callable[[str, int], None] | None = None
    ) -> None:
        """Lay out the registers.

        `on_strobe(name, bits)` is called after a write that set strobe bits of a register.

        :raises ValueError: two registers overlap, share a name, or one is outside.
        """
        self.size = size
        self.registers: dict[str, Register] = {}
        self._on_strobe = on_strobe
        self._reset = bytearray(size)
        self._rw = bytearray(size)
        self._w1c = bytearray(size)
        self._strobe = bytearray(size)
        covered: dict[int, str] = {}
        for register in registers:
            self._add(register, covered)
        self._values = bytearray(self._reset)

    def _add(self, register: Register, covered: dict[int, str]) -> None:
        name, place = register.name, range(register.offset, register.offset + register.size)
        if place.stop > self.size:
            raise ValueError(f"{name}: outside the {self.size} bytes")
        if name in self.registers:
            raise ValueError(f"{name}: declared twice")
        for at in place:
            if at in covered:
                raise ValueError(f"{name} overlaps {covered[at]}")
            covered[at] = name
        self.registers[name] = register
        for target, value in (
            (self._reset, register.reset),
            (self._rw, register.rw),
            (self._w1c, register.w1c),
            (self._strobe, register.strobe),
        ):
            target[place.start : place.stop] = value.to_bytes(register.size, "little")

    def reset(self) -> None:
        """Put every register to its value after reset."""
        self._values[:] = self._reset

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes; what is outside the space reads 0."""
        return bytes(self._values[offset : offset + count]).ljust(count, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        """Write as the host does: each bit by its kind; what is outside is dropped."""
        data = data[: max(0, self.size - offset)]
        end = offset + len(data)
        value = int.from_bytes(data, "little")

        def bits(mask: bytearray) -> int:
            return int.from_bytes(mask[offset:end], "little")

        rw = bits(self._rw)
        new = (bits(self._values) & ~rw | value & rw) & ~(value & bits(self._w1c))
        self._values[offset:end] = new.to_bytes(len(data), "little")
        strobed = value & bits(self._strobe)
        if strobed and self._on_strobe is not None:
            self._strobe_registers(offset, end, strobed)

    def _strobe_registers(self, start: int, end: int, strobed: int) -> None:
        assert self._on_strobe is not None
        whole = strobed << 8 * start
        for register in list(self.registers.values()):
            hit = whole >> 8 * register.offset & register.strobe
            if hit and start < register.offset + register.size and register.offset < end:
                self._on_strobe(register.name, hit)

    def value(self, name: str) -> int:
        """Return a register's value."""
        register = self.registers[name]
        return int.from_bytes(self.read(register.offset, register.size), "little")

    def set(self, name: str, value: int) -> None:
        """Set a register as the hardware does, whatever the masks say."""
        register = self.registers[name]
        at = register.offset
        self._values[at : at + register.size] = value.to_bytes(register.size, "little")
