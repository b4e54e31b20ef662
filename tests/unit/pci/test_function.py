"""The PCI function: regions, BAR handlers, MSI-X memory inside a BAR, resets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.pci import Bar, ConfigSpace, MsixCapability, PciConfigError, PcieCapability, PciFunction, Type0Header
from vhca.vfio_user import Device, Server

TABLE, PBA = 0x800, 0xC00
COMMAND = 4
MEMORY = b"\x02\x00"


class Memory:
    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.writes: list[tuple[int, int]] = []

    def read(self, offset: int, count: int) -> bytes:
        assert 0 <= offset < offset + count <= len(self.data)
        return bytes(self.data[offset : offset + count])

    def write(self, offset: int, data: bytes) -> None:
        assert 0 <= offset < offset + len(data) <= len(self.data)
        self.writes.append((offset, len(data)))
        self.data[offset : offset + len(data)] = data


class Rig:
    def __init__(self) -> None:
        self.config = ConfigSpace(
            Type0Header(0x15B3, 0x101B, 0x15B3, 1, 0x020700, bars={0: Bar(4096), 2: Bar(4096)}),
            [PcieCapability(), MsixCapability(4, 0, TABLE, 0, PBA)],
        )
        self.bars = {0: Memory(4096), 2: Memory(4096)}
        self.resets: list[str] = []
        self.function = PciFunction(self.config, self.bars, self.resets.append)
        self.function.region_write(7, COMMAND, MEMORY)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_it_has_the_shape_of_a_device(rig: Rig) -> None:
    device: Device = rig.function
    assert [region.size for region in device.regions] == [4096, 0, 4096, 0, 0, 0, 0, 4096, 0]
    assert tuple(device.irq_counts) == (0, 0, 4, 1, 1)
    Server(None, device)


def test_accesses_go_where_they_belong(rig: Rig) -> None:
    function = rig.function
    function.region_write(0, 0x10, b"bar0")
    function.region_write(2, 0x10, b"bar2")
    function.region_write(2, TABLE, b"no table here")
    assert rig.bars[0].read(0x10, 4) == b"bar0"
    assert function.region_read(2, 0x10, 4) == b"bar2"
    assert function.region_read(2, TABLE, 13) == b"no table here"
    assert function.region_read(7, 0, 2) == b"\xb3\x15"
    function.region_write(7, 4, b"\x06\x00")
    assert rig.config.bus_master


def test_the_table_is_memory_and_the_pending_bits_read_0(rig: Rig) -> None:
    function = rig.function
    function.region_write(0, TABLE, b"entry 0!")
    function.region_write(0, PBA, b"\xff" * 8)
    assert function.region_read(0, TABLE, 8) == b"entry 0!"
    assert function.region_read(0, PBA, 8) == bytes(8)
    assert rig.bars[0].writes == []
    # across both borders of the table and of the pending bits
    function.region_write(0, TABLE - 4, b"A" * 72)
    assert rig.bars[0].writes == [(TABLE - 4, 4), (TABLE + 64, 4)]
    assert function.region_read(0, TABLE - 4, 72) == b"A" * 72
    function.region_write(0, PBA - 4, b"B" * 16)
    assert rig.bars[0].writes[2:] == [(PBA - 4, 4), (PBA + 8, 4)]
    assert function.region_read(0, PBA - 4, 16) == b"BBBB" + bytes(8) + b"BBBB"
    function.reset("device")
    function.region_write(7, COMMAND, MEMORY)
    assert function.region_read(0, TABLE, 64) == bytes(64)


@given(writes=st.lists(st.tuples(st.integers(0, 4095), st.binary(min_size=1, max_size=600)), max_size=8))
def test_any_accesses_agree_with_a_flat_model(writes: list[tuple[int, bytes]]) -> None:
    rig = Rig()
    model = bytearray(4096)
    for offset, data in writes:
        data = data[: 4096 - offset]
        rig.function.region_write(0, offset, data)
        model[offset : offset + len(data)] = data
        model[PBA : PBA + 8] = bytes(8)
        assert rig.function.region_read(0, offset, len(data)) == model[offset : offset + len(data)]
    assert rig.function.region_read(0, 0, 4096) == model


def test_without_memory_space_nobody_is_at_home(rig: Rig) -> None:
    function = rig.function
    function.region_write(0, 0, b"kept")
    function.region_write(0, TABLE, b"kept too")
    function.region_write(7, COMMAND, bytes(2))
    for offset in (0, TABLE, PBA):
        function.region_write(0, offset, b"lost")
        assert function.region_read(0, offset, 8) == b"\xff" * 8
    assert function.unsupported == 6
    function.region_write(7, COMMAND, MEMORY)
    assert function.region_read(0, 0, 4) + function.region_read(0, TABLE, 8) == b"keptkept too"
    function.reset("device")
    assert function.region_read(0, 0, 4) == b"\xff" * 4


def test_resets(rig: Rig) -> None:
    rig.function.region_write(7, 4, b"\x06\x00")
    rig.function.reset("lost_connection")
    assert not rig.config.bus_master
    rig.function.region_write(7, 4, b"\x06\x00")
    at = rig.config.offsets["pcie"] + 8
    rig.function.region_write(7, at, b"\x10\xa8")
    assert not rig.config.bus_master
    assert rig.function.region_read(7, at, 2) == b"\x10\x28"
    assert rig.resets == ["lost_connection", "flr"]


@pytest.mark.parametrize("bars", [{}, {0: Memory(1)}, {0: Memory(1), 2: Memory(1), 4: Memory(1)}])
def test_handlers_must_match_the_bars(rig: Rig, bars: dict[int, Memory]) -> None:
    with pytest.raises(PciConfigError, match="handlers"):
        PciFunction(rig.config, bars)


def test_a_function_without_msix() -> None:
    config = ConfigSpace(Type0Header(1, 2, 3, 4, 5, bars={0: Bar(4096)}), [])
    function = PciFunction(config, {0: Memory(4096)})
    assert function.irq_counts == (0, 0, 0, 1, 1)
    function.region_write(7, COMMAND, MEMORY)
    function.region_write(0, TABLE, b"memory")
    assert function.region_read(0, TABLE, 6) == b"memory"
    function.reset("device")


def test_a_card_that_is_not_there_answers_with_ones_and_is_as_it_was_afterwards(rig: Rig) -> None:
    function = rig.function
    function.region_write(0, 0x10, b"abcd")
    function.region_write(0, TABLE, b"table")
    config = function.region_read(7, 0, 64)
    function.set_absent(True)
    function.set_absent(True)
    for region, offset in ((7, 0), (0, 0x10), (0, TABLE), (2, 0)):
        assert function.region_read(region, offset, 4) == b"\xff" * 4
        function.region_write(region, offset, b"gone")
    function.set_absent(False)
    assert function.region_read(7, 0, 64) == config
    assert function.region_read(0, 0x10, 4) == b"abcd"
    assert function.region_read(0, TABLE, 5) == b"table"
    assert rig.bars[2].data[:4] == bytes(4)
