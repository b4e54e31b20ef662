"""Packets as they are on the cable: local and global route header, base and extended transport headers, CRCs.

:func:`encode` and :func:`decode` know one packet; :func:`split` and :func:`cut` know bursts. Nothing here behaves: what
a port does with a packet is decided elsewhere. The headers are declared in :mod:`vhca.wire.headers`.

What the wire does not carry cannot come back: `mtu` is decoded as the smallest legal MTU that holds the payload, and
headers that the opcode does not have are at their defaults.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vhca.wire.headers import (
    Aeth,
    AtomicAckEth,
    AtomicEth,
    Bth,
    Dceth,
    Deth,
    GrhHeader,
    Ieth,
    ImmDt,
    Lrh,
    NextHeader,
    Reth,
    Xrceth,
)
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
from vhca.wire.packet import PSN_MASK, Grh, Packet, Route

MTUS_BYTES: Final = (256, 512, 1024, 2048, 4096)
MAX_PAYLOAD_BYTES: Final = 4096

_IP_VERSION: Final = 6
_NEXT_HEADER_IBA: Final = 0x1B
_ICRC_BYTES: Final = 4
_VCRC_BYTES: Final = 2
_MIN_BYTES: Final = Lrh.SIZE + Bth.SIZE + _ICRC_BYTES + _VCRC_BYTES

_lrh = Lrh.packer("vl", "sl", "lnh", "dlid", "pkt_len", "slid")
_lrh_of = Lrh.unpacker("vl", "lver", "sl", "lnh", "dlid", "pkt_len", "slid")
_grh = GrhHeader.packer("ip_ver", "t_class", "flow_label", "pay_len", "nxt_hdr", "hop_lmt", "sgid", "dgid")
_grh_of = GrhHeader.unpacker("ip_ver", "t_class", "flow_label", "pay_len", "nxt_hdr", "hop_lmt", "sgid", "dgid")
_BTH_FIELDS: Final = ("opcode", "se", "m", "pad_cnt", "p_key", "fecn", "becn", "dest_qp", "ack_req", "psn")
_bth = Bth.packer(*_BTH_FIELDS)
_bth_of = Bth.unpacker("tver", *_BTH_FIELDS)

# Extended headers in wire order: bit, layout, its fields and the attributes of a packet that they hold.
_EXTENDED: Final = tuple(
    (bit, layout.SIZE, layout.packer(*fields), layout.unpacker(*fields), tuple(fields.values()))
    for bit, layout, fields in (
        (XRCETH, Xrceth, {"xrc_srq": "xrc_srqn"}),
        (
            DCETH,
            Dceth,
            {"access_key": "dc_key", "src_qp": "src_qp", "connection": "dc_connection", "first_psn": "dc_psn"},
        ),
        (DETH, Deth, {"q_key": "qkey", "src_qp": "src_qp"}),
        (RETH, Reth, {"va": "va", "r_key": "rkey", "dma_len": "dma_length"}),
        (ATOMIC_ETH, AtomicEth, {"va": "va", "r_key": "rkey", "swap_dt": "swap_add", "cmp_dt": "compare"}),
        (AETH, Aeth, {"syndrome": "syndrome", "msn": "msn"}),
        (ATOMIC_ACK_ETH, AtomicAckEth, {"orig_rem_dt": "original"}),
        (IMMDT, ImmDt, {"imm_dt": "immediate"}),
        (IETH, Ieth, {"r_key": "invalidate_rkey"}),
    )
)


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
    transport_bytes = Bth.SIZE + row.headers_size_bytes + size + pad + _ICRC_BYTES
    dlid, slid, sl, vl, grh = packet.route
    lnh = NextHeader.LOCAL if grh is None else NextHeader.GLOBAL
    words = (Lrh.SIZE + transport_bytes + (0 if grh is None else GrhHeader.SIZE)) >> 2
    parts = [_lrh(vl, sl, lnh, dlid, words, slid)]
    if grh is not None:
        parts.append(grh_bytes(grh, transport_bytes))
    parts.append(
        _bth(
            row.code,
            packet.solicited,
            packet.migration,
            pad,
            packet.pkey,
            packet.fecn,
            packet.becn,
            packet.dest_qp,
            packet.ack_req,
            packet.psn,
        )
    )
    for bit, _, pack, _, names in _EXTENDED:
        if row.headers & bit:
            parts.append(pack(*(getattr(packet, name) for name in names)))
    parts.append(packet.payload)
    parts.append(b"\0\0\0"[:pad])
    raw = b"".join(parts)
    crc = icrc(raw)
    if not packet.good:
        crc ^= 0xFFFFFFFF
    raw += crc.to_bytes(4, "little")
    return raw + vcrc(raw).to_bytes(2, "little")


def grh_bytes(grh: Grh, payload_bytes: int) -> bytes:
    """The 40 bytes of a GRH as a receive buffer shows them; `payload_bytes` counts from BTH to ICRC (8.3)."""
    return _grh(
        _IP_VERSION, grh.tclass, grh.flow_label, payload_bytes, _NEXT_HEADER_IBA, grh.hop_limit, grh.sgid, grh.dgid
    )


def transport_size_bytes(packet: Packet) -> int:
    """Bytes from BTH to ICRC of a packet of count 1: the PayLen field of its GRH."""
    size = len(packet.payload)
    return Bth.SIZE + opcode_of(packet).headers_size_bytes + size + (-size & 3) + _ICRC_BYTES


def decode(raw: bytes | bytearray | memoryview) -> Packet:
    """One packet from its bytes, LRH to VCRC; MalformedPacket if lengths, versions or opcode do not fit.

    Reserved bits are ignored, as receivers must (7.7). A wrong ICRC or VCRC gives `good=False`: what to do with such a
    packet is the receiver's business.
    """
    raw = bytes(raw)
    size = len(raw)
    if size < _MIN_BYTES:
        raise MalformedPacket(f"{size} bytes are shorter than LRH, BTH and CRCs")
    vl, link_version, sl, lnh, dlid, words, slid = _lrh_of(raw)
    if link_version:
        raise MalformedPacket(f"link version {link_version}")
    if words * 4 != size - _VCRC_BYTES:
        raise MalformedPacket(f"LRH.PktLen is {words} words, the packet has {size - _VCRC_BYTES} bytes before its VCRC")
    grh = None
    offset = Lrh.SIZE
    if lnh == NextHeader.GLOBAL:
        grh = _unpack_grh(raw)
        offset += GrhHeader.SIZE
    elif lnh != NextHeader.LOCAL:
        raise MalformedPacket(f"link next header {lnh} is no IBA transport")
    version, code, solicited, migration, pad, pkey, fecn, becn, dest_qp, ack_req, psn = _bth_of(raw, offset)
    row = OPCODES[code]
    if row is None:
        raise MalformedPacket(f"opcode {code:#04x} is reserved")
    if version:
        raise MalformedPacket(f"transport version {version}")
    offset += Bth.SIZE
    start = offset + row.headers_size_bytes
    end = size - _ICRC_BYTES - _VCRC_BYTES - pad
    if end < start:
        raise MalformedPacket(f"{row.name} is cut short or padded too much")
    payload = raw[start:end]
    if len(payload) > MAX_PAYLOAD_BYTES or (payload and not row.payload):
        raise MalformedPacket(f"{row.name} with {len(payload)} bytes of payload")
    packet = Packet(
        route=Route(dlid, slid, sl=sl, vl=vl, grh=grh),
        service=row.service,
        op=row.op,
        dest_qp=dest_qp,
        psn=psn,
        payload=payload,
        start=row.start,
        end=row.end,
        mtu=mtu_for(len(payload)),
        pkey=pkey,
        solicited=bool(solicited),
        ack_req=bool(ack_req),
        migration=bool(migration),
        becn=bool(becn),
        fecn=bool(fecn),
    )
    for bit, header_size, _, unpack, names in _EXTENDED:
        if row.headers & bit:
            for name, value in zip(names, unpack(raw, offset), strict=True):
                setattr(packet, name, value)
            offset += header_size
    icrc_ok = icrc(raw[:-6]) == int.from_bytes(raw[-6:-2], "little")
    packet.good = icrc_ok and vcrc(raw[:-2]) == int.from_bytes(raw[-2:], "little")
    return packet


def _unpack_grh(raw: bytes) -> Grh:
    if len(raw) < _MIN_BYTES + GrhHeader.SIZE:
        raise MalformedPacket(f"{len(raw)} bytes have no room for a GRH")
    version, tclass, flow_label, payload_bytes, next_header, hop_limit, sgid, dgid = _grh_of(raw, Lrh.SIZE)
    if version != _IP_VERSION:
        raise MalformedPacket(f"GRH version {version}")
    if next_header != _NEXT_HEADER_IBA:
        raise MalformedPacket(f"GRH next header {next_header:#04x} is no IBA transport")
    follows = len(raw) - Lrh.SIZE - GrhHeader.SIZE - _VCRC_BYTES
    if payload_bytes != follows:
        raise MalformedPacket(f"GRH.PayLen is {payload_bytes}, the packet has {follows} bytes after the GRH")
    return Grh(sgid, dgid, tclass, flow_label, hop_limit)


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
    total = (_MIN_BYTES if packet.route.grh is None else _MIN_BYTES + GrhHeader.SIZE) * count + size + (-size & 3)
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
