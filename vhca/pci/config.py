"""The configuration space of a PCI Express function: a type 0 header, a capability list, 4096 bytes.

Everything is declared; the access rules are those of registers.py. The declaration is checked when it
is made, since a client such as QEMU ends on an assertion for some mistakes in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vhca.pci.capabilities import (
    DEVICE_CONTROL_FLR,
    MSIX_ENABLE,
    MSIX_FUNCTION_MASK,
    Capability,
    MsixCapability,
)
from vhca.pci.registers import Register, RegisterSpace

CONFIG_SIZE: Final = 4096
FIRST_CAPABILITY: Final = 0x40
CAPABILITIES_END: Final = 0x100
MIN_BAR_SIZE: Final = 128
"""The smallest memory BAR of a PCI Express function (clause 7.5.1.2.1)."""

COMMAND_MEMORY: Final = 1 << 1
COMMAND_BUS_MASTER: Final = 1 << 2
STATUS_CAPABILITY_LIST: Final = 1 << 4


class PciConfigError(ValueError):
    """A declaration of a PCI function that no host could use; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A memory BAR of `size` bytes, a power of two. A 64-bit one takes its own and the next index."""

    size: int
    is_64bit: bool = True
    prefetchable: bool = True


@dataclass(frozen=True, slots=True)
class Type0Header:
    """Identity and BARs; `class_code` is 24 bits, base class first: 0x020700 is an InfiniBand controller."""

    vendor_id: int
    device_id: int
    subsystem_vendor_id: int
    subsystem_id: int
    class_code: int
    revision: int = 0
    bars: Mapping[int, Bar] = field(default_factory=dict)


class ConfigSpace:
    """Registers of one function.

    :ivar offsets: where each capability is, by its name (`pcie`, `pm`, `msix`).
    :ivar memory_enabled: whether the function answers accesses to its memory BARs; kept, as each access asks.
    :ivar on_flr: called after a write that asked for a function level reset; the write has been applied.
    """

    def __init__(self, header: Type0Header, capabilities: Sequence[Capability]) -> None:
        """Lay out the space.

        :raises PciConfigError: a BAR, or the MSI-X geometry, that a host could not use; too many capabilities.
        """
        _check_bars(header.bars)
        self.header = header
        self.msix: MsixCapability | None = None
        self.on_flr: Callable[[], None] = lambda: None
        self.offsets: dict[str, int] = {}
        registers = _header_registers(header, has_capabilities=bool(capabilities))
        at = FIRST_CAPABILITY
        for position, capability in enumerate(capabilities):
            following = at + (capability.size + 3) // 4 * 4
            if following > CAPABILITIES_END:
                raise PciConfigError(f"no room for capability {capability.name}")
            last = position == len(capabilities) - 1
            if isinstance(capability, MsixCapability):
                _check_msix(capability, header.bars)
                self.msix = capability
            self.offsets[capability.name] = at
            registers.append(Register(f"{capability.name}.id", at, 1, reset=capability.id))
            registers.append(Register(f"{capability.name}.next", at + 1, 1, reset=0 if last else following))
            registers.extend(capability.registers(at))
            at = following
        self.memory_enabled = False
        try:
            self.registers = RegisterSpace(CONFIG_SIZE, registers, self._strobe)
        except ValueError as error:
            raise PciConfigError(str(error)) from error

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset`: any length and alignment."""
        return self.registers.read(offset, count)

    def write(self, offset: int, data: bytes) -> None:
        """Write as the host does; may call :attr:`on_flr`."""
        self.registers.write(offset, data)
        self._look_at_command()

    def reset(self) -> None:
        """Put every register to its value after reset."""
        self.registers.reset()
        self._look_at_command()

    @property
    def bus_master(self) -> bool:
        """Whether the host lets the function make DMA and interrupts."""
        return bool(self.registers.value("command") & COMMAND_BUS_MASTER)

    @property
    def msix_enabled(self) -> bool:
        """Whether the host has turned MSI-X on."""
        return self.msix is not None and bool(self.registers.value("msix.control") & MSIX_ENABLE)

    @property
    def msix_masked(self) -> bool:
        """Whether the host has masked all vectors at once."""
        return self.msix is not None and bool(self.registers.value("msix.control") & MSIX_FUNCTION_MASK)

    def _look_at_command(self) -> None:
        self.memory_enabled = bool(self.registers.value("command") & COMMAND_MEMORY)

    def _strobe(self, name: str, bits: int) -> None:
        if name == "pcie.device_control" and bits & DEVICE_CONTROL_FLR:
            self.on_flr()


def _header_registers(header: Type0Header, *, has_capabilities: bool) -> list[Register]:
    """Return the first 64 bytes (clause 7.5.1); no INTx pin, no expansion ROM, no I/O BAR."""
    registers = [
        Register("vendor_id", 0x00, 2, reset=header.vendor_id),
        Register("device_id", 0x02, 2, reset=header.device_id),
        # memory, bus master, parity response, SERR#, INTx disable
        Register("command", 0x04, 2, rw=0x0546),
        Register("status", 0x06, 2, reset=STATUS_CAPABILITY_LIST if has_capabilities else 0, w1c=0xF900),
        Register("revision", 0x08, 1, reset=header.revision),
        Register("class_code", 0x09, 3, reset=header.class_code),
        Register("cache_line_size", 0x0C, 1, rw=0xFF),
        Register("header_type", 0x0E, 1, reset=0),
        Register("subsystem_vendor_id", 0x2C, 2, reset=header.subsystem_vendor_id),
        Register("subsystem_id", 0x2E, 2, reset=header.subsystem_id),
        Register("capability_pointer", 0x34, 1, reset=FIRST_CAPABILITY if has_capabilities else 0),
        Register("interrupt_line", 0x3C, 1, rw=0xFF),
    ]
    for index, bar in header.bars.items():
        kind = (4 if bar.is_64bit else 0) | (8 if bar.prefetchable else 0)
        # address bits below the size read 0: that is how a host finds the size
        address = ~(bar.size - 1) & (1 << 64) - 1
        registers.append(Register(f"bar{index}", 0x10 + 4 * index, 4, reset=kind, rw=address & 0xFFFFFFF0))
        if bar.is_64bit:
            registers.append(Register(f"bar{index + 1}", 0x14 + 4 * index, 4, rw=address >> 32))
    return registers


def _check_bars(bars: Mapping[int, Bar]) -> None:
    taken: set[int] = set()
    for index, bar in bars.items():
        indices = {index, index + 1} if bar.is_64bit else {index}
        if not indices <= set(range(6)):
            raise PciConfigError(f"BAR{index} does not fit in the six BARs")
        if indices & taken:
            raise PciConfigError(f"BAR{index} overlaps another one")
        if bar.size < MIN_BAR_SIZE or bar.size & (bar.size - 1):
            raise PciConfigError(f"BAR{index}: {bar.size} is not a power of two of at least {MIN_BAR_SIZE}")
        if bar.size > (1 << 63 if bar.is_64bit else 1 << 31):
            raise PciConfigError(f"BAR{index}: {bar.size} bytes are too many")
        taken |= indices


def _check_msix(msix: MsixCapability, bars: Mapping[int, Bar]) -> None:
    if not 1 <= msix.vectors <= 2048:
        raise PciConfigError(f"MSI-X: {msix.vectors} vectors, not 1..2048")
    parts = []
    for what, index, offset, size in (
        ("table", msix.table_bar, msix.table_offset, msix.table_size),
        ("pending bits", msix.pba_bar, msix.pba_offset, msix.pba_size),
    ):
        if offset % 8 or offset < 0:
            raise PciConfigError(f"MSI-X: the {what} must start at a multiple of 8")
        if index not in bars or offset + size > bars[index].size:
            raise PciConfigError(f"MSI-X: the {what} does not fit in BAR{index}")
        parts.append((index, offset, offset + size))
    (table_bar, table, table_end), (pba_bar, pba, pba_end) = parts
    if table_bar == pba_bar and table < pba_end and pba < table_end:
        raise PciConfigError("MSI-X: table and pending bits overlap")
