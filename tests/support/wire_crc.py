"""Both CRCs of an InfiniBand packet, without anything of vhca's: from the polynomials of the book (7.8), by table."""

import struct
import zlib
from collections.abc import Iterator
from typing import Final


def _table(poly: int, width: int) -> list[int]:
    """What a byte does to a register that is shifted to the right."""
    reflected = int(f"{poly:0{width}b}"[::-1], 2)
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (reflected if crc & 1 else 0)
        table.append(crc)
    return table


_VCRC_POLYNOMIAL: Final = 0x100B
_VCRC: Final = _table(_VCRC_POLYNOMIAL, 16)


def vcrc(data: bytes) -> int:
    """The variant CRC over LRH to ICRC."""
    crc = 0xFFFF
    for byte in data:
        crc = crc >> 8 ^ _VCRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFF


def icrc(data: bytes) -> int:
    """The invariant CRC over LRH to the end of the payload: what changes on the way counts as ones (7.8.1)."""
    masked = bytearray(data)
    global_header = data[1] & 3 == 3
    masked[0] |= 0xF0  # VL
    at = 8
    if global_header:
        masked[0:8] = b"\xff" * 8  # the whole LRH
        masked[8] |= 0x0F  # traffic class and flow label, without the version
        masked[9:12] = b"\xff" * 3
        masked[15] = 0xFF  # hop limit
        at += 40
    masked[at + 4] = 0xFF  # FECN, BECN, reserved
    return zlib.crc32(masked)


def wrong_crcs(packet: bytes) -> list[str]:
    """Which of both CRCs at the end of a whole packet are not what they should be."""
    wrong = []
    if icrc(packet[:-6]).to_bytes(4, "little") != packet[-6:-2]:
        wrong.append("ICRC")
    if vcrc(packet[:-2]).to_bytes(2, "little") != packet[-2:]:
        wrong.append("VCRC")
    return wrong


def whole_packets(pcapng: bytes) -> Iterator[bytes]:
    """The packets of a capture, LRH to VCRC: those of its interfaces with extensible records (link type 197)."""
    link_types: list[int] = []
    at = 0
    while at < len(pcapng):
        kind, size = struct.unpack_from("<II", pcapng, at)
        if kind == 1:
            link_types.append(struct.unpack_from("<H", pcapng, at + 8)[0])
        elif kind == 6:
            interface, _, _, captured, _ = struct.unpack_from("<IIIII", pcapng, at + 8)
            if link_types[interface] == 197:
                yield pcapng[at + 28 + 16 : at + 28 + captured]
        at += size
