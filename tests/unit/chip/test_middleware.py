"""What can be put around a program: a fault in the card, a memory that fails; recordings: tests/unit/replay."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from firmware import boot
from firmware.kernel import Kernel
from tests.support.driver import PAGE, CommandFailed, Driver
from tests.unit.chip.test_commands import Bench
from vhca.chip.middleware import MemoryTap, ProgramTap, tapped
from vhca.chip.rack import Rack
from vhca.chip.rack_config import CardConfig
from vhca.hw.effects import CommandDone, Effects, HealthSet
from vhca.hw.events import CommandPosted, Event
from vhca.hw.hardware import Firmware, FirmwareImage
from vhca.hw.memory import DmaError
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.init_segment import BY_NAME, HealthBuffer


class FailCommand(ProgramTap):
    """The n-th command is executed, but its answer says that resources are used up, and health that the card is ill."""

    def __init__(self, inner: Firmware, nth: int) -> None:
        super().__init__(inner)
        self.left = nth

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        super().handle(event, now_ns, out)
        if isinstance(event, CommandPosted):
            self.left -= 1
            if not self.left:
                bad = bytes((Status.NO_RES_ERR,)) + bytes(15)
                out[:] = [replace(effect, output=bad) if isinstance(effect, CommandDone) else effect for effect in out]
                out.append(HealthSet("synd", 7))


def alloc_pd(driver: Driver) -> int:
    pd: int = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    return pd


def test_a_fault_inside_the_card() -> None:
    driver = Driver(image=tapped(boot, lambda inner: FailCommand(inner, 9)))
    for _ in range(8):
        alloc_pd(driver)
    with pytest.raises(CommandFailed) as refused:
        alloc_pd(driver)
    assert refused.value.status == Status.NO_RES_ERR
    health = HealthBuffer.from_bytes(driver.board.bar0.read(BY_NAME["health_buffer"].offset, HealthBuffer.SIZE))
    assert health.synd == 7
    alloc_pd(driver)
    assert driver.board.objects()["pd"] == 10


def resize_cq(driver: Driver) -> None:
    """A command for which the program reads guest memory: how far the host has come with the old buffer."""
    bench = Bench(driver)
    cqn = bench.cq()
    change = cmd.ModifyCqIn(cqn=cqn, modify_field_select_resize_field_select=7)
    change.cq_context.log_cq_size = 5
    driver.run(Op.MODIFY_CQ, change, driver.pages(driver.alloc(PAGE), PAGE), op_mod=1)


def test_a_memory_that_fails() -> None:
    class Gone(MemoryTap):
        def read(self, addr: int, size: int) -> bytes:
            raise DmaError("gone")

    errors = []
    for image in (boot, tapped(boot, memory=Gone)):
        driver = Driver(image=image)
        driver.probe()
        resize_cq(driver)
        errors.append(driver.board.counters().get("dma_read_errors", 0))
    assert errors == [0, 1]


def test_a_program_that_fails_is_booted_again_inside_its_tap() -> None:
    class Failing(ProgramTap):
        numbers = itertools.count()

        def __init__(self, inner: Firmware) -> None:
            super().__init__(inner)
            self.number = next(self.numbers)

        def handle(self, event: Event, now_ns: int, out: Effects) -> None:
            if self.number == 0 and isinstance(event, CommandPosted):
                raise RuntimeError("a fault of the program")
            super().handle(event, now_ns, out)

    driver = Driver(image=tapped(boot, Failing))
    driver.board.event(CommandPosted(0, bytes(16), 16))
    assert driver.board.dead
    driver.board.reset("flr")
    program = driver.board.firmware
    assert isinstance(program, Failing)
    assert isinstance(program.inner, Kernel)
    assert program.number == 1


def test_a_rack_says_which_cards_are_wrapped(tmp_path: Path) -> None:
    names: list[str] = []

    def tap(name: str, image: FirmwareImage) -> FirmwareImage:
        names.append(name)
        return tapped(image, ProgramTap)

    rack = Rack([CardConfig(), CardConfig(middleware=tap)], tmp_path)
    assert [type(card.board.firmware).__name__ for card in rack.hcas] == ["Kernel", "ProgramTap"]
    assert names == ["h1"]
