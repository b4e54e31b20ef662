"""A small card: scratch registers, a DMA copy engine and one interrupt. Run it and give it to a guest.

`python -m vhca.vfio_user.example --socket /tmp/example.sock` serves PCI device 1234:11e9 with one BAR
of 16 KiB and 4 MSI-X vectors. Registers of BAR0, little-endian, accesses of 4 or 8 bytes:

====== ===== ====================================================================================
0x00   8     identity, read-only: the bytes `VHCA-EX1`
0x10   64    scratch: reads back what was written
0x80   8     source bus address
0x88   8     destination bus address
0x90   4     length in bytes, at most 1 MiB
0x94   4     doorbell: the value written is the MSI-X vector to raise after the copy
0x98   4     status, read-only: 0 idle, 1 copied, 2 failed
====== ===== ====================================================================================
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from vhca.hw.memory import DmaError
from vhca.vfio_user.proto import RegionIndex
from vhca.vfio_user.server import Server

BAR_SIZE: Final = 16 << 10
VECTORS: Final = 4
MSIX_TABLE: Final = 0x2000
MSIX_PBA: Final = 0x3000
MAX_COPY_SIZE: Final = 1 << 20

IDENTITY: Final = b"VHCA-EX1"
SCRATCH: Final = range(0x10, 0x50)
COPY: Final = range(0x80, 0x94)
DOORBELL: Final = 0x94
STATUS: Final = 0x98
IDLE, COPIED, FAILED = 0, 1, 2

MSIX_CAPABILITY: Final = 0x40


@dataclass(frozen=True, slots=True)
class Region:
    """A region that is always reached by messages; see :class:`vhca.vfio_user.RegionInfo`."""

    size: int = 0
    readable: bool = True
    writable: bool = True
    mmap_fd: int = -1
    mmap_offset: int = 0
    mmap_areas: Sequence[tuple[int, int]] = field(default=())


def _config_space() -> bytearray:
    config = bytearray(4096)
    # vendor, device, command, status (has a capability list), revision, class: unassigned
    struct.pack_into("<HHHHBBBB", config, 0, 0x1234, 0x11E9, 0, 0x10, 1, 0, 0, 0xFF)
    struct.pack_into("<I", config, 0x10, 0)  # BAR0: 32-bit memory
    struct.pack_into("<HH", config, 0x2C, 0x1234, 0x0001)
    config[0x34] = MSIX_CAPABILITY
    struct.pack_into("<BBHII", config, MSIX_CAPABILITY, 0x11, 0, VECTORS - 1, MSIX_TABLE, MSIX_PBA)
    return config


class ExampleDevice:
    """The card; satisfies :class:`vhca.vfio_user.Device`."""

    def __init__(self) -> None:
        self.regions = [Region() for _ in range(8)]
        self.regions[RegionIndex.BAR0] = Region(BAR_SIZE)
        self.regions[RegionIndex.CONFIG] = Region(4096)
        # INTx, MSI, MSI-X, error, request
        self.irq_counts = (0, 0, VECTORS, 1, 1)
        self.server: Server | None = None
        self._config = _config_space()
        self._bar = bytearray(BAR_SIZE)
        self.reset("power-up")

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        """Read configuration space or registers."""
        memory = self._config if region == RegionIndex.CONFIG else self._bar
        return bytes(memory[offset : offset + count])

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        """Write what may be written; the doorbell starts a copy."""
        if region == RegionIndex.CONFIG:
            self._write_config(offset, data)
            return
        for place in (SCRATCH, COPY):
            if offset in place and offset + len(data) <= place.stop:
                self._bar[offset : offset + len(data)] = data
        if offset == DOORBELL and len(data) == 4:
            self._copy(vector=int.from_bytes(data, "little"))

    def reset(self, reason: str) -> None:
        """Clear the registers."""
        self._config[:] = _config_space()
        self._bar[:] = bytes(BAR_SIZE)
        self._bar[: len(IDENTITY)] = IDENTITY

    def _write_config(self, offset: int, data: bytes) -> None:
        # Command, BAR0 and the upper byte of MSI-X control are all that can change in this card.
        for at, byte in enumerate(data, offset):
            if at in (4, 5, 0x10, 0x11, 0x12, 0x13, MSIX_CAPABILITY + 3):
                self._config[at] = byte

    def _copy(self, vector: int) -> None:
        assert self.server is not None
        source, destination, size = struct.unpack_from("<QQI", self._bar, COPY.start)
        status = FAILED
        if size <= MAX_COPY_SIZE:
            try:
                self.server.dma.write(destination, self.server.dma.read(source, size))
                status = COPIED
            except DmaError as error:
                logging.warning("copy failed: %s", error)
        struct.pack_into("<I", self._bar, STATUS, status)
        if vector < VECTORS:
            # Only now: the guest's handler finds the copy and the status in place.
            self.server.irqs.raise_irq(vector)


def main() -> None:
    """Serve one example card until interrupted."""
    parser = argparse.ArgumentParser(description="Serve the example card over vfio-user.")
    parser.add_argument("--socket", required=True, help="unix socket to listen on")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    device = ExampleDevice()
    device.server = Server(arguments.socket, device)
    # Ended politely (SIGTERM) as by Ctrl-C: the socket goes away.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        device.server.serve_forever()


if __name__ == "__main__":
    main()
