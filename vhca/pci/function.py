"""One PCI function: what stands between the slot and the logic of the card.

Configuration accesses end here; BAR accesses go on to the card's handlers, except those of the MSI-X
table and pending bits. The table is plain memory (QEMU keeps its own and never sends an access); the
pending bits read 0, since the virtual machine monitor holds back masked interrupts.

A BAR access while the command register has memory space off is an unsupported request: a write goes nowhere, a read
gets all ones, as from a root complex (clauses 7.5.1.1.3 and 2.3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from vhca.pci.config import CONFIG_SIZE, ConfigSpace, PciConfigError

ResetReason = Literal["device", "lost_connection", "flr"]
"""A reset by the machine, after the loss of the machine, or by the guest for this function alone."""

CONFIG_REGION: Final = 7
REGION_COUNT: Final = 9
"""BAR0 to BAR5, ROM, configuration space, VGA."""


class BarHandler(Protocol):
    """The logic behind one BAR. Accesses are inside the BAR and at least one byte long."""

    def read(self, offset: int, count: int) -> bytes:
        """Return exactly `count` bytes."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Take a write, at most 8 bytes from a guest's store; larger stores come in pieces, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class Region:
    """One region; `mmap_fd` -1 means that every access is a message."""

    size: int = 0
    readable: bool = True
    writable: bool = True
    mmap_fd: int = -1
    mmap_offset: int = 0
    mmap_areas: Sequence[tuple[int, int]] = ()


class _Overlay:
    """MSI-X memory inside a BAR: [start, end); without `memory` it reads 0."""

    __slots__ = ("end", "memory", "start")

    def __init__(self, start: int, size: int, *, stored: bool) -> None:
        self.start = start
        self.end = start + size
        self.memory = bytearray(size) if stored else None


class _EmptySlot:
    """A BAR of a card that is not there."""

    def read(self, offset: int, count: int) -> bytes:
        """Nobody answers."""
        return b"\xff" * count

    def write(self, offset: int, data: bytes) -> None:
        """Nobody takes it."""


class PciFunction:
    """A PCI function with the shape of a vfio-user device.

    :ivar config: the configuration space.
    :ivar regions: region table by vfio index.
    :ivar irq_counts: vectors by vfio index: INTx, MSI, MSI-X, error, request.
    :ivar unsupported: BAR accesses while memory space was off.
    """

    def __init__(
        self,
        config: ConfigSpace,
        bars: Mapping[int, BarHandler],
        on_reset: Callable[[ResetReason], None] = lambda reason: None,
        on_config: Callable[[], None] = lambda: None,
    ) -> None:
        """Join a configuration space and a handler for each of its BARs.

        `on_reset(reason)` is called after the function's own registers have been reset, `on_config()` after each write
        of the host to them.

        :raises PciConfigError: handlers and declared BARs differ.
        """
        if set(bars) != set(config.header.bars):
            raise PciConfigError(f"handlers for BARs {sorted(bars)}, declared are {sorted(config.header.bars)}")
        self.config = config
        self.regions = [Region() for _ in range(REGION_COUNT)]
        for index, bar in config.header.bars.items():
            self.regions[index] = Region(bar.size)
        self.regions[CONFIG_REGION] = Region(CONFIG_SIZE)
        vectors = config.msix.vectors if config.msix else 0
        self.irq_counts = (0, 0, vectors, 1, 1)
        self._bars = dict(bars)
        self._on_reset = on_reset
        self._on_config = on_config
        self.unsupported = 0
        self._absent = False
        self._overlays: dict[int, list[_Overlay]] = {index: [] for index in bars}
        self._lay_msix()
        # One compare keeps the hot path away from the overlays: nothing of theirs is at or above this.
        self._overlay_end = {
            index: max((overlay.end for overlay in overlays), default=0) for index, overlays in self._overlays.items()
        }
        # What BARs are while the card is absent.
        empty: dict[int, BarHandler] = {index: _EmptySlot() for index in bars}
        self._other = empty, dict.fromkeys(bars, 0)
        config.on_flr = self._function_level_reset

    def _lay_msix(self) -> None:
        msix = self.config.msix
        if msix is None:
            return
        self._overlays[msix.table_bar].append(_Overlay(msix.table_offset, msix.table_size, stored=True))
        self._overlays[msix.pba_bar].append(_Overlay(msix.pba_offset, msix.pba_size, stored=False))
        for overlays in self._overlays.values():
            overlays.sort(key=lambda overlay: overlay.start)

    # ---- the device's side of vfio-user ----

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        """Read a region inside its size."""
        if region == CONFIG_REGION:
            return b"\xff" * count if self._absent else self.config.read(offset, count)
        if not self.config.memory_enabled:
            self.unsupported += 1
            return b"\xff" * count
        if offset >= self._overlay_end[region]:
            return self._bars[region].read(offset, count)
        parts = []
        for overlay, at, size in self._pieces(region, offset, count):
            if overlay is None:
                parts.append(self._bars[region].read(at, size))
            elif overlay.memory is None:
                parts.append(bytes(size))
            else:
                place = at - overlay.start
                parts.append(bytes(overlay.memory[place : place + size]))
        return b"".join(parts)

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        """Write a region inside its size."""
        if region == CONFIG_REGION:
            if not self._absent:
                self.config.write(offset, data)
                self._on_config()
        elif not self.config.memory_enabled:
            self.unsupported += 1
        elif offset >= self._overlay_end[region]:
            self._bars[region].write(offset, data)
        else:
            self._write_overlaid(region, offset, data)

    def _write_overlaid(self, region: int, offset: int, data: bytes) -> None:
        for overlay, at, size in self._pieces(region, offset, len(data)):
            piece = data[at - offset : at - offset + size]
            if overlay is None:
                self._bars[region].write(at, piece)
            elif overlay.memory is not None:
                place = at - overlay.start
                overlay.memory[place : place + size] = piece

    def set_absent(self, absent: bool) -> None:
        """Answer as a slot does in which no card is: ones, and nothing is written; or be there again, as it was."""
        if absent == self._absent:
            return
        self._absent = absent
        (self._bars, self._overlay_end), self._other = self._other, (self._bars, self._overlay_end)

    def reset(self, reason: ResetReason) -> None:
        """Return to the state after power-up."""
        self.config.reset()
        for overlays in self._overlays.values():
            for overlay in overlays:
                if overlay.memory is not None:
                    overlay.memory[:] = bytes(len(overlay.memory))
        self._on_reset(reason)

    # ---- inside ----

    def _function_level_reset(self) -> None:
        # The guest's own reset of this function; the client says nothing of it (clause 6.6.2).
        self.reset("flr")

    def _pieces(self, region: int, offset: int, count: int) -> Iterator[tuple[_Overlay | None, int, int]]:
        """Cut [offset, offset + count) at the borders of the overlays; yield (overlay, offset, size)."""
        at, end = offset, offset + count
        for overlay in self._overlays[region]:
            if overlay.end <= at:
                continue
            if overlay.start >= end:
                break
            if at < overlay.start:
                yield None, at, overlay.start - at
                at = overlay.start
            size = min(end, overlay.end) - at
            yield overlay, at, size
            at += size
        if at < end:
            yield None, at, end - at
