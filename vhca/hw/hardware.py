"""The board as the program on it sees it, and the program as the board sees it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vhca.hw.effects import Effects
from vhca.hw.events import Event
from vhca.hw.findings import Finding, ObjectLife, Place, Strictness
from vhca.hw.identity import BOARD_ID, DEVICE_ID, FW_VERSION, MTU_BYTES
from vhca.hw.memory import Memory
from vhca.management.link_speed import USUAL, LinkSpeed
from vhca.wire.packet import Route
from vhca.wire.smp import PortInfo

TraceSink = Callable[[str, Mapping[str, object]], None]


class UnfitBoard(Exception):
    """The program cannot run on a board like this; the text says what it does not have."""


@dataclass(slots=True)
class BoardInfo:
    """What is burnt into this card: identity, ports, vectors.

    GUIDs are EUI-64 as integers. `uar_pages` counts 4 KiB pages of BAR0; `first_free_uar` is the lowest page that is
    not covered by the init segment or the MSI-X tables. `device_memory_start` is the offset in BAR0, behind the UAR
    pages, of the first of three windows of `device_memory_bytes` each: bytes, increment, test-and-set. `mtu`: the
    largest of its ports, in bytes. `link`: what its ports train at, with the cables that they have. `capabilities`:
    what this card is to have less of than its program offers; the program knows the names.
    """

    node_guid: int
    system_image_guid: int
    port_guids: tuple[int, ...]
    node_description: str = "vhca"
    board_id: str = BOARD_ID
    vendor_id: int = 0x0002C9
    device_id: int = DEVICE_ID
    revision: int = 0
    fw_version: tuple[int, int, int] = FW_VERSION
    mtu: int = MTU_BYTES
    link: LinkSpeed = USUAL
    capabilities: Mapping[str, int] = field(default_factory=dict)
    msix_vectors: int = 64
    uar_pages: int = 7936
    first_free_uar: int = 16
    device_memory_start: int = 31 << 20
    device_memory_bytes: int = 256 << 10
    timer_khz: int = 1_000_000


class Through(Protocol):
    """A way to another card of this process on which nothing looks at packets, loses, delays or holds them back.

    A program that knows the other one may work on both cards at once, as if packets had gone there and back in no time.
    """

    port: int
    """The port of the other card, from 1 on."""

    @property
    def firmware(self) -> "Firmware":
        """The program of the other card."""
        ...

    def is_open(self, mtu: int, *, empty: bool = False) -> bool:
        """Tell whether that holds at this moment for packets of `mtu` bytes, in both directions.

        With `empty` nothing may be under way from here to there either.
        """
        ...

    def passed(self, sent: int, sent_words: int, back: int, back_words: int) -> None:
        """Count packets, and words of 4 bytes from LRH to ICRC, that went there and that came back."""
        ...

    def step(self, run: Callable[[Effects], None]) -> None:
        """Let the other program do something, and carry out its effects."""
        ...

    def set_apart(self, finish: Callable[[Effects], None], most: int) -> bool:
        """Ask that nothing is done by or to both cards until `finish`, a step of this one, is run.

        That is soon, and before anything that could tell the difference. True: it will be, so that what concerns both
        may be done in another thread meanwhile, and this step ends. False: no other card has something to do now, or
        `most` others have set something apart.
        """
        ...

    @property
    def parted(self) -> bool:
        """True while something of other cards is set apart: this step may take as long as that."""
        ...


class Hardware(Protocol):
    """What the firmware may use: guest memory, the card's own memory (by offset in BAR0), identity, a trace."""

    memory: Memory
    device_memory: Memory
    info: BoardInfo
    trace: TraceSink | None

    def through(self, port: int, route: Route, back: Route, pkeys: tuple[int, int]) -> Through | None:
        """The way of packets from `port` by `route`, and of answers by `back`; None if there is none of that kind.

        `pkeys`: the P_Keys there and back.
        """
        ...

    def memory_limit(self) -> int:
        """Bytes of this process that what the firmware keeps for its host may take, at this moment."""
        ...


class Tamper(Protocol):
    """Somebody who changes what a program is about to put into queues of its host: for faults on purpose."""

    def completions(self, cqn: int, entry: bytearray, solicited: bool) -> Sequence[tuple[bytearray, bool]]:
        """What is written now instead of this completion: entry, and whether it is solicited, or an error.

        The owner bit is set behind this.
        """
        ...

    def events(self, eqn: int, event_type: int, sub_type: int, data: bytes) -> Sequence[tuple[int, int, bytes]]:
        """What is written now instead of this event: type, sub-type, data."""
        ...


class Firmware(Protocol):
    """The program on the board."""

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        """Digest one event; append what must happen, in order. Never raises for anything a guest or peer sent.

        A bounded piece of work: what a host may make long waits for :meth:`step`.
        """
        ...

    def next_deadline(self) -> int | None:
        """Earliest time in ns at which :meth:`on_timer` wants to be called; None if no timer runs."""
        ...

    def on_timer(self, now_ns: int, out: Effects) -> None:
        """Run everything that is due at `now_ns`."""
        ...

    def waiting(self) -> bool:
        """True if there is work for :meth:`step`."""
        ...

    def step(self, now_ns: int, out: Effects) -> None:
        """Do one bounded piece (well below a millisecond) of the work that events and timers have asked for.

        It sends: while the cable or the board's inbox is full, the board does not ask for it.
        """
        ...

    def watch(self, on: bool) -> None:
        """Tell from now on what it does (:class:`vhca.hw.effects.Told`), or no more."""
        ...

    def tamper(self, tamper: Tamper | None) -> None:
        """Ask somebody about every completion and event from now on, and leave none of them to who does not ask."""
        ...

    def keep_lives(self, level: Strictness) -> None:
        """Keep the lives of objects from now on, and what is wrong with them, as strictly; or no more."""
        ...

    def findings(self, card: str) -> Sequence[Finding]:
        """What was found wrong since lives are kept, for the card of this name; the earliest first."""
        ...

    def known(self) -> Sequence[Place]:
        """Objects whose lives are kept: those that are there, then those that were destroyed lately."""
        ...

    def life(self, kind: str, number: int) -> ObjectLife | None:
        """The life of an object, or of the last one with this number; None: nothing is known of it."""
        ...

    def inherit(self, old: "Firmware") -> None:
        """Free in pieces what the program that ran on this board before it failed has left behind."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Named counters (packets, bytes, completions, drops ...)."""
        ...

    def objects(self) -> Mapping[str, int]:
        """Live objects of the ledger by kind; every value is 0 after a clean unload."""
        ...

    def port_info(self, port: int) -> PortInfo:
        """PortInfo of a port (1-based) as its management agent has it: to be looked at, not to be changed."""
        ...


class FirmwareImage(Protocol):
    """What the module `boot` of a firmware package offers."""

    def power_up(self, hardware: Hardware) -> Firmware:
        """Boot the program on this board.

        :raises UnfitBoard: it wants of the program what that does not have.
        """
        ...

    def explain(self, syndrome: int) -> tuple[str, str] | None:
        """Why a command was refused with this syndrome, and the place in the sources; None if none is."""
        ...
