"""Device memory: what its three windows do, what the commands allow, and what a key on it reaches."""

import pytest

from tests.support.driver import CommandFailed, Driver
from vhca.chip.device_memory import DeviceMemory
from vhca.wire.connectx import cmd
from vhca.wire.connectx.caps_groups import DeviceMemCap
from vhca.wire.connectx.cmd import Op, Status

START = 0x10000
SIZE = 4096
INCREMENT = START + SIZE
TEST_AND_SET = START + 2 * SIZE


def memory() -> DeviceMemory:
    return DeviceMemory(START, SIZE)


def test_bytes() -> None:
    device = memory()
    device.write(START + 16, b"abcd")
    assert device.read(START + 14, 8) == b"\0\0abcd\0\0"
    assert device.ram.read(START + 16, 4) == b"abcd"
    device.reset()
    assert device.read(START + 16, 4) == bytes(4)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_increment_wraps_within_its_operand(size: int) -> None:
    device = memory()
    device.write(START, b"\xff" * 16)
    device.write(INCREMENT, (3).to_bytes(size, "little"))
    assert device.read(START, 16) == (2).to_bytes(size, "little") + b"\xff" * (16 - size)
    assert device.read(INCREMENT, size) == bytes(size)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_test_and_set_gives_the_old_value(size: int) -> None:
    device = memory()
    device.write(START + 8, b"\x55" * 16)
    assert device.read(TEST_AND_SET + 8, size) == b"\x55" * size
    assert device.read(START + 8, 16) == (1).to_bytes(size, "little") + b"\x55" * (16 - size)
    device.write(TEST_AND_SET + 8, bytes(size))
    assert device.read(START + 8, 1) == b"\x01"


def test_accesses_that_fit_no_window_are_counted() -> None:
    device = memory()
    device.write(START + SIZE - 2, b"abcd")
    assert device.read(START + SIZE - 2, 4) == bytes(4)
    device.write(INCREMENT, b"abc")
    assert device.read(TEST_AND_SET, 3) == bytes(3)
    assert device.read(START + 3 * SIZE, 4) == bytes(4)
    device.write(START + 3 * SIZE, b"abcd")
    assert device.ignored == 6
    assert device.ram.data == bytes(SIZE)


# ---- commands ----


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.probe()
    return driver


def caps(driver: Driver) -> DeviceMemCap:
    return DeviceMemCap.from_bytes(driver.run(Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn(), out_size=0x1010, op_mod=0x1F)[16:])


def allocate(driver: Driver, start: int, size: int = 4096, span: int = 4096, alignment: int = 0) -> int:
    view = cmd.AllocMemicIn(
        range_start_addr=start, range_size=span, memic_size=size, log_memic_addr_alignment=alignment
    )
    return cmd.AllocMemicOut.from_bytes(driver.run(Op.ALLOC_MEMIC, view)).memic_start_addr


def free(driver: Driver, start: int, size: int = 4096) -> None:
    driver.run(Op.DEALLOC_MEMIC, cmd.DeallocMemicIn(memic_start_addr=start, memic_size=size))


def test_pieces_do_not_overlap(driver: Driver) -> None:
    base = caps(driver).memic_bar_start_addr
    assert allocate(driver, base, 64) == base
    assert allocate(driver, base, 64) == base + 64
    assert allocate(driver, base, 64, alignment=3) == base + 512
    with pytest.raises(CommandFailed) as error:
        allocate(driver, base, 4096)
    assert error.value.status == Status.NO_RES_ERR
    assert driver.board.objects()["memic"] == 3
    free(driver, base + 64, 64)
    assert allocate(driver, base, 128) == base + 64
    with pytest.raises(CommandFailed) as error:
        free(driver, base + 192, 64)
    assert error.value.status == Status.BAD_RES
    with pytest.raises(CommandFailed) as error:
        free(driver, base, 128)
    assert error.value.status == Status.BAD_PARAM


@pytest.mark.parametrize(
    ("shift", "size", "span", "alignment", "status"),
    [
        (0, 0, 4096, 0, Status.BAD_PARAM),
        (0, 63, 4096, 0, Status.BAD_PARAM),
        (0, 64, 4096, 7, Status.BAD_PARAM),
        (-4096, 64, 4096, 0, Status.BAD_PARAM),
        (0, 64, 1 << 30, 0, Status.BAD_PARAM),
        (0, 1 << 30, 4096, 0, Status.LIM_ERR),
    ],
)
def test_bad_requests(driver: Driver, shift: int, size: int, span: int, alignment: int, status: int) -> None:
    with pytest.raises(CommandFailed) as error:
        allocate(driver, caps(driver).memic_bar_start_addr + shift, size, span, alignment)
    assert error.value.status == status


def test_operations_through_the_bar(driver: Driver) -> None:
    start = allocate(driver, caps(driver).memic_bar_start_addr + 8192)
    places = []
    for operation in (0, 1):
        view = cmd.ModifyMemicIn(memic_start_addr=start, memic_operation_type=operation)
        out = cmd.ModifyMemicOut.from_bytes(driver.run(Op.MODIFY_MEMIC, view, out_size=64))
        places.append(out.memic_operation_addr)
    driver.bar_write(places[0] + 4, b"\x02")
    driver.bar_write(places[0] + 4, b"\x03")
    assert driver.bar_read(places[1] + 4, 1) == b"\x05"
    assert driver.bar_read(start + 4, 1) == b"\x01"
    driver.run(Op.MODIFY_MEMIC, cmd.ModifyMemicIn(memic_start_addr=start), op_mod=1, out_size=64)
    for view in (
        cmd.ModifyMemicIn(memic_start_addr=start),
        cmd.ModifyMemicIn(memic_start_addr=start, memic_operation_type=2),
        cmd.ModifyMemicIn(memic_start_addr=start + 64),
    ):
        with pytest.raises(CommandFailed):
            driver.run(Op.MODIFY_MEMIC, view, op_mod=1, out_size=64)


def make_key(driver: Driver, start: int, length: int, **fields: int) -> int:
    view = cmd.CreateMkeyIn()
    pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    context = view.memory_key_mkey_entry
    for name, value in {
        "access_mode_4_2": 1,
        "access_mode_1_0": 1,
        "lr": 1,
        "pd": pd,
        "start_addr": start,
        "len": length,
        "qpn": 0xFFFFFF,
        **fields,
    }.items():
        setattr(context, name, value)
    return cmd.CreateMkeyOut.from_bytes(driver.run(Op.CREATE_MKEY, view)).mkey_index


def test_a_key_holds_its_piece(driver: Driver) -> None:
    start = allocate(driver, caps(driver).memic_bar_start_addr)
    index = make_key(driver, start + 64, 128)
    view = cmd.QueryMkeyIn(mkey_index=index)
    out = cmd.QueryMkeyOut.from_bytes(driver.run(Op.QUERY_MKEY, view, out_size=cmd.QueryMkeyOut.SIZE))
    assert out.memory_key_mkey_entry.start_addr == start + 64
    assert out.memory_key_mkey_entry.len == 128
    with pytest.raises(CommandFailed) as error:
        free(driver, start)
    assert error.value.status == Status.BAD_RES_STATE
    driver.run(Op.DESTROY_MKEY, cmd.DestroyMkeyIn(mkey_index=index))
    free(driver, start)


def test_keys_that_are_refused(driver: Driver) -> None:
    start = allocate(driver, caps(driver).memic_bar_start_addr)
    for fields in (
        {"len": 4096 + 64},
        {"start_addr": start + 4096},
        {"free": 1},
        {"umr_en": 1},
        {"length64": 1},
    ):
        with pytest.raises(CommandFailed) as error:
            make_key(driver, **{"start": start, "length": 64, **fields})
        assert error.value.status == Status.BAD_PARAM
    free(driver, start)


def test_a_reset_clears_everything(driver: Driver) -> None:
    start = allocate(driver, caps(driver).memic_bar_start_addr)
    driver.bar_write(start, b"secret!!")
    driver.board.reset("test")
    assert driver.bar_read(start, 8) == bytes(8)
    assert driver.board.objects()["memic"] == 0
