from pathlib import Path

import pytest

from vhca.wire.ib import decode, encode
from vhca.wire.icrc import icrc, vcrc

VECTORS = Path(__file__).parents[2] / "vectors" / "ib_crc.txt"
SAMPLES = [
    tuple(cell.strip() for cell in line.split("|"))
    for line in VECTORS.read_text().splitlines()
    if line and not line.startswith("#")
]


def serial_crc(data: bytes, poly: int, width: int) -> int:
    """Bit by bit, most significant coefficient at the left: the shift register of the book, without tables."""
    crc = (1 << width) - 1
    for byte in data:
        for bit in range(8):
            feedback = (crc >> (width - 1) & 1) ^ (byte >> bit & 1)
            crc = (crc << 1 & ((1 << width) - 1)) ^ (poly if feedback else 0)
    crc ^= (1 << width) - 1
    return int(f"{crc:0{width}b}"[::-1], 2)


@pytest.mark.parametrize(("name", "packet", "icrc_hex", "vcrc_hex"), SAMPLES)
def test_samples_of_the_book(name: str, packet: str, icrc_hex: str, vcrc_hex: str) -> None:
    raw = bytes.fromhex(packet)
    assert icrc(raw).to_bytes(4, "little").hex() == icrc_hex, name
    whole = raw + bytes.fromhex(icrc_hex)
    assert vcrc(whole).to_bytes(2, "little").hex() == vcrc_hex
    assert serial_crc(whole, 0x100B, 16) == vcrc(whole)
    if name == "global":
        return  # the book's sample has no IBA next header in its GRH: good for CRCs, not for a receiver
    decoded = decode(whole + bytes.fromhex(vcrc_hex))
    assert decoded.good
    assert encode(decoded) == whole + bytes.fromhex(vcrc_hex)


def test_icrc_ignores_what_switches_and_routers_change() -> None:
    for _, packet, icrc_hex, _ in SAMPLES:
        raw = bytearray.fromhex(packet)
        routed = raw[1] & 3 == 3
        raw[0] ^= 0xF0
        raw[(8 + 40 if routed else 8) + 4] ^= 0xC0
        if routed:
            raw[3] ^= 0xFF  # LIDs change at a router
            raw[9] ^= 0x1F
            raw[15] ^= 0x3F
        assert icrc(raw).to_bytes(4, "little").hex() == icrc_hex
        raw[-1] ^= 1
        assert icrc(raw).to_bytes(4, "little").hex() != icrc_hex


@pytest.mark.parametrize("size", [2, 1022, 1024, 1026, 2048, 2050, 4094, 4096, 4098, 4150, 8192])
def test_packets_of_every_length(size: int) -> None:
    packet = bytes((at * at >> 3) + at & 0xFF for at in range(size))
    assert vcrc(packet) == serial_crc(packet, 0x100B, 16)
