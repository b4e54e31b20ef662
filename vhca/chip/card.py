"""A complete card in its slot: PCI function, board and the vfio-user socket that a guest's QEMU connects to.

The link of its ports is up while a host holds the card's socket, as a real card's is while its slot has power.
"""

import hashlib
import importlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from vhca.chip.board import Board
from vhca.chip.counters import BoardCount
from vhca.chip.faults import ReadTamper
from vhca.chip.live_faults import LiveFaults
from vhca.chip.passages import Cable
from vhca.chip.rack_config import CardConfig
from vhca.chip.rounds import Rounds
from vhca.hw.findings import Finding, ObjectLife, Place, strictness
from vhca.hw.hardware import BoardInfo, FirmwareImage
from vhca.hw.memory import DmaError, Span
from vhca.pci import (
    Bar,
    ConfigSpace,
    MsixCapability,
    PcieCapability,
    PciFunction,
    PowerManagementCapability,
    Type0Header,
)
from vhca.pci.function import ResetReason
from vhca.sim.loop import Loop
from vhca.vfio_user.dma import DmaTable
from vhca.vfio_user.server import Server

log = logging.getLogger(__name__)

VENDOR_ID: Final = 0x15B3
CLASS_INFINIBAND: Final = 0x020700
BAR0_BYTES: Final = 32 << 20
MSIX_VECTORS: Final = 64
MSIX_TABLE_OFFSET: Final = 0x2000
MSIX_PBA_OFFSET: Final = 0x3000
# The last MiB of the BAR is not doorbells but memory of the card, in three windows.
DEVICE_MEMORY_START: Final = BAR0_BYTES - (1 << 20)
DEVICE_MEMORY_BYTES: Final = 256 << 10
# UAR pages behind the init segment and the MSI-X structures.
FIRST_UAR: Final = 16

# A card's objects may take a quarter of what its machine has: page lists, the largest of them, are a 512th of the
# memory that they show, and drivers reserve 105 MB when they start. A machine behind an IOMMU maps little, and a client
# can map the same memory again and again.
GUEST_SHARE: Final = 4
LEAST_MEMORY_BYTES: Final = 256 << 20
MOST_MEMORY_BYTES: Final = 2 << 30
# Lives of objects that are told of in one turn: some milliseconds.
LIVES_AT_ONCE: Final = 128

# EUI-64 under the manufacturer's OUI; cards differ in the bytes behind it.
OUI: Final = 0x0002C9


def node_guid(name: str) -> int:
    """A stable node GUID for a card of this name; its last hex digit is 0, ports count up from there."""
    digest = hashlib.sha256(name.encode()).digest()
    return OUI << 40 | 0x03 << 32 | int.from_bytes(digest[:4], "big") & 0xFFFFFFF0


def memory_limit_for(guest_bytes: int) -> int:
    """What the objects of one card may take of this process, by default, for a machine with so much memory."""
    return min(max(guest_bytes // GUEST_SHARE, LEAST_MEMORY_BYTES), MOST_MEMORY_BYTES)


def board_info(name: str, config: CardConfig) -> BoardInfo:
    """What is burnt into the card of this name."""
    guid = config.node_guid if config.node_guid is not None else node_guid(name)
    return BoardInfo(
        node_guid=guid,
        system_image_guid=guid,
        port_guids=(config.port_guid if config.port_guid is not None else guid + 1,),
        node_description=config.description if config.description is not None else name,
        board_id=config.board_id,
        device_id=config.device_id,
        fw_version=config.fw_version,
        msix_vectors=MSIX_VECTORS,
        uar_pages=DEVICE_MEMORY_START >> 12,
        device_memory_start=DEVICE_MEMORY_START,
        device_memory_bytes=DEVICE_MEMORY_BYTES,
        first_free_uar=FIRST_UAR,
        mtu=config.mtu,
        link=config.link,
        capabilities=config.capabilities,
    )


def load_firmware(name: str) -> FirmwareImage:
    """The firmware image `name`: a package whose module `boot` has `power_up`."""
    image: FirmwareImage = importlib.import_module(f"{name}.boot")
    return image


def pci_config(device_id: int) -> ConfigSpace:
    """The configuration space of a one-port InfiniBand card."""
    header = Type0Header(
        vendor_id=VENDOR_ID,
        device_id=device_id,
        subsystem_vendor_id=VENDOR_ID,
        subsystem_id=0x0001,
        class_code=CLASS_INFINIBAND,
        bars={0: Bar(BAR0_BYTES)},
    )
    msix = MsixCapability(
        MSIX_VECTORS, table_bar=0, table_offset=MSIX_TABLE_OFFSET, pba_bar=0, pba_offset=MSIX_PBA_OFFSET
    )
    return ConfigSpace(header, [PcieCapability(), PowerManagementCapability(), msix])


class DmaGate:
    """The card's way to guest memory: open only while the host has set bus master enable."""

    __slots__ = ("_dma", "_is_open", "_tamper", "read", "write")

    def __init__(self, dma: DmaTable) -> None:
        self._dma = dma
        self._tamper: ReadTamper | None = None
        self.set_open(False)

    def set_open(self, is_open: bool) -> None:
        """Let the card's reads and writes through, or refuse them."""
        self._is_open = is_open
        read = self._dma.read if is_open else self._refuse_read
        self.read: Callable[[int, int], bytes] = read if self._tamper is None else partial(self._tamper, read)
        self.write: Callable[[int, bytes | bytearray | memoryview], None] = (
            self._dma.write if is_open else self._refuse_write
        )

    def tamper(self, tamper: ReadTamper | None) -> None:
        """Let somebody have a hand in each read; then none is done by address."""
        self._tamper = tamper
        self.set_open(self._is_open)

    @property
    def generation(self) -> int:
        """See :class:`vhca.hw.memory.MappedMemory`."""
        return self._dma.generation << 2 | (self._tamper is not None) << 1 | self._is_open

    @property
    def faults_at(self) -> int:
        """See :class:`vhca.hw.memory.MappedMemory`."""
        return self._dma.faults_at

    def spans(self) -> list[Span]:
        """See :class:`vhca.hw.memory.MappedMemory`."""
        return self._dma.spans() if self._is_open and self._tamper is None else []

    def _refuse_read(self, addr: int, size: int) -> bytes:
        raise DmaError(f"read of {size} bytes at {addr:#x}: bus master enable is off")

    def _refuse_write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        raise DmaError(f"write of {len(data)} bytes at {addr:#x}: bus master enable is off")


class CardFunction(PciFunction):
    """The PCI function; tells the card when the host opens or closes the way to its memory.

    :ivar name: the card's.
    """

    def __init__(
        self,
        config: ConfigSpace,
        board: Board,
        on_config: Callable[[], None],
        on_reset: Callable[[ResetReason], None],
    ) -> None:
        super().__init__(config, {0: board.bar0}, on_reset, on_config)
        self.name = board.name
        self._board = board

    def overloaded(self) -> bool:
        """See :class:`vhca.vfio_user.device.Device`."""
        return self._board.overloaded


class _LateDevice:
    """Stands in for the device while server and board are being joined (each needs the other)."""

    def __init__(self, config: ConfigSpace) -> None:
        self._model = PciFunction(config, {0: _NoRegisters()})
        self.regions = self._model.regions
        self.irq_counts = self._model.irq_counts
        self.region_read = self._model.region_read
        self.region_write = self._model.region_write
        self.reset = self._model.reset


class _NoRegisters:
    def read(self, offset: int, count: int) -> bytes:
        """Nothing is there yet."""
        return bytes(count)

    def write(self, offset: int, data: bytes) -> None:
        """Nothing is there yet."""


class Card:
    """One card of a rack. All methods belong to the loop's thread unless they say otherwise.

    :ivar name: the card's name, unique in its rack.
    :ivar config: what it is like.
    :ivar socket_path: where QEMU's `vfio-user-pci` connects.
    :ivar faults: what is to go wrong inside it; any thread.

    `image` is the program to boot, middleware around it. What its guest's objects may take of this process is by
    default in proportion to the memory of the guest's machine (:func:`memory_limit_for`).

    :raises vhca.hw.hardware.UnfitBoard: the program has not what `config` wants of it.
    :raises FaultRuleError: there is no such fault.
    """

    def __init__(
        self,
        name: str,
        config: CardConfig,
        socket_path: Path,
        loop: Loop,
        image: FirmwareImage,
        on_power: Callable[[bool], None],
        rounds: Rounds,
    ) -> None:
        self.name = name
        self.config = config
        self.socket_path = socket_path
        self._on_power = on_power
        self._powered = False
        self.info = board_info(name, config)
        self._space = pci_config(config.device_id)
        self.server = Server(socket_path, _LateDevice(self._space))
        self._gate = DmaGate(self.server.dma)
        self.board = Board(
            name,
            self.info,
            image,
            self._gate,
            loop.clock,
            self.server.irqs.raise_irq,
            self._later,
            self._limit_memory,
            self.server.rests,
            rounds,
            self._stand_in_line,
        )
        self.function = CardFunction(self._space, self.board, self._config_written, self._reset)
        self.server.device = self.function
        self._loop = loop
        self._rounds = rounds
        self.faults = LiveFaults(loop, self.board.faults, name, config.cable)
        self.board.on_removal = self._set_removed
        self.board.tamper_reads = self._gate.tamper
        self.board.stirred = partial(loop.stir, self)
        self.board.reads_on = self.server.reads_on
        self.board.keep_lives(strictness(config.findings))
        for rule in config.faults:
            self.board.faults.add(rule)
        loop.stir(self)

    @property
    def node_guid(self) -> int:
        """Its node GUID, 64 bits. Any thread."""
        return self.info.node_guid

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called: h0, its cable (g0/1), and, of a guest's first card, the guest (g0). Any thread."""
        return self.faults.names

    def start(self) -> None:
        """Listen for a host."""
        self.server.start(self._loop)

    def stop(self) -> None:
        """Drop the host and the socket."""
        self.server.close()

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`; a card that rests has no timers."""
        deadline = self.board.next_deadline()
        if deadline is None:
            return None
        rest_s = self.server.rest_s()
        return max(deadline, self._loop.clock.now_ns() + int(rest_s * 1e9)) if rest_s else deadline

    def run_timers(self, now_ns: int) -> None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        self.board.run_timers(now_ns)

    def _later(self, call: Callable[[], None]) -> None:
        """After what is under way, or when the card has rested."""
        rest_s = self.server.rest_s()
        if rest_s:
            self._loop.call_later(rest_s, call)
        else:
            self._loop.call_soon(call)

    def _stand_in_line(self, board: Board) -> None:
        """A turn for the board: soon, or when it has rested."""
        if self.server.rests():
            self._loop.call_later(self.server.rest_s(), lambda: self._rounds.ask(board))
        else:
            self._rounds.ask(board)

    def plug(self, port: int, cable: Cable) -> None:
        """Connect a port (1-based) to the fabric."""
        self.board.plug(port, cable)

    def counters(self) -> dict[str, int]:
        """Counters of firmware, board and socket by name. Any thread."""
        return self._loop.call(self._counters)

    def objects(self) -> dict[str, int]:
        """The ledger: live objects of the guest's driver by kind. Any thread."""
        return self._loop.call(self.board.objects)

    def keep_lives(self, level: str) -> None:
        """Look for what the guest does wrong with its objects from now on: "normal", "pedantic"; "off". Any thread.

        ValueError: there is no such strictness.
        """
        wanted = strictness(level)
        self._loop.call(lambda: self.board.keep_lives(wanted))

    def findings(self) -> tuple[Finding, ...]:
        """What the guest did wrong with its objects, see docs/findings.md; the earliest first. Any thread."""
        return self._loop.call(self.board.findings)

    def known(self, kind: str | None = None) -> list[Place]:
        """Objects (of one kind) whose lives are kept, those that are there first. Any thread."""
        return [place for place in self._loop.call(self.board.known) if kind in (None, place[0])]

    def lives(self, kind: str | None = None, places: Sequence[Place] | None = None) -> tuple[ObjectLife, ...]:
        """The lives of objects (`kind`: qp, cq, mkey ...), or of these, as far as they are kept. Any thread.

        A guest chooses how many there are, so the loop has other turns between pieces, and meanwhile some may go.
        """
        wanted = self.known(kind) if places is None else places
        found: list[ObjectLife] = []
        for at in range(0, len(wanted), LIVES_AT_ONCE):
            found += self._loop.call(partial(self.board.lives, wanted[at : at + LIVES_AT_ONCE]))
        return tuple(found)

    def trace_tail(self, lines: int = 100) -> list[str]:
        """The last lines of the command trace. Any thread."""
        return self._loop.call(lambda: list(self.board.ring)[-lines:])

    def _limit_memory(self) -> int:
        if self.config.memory is not None:
            return self.config.memory
        return memory_limit_for(self.server.dma.mapped_bytes)

    def _counters(self) -> dict[str, int]:
        merged = self.board.counters()
        for name, value in self.server.counters.items():
            merged[f"vfio_{name}"] = value
        if self.function.unsupported:
            merged[BoardCount.PCI_UNSUPPORTED_REQUESTS.value] = self.function.unsupported
        return merged

    def _config_written(self) -> None:
        self._gate.set_open(self._space.bus_master)
        if not self._powered:
            self._set_power(True)

    def _reset(self, reason: ResetReason) -> None:
        self._gate.set_open(self._space.bus_master)
        self.server.irqs.clear_pending()
        self.board.reset(reason)
        if reason == "lost_connection":
            self._set_power(False)

    def _set_removed(self, removed: bool) -> None:
        """The card leaves its slot while the host runs, or is there again, with its registers as the host had them."""
        self.function.set_absent(removed)
        self._gate.set_open(self._space.bus_master and not removed)
        if removed:
            self.server.irqs.clear_pending()
            self.board.reset("lost_connection")
        self._set_power(self.server.connected and not removed)

    def _set_power(self, on: bool) -> None:
        if on != self._powered:
            self._powered = on
            self._on_power(on)
