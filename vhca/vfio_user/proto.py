"""The vfio-user message formats: what travels over the wire between a virtual machine monitor and a device.

Pure functions between bytes and values; nothing here reads a socket, a clock or a file. Numbers are in
host byte order, which this package takes to be little-endian (vfio-user is a local protocol). Every
`parse_*` function takes the payload that follows the 16-byte header, checks its lengths and
`argsz` strictly, and raises :class:`ProtocolError` with the errno that the reply has to carry.
"""

from __future__ import annotations

import errno
import json
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple

HEADER: Final = struct.Struct("<HHIII")
"""Message id, command, size with this header, flags, errno."""

HEADER_SIZE: Final = 16

VERSION_MAJOR: Final = 0
VERSION_MINOR: Final = 0

MAX_MSG_FDS: Final = 16
"""Descriptors in one message; QEMU's channel carries no more."""
MAX_DATA_XFER_SIZE: Final = 1 << 20
"""Bytes of data in one region or DMA message that this side accepts."""
MAX_MESSAGE_SIZE: Final = HEADER_SIZE + 16 + MAX_DATA_XFER_SIZE
MAX_DMA_MAPS: Final = 65535
MAX_MULTI_WRITES: Final = 200
"""Entries in one REGION_WRITE_MULTI."""
PAGE_SIZE: Final = 4096
SCM_MAX_FD: Final = 253
"""Descriptors in one message that Linux can carry at all."""

FLAGS_TYPE_MASK: Final = 0xF
FLAGS_COMMAND: Final = 0x0
FLAGS_REPLY: Final = 0x1
FLAGS_NO_REPLY: Final = 0x10
FLAGS_ERROR: Final = 0x20


class Command(IntEnum):
    """Message commands."""

    VERSION = 1
    DMA_MAP = 2
    DMA_UNMAP = 3
    DEVICE_GET_INFO = 4
    DEVICE_GET_REGION_INFO = 5
    DEVICE_GET_REGION_IO_FDS = 6
    DEVICE_GET_IRQ_INFO = 7
    DEVICE_SET_IRQS = 8
    REGION_READ = 9
    REGION_WRITE = 10
    DMA_READ = 11
    DMA_WRITE = 12
    DEVICE_RESET = 13
    REGION_WRITE_MULTI = 15
    DEVICE_FEATURE = 16


# The two commands of the hot path, as plain ints.
REGION_READ: Final = 9
REGION_WRITE: Final = 10


class DmaFlags(IntFlag):
    """Flags of DMA_MAP."""

    READ = 1
    WRITE = 2


UNMAP_ALL: Final = 2
"""Flag of DMA_UNMAP: every mapping, with address and size zero."""


class DeviceFlags(IntFlag):
    """Flags of a GET_INFO reply."""

    RESET = 1
    PCI = 2


class RegionFlags(IntFlag):
    """Flags of a GET_REGION_INFO reply."""

    READ = 1
    WRITE = 2
    MMAP = 4
    CAPS = 8


class IrqInfoFlags(IntFlag):
    """Flags of a GET_IRQ_INFO reply."""

    EVENTFD = 1
    MASKABLE = 2
    AUTOMASKED = 4
    NORESIZE = 8


class IrqSet(IntFlag):
    """Flags of SET_IRQS: one data kind and one action."""

    DATA_NONE = 1
    DATA_BOOL = 2
    DATA_EVENTFD = 4
    ACTION_MASK = 8
    ACTION_UNMASK = 0x10
    ACTION_TRIGGER = 0x20


DATA_KINDS: Final = int(IrqSet.DATA_NONE | IrqSet.DATA_BOOL | IrqSet.DATA_EVENTFD)
ACTIONS: Final = int(IrqSet.ACTION_MASK | IrqSet.ACTION_UNMASK | IrqSet.ACTION_TRIGGER)


class RegionIndex(IntEnum):
    """Regions of a PCI device."""

    BAR0 = 0
    BAR1 = 1
    BAR2 = 2
    BAR3 = 3
    BAR4 = 4
    BAR5 = 5
    ROM = 6
    CONFIG = 7
    VGA = 8


class IrqIndex(IntEnum):
    """Interrupt kinds of a PCI device."""

    INTX = 0
    MSI = 1
    MSIX = 2
    ERR = 3
    REQ = 4


class ProtocolError(Exception):
    """A message that this side refuses.

    :ivar errno: positive errno for the error reply.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.errno = code


class Header(NamedTuple):
    """The 16 bytes before every payload; `size` counts them too."""

    message_id: int
    command: int
    size: int
    flags: int
    errno: int


def check_size(size: int) -> None:
    """Refuse a header whose size leaves no way to find the next message.

    :raises ProtocolError: EINVAL below 16 bytes or above :data:`MAX_MESSAGE_SIZE`.
    """
    if not HEADER_SIZE <= size <= MAX_MESSAGE_SIZE:
        raise ProtocolError(errno.EINVAL, f"message of {size} bytes, not {HEADER_SIZE}..{MAX_MESSAGE_SIZE}")


def request(message_id: int, command: int, payload: bytes = b"", *, no_reply: bool = False) -> bytes:
    """Return a command message."""
    flags = FLAGS_NO_REPLY if no_reply else FLAGS_COMMAND
    return HEADER.pack(message_id, command, HEADER_SIZE + len(payload), flags, 0) + payload


def reply(message_id: int, command: int, payload: bytes = b"") -> bytes:
    """Return the answer to a command that was carried out."""
    return HEADER.pack(message_id, command, HEADER_SIZE + len(payload), FLAGS_REPLY, 0) + payload


def error_reply(message_id: int, command: int, code: int) -> bytes:
    """Return the answer to a command that failed: a bare header with the positive errno `code`."""
    return HEADER.pack(message_id, command, HEADER_SIZE, FLAGS_REPLY | FLAGS_ERROR, code)


def _exactly(payload: bytes, size: int, what: str) -> None:
    if len(payload) != size:
        raise ProtocolError(errno.EINVAL, f"{what}: payload of {len(payload)} bytes, not {size}")


def _at_least(payload: bytes, size: int, what: str) -> None:
    if len(payload) < size:
        raise ProtocolError(errno.EINVAL, f"{what}: payload of {len(payload)} bytes, less than {size}")


def _argsz(value: int, smallest: int, what: str) -> None:
    if value < smallest:
        raise ProtocolError(errno.EINVAL, f"{what}: argsz {value}, less than {smallest}")


def no_payload(payload: bytes, what: str) -> None:
    """Refuse any payload.

    :raises ProtocolError: EINVAL.
    """
    _exactly(payload, 0, what)


# ---- VERSION ----

VERSION: Final = struct.Struct("<HH")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one side of the connection can take (the JSON of a VERSION message).

    The defaults are those that the specification gives for keys left out, except `max_msg_fds`.
    """

    max_msg_fds: int = 1
    max_data_xfer_size: int = MAX_DATA_XFER_SIZE
    pgsizes: int = PAGE_SIZE
    max_dma_maps: int = MAX_DMA_MAPS
    write_multiple: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """A parsed VERSION message."""

    major: int
    minor: int
    capabilities: Capabilities


def _integer(capabilities: dict[str, Any], key: str, default: int, low: int, high: int) -> int:
    value = capabilities.get(key, default)
    # bool is an int in Python, but not in JSON
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ProtocolError(errno.EINVAL, f"VERSION: bad {key}")
    return value


def parse_version(payload: bytes) -> Version:
    """Parse VERSION: two u16, then optionally a JSON object that ends with NUL.

    :raises ProtocolError: EINVAL for a short payload, an unknown major version, JSON that is broken or
        not terminated, or a capability of the wrong type or range.
    """
    _at_least(payload, VERSION.size, "VERSION")
    major, minor = VERSION.unpack_from(payload)
    if major != VERSION_MAJOR:
        raise ProtocolError(errno.EINVAL, f"VERSION: major version {major} is not supported")
    text = payload[VERSION.size :]
    if not text:
        return Version(major, minor, Capabilities())
    if text[-1] != 0 or text.find(0) != len(text) - 1:
        raise ProtocolError(errno.EINVAL, "VERSION: the JSON does not end with one NUL")
    try:
        document = json.loads(text[:-1])
    except (ValueError, RecursionError) as error:
        raise ProtocolError(errno.EINVAL, f"VERSION: broken JSON: {error}") from None
    if not isinstance(document, dict):
        raise ProtocolError(errno.EINVAL, "VERSION: the JSON is not an object")
    return Version(major, minor, _parse_capabilities(document.get("capabilities", {})))


def _parse_capabilities(capabilities: object) -> Capabilities:
    if not isinstance(capabilities, dict):
        raise ProtocolError(errno.EINVAL, "VERSION: capabilities is not an object")
    migration = capabilities.get("migration", {})
    if not isinstance(migration, dict):
        raise ProtocolError(errno.EINVAL, "VERSION: migration is not an object")
    migration_page = _integer(migration, "pgsize", PAGE_SIZE, PAGE_SIZE, 1 << 62)
    if migration_page % PAGE_SIZE:
        raise ProtocolError(errno.EINVAL, "VERSION: bad migration pgsize")
    write_multiple = capabilities.get("write_multiple", False)
    if not isinstance(write_multiple, bool):
        raise ProtocolError(errno.EINVAL, "VERSION: bad write_multiple")
    return Capabilities(
        max_msg_fds=_integer(capabilities, "max_msg_fds", 1, 0, SCM_MAX_FD),
        max_data_xfer_size=_integer(capabilities, "max_data_xfer_size", MAX_DATA_XFER_SIZE, 1, 1 << 62),
        pgsizes=_integer(capabilities, "pgsizes", PAGE_SIZE, 1, (1 << 64) - 1),
        max_dma_maps=_integer(capabilities, "max_dma_maps", MAX_DMA_MAPS, 1, 1 << 62),
        write_multiple=write_multiple,
    )


def pack_version(minor: int, capabilities: dict[str, object] | None, major: int = VERSION_MAJOR) -> bytes:
    """Return the payload of a VERSION message; `None` leaves the JSON out."""
    head = VERSION.pack(major, minor)
    if capabilities is None:
        return head
    return head + json.dumps({"capabilities": capabilities}).encode() + b"\0"


SERVER_CAPABILITIES: Final[dict[str, object]] = {
    "max_msg_fds": MAX_MSG_FDS,
    "max_data_xfer_size": MAX_DATA_XFER_SIZE,
    "pgsizes": PAGE_SIZE,
    "max_dma_maps": MAX_DMA_MAPS,
}
"""What the server answers; QEMU warns of keys that it does not know."""

# ---- DMA_MAP, DMA_UNMAP ----

DMA_MAP: Final = struct.Struct("<IIQQQ")
DMA_UNMAP: Final = struct.Struct("<IIQQ")
ADDRESS_END: Final = 1 << 64


class DmaMapRequest(NamedTuple):
    """DMA_MAP: `size` bytes at guest address `address` are `offset` bytes into the passed file."""

    flags: int
    offset: int
    address: int
    size: int


class DmaUnmapRequest(NamedTuple):
    """DMA_UNMAP of a range, which must not cut a mapping in two, or of all (`everything`)."""

    address: int
    size: int
    everything: bool


def parse_dma_map(payload: bytes) -> DmaMapRequest:
    """Parse DMA_MAP (32 bytes).

    :raises ProtocolError: EINVAL for lengths, unknown flags, an empty range, one that is not made of
        whole pages, or one that passes the end of the address space.
    """
    _exactly(payload, DMA_MAP.size, "DMA_MAP")
    argsz, flags, offset, address, size = DMA_MAP.unpack(payload)
    _argsz(argsz, DMA_MAP.size, "DMA_MAP")
    if flags & ~int(DmaFlags.READ | DmaFlags.WRITE):
        raise ProtocolError(errno.EINVAL, f"DMA_MAP: unknown flags {flags:#x}")
    if size == 0 or address + size > ADDRESS_END or offset + size > ADDRESS_END:
        raise ProtocolError(errno.EINVAL, f"DMA_MAP: bad range {address:#x}+{size:#x}")
    if (address | size | offset) % PAGE_SIZE:
        raise ProtocolError(errno.EINVAL, "DMA_MAP: address, size and offset must be whole pages")
    return DmaMapRequest(flags, offset, address, size)


def parse_dma_unmap(payload: bytes) -> DmaUnmapRequest:
    """Parse DMA_UNMAP (24 bytes).

    :raises ProtocolError: EINVAL for lengths, unknown flags, UNMAP_ALL with a range, or an empty range.
    """
    _exactly(payload, DMA_UNMAP.size, "DMA_UNMAP")
    argsz, flags, address, size = DMA_UNMAP.unpack(payload)
    _argsz(argsz, DMA_UNMAP.size, "DMA_UNMAP")
    if flags & ~UNMAP_ALL:
        raise ProtocolError(errno.EINVAL, f"DMA_UNMAP: unknown flags {flags:#x}")
    everything = bool(flags & UNMAP_ALL)
    if everything and (address or size):
        raise ProtocolError(errno.EINVAL, "DMA_UNMAP: UNMAP_ALL takes no range")
    if not everything and size == 0:
        raise ProtocolError(errno.EINVAL, "DMA_UNMAP: empty range")
    return DmaUnmapRequest(address, size, everything)


# ---- device, region and interrupt information ----

DEVICE_INFO: Final = struct.Struct("<IIII")
REGION_INFO: Final = struct.Struct("<IIIIQQ")
IRQ_INFO: Final = struct.Struct("<IIII")
REGION_IO_FDS: Final = struct.Struct("<IIII")
SPARSE_HEADER: Final = struct.Struct("<HHIII")
SPARSE_AREA: Final = struct.Struct("<QQ")
CAP_SPARSE_MMAP: Final = 1


def parse_device_info(payload: bytes) -> None:
    """Check GET_INFO (16 bytes, argsz at least 16).

    :raises ProtocolError: EINVAL.
    """
    _exactly(payload, DEVICE_INFO.size, "GET_INFO")
    _argsz(DEVICE_INFO.unpack(payload)[0], DEVICE_INFO.size, "GET_INFO")


def pack_device_info(flags: int, num_regions: int, num_irqs: int) -> bytes:
    """Return the payload of a GET_INFO reply."""
    return DEVICE_INFO.pack(DEVICE_INFO.size, flags, num_regions, num_irqs)


def parse_region_info(payload: bytes) -> tuple[int, int]:
    """Return (argsz, region index) of GET_REGION_INFO; the payload may be as long as argsz says.

    :raises ProtocolError: EINVAL for less than 32 bytes of payload or argsz.
    """
    _at_least(payload, REGION_INFO.size, "GET_REGION_INFO")
    argsz, _flags, index, _cap, _size, _offset = REGION_INFO.unpack_from(payload)
    _argsz(argsz, REGION_INFO.size, "GET_REGION_INFO")
    return argsz, index


def pack_region_info(argsz: int, flags: int, index: int, size: int, offset: int, capabilities: bytes = b"") -> bytes:
    """Return the payload of a GET_REGION_INFO reply; capabilities set the CAPS flag and follow it."""
    if capabilities:
        flags |= RegionFlags.CAPS
    cap_offset = REGION_INFO.size if capabilities else 0
    return REGION_INFO.pack(argsz, flags, index, cap_offset, size, offset) + capabilities


def pack_sparse_areas(areas: list[tuple[int, int]]) -> bytes:
    """Return the capability that lists the (offset, size) areas of a region that a client may map."""
    head = SPARSE_HEADER.pack(CAP_SPARSE_MMAP, 1, 0, len(areas), 0)
    return head + b"".join(SPARSE_AREA.pack(offset, size) for offset, size in areas)


def parse_irq_info(payload: bytes) -> int:
    """Return the index that GET_IRQ_INFO (16 bytes) asks for.

    :raises ProtocolError: EINVAL.
    """
    _exactly(payload, IRQ_INFO.size, "GET_IRQ_INFO")
    argsz, _flags, index, _count = IRQ_INFO.unpack(payload)
    _argsz(argsz, IRQ_INFO.size, "GET_IRQ_INFO")
    return int(index)


def pack_irq_info(flags: int, index: int, count: int) -> bytes:
    """Return the payload of a GET_IRQ_INFO reply."""
    return IRQ_INFO.pack(IRQ_INFO.size, flags, index, count)


def parse_region_io_fds(payload: bytes) -> int:
    """Return the region index of GET_REGION_IO_FDS.

    :raises ProtocolError: EINVAL for lengths, and for flags or a count, which a request leaves zero.
    """
    _exactly(payload, REGION_IO_FDS.size, "GET_REGION_IO_FDS")
    argsz, flags, index, count = REGION_IO_FDS.unpack(payload)
    _argsz(argsz, REGION_IO_FDS.size, "GET_REGION_IO_FDS")
    if flags or count:
        raise ProtocolError(errno.EINVAL, "GET_REGION_IO_FDS: flags and count must be zero")
    return int(index)


def pack_region_io_fds(index: int) -> bytes:
    """Return the payload of a GET_REGION_IO_FDS reply without descriptors: every access is a message."""
    return REGION_IO_FDS.pack(REGION_IO_FDS.size, 0, index, 0)


# ---- SET_IRQS ----

SET_IRQS: Final = struct.Struct("<IIIII")


@dataclass(frozen=True, slots=True)
class SetIrqsRequest:
    """SET_IRQS for vectors [start, start + count) of one index; `bools` is empty unless DATA_BOOL."""

    flags: int
    index: int
    start: int
    count: int
    bools: bytes


def parse_set_irqs(payload: bytes) -> SetIrqsRequest:
    """Parse SET_IRQS and check what can be checked without knowing the device.

    :raises ProtocolError: EINVAL for lengths, unknown flags, not exactly one data kind and one action,
        a count of zero with anything but "NONE, TRIGGER, start 0", or a bool array of another length.
    """
    _at_least(payload, SET_IRQS.size, "SET_IRQS")
    argsz, flags, index, start, count = SET_IRQS.unpack_from(payload)
    _argsz(argsz, SET_IRQS.size, "SET_IRQS")
    data, action = flags & DATA_KINDS, flags & ACTIONS
    if flags & ~(DATA_KINDS | ACTIONS) or data.bit_count() != 1 or action.bit_count() != 1:
        raise ProtocolError(errno.EINVAL, f"SET_IRQS: bad flags {flags:#x}")
    if count == 0 and (start or data != IrqSet.DATA_NONE or action != IrqSet.ACTION_TRIGGER):
        raise ProtocolError(errno.EINVAL, "SET_IRQS: a count of zero only disables a whole index")
    bools = payload[SET_IRQS.size :]
    if len(bools) != (count if data == IrqSet.DATA_BOOL else 0):
        raise ProtocolError(errno.EINVAL, f"SET_IRQS: {len(bools)} bytes of data for {count} vectors")
    return SetIrqsRequest(flags, index, start, count, bools)


# ---- region and DMA access ----

REGION_ACCESS: Final = struct.Struct("<QII")
DMA_ACCESS: Final = struct.Struct("<QQ")
MULTI_COUNT: Final = struct.Struct("<Q")
MULTI_ENTRY: Final = struct.Struct("<QII8s")


class RegionWrite(NamedTuple):
    """One write to a region."""

    offset: int
    region: int
    data: bytes


def parse_region_read(payload: bytes) -> tuple[int, int, int]:
    """Return (offset, region, count) of REGION_READ.

    :raises ProtocolError: EINVAL for lengths or a count above :data:`MAX_DATA_XFER_SIZE`.
    """
    _exactly(payload, REGION_ACCESS.size, "REGION_READ")
    offset, region, count = REGION_ACCESS.unpack(payload)
    if count > MAX_DATA_XFER_SIZE:
        raise ProtocolError(errno.EINVAL, f"REGION_READ: count {count} is above {MAX_DATA_XFER_SIZE}")
    return offset, region, count


def parse_region_write(payload: bytes) -> RegionWrite:
    """Parse REGION_WRITE.

    :raises ProtocolError: EINVAL if the data is not as long as the count says.
    """
    _at_least(payload, REGION_ACCESS.size, "REGION_WRITE")
    offset, region, count = REGION_ACCESS.unpack_from(payload)
    data = payload[REGION_ACCESS.size :]
    if len(data) != count:
        raise ProtocolError(errno.EINVAL, f"REGION_WRITE: {len(data)} bytes of data, count {count}")
    return RegionWrite(offset, region, data)


def parse_region_write_multi(payload: bytes) -> list[RegionWrite]:
    """Parse REGION_WRITE_MULTI: 1 to 200 writes of 1 to 8 bytes.

    :raises ProtocolError: EINVAL for any other number, length or count.
    """
    _at_least(payload, MULTI_COUNT.size, "REGION_WRITE_MULTI")
    (entries,) = MULTI_COUNT.unpack_from(payload)
    if not 1 <= entries <= MAX_MULTI_WRITES:
        raise ProtocolError(errno.EINVAL, f"REGION_WRITE_MULTI: {entries} entries")
    _exactly(payload, MULTI_COUNT.size + entries * MULTI_ENTRY.size, "REGION_WRITE_MULTI")
    writes = []
    for offset, region, count, data in MULTI_ENTRY.iter_unpack(payload[MULTI_COUNT.size :]):
        if not 1 <= count <= 8:
            raise ProtocolError(errno.EINVAL, f"REGION_WRITE_MULTI: an entry of {count} bytes")
        writes.append(RegionWrite(offset, region, data[:count]))
    return writes


def parse_device_feature(payload: bytes) -> int:
    """Return the flags of DEVICE_FEATURE.

    :raises ProtocolError: EINVAL for less than 8 bytes of payload or argsz.
    """
    _at_least(payload, 8, "DEVICE_FEATURE")
    argsz, flags = struct.unpack_from("<II", payload)
    _argsz(argsz, 8, "DEVICE_FEATURE")
    return int(flags)
