"""A PCI function like that of the HCA, with memory behind its BARs, and the accesses of a machine's firmware."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tests.wire.qtest import Qtest
from vhca.pci import (
    Bar,
    ConfigSpace,
    MsixCapability,
    PcieCapability,
    PciFunction,
    PowerManagementCapability,
    Type0Header,
)
from vhca.vfio_user import Server
from vhca.vfio_user.session import Session

BAR0 = 0x1_8000_0000
BAR2 = 0x1_8400_0000
RAM = 0x10_0000
VECTORS = 64
TABLE, PBA = 0x2000, 0x3000
ONES = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF, 8: 0xFFFFFFFFFFFFFFFF}


class Memory:
    """A BAR of plain memory that notes accesses."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.writes: list[tuple[int, bytes]] = []
        self.on_read: Callable[[int, int], None] = lambda offset, count: None
        self.on_write: Callable[[int, bytes], None] = lambda offset, data: None

    def read(self, offset: int, count: int) -> bytes:
        self.on_read(offset, count)
        return bytes(self.data[offset : offset + count])

    def write(self, offset: int, data: bytes) -> None:
        self.writes.append((offset, data))
        self.data[offset : offset + len(data)] = data
        self.on_write(offset, data)


class Card:
    """A function like that of the HCA and its server."""

    def __init__(self, path: Path | None, *, bar2: Bar | None = None, session_type: type[Session] = Session) -> None:
        self.path = path
        bars = {0: Bar(32 << 20)} | ({} if bar2 is None else {2: bar2})
        self.config = ConfigSpace(
            Type0Header(0x15B3, 0x101B, 0x15B3, 0x0001, 0x020700, bars=bars),
            [PcieCapability(), PowerManagementCapability(), MsixCapability(VECTORS, 0, TABLE, 0, PBA)],
        )
        self.bars = {index: Memory(bar.size) for index, bar in bars.items()}
        self.bar = self.bars[0]
        self.resets: list[str] = []
        self.reset_event = threading.Event()
        self.function = PciFunction(self.config, self.bars, self._reset)
        self.server = Server(path, self.function, session_type=session_type)

    def _reset(self, reason: str) -> None:
        self.resets.append(reason)
        if reason == "lost_connection":
            self.reset_event.set()

    def wait_for_loss(self) -> None:
        assert self.reset_event.wait(10)
        self.reset_event.clear()


class Pc:
    """A running QEMU with the card behind its root port, the BARs mapped."""

    def __init__(self, qtest: Qtest, card: Card) -> None:
        self.q = qtest
        self.card = card

    def set_up(self) -> None:
        """Do what firmware does: bus numbers, bridge windows, BARs, memory and bus master enable."""
        bridge = self.q.config_write
        bridge(0, 4, 0x18, 4, 0x00010100)
        bridge(0, 4, 0x24, 4, 0x8FF18001)
        bridge(0, 4, 0x28, 4, 1)
        bridge(0, 4, 0x2C, 4, 1)
        bridge(0, 4, 0x04, 2, 7)
        for index, address in ((0, BAR0), (2, BAR2)):
            if index in self.card.bars:
                self.config_write(0x10 + 4 * index, 4, address & 0xFFFFFFFF)
                self.config_write(0x14 + 4 * index, 4, address >> 32)
        self.config_write(4, 2, 6)

    def config_read(self, offset: int, size: int) -> int:
        return self.q.config_read(1, 0, offset, size)

    def config_write(self, offset: int, size: int, value: int) -> None:
        self.q.config_write(1, 0, offset, size, value)

    def read(self, offset: int, size: int) -> int:
        return self.q.read(BAR0 + offset, size)

    def write(self, offset: int, size: int, value: int) -> None:
        self.q.write(BAR0 + offset, size, value)

    def flush(self) -> None:
        """Wait for posted writes: a read comes after them."""
        self.read(0x10000, 4)

    def arm(self, vector: int, address: int, data: int, *, masked: bool = False) -> None:
        entry = TABLE + 16 * vector
        for offset, value in ((0, address), (4, 0), (8, data), (12, int(masked))):
            self.write(entry + offset, 4, value)

    def enable_msix(self, *, masked: bool = False) -> None:
        self.config_write(self.card.config.offsets["msix"] + 2, 2, 0xC000 if masked else 0x8000)
