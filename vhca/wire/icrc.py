"""The two checksums of an InfiniBand packet: invariant CRC (end to end) and variant CRC (per link).

ICRC is the CRC-32 of Ethernet over the fields that no switch or router changes (7.8.1); VCRC is a CRC-16 with
polynomial 0x100B over the whole packet (7.8.2). Both take the least significant bit of each byte first and go onto the
wire low byte first. Sample packets of 7.8.3 are in the tests.
"""

import zlib
from array import array
from functools import cache
from sys import byteorder
from typing import Final

from vhca.wire.headers import Bth, GrhHeader, Lrh, NextHeader

_VCRC_REFLECTED: Final = 0xD008  # 0x100B, bit-reversed
# A packet up to this size is not folded, and none any further than to so many words.
_SHORT_BYTES: Final = 1024
_FEW_WORDS: Final = 64


def icrc(packet: bytes | bytearray | memoryview) -> int:
    """ICRC over `packet`, which runs from LRH to the last pad byte; `int.to_bytes(4, "little")` gives the wire bytes.

    Without a GRH the virtual lane is masked; with one the whole LRH, traffic class, flow label and hop limit. The first
    byte of the third BTH word (resv8a) is always masked.
    """
    if packet[1] & 3 == NextHeader.GLOBAL:
        size = Lrh.SIZE + GrhHeader.SIZE + Bth.SIZE
        head = bytearray(packet[:size])
        head[0:8] = b"\xff\xff\xff\xff\xff\xff\xff\xff"
        head[8] |= 0x0F
        head[9:12] = b"\xff\xff\xff"
        head[15] = 0xFF
    else:
        size = Lrh.SIZE + Bth.SIZE
        head = bytearray(packet[:size])
        head[0] |= 0xF0
    head[size - 8] = 0xFF
    return zlib.crc32(memoryview(packet)[size:], zlib.crc32(head))


@cache
def _vcrc_table() -> "array[int]":
    """CRC of each 16-bit word taken at once: a CRC register of 16 bits is shifted out completely by it."""
    by_byte = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_VCRC_REFLECTED if value & 1 else 0)
        by_byte.append(value)
    table = array("H", bytes(2 * 65536))
    for word in range(65536):
        value = by_byte[word & 0xFF] ^ (word >> 8)
        table[word] = by_byte[value & 0xFF] ^ (value >> 8)
    return table


@cache
def _fold_tables(distance: int) -> tuple[bytes, bytes, bytes, bytes]:
    """What a word adds to the word `distance` words behind it, by its low and its high byte: low bytes, high bytes.

    In the order low to low, low to high, high to low, high to high, for :meth:`bytes.translate`.
    """
    table = _vcrc_table()
    images = []
    for bit in range(16):
        value = 1 << bit
        for _ in range(distance):
            value = table[value]
        images.append(value)
    by_byte = []
    for first in (0, 8):
        sums = [0]
        for bit in range(8):
            sums += [value ^ images[first + bit] for value in sums]
        by_byte += [bytes(value & 0xFF for value in sums), bytes(value >> 8 for value in sums)]
    return by_byte[0], by_byte[1], by_byte[2], by_byte[3]


def _folded(low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """A shorter message with the same CRC: its first words are added to later ones, all at once."""
    count = len(low)
    distance = 1 << (count - 1).bit_length() - 1
    head = count - distance
    low_low, low_high, high_low, high_high = _fold_tables(distance)
    first, second = low[:head], high[:head]

    def rest(kept: bytes, from_low: bytes, from_high: bytes) -> bytes:
        total = int.from_bytes(kept, "big") ^ int.from_bytes(first.translate(from_low), "big")
        return (total ^ int.from_bytes(second.translate(from_high), "big")).to_bytes(distance, "big")

    return rest(low[head:], low_low, high_low), rest(high[head:], low_high, high_high)


def vcrc(packet: bytes | bytearray) -> int:
    """VCRC over `packet`, which runs from LRH to ICRC (a whole number of words); wire order is low byte first.

    A loop over 2000 words takes 83 us; a long packet is folded up first, which takes a third of that.
    """
    table = _vcrc_table()
    if len(packet) <= _SHORT_BYTES:
        words = array("H", packet)
        if byteorder == "big":
            words.byteswap()
        crc = 0xFFFF
        for word in words:
            crc = table[crc ^ word]
        return crc ^ 0xFFFF
    low, high = bytes(packet[0::2]), bytes(packet[1::2])
    # The register's first content is added to the first word.
    low, high = bytes((low[0] ^ 0xFF,)) + low[1:], bytes((high[0] ^ 0xFF,)) + high[1:]
    while len(low) > _FEW_WORDS:
        low, high = _folded(low, high)
    crc = 0
    for first, second in zip(low, high, strict=True):
        crc = table[crc ^ (first | second << 8)]
    return crc ^ 0xFFFF
