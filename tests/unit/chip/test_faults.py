"""Faults inside a card, seen by its driver: what rules do to commands; and that a card without rules has none of it."""

from __future__ import annotations

import pytest

from firmware import boot
from firmware.kernel import Kernel
from tests.support.driver import Driver
from vhca.chip.counters import BoardCount
from vhca.chip.fault_rules import FaultRuleError
from vhca.chip.faults import MOST_HELD_BYTES, MOST_RULES
from vhca.hw.events import CommandPosted, Reset
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cmd.common import BareIn
from vhca.wire.connectx.cmd.queue import CmdQueueEntry
from vhca.wire.connectx.eqe import CmdData, Eqe, EventType

SECOND = 10**9


class Faulty(Driver):
    """A driver's card that has come up, and with it an event queue for what is told of commands."""

    def __init__(self) -> None:
        super().__init__(image=boot)
        self.probe()
        self.faults = self.board.faults
        self.eqn, self.ring = self.create_eq(4, 1 << EventType.CMD, vector=3)

    def told(self) -> list[int]:
        """Which slots the events in the ring name, in order."""
        entries = [self.memory.read(self.ring + 64 * index, 64) for index in range(16)]
        mine = [Eqe.from_bytes(entry) for entry in entries if not entry[-1] & 1]
        return [CmdData.from_bytes(entry.event_data).vector for entry in mine]

    def wait_ns(self, span_ns: int) -> None:
        """Let time pass, and the card do what is due."""
        self.clock.advance(span_ns)
        deadline = self.board.next_deadline()
        if deadline is not None and deadline <= self.clock.now_ns():
            self.board.run_timers(self.clock.now_ns())
        self.run_deferred()

    def owned(self, addr: int) -> bool:
        """Whether a command is the card's still."""
        return bool(CmdQueueEntry.from_bytes(self.memory.read(addr, CmdQueueEntry.SIZE)).ownership)


@pytest.fixture
def driver() -> Faulty:
    return Faulty()


ALLOC_PD = BareIn(opcode=Op.ALLOC_PD).to_bytes()


def test_a_card_without_rules_has_nothing_around_its_program(driver: Faulty) -> None:
    program = driver.board.firmware
    assert isinstance(program, Kernel)
    rule = driver.faults.add("command ALLOC_PD lost")
    assert driver.board.firmware is not program
    driver.faults.remove(rule.number)
    assert driver.board.firmware is program
    driver.faults.add("command ALLOC_PD lost")
    assert driver.faults.clear() == 1
    assert driver.board.firmware is program
    with pytest.raises(KeyError):
        driver.faults.remove(rule.number)


def test_a_command_fails_with_status_and_syndrome_and_has_done_nothing(driver: Faulty) -> None:
    rule = driver.faults.add("command ALLOC_PD nth=2 status=NO_RES_ERR syndrome=0x1234")
    driver.run(Op.ALLOC_PD)
    before = driver.board.objects()
    assert driver.raw(ALLOC_PD)[:8] == bytes((Status.NO_RES_ERR, 0, 0, 0)) + (0x1234).to_bytes(4, "big")
    assert driver.board.objects() == before
    driver.run(Op.ALLOC_PD)
    assert (rule.seen, rule.hits) == (3, 1)
    # each of them was reported, the failed one, too
    assert driver.told() == [1, 1, 1]
    assert driver.board.counters()[BoardCount.FAULTS] == 1
    assert any("fault" in line and "ALLOC_PD" in line for line in driver.board.ring)


def test_before_there_are_events_a_command_fails_as_well() -> None:
    driver = Driver()
    driver.board.faults.add("command ENABLE_HCA status=0x1")
    assert driver.raw(BareIn(opcode=Op.ENABLE_HCA).to_bytes())[0] == Status.INTERNAL_ERR


def test_only_commands_with_these_numbers(driver: Faulty) -> None:
    first, second = driver.alloc_pd(), driver.alloc_pd()
    rule = driver.faults.add(f"command DEALLOC_PD pd={first} status=RES_BUSY")
    given_back = cmd.DeallocPdIn(opcode=Op.DEALLOC_PD)
    for number, status in ((second, Status.OK), (first, Status.RES_BUSY)):
        given_back.pd = number
        assert driver.raw(given_back.to_bytes())[0] == status
    assert (rule.seen, rule.hits) == (1, 1)


def test_a_command_is_late(driver: Faulty) -> None:
    driver.faults.add("command ALLOC_PD late=2s")
    addr = driver.post(ALLOC_PD, 16)
    driver.wait_ns(2 * SECOND - 1)
    assert driver.owned(addr)
    assert driver.told() == []
    driver.wait_ns(1)
    assert not driver.owned(addr)
    assert driver.told() == [1]


def test_what_is_late_ends_also_if_its_rule_is_gone(driver: Faulty) -> None:
    rule = driver.faults.add("command ALLOC_PD late=2s")
    addr = driver.post(ALLOC_PD, 16)
    driver.faults.remove(rule.number)
    driver.wait_ns(2 * SECOND)
    assert not driver.owned(addr)
    assert isinstance(driver.board.firmware, Kernel)


def test_a_reset_forgets_what_is_late(driver: Faulty) -> None:
    driver.faults.add("command ALLOC_PD late=2s")
    driver.post(ALLOC_PD, 16)
    driver.board.reset("for the test")
    before = driver.board.objects()
    driver.wait_ns(2 * SECOND)
    assert driver.board.objects() == before
    assert driver.board.firmware.next_deadline() is None


def test_what_is_late_takes_a_bounded_amount_of_memory(driver: Faulty) -> None:
    driver.faults.add("command any late=2s")
    long = ALLOC_PD + bytes((1 << 20) - len(ALLOC_PD))
    most = MOST_HELD_BYTES // len(long)
    for _ in range(most):
        driver.board.event(CommandPosted(0, long, 16))
    assert driver.told() == []
    # one more is not late
    driver.board.event(CommandPosted(0, long, 16))
    assert driver.told() == [1]


def test_a_command_that_never_ends(driver: Faulty) -> None:
    driver.faults.add("command ALLOC_PD limit=1 lost")
    lost = driver.post(ALLOC_PD, 16, slot=1)
    driver.wait_ns(3600 * SECOND)
    assert driver.owned(lost)
    driver.run(Op.ALLOC_PD)
    assert driver.told() == [1]


def test_a_command_comes_twice(driver: Faulty) -> None:
    driver.faults.add("command ALLOC_PD twice")
    addr = driver.post(ALLOC_PD, 16, slot=2)
    assert not driver.owned(addr)
    assert driver.told() == [1 << 2, 1 << 2]
    assert driver.irqs == [3] * len(driver.irqs)


def test_an_output_is_damaged(driver: Faulty) -> None:
    driver.faults.add("command ALLOC_PD damage=11:0x7f limit=1")
    driver.faults.add("command ALLOC_PD damage=0x4000")
    right = driver.raw(ALLOC_PD)
    following = driver.raw(ALLOC_PD)
    assert right[11] ^ 0x7F == following[11] - 1
    assert right[:8] == following[:8] == bytes(8)


def test_a_card_has_so_many_rules(driver: Faulty) -> None:
    for _ in range(MOST_RULES):
        driver.faults.add("command ALLOC_PD lost nth=1000")
    with pytest.raises(FaultRuleError, match="32 rules"):
        driver.faults.add("command ALLOC_PD lost")


def test_rules_outlive_a_reset_and_the_program(driver: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = driver.faults.add("command ENABLE_HCA status=INTERNAL_ERR")
    driver.board.reset("for the test")
    driver.bar_write(0x10, (driver.queue >> 32).to_bytes(4, "big"))
    driver.bar_write(0x14, (driver.queue & 0xFFFFFFFF).to_bytes(4, "big"))
    assert driver.raw(BareIn(opcode=Op.ENABLE_HCA).to_bytes())[0] == Status.INTERNAL_ERR

    def fail(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(driver.board.program, "handle", fail)
    driver.board.event(Reset("this one fails"))
    assert driver.board.dead
    driver.board.reset("for the test")
    driver.bar_write(0x10, (driver.queue >> 32).to_bytes(4, "big"))
    driver.bar_write(0x14, (driver.queue & 0xFFFFFFFF).to_bytes(4, "big"))
    assert driver.raw(BareIn(opcode=Op.ENABLE_HCA).to_bytes())[0] == Status.INTERNAL_ERR
    assert rule.hits == 2


def test_who_watches_sees_what_the_driver_sees(driver: Faulty) -> None:
    heard: list[str] = []
    end = driver.board.watch(lambda record: heard.append(record.words()[0]))
    driver.faults.add("command ALLOC_PD status=NO_RES_ERR syndrome=7")
    driver.raw(ALLOC_PD)
    assert "ALLOC_PD: NO_RES_ERR, syndrome 0x00000007" in heard[0]
    end()
    assert not isinstance(driver.board.firmware, Kernel)
    driver.faults.clear()
    assert isinstance(driver.board.firmware, Kernel)
