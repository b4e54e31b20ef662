"""A card's whole program, agents and all, dumped and restored on the same board and on another."""

from firmware.kernel import Kernel
from firmware.snapshot import differences
from tests.support.driver import Driver
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op


def kernel_of(driver: Driver) -> Kernel:
    firmware = driver.board.firmware
    assert isinstance(firmware, Kernel)
    return firmware


def test_a_program_goes_on_where_it_was_dumped() -> None:
    driver = Driver()
    driver.probe()
    driver.board.link_change(1, True)
    pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    kernel = kernel_of(driver)
    image = kernel.dump()
    driver.run(Op.DEALLOC_PD, cmd.DeallocPdIn(pd=pd))
    driver.board.link_change(1, False)
    assert driver.board.objects()["pd"] == 0
    kernel.restore(image)
    assert driver.board.objects()["pd"] == 1
    assert kernel.agents.ports[1].managed.cable_up
    assert kernel.hca.chip.management is kernel.agents
    assert kernel.hca.ports[1] is kernel.agents.ports[1]
    driver.run(Op.DEALLOC_PD, cmd.DeallocPdIn(pd=pd))


def test_two_programs_with_the_same_past_are_the_same() -> None:
    one, two = Driver(), Driver()
    for driver in (one, two):
        driver.probe()
        driver.board.link_change(1, True)
        driver.run(Op.ALLOC_PD)
    pair = [(kernel_of(driver).hca, kernel_of(driver).agents) for driver in (one, two)]
    skip = frozenset({".memory", ".device_memory", ".info", ".trace", ".ask", ".out", ".through"})
    assert differences(pair[0], pair[1], skip) == []
    two.run(Op.ALLOC_PD)
    assert any(".pds" in difference for difference in differences(pair[0], pair[1], skip))
    kernel_of(two).restore(kernel_of(one).dump())
    assert differences(pair[0], (kernel_of(two).hca, kernel_of(two).agents), skip) == []
