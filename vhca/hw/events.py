"""What happens to the firmware: one object per thing that came from the host, the wire or the board.

The board calls `firmware.handle(event, now_ns, effects)` once per event, in the order in which things happened, and
carries out the effects before it hands over the next event.
"""

from dataclasses import dataclass

from vhca.wire.packet import Packet


@dataclass(slots=True)
class Reset:
    """Power-up, function level reset or machine reset: every object is gone, registers are at their reset values."""

    reason: str


@dataclass(slots=True)
class InterfaceChange:
    """The host wrote the nic_interface field (0 full driver, 1 disabled, 7 software reset) of the init segment."""

    state: int


@dataclass(slots=True)
class CommandPosted:
    """A command was posted in `slot`; `data` is the whole input (inline part and mailboxes), `out_size` in bytes."""

    slot: int
    data: bytes
    out_size: int


@dataclass(slots=True)
class SqDoorbell:
    """Send doorbell in UAR page `uar`: first two dwords of the last posted control segment.

    `at_once` tells that nothing else waits, so that a little of what is posted may be executed in this very step.
    """

    uar: int
    opmod_idx_opcode: int
    qpn_ds: int
    at_once: bool = False


@dataclass(slots=True)
class CqDoorbell:
    """CQ arm doorbell in UAR page `uar`: the host has seen completions up to `consumer_index` (24 bits).

    `solicited`: the next solicited one is asked for, not just the next.
    """

    uar: int
    cqn: int
    consumer_index: int
    solicited: bool


@dataclass(slots=True)
class EqDoorbell:
    """EQ consumer index doorbell in UAR page `uar`; `arm` tells offset 0x40 (arm) from 0x48 (no arm)."""

    uar: int
    eqn: int
    consumer_index: int
    arm: bool


@dataclass(slots=True)
class PacketIn:
    """A packet (or a burst of consecutive packets of one message) arrived at `port` (1-based).

    `looped`: it is the card's own and came back as a `Loopback` asked for, without having been on the link.
    """

    port: int
    packet: Packet
    looped: bool = False


@dataclass(slots=True)
class LinkChange:
    """The physical link of `port` (1-based) came up or went down."""

    port: int
    up: bool


@dataclass(slots=True)
class LinkCounted:
    """What the cable at `port` noticed so often: `what` is the name of the counter in PortCounters."""

    port: int
    what: str
    count: int


@dataclass(slots=True)
class CompletionDue:
    """A completion that a :class:`vhca.hw.hardware.Tamper` held back is to be written now, if its queue is there."""

    cqn: int
    entry: bytes
    solicited: bool


@dataclass(slots=True)
class EventDue:
    """An event that was held back is to be written now, if its queue is there; `data` are the 28 bytes of its form."""

    eqn: int
    event_type: int
    sub_type: int
    data: bytes


Event = (
    Reset
    | InterfaceChange
    | CommandPosted
    | SqDoorbell
    | CqDoorbell
    | EqDoorbell
    | PacketIn
    | LinkChange
    | LinkCounted
    | CompletionDue
    | EventDue
)
