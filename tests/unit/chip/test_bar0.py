"""BAR0: which writes become which events."""

from vhca.chip.bar0 import MOST_HALVES, Bar0
from vhca.chip.device_memory import DeviceMemory
from vhca.hw.events import CqDoorbell, EqDoorbell, Event, SqDoorbell

UAR = 16 * 4096
DEVICE = 64 * 4096


class Registers:
    def __init__(self) -> None:
        self.written: list[tuple[int, bytes]] = []

    def read(self, offset: int, count: int) -> bytes:
        return b"\xab" * count

    def write(self, offset: int, data: bytes) -> None:
        self.written.append((offset, data))


def bar() -> tuple[Bar0, list[Event], Registers]:
    events: list[Event] = []
    registers = Registers()
    return Bar0(registers, 16, DeviceMemory(DEVICE, 4096), events.append), events, registers


def test_doorbells_in_one_store() -> None:
    decoder, events, _ = bar()
    decoder.write(UAR + 0x800, bytes.fromhex("0000010a00004102"))
    decoder.write(UAR + 0x600, bytes.fromhex("0000020a00004102"))
    decoder.write(UAR + 0x20, bytes.fromhex("1100000700000010"))
    decoder.write(UAR + 0x40, bytes.fromhex("03000005"))
    decoder.write(UAR + 0x48, bytes.fromhex("03000006"))
    assert events == [
        SqDoorbell(16, 0x10A, 0x4102),
        SqDoorbell(16, 0x20A, 0x4102),
        CqDoorbell(16, 0x10, 7, True),
        EqDoorbell(16, 3, 5, True),
        EqDoorbell(16, 3, 6, False),
    ]


def test_a_split_doorbell_acts_on_its_second_half() -> None:
    decoder, events, _ = bar()
    decoder.write(UAR + 0x900, bytes.fromhex("0000010a"))
    assert events == []
    decoder.write(UAR + 0x904, bytes.fromhex("00004102"))
    assert events == [SqDoorbell(16, 0x10A, 0x4102)]
    decoder.write(UAR + 0x904, bytes.fromhex("00004102"))
    assert len(events) == 1
    assert decoder.ignored_writes == 1


def test_half_doorbells_that_wait_are_bounded() -> None:
    events: list[Event] = []
    decoder = Bar0(Registers(), 16, DeviceMemory(512 * 4096, 4096), events.append)
    places = [page * 4096 + 0x800 + at for page in range(16, 512) for at in range(0, 0x800, 0x100)]
    for place in places[: MOST_HALVES + 1]:
        decoder.write(place, bytes.fromhex("0000010a"))
    assert (len(decoder._halves), decoder.ignored_writes) == (MOST_HALVES, 1)
    # The oldest was given up; all others act.
    for place in places[: MOST_HALVES + 1]:
        decoder.write(place + 4, bytes.fromhex("00004102"))
    assert (len(events), decoder.ignored_writes) == (MOST_HALVES, 2)


def test_write_combined_wqe_data_rings_once() -> None:
    decoder, events, _ = bar()
    for at in range(0, 64, 8):
        decoder.write(UAR + 0xA00 + at, bytes.fromhex("0000010a00004102"))
    assert len(events) == 1
    assert decoder.ignored_writes == 7


def test_low_pages_are_the_init_segment_and_the_gap_behind_it_is_dead() -> None:
    decoder, events, registers = bar()
    decoder.write(0x18, b"\0\0\0\1")
    decoder.write(5 * 4096 + 0x800, bytes(8))
    assert registers.written == [(0x18, b"\0\0\0\1")]
    assert events == []
    assert decoder.ignored_writes == 1
    assert decoder.read(0x10, 4) == b"\xab" * 4
    assert decoder.read(UAR, 8) == bytes(8)


def test_odd_sizes_and_places_are_counted_not_acted_on() -> None:
    decoder, events, _ = bar()
    for offset, size in ((0x20, 1), (0x22, 4), (0x40, 2), (0x60, 8), (0x801, 8), (0x800, 2)):
        decoder.write(UAR + offset, bytes(size))
    assert events == []
    assert decoder.ignored_writes == 6
