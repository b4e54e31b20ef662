"""Packets of IP over InfiniBand, made and judged field by field, by nothing that the card has."""

import struct
from random import Random
from typing import NamedTuple

TCP, UDP = 6, 17


class Tcp(NamedTuple):
    sequence: int
    flags: int


class Ip:
    """What a packet is like: version, protocol, options; `transport` is where TCP or UDP begins."""

    def __init__(self, random: Random, version: int = 0, protocol: int = 0) -> None:
        self.version = version or random.choice((4, 6))
        self.protocol = protocol or random.choice((TCP, UDP))
        self.options = random.randrange(4) * 4 if self.version == 4 else 0
        self.tcp_options = random.randrange(11) * 4
        self.transport = 4 + (20 + self.options if self.version == 4 else 40)

    def length(self, packet: bytes) -> int:
        """Bytes of the packet, by its IP header."""
        if self.version == 4:
            return int(struct.unpack_from(">H", packet, 4 + 2)[0]) + 4
        return int(struct.unpack_from(">H", packet, 4 + 4)[0]) + 4 + 40

    def identification(self, packet: bytes) -> int:
        return int(struct.unpack_from(">H", packet, 4 + 4)[0])

    def tcp(self, packet: bytes) -> Tcp:
        sequence, _, _, flags = struct.unpack_from(">IIBB", packet, self.transport + 4)
        return Tcp(sequence, flags)

    def pseudo(self, packet: bytes) -> bytes:
        """The pseudo header (RFC 9293, 3.1; RFC 8200, 8.1)."""
        length = len(packet) - self.transport
        if self.version == 4:
            return packet[4 + 12 : 4 + 20] + struct.pack(">BBH", 0, self.protocol, length)
        return packet[4 + 8 : 4 + 40] + struct.pack(">II", length, self.protocol)

    def holds(self, packet: bytes) -> bool:
        """Tell whether the checksums are right."""
        if self.version == 4 and plain_checksum(packet[4 : self.transport]):
            return False
        return plain_checksum(self.pseudo(packet) + packet[self.transport :]) == 0


def plain_checksum(data: bytes) -> int:
    """RFC 1071, word by word."""
    total = 0
    data += bytes(len(data) & 1)
    for (word,) in struct.iter_unpack(">H", data):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def ip_packet(random: Random, ip: Ip, data: bytes) -> bytes:
    """A packet with these data; its checksums are nonsense."""
    if ip.protocol == TCP:
        words = 5 + ip.tcp_options // 4
        transport = random.randbytes(12) + struct.pack(">BBHHH", words << 4, random.getrandbits(8), 7, 0xBAD, 0)
        transport += random.randbytes(ip.tcp_options)
    else:
        transport = random.randbytes(4) + struct.pack(">HH", 8 + len(data), 0xBAD)
    transport += data
    if ip.version == 4:
        first = 0x45 + ip.options // 4
        header = struct.pack(">BBHHHBBH", first, 0, 20 + ip.options + len(transport), random.getrandbits(16), 0x4000,
                             64, ip.protocol, 0xBAD) + random.randbytes(8 + ip.options)  # fmt: skip
        kind = 0x0800
    else:
        header = struct.pack(">IHBB", 6 << 28, len(transport), ip.protocol, 64) + random.randbytes(32)
        kind = 0x86DD
    return struct.pack(">HH", kind, 0) + header + transport
