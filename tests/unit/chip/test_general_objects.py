"""General objects: blocks of reserved QP numbers."""

from collections.abc import Callable

import pytest

from firmware.kernel import Kernel
from tests.support.driver import CommandFailed, Driver
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status

RESERVED_QPN = 0x2C
COUNT = 5


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.probe()
    return driver


def create(driver: Driver, kind: int = RESERVED_QPN, log_range: int = COUNT) -> int:
    view = cmd.GeneralObjectIn(log_obj_range=log_range)
    return cmd.GeneralObjectOut.from_bytes(driver.run(Op.CREATE_GENERAL_OBJECT, view, op_mod=kind)).obj_id


def destroy(driver: Driver, number: int, kind: int = RESERVED_QPN) -> None:
    driver.run(Op.DESTROY_GENERAL_OBJECT, cmd.GeneralObjectIn(obj_id=number), op_mod=kind)


def test_blocks_do_not_overlap_and_are_not_numbers_of_queue_pairs(driver: Driver) -> None:
    first, second = create(driver), create(driver)
    assert first % (1 << COUNT) == 0
    assert abs(second - first) >= 1 << COUNT
    assert first < 1 << 24
    assert isinstance(driver.board.firmware, Kernel)
    qps = driver.board.firmware.hca.qps
    assert not qps.first <= first < qps.first + qps.capacity
    assert driver.board.objects()["reserved_qpns"] == 2
    destroy(driver, first)
    destroy(driver, second)
    assert driver.board.objects()["reserved_qpns"] == 0


@pytest.mark.parametrize("mistake", ["type", "range", "unknown", "middle"])
def test_mistakes(driver: Driver, mistake: str) -> None:
    first = create(driver)
    calls: dict[str, Callable[[], object]] = {
        "type": lambda: create(driver, 0x2B),
        "range": lambda: create(driver, log_range=COUNT + 1),
        "unknown": lambda: destroy(driver, first + (1 << COUNT)),
        "middle": lambda: destroy(driver, first + 1),
    }
    with pytest.raises(CommandFailed) as error:
        calls[mistake]()
    assert error.value.status == (Status.BAD_PARAM if mistake in ("type", "range") else Status.BAD_RES)


def test_they_come_to_an_end(driver: Driver) -> None:
    assert isinstance(driver.board.firmware, Kernel)
    capacity = driver.board.firmware.hca.reserved_qpns.capacity
    for _ in range(capacity):
        create(driver)
    with pytest.raises(CommandFailed) as error:
        create(driver)
    assert error.value.status == Status.LIM_ERR
