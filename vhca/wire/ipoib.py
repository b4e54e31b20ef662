"""IP over InfiniBand as a card with offloads sees it: the headers of a datagram's payload, and their checksums.

RFC 4391 (encapsulation), 791 and 8200 (IP), 9293 and 768 (TCP, UDP), 1071 (the checksum).
"""

from enum import IntEnum
from typing import Final, NamedTuple

from vhca.layout import Layout, bits, raw, u8, u16, u32


class EtherType(IntEnum):
    """`IpoibHeader.type`, of what a card looks into."""

    IPV4 = 0x0800
    IPV6 = 0x86DD


class IpProtocol(IntEnum):
    """`Ipv4Header.protocol` and `Ipv6Header.next_header`."""

    TCP = 6
    UDP = 17


class TcpFlag(IntEnum):
    """Bits of `TcpHeader.flags`."""

    FIN = 0x01
    PSH = 0x08
    CWR = 0x80


class IpoibHeader(Layout, size=4):
    """In front of every packet (RFC 4391, 6)."""

    type: int = u16(0x00)


class Ipv4Header(Layout, size=20):
    """IPv4 (RFC 791, 3.1); `ihl` in units of 4 bytes, `fragment` are the flag "more" and the offset."""

    version: int = bits(0x00, 31, 28)
    ihl: int = bits(0x00, 27, 24)
    total_length: int = u16(0x02)
    identification: int = u16(0x04)
    fragment: int = bits(0x04, 13, 0)
    ttl: int = u8(0x08)
    protocol: int = u8(0x09)
    checksum: int = u16(0x0A)
    addresses: bytes = raw(0x0C, 8)


class Ipv6Header(Layout, size=40):
    """IPv6 (RFC 8200, 3)."""

    version: int = bits(0x00, 31, 28)
    payload_length: int = u16(0x04)
    next_header: int = u8(0x06)
    hop_limit: int = u8(0x07)
    addresses: bytes = raw(0x08, 32)


class TcpHeader(Layout, size=20):
    """TCP (RFC 9293, 3.1); `data_offset` in units of 4 bytes."""

    source_port: int = u16(0x00)
    destination_port: int = u16(0x02)
    sequence: int = u32(0x04)
    acknowledgment: int = u32(0x08)
    data_offset: int = bits(0x0C, 31, 28)
    flags: int = bits(0x0C, 23, 16)
    window: int = bits(0x0C, 15, 0)
    checksum: int = u16(0x10)
    urgent: int = u16(0x12)


class UdpHeader(Layout, size=8):
    """UDP (RFC 768)."""

    source_port: int = u16(0x00)
    destination_port: int = u16(0x02)
    length: int = u16(0x04)
    checksum: int = u16(0x06)


MOST_HEADER_BYTES: Final = IpoibHeader.SIZE + 60 + 60
"""IPoIB, IP and TCP with all options."""


def _byte(layout: type[Layout], name: str) -> int:
    """Where a field of whole bytes begins in its structure."""
    (field,) = (field for field in layout.fields() if field.name == name)
    return field.offset if field.kind != "bits" else field.offset + (31 - field.hi) // 8


_IPV4_CHECKSUM: Final = IpoibHeader.SIZE + _byte(Ipv4Header, "checksum")
_IDENTIFICATION: Final = IpoibHeader.SIZE + _byte(Ipv4Header, "identification")
_LENGTH: Final = {
    EtherType.IPV4: IpoibHeader.SIZE + _byte(Ipv4Header, "total_length"),
    EtherType.IPV6: IpoibHeader.SIZE + _byte(Ipv6Header, "payload_length"),
}
# Where the addresses are, and how long.
_ADDRESSES: Final = {
    EtherType.IPV4: (IpoibHeader.SIZE + _byte(Ipv4Header, "addresses"), 8),
    EtherType.IPV6: (IpoibHeader.SIZE + _byte(Ipv6Header, "addresses"), 32),
}
_CHECKSUM: Final = {IpProtocol.TCP: _byte(TcpHeader, "checksum"), IpProtocol.UDP: _byte(UdpHeader, "checksum")}
_LEAST: Final = {IpProtocol.TCP: TcpHeader.SIZE, IpProtocol.UDP: UdpHeader.SIZE}
_SEQUENCE: Final = _byte(TcpHeader, "sequence")
_FLAGS: Final = _byte(TcpHeader, "flags")
_type = IpoibHeader.unpacker("type")
_ipv4 = Ipv4Header.unpacker("version", "ihl", "total_length", "fragment", "protocol")
_ipv6 = Ipv6Header.unpacker("version", "payload_length", "next_header")
_tcp = TcpHeader.unpacker("sequence", "data_offset", "flags")
_udp = UdpHeader.unpacker("length", "checksum")


class Found(NamedTuple):
    """What a packet is: its IP version as `ether_type`, where TCP or UDP begins, and which of them.

    `protocol` is 0 where there is no transport checksum to compute: other protocols, extension headers, fragments, a
    UDP header with another length.
    """

    ether_type: int
    transport: int
    protocol: int


def look(packet: bytes, length: int) -> Found | None:
    """Look at the headers of a packet of `length` bytes, of which `packet` holds the headers at least.

    None if it is not IP, or does not have the length that its header says.
    """
    if len(packet) < IpoibHeader.SIZE + Ipv4Header.SIZE:
        return None
    (kind,) = _type(packet)
    if kind == EtherType.IPV4:
        version, words, total, fragment, protocol = _ipv4(packet, IpoibHeader.SIZE)
        transport = IpoibHeader.SIZE + 4 * words
        if version != 4 or words < 5 or total + IpoibHeader.SIZE != length or transport > len(packet):
            return None
        if fragment:
            protocol = 0
    elif kind == EtherType.IPV6 and len(packet) >= IpoibHeader.SIZE + Ipv6Header.SIZE:
        version, size, protocol = _ipv6(packet, IpoibHeader.SIZE)
        transport = IpoibHeader.SIZE + Ipv6Header.SIZE
        if version != 6 or size + transport != length:
            return None
    else:
        return None
    size = length - transport
    if size < _LEAST.get(protocol, 1 << 16) or (protocol == IpProtocol.UDP and _udp(packet, transport)[0] != size):
        protocol = 0
    return Found(kind, transport, protocol)


def folded(data: bytes) -> int:
    """The ones' complement sum of 16-bit words, folded to 16 bits; an odd last byte is the high one of a word."""
    number = int.from_bytes(data + b"\0" if len(data) & 1 else data, "big")
    # 2**16 is 1 modulo 65535, so the remainder is the sum, but for its two zeros.
    return (number and number % 0xFFFF) or (0xFFFF if number else 0)


def _pseudo(packet: bytes, found: Found, length: int) -> bytes:
    """What the checksum of TCP and UDP covers in front of them."""
    at, size = _ADDRESSES[EtherType(found.ether_type)]
    return packet[at : at + size] + (length - found.transport).to_bytes(4, "big") + found.protocol.to_bytes(4, "big")


def with_checksums(packet: bytes, l3: bool, l4: bool) -> bytes:
    """The packet with the checksums of IPv4 (`l3`), and of TCP or UDP (`l4`), as far as it has them."""
    found = look(packet, len(packet))
    if found is None:
        return packet
    out = bytearray(packet)
    if l3 and found.ether_type == EtherType.IPV4:
        out[_IPV4_CHECKSUM : _IPV4_CHECKSUM + 2] = bytes(2)
        value = 0xFFFF - folded(bytes(out[IpoibHeader.SIZE : found.transport]))
        out[_IPV4_CHECKSUM : _IPV4_CHECKSUM + 2] = value.to_bytes(2, "big")
    if l4 and found.protocol:
        at = found.transport + _CHECKSUM[IpProtocol(found.protocol)]
        out[at : at + 2] = bytes(2)
        value = 0xFFFF - folded(_pseudo(packet, found, len(packet)) + bytes(out[found.transport :]))
        # Of UDP, 0 would mean that there is none (RFC 768).
        out[at : at + 2] = (value or (0xFFFF if found.protocol == IpProtocol.UDP else 0)).to_bytes(2, "big")
    return bytes(out)


def checked(packet: bytes) -> tuple[bool, bool]:
    """Tell whether the checksums of a packet hold: of the IP header, and of TCP or UDP.

    IPv6 has none of its own, so its header is good if its length is. A UDP checksum of 0 says nothing.
    """
    found = look(packet, len(packet))
    if found is None:
        return False, False
    l3 = found.ether_type == EtherType.IPV6 or folded(packet[IpoibHeader.SIZE : found.transport]) == 0xFFFF
    if not found.protocol:
        return l3, False
    if found.protocol == IpProtocol.UDP and not _udp(packet, found.transport)[1]:
        return l3, False
    return l3, folded(_pseudo(packet, found, len(packet)) + packet[found.transport :]) == 0xFFFF


def segment_headers(header: bytes) -> str:
    """Why a packet with this header cannot be cut into segments; empty if it can: exactly IPoIB, IP and TCP."""
    # Its own length fields say nothing yet: those of the segments are made.
    found = look(_sized(header, len(header)), len(header)) if len(header) >= 6 else None
    if found is None or found.protocol != IpProtocol.TCP:
        return "the header is not one of TCP over IP over InfiniBand"
    _, words, _ = _tcp(header, found.transport)
    if words < 5 or found.transport + 4 * words != len(header):
        return "the header does not end with that of TCP"
    return ""


def _sized(header: bytes, length: int) -> bytes:
    """The header with the length fields of a packet of `length` bytes."""
    kind = int.from_bytes(header[:2], "big")
    if kind == EtherType.IPV4:
        size = length - IpoibHeader.SIZE
    elif kind == EtherType.IPV6:
        size = length - IpoibHeader.SIZE - Ipv6Header.SIZE
    else:
        return header
    at = _LENGTH[EtherType(kind)]
    return header[:at] + (size & 0xFFFF).to_bytes(2, "big") + header[at + 2 :]


def segment(header: bytes, number: int, offset: int, data: bytes, last: bool) -> bytes:
    """Segment `number` of a large send, with the data from `offset` on; `header` has passed :func:`segment_headers`.

    Length and TCP sequence number are its own, the IPv4 identification counts up; PSH and FIN are the last one's, CWR
    the first one's.
    """
    length = len(header) + len(data)
    out = bytearray(_sized(header, length))
    found = look(bytes(out), length)
    assert found is not None
    if found.ether_type == EtherType.IPV4:
        identification = int.from_bytes(header[_IDENTIFICATION : _IDENTIFICATION + 2], "big") + number
        out[_IDENTIFICATION : _IDENTIFICATION + 2] = (identification & 0xFFFF).to_bytes(2, "big")
    sequence, _, flags = _tcp(header, found.transport)
    at = found.transport + _SEQUENCE
    out[at : at + 4] = (sequence + offset & 0xFFFFFFFF).to_bytes(4, "big")
    if not last:
        flags &= ~(TcpFlag.FIN | TcpFlag.PSH)
    if number:
        flags &= ~TcpFlag.CWR
    out[found.transport + _FLAGS] = flags
    return bytes(out) + data
