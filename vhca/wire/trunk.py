"""What racks say to each other over a trunk: frames, of which those with packets are whole packets or bursts.

This is our own format; the encryption below it vouches for every bit, so there are no CRCs. A frame is a head and what
its kind says. Racks of another version are told apart by the head and refused. Nothing here behaves: when which frame
is sent is decided in :mod:`vhca.trunk.end`.

A burst stays whole: consecutive packets of one message, at most :data:`MAX_PACKETS` and :data:`MAX_PAYLOAD_BYTES`.
"""

from enum import IntEnum
from operator import attrgetter
from typing import Final, NamedTuple

from vhca.layout import Layout, bits, raw, u8, u16, u32, u64
from vhca.wire.headers import GrhHeader
from vhca.wire.ib import MAX_PAYLOAD_BYTES as MAX_PACKET_BYTES
from vhca.wire.ib import MTUS_BYTES
from vhca.wire.opcodes import Opcode, lookup
from vhca.wire.packet import Grh, Packet, Route

MAGIC: Final = 0x5654
VERSION: Final = 1
MAX_PACKETS: Final = 256
MAX_PAYLOAD_BYTES: Final = 256 << 10
NAME_BYTES: Final = 160


class MalformedFrame(Exception):
    """The bytes are no frame of this version; the text says why."""


class FrameKind(IntEnum):
    """`TrunkHead.kind`: what follows the head."""

    HELLO = 1  # TrunkHello: I am here, or, with `peer`, I have heard you
    STATE = 2  # TrunkState: whether my end is enabled; it says that I am alive, too
    BURST = 3  # TrunkBurst, a GRH if there is one, and the payload
    CREDIT = 4  # TrunkCredit: what I have taken from you
    BYE = 5  # nothing: this session ends


class TrunkHead(Layout, size=16):
    """The head of each frame: `session` is the sender's, `peer` the one that it believes the receiver to have."""

    magic: int = u16(0x00)
    version: int = u8(0x02)
    kind: int = u8(0x03)
    session: int = u32(0x04)
    peer: int = u32(0x08)
    number: int = u32(0x0C)


class TrunkHello(Layout, size=192):
    """Which cable this is: its name, both ends in order, and a digest of what the racks are built from."""

    digest: bytes = raw(0x00, 32)
    name: bytes = raw(0x20, NAME_BYTES)


class TrunkState(Layout, size=4):
    """`enabled`: the port at the sender's end is, and the cable is plugged in there."""

    enabled: int = bits(0x00, 0)


class TrunkCredit(Layout, size=16):
    """How many frames with packets, and how many bytes of payload in them, were taken since the session began."""

    frames: int = u64(0x00)
    bytes: int = u64(0x08)


class TrunkBurst(Layout, size=104):
    """A packet, or consecutive ones of one message: see :class:`vhca.wire.packet.Packet` for what each field means.

    `immediate` is immediate data, or the key to invalidate. Fields of headers that packets do not have mean nothing.
    """

    dlid: int = u16(0x00)
    slid: int = u16(0x02)
    sl: int = bits(0x04, 31, 28)
    vl: int = bits(0x04, 27, 24)
    has_grh: int = bits(0x04, 23)
    start: int = bits(0x04, 22)
    end: int = bits(0x04, 21)
    solicited: int = bits(0x04, 20)
    ack_req: int = bits(0x04, 19)
    migration: int = bits(0x04, 18)
    becn: int = bits(0x04, 17)
    fecn: int = bits(0x04, 16)
    good: int = bits(0x04, 15)
    has_immediate: int = bits(0x04, 14)
    has_invalidate: int = bits(0x04, 13)
    op: int = bits(0x04, 3, 0)
    service: int = u8(0x08)
    dest_qp: int = bits(0x08, 23, 0)
    pkey: int = u16(0x0C)
    count: int = u16(0x10)
    mtu: int = u16(0x12)
    psn: int = bits(0x14, 23, 0)
    payload_bytes: int = u32(0x18)
    rkey: int = u32(0x1C)
    va: int = u64(0x20)
    dma_length: int = u32(0x28)
    immediate: int = u32(0x2C)
    swap_add: int = u64(0x30)
    compare: int = u64(0x38)
    original: int = u64(0x40)
    syndrome: int = u8(0x48)
    msn: int = bits(0x48, 23, 0)
    qkey: int = u32(0x4C)
    src_qp: int = bits(0x50, 23, 0)
    xrc_srqn: int = bits(0x54, 23, 0)
    dc_psn: int = bits(0x58, 23, 0)
    dc_connection: int = u32(0x5C)
    dc_key: int = u64(0x60)


MAX_FRAME_BYTES: Final = TrunkHead.SIZE + TrunkBurst.SIZE + GrhHeader.SIZE + MAX_PAYLOAD_BYTES

_head = TrunkHead.packer("magic", "version", "kind", "session", "peer", "number")
_head_of = TrunkHead.unpacker("magic", "version", "kind", "session", "peer", "number")
_GRH_FIELDS: Final = ("t_class", "flow_label", "hop_lmt", "sgid", "dgid")
_grh = GrhHeader.packer(*_GRH_FIELDS)
_grh_of = GrhHeader.unpacker(*_GRH_FIELDS)
# What a packet has as an attribute of the same name; numbers, but for the flags.
_FLAGS: Final = ("start", "end", "solicited", "ack_req", "migration", "becn", "fecn", "good")
_NUMBERS: Final = (
    *("op", "service", "dest_qp", "pkey", "count", "mtu", "psn", "rkey", "va", "dma_length", "swap_add", "compare"),
    *("original", "syndrome", "msn", "qkey", "src_qp", "xrc_srqn", "dc_psn", "dc_connection", "dc_key"),
)
_ROUTE: Final = ("dlid", "slid", "sl", "vl")
_EXTRA: Final = ("has_grh", "has_immediate", "has_invalidate", "immediate", "payload_bytes")
_burst = TrunkBurst.packer(*_ROUTE, *_EXTRA, *_FLAGS, *_NUMBERS)
_burst_of = TrunkBurst.unpacker(*_ROUTE, *_EXTRA, *_FLAGS, *_NUMBERS)
_values_of = attrgetter(*_FLAGS, *_NUMBERS)


def _reserved(layout: type[Layout]) -> int:
    """The bits of a structure, as one number, that no field has."""
    rest = (1 << 8 * layout.SIZE) - 1
    for field in layout.fields():
        rest &= ~(((1 << field.width) - 1) << 8 * layout.SIZE - field.end)
    return rest


_RESERVED: Final = {layout: _reserved(layout) for layout in (TrunkState, TrunkBurst)}
# Version, next header and length of a GRH are not carried: they follow from the rest.
_GRH_UNUSED: Final = int.from_bytes(_grh(0xFF, 0xFFFFF, 0xFF, b"\xff" * 16, b"\xff" * 16), "big") ^ (
    (1 << 8 * GrhHeader.SIZE) - 1
)
_MTUS: Final = frozenset(MTUS_BYTES)
_KINDS: Final = frozenset(FrameKind)


class Frame(NamedTuple):
    """A frame, taken apart as far as its head."""

    kind: FrameKind
    session: int
    peer: int
    number: int
    body: memoryview


def encode_frame(kind: FrameKind, session: int, peer: int, number: int = 0, body: bytes = b"") -> bytes:
    """The bytes of a frame."""
    return _head(MAGIC, VERSION, kind, session, peer, number) + body


def decode_frame(raw: bytes | memoryview) -> Frame:
    """A frame from its bytes.

    :raises MalformedFrame: it is none of this version.
    """
    size = len(raw)
    if not TrunkHead.SIZE <= size <= MAX_FRAME_BYTES:
        raise MalformedFrame(f"{size} bytes are no frame")
    magic, version, kind, session, peer, number = _head_of(raw)
    if magic != MAGIC or version != VERSION:
        raise MalformedFrame(f"magic {magic:#x}, version {version}: this rack speaks version {VERSION}")
    if kind not in _KINDS:
        raise MalformedFrame(f"kind {kind} of frames does not exist")
    return Frame(FrameKind(kind), session, peer, number, memoryview(raw)[TrunkHead.SIZE :])


def decode_state(body: memoryview) -> bool:
    """Whether the sender's end is enabled.

    :raises MalformedFrame: it is no state.
    """
    if len(body) != TrunkState.SIZE or int.from_bytes(body, "big") & _RESERVED[TrunkState]:
        raise MalformedFrame("no state of a cable's end")
    return bool(TrunkState.from_bytes(body).enabled)


def decode_credit(body: memoryview) -> tuple[int, int]:
    """Frames and bytes that were taken.

    :raises MalformedFrame: it is no credit.
    """
    if len(body) != TrunkCredit.SIZE:
        raise MalformedFrame("no credit")
    credit = TrunkCredit.from_bytes(body)
    return credit.frames, credit.bytes


def decode_hello(body: memoryview) -> tuple[bytes, bytes]:
    """Digest and name of the cable.

    :raises MalformedFrame: it is no hello.
    """
    if len(body) != TrunkHello.SIZE:
        raise MalformedFrame("no hello")
    hello = TrunkHello.from_bytes(body)
    return bytes(hello.digest), bytes(hello.name).rstrip(b"\0")


def encode_packet(packet: Packet) -> bytes:
    """The body of a frame with a packet or burst.

    :raises ValueError: it is more than a frame takes.
    """
    payload = packet.payload
    if packet.count > MAX_PACKETS or len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a burst of {packet.count} packets and {len(payload)} bytes is more than a frame takes")
    dlid, slid, sl, vl, grh = packet.route
    immediate = packet.immediate if packet.end else None
    invalidate = packet.invalidate_rkey if packet.end else None
    head = _burst(
        dlid,
        slid,
        sl,
        vl,
        grh is not None,
        immediate is not None,
        invalidate is not None,
        immediate if immediate is not None else invalidate or 0,
        len(payload),
        *_values_of(packet),
    )
    if grh is None:
        return b"".join((head, payload))
    return b"".join((head, _grh(grh.tclass, grh.flow_label, grh.hop_limit, grh.sgid, grh.dgid), payload))


def decode_packet(body: bytes | memoryview) -> Packet:
    """The packet or burst of :func:`encode_packet`.

    :raises MalformedFrame: it is none that a cable could carry.
    """
    if len(body) < TrunkBurst.SIZE or int.from_bytes(body[: TrunkBurst.SIZE], "big") & _RESERVED[TrunkBurst]:
        raise MalformedFrame("a packet's head is cut short, or has reserved bits")
    values = _burst_of(body)
    dlid, slid, sl, vl, has_grh, has_immediate, has_invalidate, immediate, payload_bytes = values[:9]
    flags, numbers = values[9 : 9 + len(_FLAGS)], values[9 + len(_FLAGS) :]
    at = TrunkBurst.SIZE + (GrhHeader.SIZE if has_grh else 0)
    if len(body) != at + payload_bytes:
        raise MalformedFrame(f"{len(body)} bytes, where there should be {at} and a payload of {payload_bytes}")
    grh = _grh_from(body[TrunkBurst.SIZE : at]) if has_grh else None
    packet = Packet(
        Route(dlid, slid, sl, vl, grh),
        payload=bytes(body[at:]),
        immediate=immediate if has_immediate else None,
        invalidate_rkey=immediate if has_invalidate else None,
        **dict(zip(_FLAGS, map(bool, flags), strict=True)),
        **dict(zip(_NUMBERS, numbers, strict=True)),
    )
    _check(packet)
    return packet


def _grh_from(body: bytes | memoryview) -> Grh:
    if int.from_bytes(body, "big") & _GRH_UNUSED:
        raise MalformedFrame("a GRH with more than is carried")
    tclass, flow_label, hop_limit, sgid, dgid = _grh_of(body)
    return Grh(sgid, dgid, tclass, flow_label, hop_limit)


def _check(packet: Packet) -> None:
    """Raise MalformedFrame unless its packets are such as a cable could carry."""
    count, size, mtu, end = packet.count, len(packet.payload), packet.mtu, packet.end
    if not 1 <= count <= MAX_PACKETS or mtu not in _MTUS or size > MAX_PAYLOAD_BYTES:
        raise MalformedFrame(f"{count} packets of MTU {mtu} with {size} bytes")
    if not end and (packet.immediate is not None or packet.invalidate_rkey is not None):
        raise MalformedFrame("immediate data before the end of a message")
    if count == 1:
        row = _row(packet, packet.start, end)
        if size > min(mtu, MAX_PACKET_BYTES) or (size and not row.payload):
            raise MalformedFrame(f"{row.name} with {size} bytes, MTU {mtu}")
        return
    rows = [_row(packet, packet.start, False), _row(packet, False, end)]
    if count > 2:
        rows.append(_row(packet, False, False))
    if not all(row.payload for row in rows) or not (count - 1) * mtu < size <= count * mtu:
        raise MalformedFrame(f"a burst of {count} packets of MTU {mtu} with {size} bytes")


def _row(packet: Packet, start: bool, end: bool) -> Opcode:
    immediate = end and packet.immediate is not None
    row = lookup(packet.service, packet.op, start, end, immediate, end and packet.invalidate_rkey is not None)
    if row is None:
        raise MalformedFrame(f"service {packet.service:#x} has no such packet of operation {packet.op}")
    return row
