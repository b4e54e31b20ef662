"""What the firmware does to the world, appended to the caller's list; the order of the list is the contract.

Payload comes before its CQE, the CQE before its EQE, the EQE before its interrupt; a command's output comes before its
completion EQE.
"""

from dataclasses import dataclass
from typing import Literal

from vhca.wire.packet import Packet


@dataclass(slots=True)
class DmaWrite:
    """Store `data` at bus address `addr`. A posted write: a failure is counted by the board, not reported back."""

    addr: int
    data: bytes | bytearray | memoryview


@dataclass(slots=True)
class DeviceWrite:
    """Store `data` in the card's own memory, at an offset in BAR0 (see `Hardware.device_memory`)."""

    offset: int
    data: bytes | bytearray | memoryview


@dataclass(slots=True)
class EntryWrite:
    """Store a queue entry (CQE, EQE; a multiple of 8 bytes) whose ownership bit is in its last byte.

    Everything before the last 8 bytes is visible to the host first, then the last 8 bytes in one store: the host polls
    the ownership bit and must never see it before the rest.
    """

    addr: int
    data: bytes


@dataclass(slots=True)
class Transmit:
    """Send a packet or burst out of `port` (1-based)."""

    port: int
    packet: Packet


@dataclass(slots=True)
class Loopback:
    """A packet of `port` to the card itself (its own LID): comes back as an event after this step's effects."""

    port: int
    packet: Packet


@dataclass(slots=True)
class LinkControl:
    """Switch the transmitter of `port` (1-based) on or off; the link partner notices."""

    port: int
    enabled: bool


@dataclass(slots=True)
class RaiseIrq:
    """Signal MSI-X vector `vector`."""

    vector: int


@dataclass(slots=True)
class CommandDone:
    """The command in `slot` is done: `output` goes to its output mailboxes (zero-filled to the driver's length)."""

    slot: int
    output: bytes
    delivery_status: int = 0


@dataclass(slots=True)
class HealthSet:
    """Set a field of the init segment's health buffer (:class:`vhca.wire.connectx.init_segment.HealthBuffer`)."""

    field: str
    value: int


@dataclass(slots=True)
class Told:
    """What a program that is watched does, in its place among its effects; it changes nothing.

    `what`: a work request that it executes ("send", with opcode `code`, `size` in bytes, and `why` it is refused) or
    takes ("receive", of an SRQ if `shared`, with room for `size` bytes), an entry that it writes ("completion",
    "event", with `data`), or what its board adds ("command" in slot `queue`, with its output; "interrupt", of vector
    `queue`). `queue` is the number of the QP, SRQ, CQ or EQ, `index` that of the entry in it, free running, or as far
    as the queue counts.
    """

    what: Literal["send", "receive", "completion", "event", "command", "interrupt"]
    queue: int
    index: int = 0
    code: int = 0
    size: int = 0
    data: bytes = b""
    why: str = ""
    shared: bool = False


Effect = (
    DmaWrite | DeviceWrite | EntryWrite | Transmit | Loopback | LinkControl | RaiseIrq | CommandDone | HealthSet | Told
)
Effects = list[Effect]
