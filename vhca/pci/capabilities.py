"""The capabilities that a PCI Express endpoint announces. A list of them assigns its own places (config.py).

Each capability states its id, its size in bytes, and its registers relative to where it is put. The
first two bytes, id and next pointer, are the list's. Sources: PCI Express Base Specification 5.0
chapter 7, PCI Bus Power Management Interface Specification 1.2 chapter 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from vhca.pci.registers import Register

CAP_ID_PM: Final = 0x01
CAP_ID_PCIE: Final = 0x10
CAP_ID_MSIX: Final = 0x11

DEVICE_CONTROL_FLR: Final = 1 << 15
MSIX_ENABLE: Final = 1 << 15
MSIX_FUNCTION_MASK: Final = 1 << 14
MSIX_TABLE_ENTRY_SIZE: Final = 16


class Capability(Protocol):
    """What the capability list needs to know."""

    @property
    def name(self) -> str:
        """Prefix of the register names."""
        ...

    @property
    def id(self) -> int:
        """Capability id."""
        ...

    @property
    def size(self) -> int:
        """Bytes, with id and next pointer."""
        ...

    def registers(self, at: int) -> list[Register]:
        """Return the registers behind id and next pointer of the capability at offset `at`."""
        ...


@dataclass(frozen=True, slots=True)
class PcieCapability:
    """PCI Express capability of an endpoint, version 2 (clause 7.5.3).

    `link_speed` counts generations: 4 is 16 GT/s. `link_width` is in lanes.
    """

    link_speed: int = 4
    link_width: int = 16
    name: str = "pcie"
    id: int = CAP_ID_PCIE
    size: int = 0x3C

    def registers(self, at: int) -> list[Register]:
        """See :class:`Capability`."""
        link = self.link_speed | self.link_width << 4
        speeds = (1 << self.link_speed + 1) - 2
        return [
            # version 2, endpoint, no interrupt message
            Register("pcie.capabilities", at + 0x02, 2, reset=0x0002),
            # payload up to 512 bytes, extended tags, role-based error reporting, function level reset
            Register("pcie.device_capabilities", at + 0x04, 4, reset=2 | 1 << 5 | 1 << 15 | 1 << 28),
            # after reset: relaxed ordering, no snoop, read requests of 512 bytes
            Register("pcie.device_control", at + 0x08, 2, reset=0x2810, rw=0x79FF, strobe=DEVICE_CONTROL_FLR),
            # error bits; Transactions Pending stays 0
            Register("pcie.device_status", at + 0x0A, 2, w1c=0x000F),
            Register("pcie.link_capabilities", at + 0x0C, 4, reset=link),
            Register("pcie.link_control", at + 0x10, 2, rw=0x00CB),
            # slot clock
            Register("pcie.link_status", at + 0x12, 2, reset=link | 1 << 12),
            # completion timeout: all ranges, and can be disabled
            Register("pcie.device_capabilities_2", at + 0x24, 4, reset=0x1F),
            Register("pcie.device_control_2", at + 0x28, 2, rw=0x001F),
            Register("pcie.link_capabilities_2", at + 0x2C, 4, reset=speeds),
            Register("pcie.link_control_2", at + 0x30, 2, reset=self.link_speed, rw=0x000F),
            Register("pcie.link_status_2", at + 0x32, 2),
        ]


@dataclass(frozen=True, slots=True)
class PowerManagementCapability:
    """Power management, version 3: D0 and D3hot, no PME, no reset on the way back to D0 (chapter 3.2)."""

    name: str = "pm"
    id: int = CAP_ID_PM
    size: int = 8

    def registers(self, at: int) -> list[Register]:
        """See :class:`Capability`."""
        return [
            Register("pm.capabilities", at + 2, 2, reset=0x0003),
            # bit 3: no soft reset
            Register("pm.control", at + 4, 2, reset=1 << 3, rw=0x0003),
        ]


@dataclass(frozen=True, slots=True)
class MsixCapability:
    """MSI-X of `vectors` vectors: table and pending bits, each in a BAR at an offset (clause 7.7.2)."""

    vectors: int
    table_bar: int
    table_offset: int
    pba_bar: int
    pba_offset: int
    name: str = "msix"
    id: int = CAP_ID_MSIX
    size: int = 12

    @property
    def table_size(self) -> int:
        """Bytes of the vector table."""
        return self.vectors * MSIX_TABLE_ENTRY_SIZE

    @property
    def pba_size(self) -> int:
        """Bytes of the pending bits, in whole 8-byte words."""
        return (self.vectors + 63) // 64 * 8

    def registers(self, at: int) -> list[Register]:
        """See :class:`Capability`."""
        return [
            Register("msix.control", at + 2, 2, reset=self.vectors - 1, rw=MSIX_ENABLE | MSIX_FUNCTION_MASK),
            Register("msix.table", at + 4, 4, reset=self.table_offset | self.table_bar),
            Register("msix.pba", at + 8, 4, reset=self.pba_offset | self.pba_bar),
        ]
