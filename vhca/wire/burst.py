"""A burst on its way out of the process: as the packets that it stands for, one behind the other.

Each packet is preceded by its length in bytes as a big-endian 16-bit number. What arrives is one burst again: nothing
is lost that a single packet carries, and nothing is taken for a burst that is not one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from vhca.wire.ib import MalformedPacket, decode, encode, packets_of
from vhca.wire.packet import PSN_MASK, Packet

LENGTH_BYTES: Final = 2
MAX_BURST_PACKETS: Final = 1 << 16
"""Of one burst; more than any sender makes, and less than half the circle of PSNs."""

# What all packets of a burst have in common.
_COMMON: Final = (
    *("route", "service", "op", "dest_qp", "pkey", "migration"),
    *("becn", "fecn", "src_qp", "qkey", "xrc_srqn", "dc_key", "dc_connection", "dc_psn"),
)


def encode_burst(packet: Packet) -> bytes:
    """The bytes of a packet or burst. ValueError for what no wire could carry (see :func:`vhca.wire.ib.encode`)."""
    parts: list[bytes] = []
    for part in packets_of(packet):
        raw = encode(part)
        parts += (len(raw).to_bytes(LENGTH_BYTES, "big"), raw)
    return b"".join(parts)


def decode_burst(raw: bytes | bytearray | memoryview) -> Packet:
    """The packet or burst of :func:`encode_burst`; MalformedPacket for anything else."""
    return join(list(_packets(memoryview(raw))))


def _packets(raw: memoryview) -> Iterator[Packet]:
    at = number = 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + LENGTH_BYTES], "big")
        at += LENGTH_BYTES
        number += 1
        if at + size > len(raw) or number > MAX_BURST_PACKETS:
            raise MalformedPacket(f"packet {number} of the burst is cut short, or one too many")
        yield decode(raw[at : at + size])
        at += size


def join(packets: Sequence[Packet]) -> Packet:
    """The burst that these packets are; MalformedPacket if they are not consecutive ones of one message.

    The MTU of a single packet is not on the wire: it is the least that holds the payload.
    """
    if not packets:
        raise MalformedPacket("a burst without a packet")
    first, last = packets[0], packets[-1]
    if len(packets) == 1:
        return first
    mtu = len(first.payload)
    for number, packet in enumerate(packets):
        inside = number < len(packets) - 1
        if (
            any(getattr(packet, name) != getattr(first, name) for name in _COMMON)
            or packet.psn != (first.psn + number) & PSN_MASK
            or (packet.start and number > 0)
            or (inside and (packet.end or packet.ack_req or len(packet.payload) != mtu))
            or len(packet.payload) > mtu
        ):
            raise MalformedPacket(f"packet {number} of the burst does not follow the one before it")
    if first.mtu != mtu:
        raise MalformedPacket(f"{mtu} bytes are no MTU")
    acknowledges = first if first.start else last
    return replace(
        first,
        payload=b"".join(packet.payload for packet in packets),
        count=len(packets),
        end=last.end,
        ack_req=last.ack_req,
        solicited=last.solicited,
        immediate=last.immediate,
        invalidate_rkey=last.invalidate_rkey,
        syndrome=acknowledges.syndrome,
        msn=acknowledges.msn,
        good=all(packet.good for packet in packets),
    )
