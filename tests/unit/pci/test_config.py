"""Configuration space of the HCA's function: header, BAR sizing, capabilities, resets."""

from collections.abc import Iterator
from typing import Any

import pytest

from vhca.pci import (
    Bar,
    ConfigSpace,
    MsixCapability,
    PciConfigError,
    PcieCapability,
    PowerManagementCapability,
    Type0Header,
)
from vhca.pci.capabilities import Capability

MSIX = MsixCapability(64, 0, 0x2000, 0, 0x3000)


def config(bars: dict[int, Bar] | None = None, capabilities: list[Capability] | None = None) -> ConfigSpace:
    header = Type0Header(0x15B3, 0x101B, 0x15B3, 0x0001, 0x020700, bars={0: Bar(32 << 20)} if bars is None else bars)
    if capabilities is None:
        capabilities = [PcieCapability(), PowerManagementCapability(), MSIX]
    return ConfigSpace(header, capabilities)


def u(space: ConfigSpace, offset: int, size: int) -> int:
    return int.from_bytes(space.read(offset, size), "little")


def chain(space: ConfigSpace) -> Iterator[tuple[int, int]]:
    at = u(space, 0x34, 1)
    while at:
        yield at, u(space, at, 1)
        at = u(space, at + 1, 1)


def test_header() -> None:
    space = config()
    assert u(space, 0, 4) == 0x101B15B3
    assert u(space, 4, 4) == 0x00100000
    assert u(space, 8, 4) == 0x02070000
    assert u(space, 0x2C, 4) == 0x000115B3
    # no INTx pin, no ROM, header type 0
    assert (u(space, 0x3D, 1), u(space, 0x30, 4), u(space, 0x0E, 1)) == (0, 0, 0)
    assert len(space.read(0, 4096)) == 4096
    assert space.read(0x100, 3840) == bytes(3840)


def test_capabilities_find_their_own_places() -> None:
    space = config()
    assert list(chain(space)) == [(0x40, 0x10), (0x7C, 0x01), (0x84, 0x11)]
    assert space.offsets == {"pcie": 0x40, "pm": 0x7C, "msix": 0x84}
    assert list(chain(config(capabilities=[MSIX]))) == [(0x40, 0x11)]
    bare = config(capabilities=[])
    assert list(chain(bare)) == []
    assert u(bare, 6, 2) == 0


def test_pcie_capability() -> None:
    space, at = config(), 0x40
    assert u(space, at + 2, 2) == 0x0002
    assert u(space, at + 4, 4) >> 28 & 1
    assert u(space, at + 0x0C, 4) & 0xF == 4
    assert u(space, at + 0x0C, 4) >> 4 & 0x3F == 16
    assert u(space, at + 0x12, 2) & 0x3FF == 0x104
    assert u(space, at + 0x2C, 4) == 0b11110
    narrow = config(capabilities=[PcieCapability(link_speed=3, link_width=8)])
    assert u(narrow, at + 0x12, 2) & 0x3FF == 0x083


def test_bar_sizing() -> None:
    space = config({0: Bar(32 << 20), 2: Bar(4096, is_64bit=False, prefetchable=False), 4: Bar(8 << 32)})
    space.write(0x10, b"\xff" * 24)
    assert u(space, 0x10, 8) == 0xFFFFFFFF_FE00000C
    assert u(space, 0x18, 4) == 0xFFFFF000
    assert u(space, 0x1C, 4) == 0
    assert u(space, 0x20, 8) == 0xFFFFFFF8_0000000C
    space.write(0x10, bytes(24))
    assert u(space, 0x10, 8) == 0xC


@pytest.mark.parametrize(
    ("bars", "text"),
    [
        ({0: Bar(3 << 20)}, "power of two"),
        ({0: Bar(0)}, "power of two"),
        ({0: Bar(64)}, "power of two"),
        ({5: Bar(4096)}, "does not fit"),
        ({6: Bar(4096, is_64bit=False)}, "does not fit"),
        ({0: Bar(4096), 1: Bar(4096)}, "overlaps"),
        ({0: Bar(1 << 32, is_64bit=False)}, "too many"),
    ],
)
def test_bad_bars(bars: dict[int, Bar], text: str) -> None:
    with pytest.raises(PciConfigError, match=text):
        config(bars, [])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"vectors": 0}, "vectors"),
        ({"vectors": 2049}, "vectors"),
        ({"table_bar": 2}, "table does not fit"),
        ({"pba_bar": 1}, "pending bits does not fit"),
        ({"table_offset": (32 << 20) - 0x3F8}, "table does not fit"),
        ({"pba_offset": 0x23F8}, "overlap"),
        ({"pba_offset": 0x2000}, "overlap"),
        ({"table_offset": 0x2004}, "multiple of 8"),
    ],
)
def test_bad_msix(fields: dict[str, Any], text: str) -> None:
    good = {"vectors": 64, "table_bar": 0, "table_offset": 0x2000, "pba_bar": 0, "pba_offset": 0x3000}
    with pytest.raises(PciConfigError, match=text):
        config(capabilities=[MsixCapability(**(good | fields))])


def test_too_many_capabilities() -> None:
    class Big(PowerManagementCapability):
        pass

    with pytest.raises(PciConfigError, match="no room"):
        config(capabilities=[PcieCapability(), *(Big(name=f"pm{i}", size=0x40) for i in range(3))])
    with pytest.raises(PciConfigError, match="twice"):
        config(capabilities=[PowerManagementCapability(), PowerManagementCapability()])


def test_command_and_its_meaning() -> None:
    space = config()
    assert (space.bus_master, space.memory_enabled) == (False, False)
    space.write(4, b"\x02\x00")
    assert (space.bus_master, space.memory_enabled) == (False, True)
    space.write(4, b"\xff\xff")
    assert u(space, 4, 2) == 0x0546
    assert (space.bus_master, space.memory_enabled) == (True, True)


def test_msix_control() -> None:
    space, at = config(), 0x84
    assert u(space, at + 2, 2) == 63
    space.write(at + 2, b"\xff\xff")
    assert u(space, at + 2, 2) == 0xC03F
    assert (space.msix_enabled, space.msix_masked) == (True, True)
    # the byte that a driver may write alone
    space.write(at + 3, b"\x80")
    assert (space.msix_enabled, space.msix_masked) == (True, False)
    space.write(at + 4, b"\xff" * 8)
    assert (u(space, at + 4, 4), u(space, at + 8, 4)) == (0x2000, 0x3000)
    assert (config(capabilities=[]).msix_enabled, config(capabilities=[]).msix_masked) == (False, False)


@pytest.mark.parametrize("write", [(0x48, b"\x10\xa8"), (0x49, b"\x80"), (0x48, b"\x00\x80\x0f\x00")])
def test_function_level_reset(write: tuple[int, bytes]) -> None:
    space = config()
    calls: list[int] = []
    space.on_flr = lambda: calls.append(u(space, 0x48, 2))
    space.write(0x48, b"\x10\x28")
    assert calls == []
    space.write(*write)
    assert len(calls) == 1
    # the bit reads 0
    assert calls[0] & 0x8000 == 0


def test_writes_to_the_identity_change_nothing() -> None:
    space = config()
    before = space.read(0, 4096)
    for at in (*range(4), *range(8, 12), *range(0x28, 0x3C), 0x3D, 0x40, 0x41, 0x42, *range(0x100, 0x200)):
        space.write(at, b"\xff")
    assert space.read(0, 4096) == before


def test_a_write_of_everything() -> None:
    space = config()
    space.write(0, b"\xff" * 4096)
    assert u(space, 0, 4) == 0x101B15B3
    space.write(0, bytes(4096))
    assert list(chain(space)) == [(0x40, 0x10), (0x7C, 0x01), (0x84, 0x11)]
    space.reset()
    assert space.read(0, 4096) == config().read(0, 4096)
