"""The messages between programs under `libumad2sim` and a simulator (ibsim 0.12), and the names of their sockets.

Two kinds: control messages of 80 bytes, each of which is answered by one of the same form, and data messages of 288
bytes with one management datagram. The library sends its own structures, so their layout is that of 64-bit hosts, which
this module takes to be little-endian; LIDs, queue pair numbers, status and length are in network order within them.

Sockets are of type SOCK_DGRAM in the abstract name space. Both sides count one byte too many, so that each name ends in
a NUL that belongs to it.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Final, NamedTuple

from vhca.wire.mad import MAD_BYTES

CONTROL: Final = struct.Struct("<IIII64s")
"""Magic, client, type, length, data."""
DATA: Final = struct.Struct(">H2xH2xIII4xQ256s")
"""DLID, SLID, destination and source QP, status, length, datagram."""
_CONNECT: Final = struct.Struct("<III32s")
_VENDOR: Final = struct.Struct("<III4xQ")
_PORT: Final = struct.Struct("<HBx")

MAGIC: Final = 0xDEADBEEF
NODE_ID_BYTES: Final = 31
"""Of the text that says where a client attaches, without the NUL behind it."""
FIRMWARE_VERSION: Final = 1
"""What the library shows as `fw_ver`; a simulated node has none."""


class Kind(IntEnum):
    """Types of control messages."""

    ERROR = 0
    CONNECT = 1
    DISCONNECT = 2
    GET_PORT = 3
    GET_VENDOR = 4
    GET_GID = 5
    GET_GUID = 6
    GET_NODE_INFO = 7
    GET_PORT_INFO = 8
    SET_IS_SM = 9
    GET_PKEYS = 10


class ProtocolError(Exception):
    """A message that means nothing; the text says why."""


class Control(NamedTuple):
    """A control message; `data` has 64 bytes, of which `length` are said to count."""

    client: int
    kind: int
    length: int
    data: bytes


class Connect(NamedTuple):
    """What a new client says of itself.

    - `number`: in the name of its sockets; its process id
    - `manager`: it takes requests for a subnet manager
    - `node`: where it attaches, "" if it does not say
    """

    number: int
    qp: int
    manager: bool
    node: str


class Datagram(NamedTuple):
    """A data message; LIDs and numbers as they are meant, `mad` with 256 bytes."""

    dlid: int
    slid: int
    dqp: int
    sqp: int
    status: int
    length: int
    mad: bytes


def parse_control(message: bytes) -> Control:
    """A control message; ProtocolError if it is none."""
    if len(message) != CONTROL.size:
        raise ProtocolError(f"a control message has {CONTROL.size} bytes, not {len(message)}")
    magic, client, kind, length, data = CONTROL.unpack(message)
    if magic != MAGIC:
        raise ProtocolError(f"a control message begins with {MAGIC:#x}, not {magic:#x}")
    return Control(client, kind, length, data)


def control_reply(request: Control, data: bytes, *, client: int | None = None) -> bytes:
    """The answer to a control message; `data` of at most 64 bytes."""
    number = request.client if client is None else client
    return CONTROL.pack(MAGIC, number, request.kind, request.length, data)


def control_error(request: Control) -> bytes:
    """The answer that says no."""
    return CONTROL.pack(MAGIC, request.client, Kind.ERROR, request.length, request.data)


def parse_connect(data: bytes) -> Connect:
    """What a client says of itself when it connects; ProtocolError if the name is no text."""
    number, qp, manager, node = _CONNECT.unpack_from(data)
    try:
        text = node.partition(b"\0")[0].decode("ascii")
    except UnicodeDecodeError as error:
        raise ProtocolError("the name of a node is ASCII") from error
    return Connect(number, qp, bool(manager), text)


def connected(connect: Connect, client: int, node: str) -> bytes:
    """The data of the answer to who has connected: its number, and where it attached."""
    return _CONNECT.pack(client, connect.qp, int(connect.manager), node.encode("ascii")[:NODE_ID_BYTES])


def vendor(vendor_id: int, device_id: int, revision: int) -> bytes:
    """The data of the answer to GET_VENDOR."""
    return _VENDOR.pack(vendor_id, device_id, revision, FIRMWARE_VERSION)


def port_state(lid: int, state: int) -> bytes:
    """The data of the answer to GET_PORT."""
    return _PORT.pack(lid, state)


def parse_data(message: bytes) -> Datagram:
    """A data message; ProtocolError if it is none, or its datagram is longer than 256 bytes."""
    if len(message) != DATA.size:
        raise ProtocolError(f"a data message has {DATA.size} bytes, not {len(message)}")
    datagram = Datagram._make(DATA.unpack(message))
    if datagram.length > MAD_BYTES:
        raise ProtocolError(f"a datagram of {datagram.length} bytes")
    return datagram


def control_name(base: str) -> bytes:
    """The address of the server's control socket."""
    return _name(f"{base}:ctl")


def data_name(base: str, client: int) -> bytes:
    """The address of the server's data socket for a client."""
    return _name(f"{base}:out{client}")


def client_name(base: str, number: int) -> bytes:
    """The address of a client's own data socket."""
    return _name(f"{base}:in{number}")


def check_base(base: str) -> None:
    """Refuse a base of names that the library could not use; ValueError says why."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", base):
        raise ValueError(f"{base[:80]!r} is no name of sockets; give 1 to 64 letters, digits, dots, dashes")


def _name(text: str) -> bytes:
    return b"\0" + text.encode("ascii") + b"\0"
