"""What can be put around a program: a fault in the card, a flight recorder, and its playback."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from firmware import boot
from firmware.kernel import Kernel
from tests.support.driver import PAGE, CommandFailed, Driver, board_info
from tests.unit.chip.test_commands import Bench
from vhca.chip.middleware import MemoryTap, ProgramTap, tapped
from vhca.chip.rack import Rack
from vhca.chip.rack_config import CardConfig
from vhca.chip.recorder import Recording
from vhca.hw.effects import CommandDone, Effects, HealthSet
from vhca.hw.events import CommandPosted, Event
from vhca.hw.hardware import Firmware, FirmwareImage, TraceSink
from vhca.hw.memory import DmaError, FlatMemory, Memory
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


def session(driver: Driver) -> None:
    """Some life of a card: bring-up, objects, a cable, a refused command."""
    driver.probe()
    driver.board.link_change(1, True)
    driver.create_eq(4, 1 << 9)
    resize_cq(driver)
    pd = alloc_pd(driver)
    driver.run(Op.DEALLOC_PD, cmd.DeallocPdIn(pd=pd))
    with pytest.raises(CommandFailed):
        driver.run(Op.DEALLOC_PD, cmd.DeallocPdIn(pd=pd))
    driver.board.link_change(1, False)


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


class Empty:
    """A board for a playback."""

    def __init__(self) -> None:
        self.memory: Memory = FlatMemory(0)
        self.device_memory: Memory = self.memory
        self.info = board_info()
        self.trace: TraceSink | None = None

    def through(self, *_: object) -> None:
        return None

    def memory_limit(self) -> int:
        return 1 << 30


def test_a_recording_is_played_back_with_the_same_effects() -> None:
    recording = Recording()
    session(Driver(image=recording.of(boot)))
    assert len(recording.steps) > 10
    assert sum(len(step.reads) for step in recording.steps) == 1
    assert recording.replay(boot, Empty()) is None


def test_a_playback_finds_the_first_step_that_differs() -> None:
    recording = Recording()
    session(Driver(image=recording.of(boot)))
    commands = [n for n, step in enumerate(recording.steps) if isinstance(step.event, CommandPosted)]
    other = tapped(boot, lambda inner: FailCommand(inner, 3))
    assert recording.replay(other, Empty()) == f"step {commands[2]} (handle): other effects"


def test_a_playback_finds_a_read_that_is_not_there() -> None:
    recording = Recording()
    session(Driver(image=recording.of(boot)))
    (step,) = (step for step in recording.steps if step.reads)
    addr, size, found = step.reads[0]
    step.reads[0] = (addr + 4, size, found)
    number = list(recording.steps).index(step)
    assert recording.replay(boot, Empty()) == (
        f"step {number} (handle): it reads {size} bytes at {addr:#x}, which the recorded one did not"
    )


def test_a_recording_that_lost_its_beginning_says_so() -> None:
    recording = Recording(most=5)
    session(Driver(image=recording.of(boot)))
    assert len(recording.steps) == 5
    with pytest.raises(ValueError, match="lost its beginning"):
        recording.replay(boot, Empty())


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
