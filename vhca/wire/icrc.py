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

_LRH_BYTES: Final = 8
_GRH_BYTES: Final = 40
_LNH_GLOBAL: Final = 3
_VCRC_REFLECTED: Final = 0xD008  # 0x100B, bit-reversed


def icrc(packet: bytes | bytearray | memoryview) -> int:
    """ICRC over `packet`, which runs from LRH to the last pad byte; `int.to_bytes(4, "little")` gives the wire bytes.

    Without a GRH the virtual lane is masked; with one the whole LRH, traffic class, flow label and hop limit. The first
    byte of the third BTH word (resv8a) is always masked.
    """
    if packet[1] & 3 == _LNH_GLOBAL:
        size = _LRH_BYTES + _GRH_BYTES + 12
        head = bytearray(packet[:size])
        head[0:8] = b"\xff\xff\xff\xff\xff\xff\xff\xff"
        head[8] |= 0x0F
        head[9:12] = b"\xff\xff\xff"
        head[15] = 0xFF
    else:
        size = _LRH_BYTES + 12
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


def vcrc(packet: bytes | bytearray) -> int:
    """VCRC over `packet`, which runs from LRH to ICRC (a whole number of words); wire order is low byte first."""
    words = array("H", packet)
    if byteorder == "big":
        words.byteswap()
    table = _vcrc_table()
    crc = 0xFFFF
    for word in words:
        crc = table[crc ^ word]
    return crc ^ 0xFFFF
