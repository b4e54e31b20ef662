"""Commands and doorbells that ask for too much, or for what belongs to others."""

import pytest

from tests.support.driver import CommandFailed, Driver
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.probe()
    return driver


@pytest.mark.parametrize(("mode", "octwords"), [(1, 0xFFFFFFFF), (1, (1 << 22) + 1), (2, (1 << 16) + 1)])
def test_a_key_cannot_reserve_all_memory(driver: Driver, mode: int, octwords: int) -> None:
    pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    view = cmd.CreateMkeyIn()
    context = view.memory_key_mkey_entry
    context.pd, context.access_mode_1_0, context.free, context.umr_en = pd, mode, 1, 1
    context.translations_octword_size = octwords
    with pytest.raises(CommandFailed) as refused:
        driver.run(Op.CREATE_MKEY, view)
    assert refused.value.status == Status.LIM_ERR


def test_event_queues_listen_to_their_own_page_only(driver: Driver) -> None:
    number, _ = driver.create_eq(4, 1 << 0x0A)
    other = cmd.AllocUarOut.from_bytes(driver.run(Op.ALLOC_UAR)).uar
    driver.bar_write(other * 4096 + 0x40, (number << 24).to_bytes(4, "big"))
    assert driver.board.counters()["eq_doorbell_unknown"] == 1
    assert driver.irqs == []
    driver.bar_write(driver.uar * 4096 + 0x40, (number << 24).to_bytes(4, "big"))
    assert driver.irqs == [0]


def test_a_program_does_not_arm_the_queue_of_another(driver: Driver) -> None:
    eqn, _ = driver.create_eq(4, 0, vector=3)
    view = cmd.CreateCqIn()
    view.cq_context.log_cq_size = 4
    view.cq_context.c_eqn_or_apu_element = eqn
    cqn = cmd.CreateCqOut.from_bytes(driver.run(Op.CREATE_CQ, view, driver.pages(driver.alloc(1024), 1024))).cqn
    program = cmd.BareIn(uid=7)
    page = cmd.AllocUarOut.from_bytes(driver.run(Op.ALLOC_UAR, program)).uar
    driver.bar_write(page * 4096 + 0x20, bytes(4) + cqn.to_bytes(4, "big"))
    assert driver.board.counters()["cq_doorbell_unknown"] == 1
    driver.bar_write(driver.uar * 4096 + 0x20, bytes(4) + cqn.to_bytes(4, "big"))
    assert driver.board.counters()["cq_doorbell_unknown"] == 1


def test_a_driver_name_cannot_write_lines_of_its_own_into_the_log(driver: Driver) -> None:
    view = cmd.SetDriverVersionIn(driver_version=b"Linux\n  1.000 reset reason=fake\x1b[31m".ljust(64, b"\0"))
    driver.run(Op.SET_DRIVER_VERSION, view)
    (line,) = [line for line in driver.board.ring if "driver" in line.split()[1]]
    assert line.isprintable()
