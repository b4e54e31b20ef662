"""The pcapng format as bytes: blocks, their options, and the headers that tell Wireshark how to read what is in them.

Wireshark knows InfiniBand inside extensible records (ERF, as hardware analysers write) but not as the link type of its
own, 247, that is registered for it. What is no packet is an "exported PDU", a link type by which Wireshark hands
dissected parts to itself: the record names its dissector, and what stands in the columns of the list.
Times are ns since 1970.
"""

from struct import Struct
from typing import Final

LINKTYPE_INFINIBAND: Final = 247
LINKTYPE_ERF: Final = 197
LINKTYPE_EXPORTED: Final = 252
INBOUND: Final = 1
OUTBOUND: Final = 2

_SECTION_HEADER: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_STATISTICS: Final = 5
_ENHANCED_PACKET: Final = 6

_OPT_COMMENT: Final = 1
_OPT_USER_APPLICATION: Final = 4
_IF_NAME: Final = 2
_IF_DESCRIPTION: Final = 3
_IF_SPEED: Final = 8
_IF_TIME_RESOLUTION: Final = 9
_EPB_FLAGS: Final = 2
_EPB_DROP_COUNT: Final = 4
_ISB_START: Final = 2
_ISB_END: Final = 3
_ISB_RECEIVED: Final = 4
_ISB_DROPPED: Final = 5

_NANOSECONDS: Final = b"\x09"
_ERF_TYPE_INFINIBAND: Final = 21
_ERF_VARYING_LENGTH: Final = 4
ERF_BYTES: Final = 16
# Tags of an exported PDU.
_TAG_END: Final = 0
_TAG_DISSECTOR: Final = 12
_TAG_PROTOCOL: Final = 33
_TAG_DIRECTION: Final = 35
_TAG_INFO: Final = 36
_P2P_SENT: Final = 0
_P2P_RECEIVED: Final = 1

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_OPTION: Final = Struct("<HH")
_PACKET: Final = Struct("<IIIII")
_STAMP: Final = Struct("<II")
_ERF_TIME: Final = Struct("<Q")
_ERF_REST: Final = Struct(">BBHHH")
_TAG: Final = Struct(">HH")
_END: Final = bytes(4)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) & 3)


def _option(code: int, value: bytes) -> bytes:
    return _OPTION.pack(code, len(value)) + _padded(value)


def _block(kind: int, body: bytes) -> bytes:
    size = _U32.pack(len(body) + 12)
    return _U32.pack(kind) + size + body + size


def _stamp(at_ns: int) -> tuple[int, int]:
    return at_ns >> 32 & 0xFFFFFFFF, at_ns & 0xFFFFFFFF


def section() -> bytes:
    """The header that every file begins with."""
    header = _U32.pack(0x1A2B3C4D) + Struct("<HHq").pack(1, 0, -1)
    return _block(_SECTION_HEADER, header + _option(_OPT_USER_APPLICATION, b"vhca") + _END)


def interface(link_type: int, snap_bytes: int, name: str, description: str = "", bits_per_s: int = 0) -> bytes:
    """The description of an interface; they are numbered in the order in which they stand, from 0 on."""
    options = _option(_IF_NAME, name.encode())
    if description:
        options += _option(_IF_DESCRIPTION, description.encode())
    if bits_per_s:
        options += _option(_IF_SPEED, _U64.pack(bits_per_s))
    options += _option(_IF_TIME_RESOLUTION, _NANOSECONDS) + _END
    return _block(_INTERFACE, Struct("<HHI").pack(link_type, 0, snap_bytes) + options)


def is_preamble(block: bytes) -> bool:
    """Tell whether every file of a ring needs this block: the header, or the description of an interface."""
    return _U32.unpack_from(block)[0] in (_SECTION_HEADER, _INTERFACE)


def packet_options(direction: int, comment: str = "", lost: int = 0) -> bytes:
    """Options of a packet: INBOUND or OUTBOUND, and how many of its interface are missing in front of it."""
    options = _option(_EPB_FLAGS, _U32.pack(direction))
    if comment:
        options += _option(_OPT_COMMENT, comment.encode())
    if lost:
        options += _option(_EPB_DROP_COUNT, _U64.pack(lost))
    return options + _END


def packet(number: int, at_ns: int, data: bytes, size: int, options: bytes) -> bytes:
    """A packet of an interface: `data` are the first bytes of its `size`."""
    high, low = _stamp(at_ns)
    return _block(_ENHANCED_PACKET, _PACKET.pack(number, high, low, len(data), size) + _padded(data) + options)


def statistics(number: int, start_ns: int, end_ns: int, received: int, dropped: int) -> bytes:
    """What an interface has seen, and what of that is not in the file."""
    options = _option(_ISB_START, _STAMP.pack(*_stamp(start_ns))) + _option(_ISB_END, _STAMP.pack(*_stamp(end_ns)))
    options += _option(_ISB_RECEIVED, _U64.pack(received)) + _option(_ISB_DROPPED, _U64.pack(dropped)) + _END
    return _block(_STATISTICS, _U32.pack(number) + _STAMP.pack(*_stamp(end_ns)) + options)


def erf(at_ns: int, data: bytes, size: int) -> bytes:
    """A packet as an extensible record: time in 2**-32 s, type, length with header, loss, length."""
    seconds, ns = divmod(at_ns, 1_000_000_000)
    stamp = _ERF_TIME.pack((seconds << 32 | (ns << 32) // 1_000_000_000) & 0xFFFFFFFFFFFFFFFF)
    rest = _ERF_REST.pack(_ERF_TYPE_INFINIBAND, _ERF_VARYING_LENGTH, len(data) + ERF_BYTES, 0, size)
    return stamp + rest + data


def exported(dissector: str, protocol: str, info: str, direction: int, body: bytes) -> bytes:
    """What is no packet: `body` is for a dissector of Wireshark's, `protocol` and `info` are for the list's columns."""
    sent = _P2P_RECEIVED if direction == INBOUND else _P2P_SENT
    return (
        _tag(_TAG_DISSECTOR, dissector.encode())
        + _tag(_TAG_PROTOCOL, protocol.encode())
        + _tag(_TAG_INFO, info.encode())
        + _tag(_TAG_DIRECTION, sent.to_bytes(4, "big"))
        + _tag(_TAG_END, b"")
        + body
    )


def _tag(code: int, value: bytes) -> bytes:
    value = _padded(value)
    return _TAG.pack(code, len(value)) + value
