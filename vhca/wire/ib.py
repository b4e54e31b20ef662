"""Packets as they are on the cable: local and global route header, base and extended transport headers, CRCs.

:func:`encode` and :func:`decode` know one packet; :func:`split` and :func:`cut` know bursts. Nothing here behaves: what
a port does with a packet is decided elsewhere. Layouts are those of chapters 7, 8 and 9 of volume 1.

What the wire does not carry cannot come back: `mtu` is decoded as the smallest legal MTU that holds the payload, and
headers that the opcode does not have are at their defaults.
"""

from collections.abc import Iterator
from dataclasses import replace
from struct import Struct
from typing import Final

from vhca.wire.icrc import icrc, vcrc
from vhca.wire.opcodes import (
    AETH,
    ATOMIC_ACK_ETH,
    ATOMIC_ETH,
    DCETH,
    DETH,
    IETH,
    IMMDT,
    OPCODES,
    RETH,
    XRCETH,
    Opcode,
    lookup,
)
from vhca.wire.packet import Grh, Packet

MTUS_BYTES: Final = (256, 512, 1024, 2048, 4096)
MAX_PAYLOAD_BYTES: Final = 4096
PSN_MASK: Final = 0xFFFFFF

_LNH_LOCAL: Final = 2
_LNH_GLOBAL: Final = 3
_GRH_NEXT_HEADER_IBA: Final = 0x1B
_GRH_BYTES: Final = 40

_LRH: Final = Struct(">BBHHH")
_GRH: Final = Struct(">IHBB16s16s")
_BTH: Final = Struct(">BBHII")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_DETH: Final = Struct(">II")
_RETH: Final = Struct(">QII")
_DCETH: Final = Struct(">QIII")
_ATOMIC_ETH: Final = Struct(">QIQQ")

_MIN_BYTES: Final = 8 + 12 + 4 + 2


class MalformedPacket(Exception):
    """The bytes are no InfiniBand transport packet; the text says which header is wrong."""


def opcode_of(packet: Packet) -> Opcode:
    """The opcode row of a packet of count 1; ValueError if its service has no such packet."""
    row = lookup(
        packet.service,
        packet.op,
        packet.start,
        packet.end,
        packet.end and packet.immediate is not None,
        packet.end and packet.invalidate_rkey is not None,
    )
    if row is None:
        raise ValueError(f"no opcode for {packet!r}"[:300])
    return row


def encode(packet: Packet) -> bytes:
    """The bytes of one packet (`count` must be 1), LRH first, VCRC last.

    `good=False` gives a packet whose ICRC does not match. ValueError for what no wire could carry: a burst, an
    operation without opcode, more than 4096 bytes of payload, payload where the opcode has none.
    """
    if packet.count != 1:
        raise ValueError(f"a burst of {packet.count} packets has no single wire image: split it")
    row = opcode_of(packet)
    size = len(packet.payload)
    if size > MAX_PAYLOAD_BYTES or (size and not row.payload):
        raise ValueError(f"{row.name} cannot carry {size} bytes")
    pad = -size & 3
    transport_bytes = 12 + row.headers_size_bytes + size + pad + 4
    grh = packet.grh
    lnh = _LNH_LOCAL if grh is None else _LNH_GLOBAL
    words = (8 + transport_bytes + (0 if grh is None else _GRH_BYTES)) >> 2
    parts = [_LRH.pack(packet.vl << 4, packet.sl << 4 | lnh, packet.dlid, words, packet.slid)]
    if grh is not None:
        parts.append(_pack_grh(grh, transport_bytes))
    parts.append(
        _BTH.pack(
            row.code,
            packet.solicited << 7 | packet.migration << 6 | pad << 4,
            packet.pkey,
            packet.fecn << 31 | packet.becn << 30 | packet.dest_qp,
            packet.ack_req << 31 | packet.psn,
        )
    )
    if row.headers:
        _pack_extended(parts, row.headers, packet)
    parts.append(packet.payload)
    parts.append(b"\0\0\0"[:pad])
    raw = b"".join(parts)
    crc = icrc(raw)
    if not packet.good:
        crc ^= 0xFFFFFFFF
    raw += crc.to_bytes(4, "little")
    return raw + vcrc(raw).to_bytes(2, "little")


def _pack_grh(grh: Grh, payload_bytes: int) -> bytes:
    return _GRH.pack(
        6 << 28 | grh.tclass << 20 | grh.flow_label,
        payload_bytes,
        _GRH_NEXT_HEADER_IBA,
        grh.hop_limit,
        grh.sgid,
        grh.dgid,
    )


def grh_bytes(grh: Grh, payload_bytes: int) -> bytes:
    """The 40 bytes of a GRH as a receive buffer shows them; `payload_bytes` counts from BTH to ICRC (8.3)."""
    return _pack_grh(grh, payload_bytes)


def transport_size_bytes(packet: Packet) -> int:
    """Bytes from BTH to ICRC of a packet of count 1: the PayLen field of its GRH."""
    size = len(packet.payload)
    return 12 + opcode_of(packet).headers_size_bytes + size + (-size & 3) + 4


def _pack_extended(parts: list[bytes], headers: int, packet: Packet) -> None:
    if headers & XRCETH:
        parts.append(_U32.pack(packet.xrc_srqn))
    if headers & DCETH:
        parts.append(_DCETH.pack(packet.dc_key, packet.src_qp, packet.dc_connection, packet.dc_psn))
    if headers & DETH:
        parts.append(_DETH.pack(packet.qkey, packet.src_qp))
    if headers & RETH:
        parts.append(_RETH.pack(packet.va, packet.rkey, packet.dma_length))
    if headers & ATOMIC_ETH:
        parts.append(_ATOMIC_ETH.pack(packet.va, packet.rkey, packet.swap_add, packet.compare))
    if headers & AETH:
        parts.append(_U32.pack(packet.syndrome << 24 | packet.msn))
    if headers & ATOMIC_ACK_ETH:
        parts.append(_U64.pack(packet.original))
    if headers & IMMDT:
        parts.append(_U32.pack(packet.immediate))
    if headers & IETH:
        parts.append(_U32.pack(packet.invalidate_rkey))


def decode(raw: bytes | bytearray | memoryview) -> Packet:
    """One packet from its bytes, LRH to VCRC; MalformedPacket if lengths, versions or opcode do not fit.

    Reserved bits are ignored, as receivers must (7.7). A wrong ICRC or VCRC gives `good=False`: what to do with such a
    packet is the receiver's business.
    """
    raw = bytes(raw)
    size = len(raw)
    if size < _MIN_BYTES:
        raise MalformedPacket(f"{size} bytes are shorter than LRH, BTH and CRCs")
    vl_lver, sl_lnh, dlid, words, slid = _LRH.unpack_from(raw)
    if vl_lver & 0xF:
        raise MalformedPacket(f"link version {vl_lver & 0xF}")
    if (words & 0x7FF) * 4 != size - 2:
        raise MalformedPacket(f"LRH.PktLen is {words & 0x7FF} words, the packet has {size - 2} bytes before its VCRC")
    lnh = sl_lnh & 3
    grh = None
    offset = 8
    if lnh == _LNH_GLOBAL:
        grh = _unpack_grh(raw)
        offset += _GRH_BYTES
    elif lnh != _LNH_LOCAL:
        raise MalformedPacket(f"link next header {lnh} is no IBA transport")
    code, flags, pkey, qp_word, psn_word = _BTH.unpack_from(raw, offset)
    row = OPCODES[code]
    if row is None:
        raise MalformedPacket(f"opcode {code:#04x} is reserved")
    if flags & 0xF:
        raise MalformedPacket(f"transport version {flags & 0xF}")
    offset += 12
    start = offset + row.headers_size_bytes
    end = size - 6 - (flags >> 4 & 3)
    if end < start:
        raise MalformedPacket(f"{row.name} is cut short or padded too much")
    payload = raw[start:end]
    if len(payload) > MAX_PAYLOAD_BYTES or (payload and not row.payload):
        raise MalformedPacket(f"{row.name} with {len(payload)} bytes of payload")
    packet = Packet(
        dlid=dlid,
        slid=slid,
        service=row.service,
        op=row.op,
        dest_qp=qp_word & PSN_MASK,
        psn=psn_word & PSN_MASK,
        payload=payload,
        start=row.start,
        end=row.end,
        mtu=mtu_for(len(payload)),
        sl=sl_lnh >> 4,
        vl=vl_lver >> 4,
        grh=grh,
        pkey=pkey,
        solicited=bool(flags & 0x80),
        ack_req=bool(psn_word & 0x80000000),
        migration=bool(flags & 0x40),
        becn=bool(qp_word & 0x40000000),
        fecn=bool(qp_word & 0x80000000),
    )
    if row.headers:
        _unpack_extended(raw, offset, row.headers, packet)
    icrc_ok = icrc(raw[:-6]) == int.from_bytes(raw[-6:-2], "little")
    packet.good = icrc_ok and vcrc(raw[:-2]) == int.from_bytes(raw[-2:], "little")
    return packet


def _unpack_grh(raw: bytes) -> Grh:
    if len(raw) < _MIN_BYTES + _GRH_BYTES:
        raise MalformedPacket(f"{len(raw)} bytes have no room for a GRH")
    word, payload_bytes, next_header, hop_limit, sgid, dgid = _GRH.unpack_from(raw, 8)
    if word >> 28 != 6:
        raise MalformedPacket(f"GRH version {word >> 28}")
    if next_header != _GRH_NEXT_HEADER_IBA:
        raise MalformedPacket(f"GRH next header {next_header:#04x} is no IBA transport")
    if payload_bytes != len(raw) - 8 - _GRH_BYTES - 2:
        raise MalformedPacket(f"GRH.PayLen is {payload_bytes}, the packet has {len(raw) - 50} bytes after the GRH")
    return Grh(sgid, dgid, word >> 20 & 0xFF, word & 0xFFFFF, hop_limit)


def _unpack_extended(raw: bytes, offset: int, headers: int, packet: Packet) -> None:
    if headers & XRCETH:
        packet.xrc_srqn = _U32.unpack_from(raw, offset)[0] & PSN_MASK
        offset += 4
    if headers & DCETH:
        packet.dc_key, src_qp, packet.dc_connection, first_psn = _DCETH.unpack_from(raw, offset)
        packet.src_qp = src_qp & PSN_MASK
        packet.dc_psn = first_psn & PSN_MASK
        offset += 20
    if headers & DETH:
        packet.qkey, src_qp = _DETH.unpack_from(raw, offset)
        packet.src_qp = src_qp & PSN_MASK
        offset += 8
    if headers & RETH:
        packet.va, packet.rkey, packet.dma_length = _RETH.unpack_from(raw, offset)
        offset += 16
    if headers & ATOMIC_ETH:
        packet.va, packet.rkey, packet.swap_add, packet.compare = _ATOMIC_ETH.unpack_from(raw, offset)
        offset += 28
    if headers & AETH:
        word = _U32.unpack_from(raw, offset)[0]
        packet.syndrome = word >> 24
        packet.msn = word & PSN_MASK
        offset += 4
    if headers & ATOMIC_ACK_ETH:
        packet.original = _U64.unpack_from(raw, offset)[0]
        offset += 8
    if headers & IMMDT:
        packet.immediate = _U32.unpack_from(raw, offset)[0]
        offset += 4
    if headers & IETH:
        packet.invalidate_rkey = _U32.unpack_from(raw, offset)[0]


def mtu_for(size_bytes: int) -> int:
    """The smallest legal MTU that holds a payload of `size_bytes` (at most 4096)."""
    for mtu in MTUS_BYTES:
        if size_bytes <= mtu:
            return mtu
    raise ValueError(f"{size_bytes} bytes do not fit any MTU")


# Extended headers in bytes by (service, op, start, end), without immediate or IETH.
_EXTENDED_BYTES: Final = {
    (row.service, row.op, row.start, row.end): row.headers_size_bytes
    for row in OPCODES
    if row is not None and not row.immediate and not row.invalidate
}


def wire_size_bytes(packet: Packet) -> int:
    """Bytes from LRH to VCRC of all packets of a packet or burst, for counters and rates; costs no encoding."""
    count = packet.count
    size = len(packet.payload)
    service, op, start, end = packet.service, packet.op, packet.start, packet.end
    extended = _EXTENDED_BYTES.get
    total = (26 if packet.grh is None else 66) * count + size + (-size & 3)
    if end and (packet.immediate is not None or packet.invalidate_rkey is not None):
        total += 4
    if count == 1:
        return total + extended((service, op, start, end), 0)
    total += extended((service, op, start, False), 0) + extended((service, op, False, end), 0)
    if count > 2:
        total += (count - 2) * extended((service, op, False, False), 0)
    return total


def split(packet: Packet) -> list[Packet]:
    """The packets of a burst, each of count 1, as they would be on the cable; `[packet]` itself if it is one already.

    Each packet keeps only the headers that its opcode has. A burst's `ack_req` goes to its last packet (9.7.5.1.2: the
    requester asks once), `solicited` to the last packet of the message. A corrupt burst gives corrupt packets.
    """
    return [packet] if packet.count == 1 else list(packets_of(packet))


def packets_of(packet: Packet) -> Iterator[Packet]:
    """The packets of :func:`split`, one by one."""
    count = packet.count
    if count == 1:
        yield packet
        return
    mtu = packet.mtu
    payload = packet.payload
    last = count - 1
    for index in range(count):
        start = packet.start and index == 0
        end = packet.end and index == last
        part = replace(
            packet,
            psn=(packet.psn + index) & PSN_MASK,
            payload=bytes(payload[index * mtu :]) if index == last else bytes(payload[index * mtu : (index + 1) * mtu]),
            count=1,
            start=start,
            end=end,
            ack_req=packet.ack_req and index == last,
            solicited=packet.solicited and end,
        )
        _keep_own_headers(part)
        yield part


def _keep_own_headers(packet: Packet) -> None:
    """Reset attributes of the message that a single packet's headers do not carry."""
    if not packet.end:
        packet.immediate = None
        packet.invalidate_rkey = None
    headers = opcode_of(packet).headers
    if not headers & (RETH | ATOMIC_ETH):
        packet.va = packet.rkey = packet.dma_length = 0
    if not headers & AETH:
        packet.syndrome = packet.msn = 0


def cut(packet: Packet, n: int) -> Packet:
    """What is left of a burst when its first `n` packets are taken away (0 <= n < count).

    A receiver that has seen the first `n` packets already executes the rest: `psn`, `payload` and `count` move on and
    `start` becomes False. RETH fields stay those of the whole message, so `va` is NOT the address of the first byte
    left: that is `va + n * mtu` if the burst began with the message's first packet.
    """
    if n == 0:
        return packet
    if not 0 < n < packet.count:
        raise ValueError(f"cannot drop {n} packets of a burst of {packet.count}")
    return replace(
        packet,
        psn=(packet.psn + n) & PSN_MASK,
        payload=bytes(packet.payload[n * packet.mtu :]),
        count=packet.count - n,
        start=False,
        solicited=packet.solicited and packet.end,
    )
