"""Faults inside a card, seen by its driver: what rules do to commands; and that a card without rules has none of it."""

from __future__ import annotations

import pytest

from firmware import boot
from firmware.kernel import Kernel
from firmware.queues import post_event, write_cqe
from tests.support.driver import Driver
from vhca.chip.card import DmaGate
from vhca.chip.counters import BoardCount
from vhca.chip.fault_rules import FaultRuleError
from vhca.chip.faults import MOST_HELD_BYTES, MOST_RULES, STALE_BYTES, STALE_READS
from vhca.hw.effects import Effects
from vhca.hw.events import CommandPosted, CqDoorbell, EqDoorbell, Reset
from vhca.hw.memory import DmaError
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cmd.common import BareIn
from vhca.wire.connectx.cmd.queue import CmdQueueEntry
from vhca.wire.connectx.cqe import Cqe64, CqeOpcode, CqeSyndrome, ErrCqe64
from vhca.wire.connectx.eqe import CmdData, Eqe, EventType, PortChangeData, PortChangeSubtype
from vhca.wire.connectx.init_segment import HealthBuffer

SECOND = 10**9


class Faulty(Driver):
    """A driver's card that has come up, and with it an event queue, which is armed, and a completion queue."""

    def __init__(self) -> None:
        super().__init__(image=boot)
        self.probe()
        self.faults = self.board.faults
        self.eqn, self.ring = self.create_eq(4, 1 << EventType.CMD | 1 << EventType.PORT_CHANGE, vector=3)
        self.cq_ring = self.alloc(64 << 4)
        self.cqn = self.make_cq(self.cq_ring, 64 << 4, log_cq_size=4, c_eqn_or_apu_element=self.eqn)
        for index in range(16):
            self.memory.data[self.cq_ring + 64 * index + 63] = CqeOpcode.INVALID << 4 | 1
        self.clear()

    def clear(self) -> None:
        """Forget what was told until now."""
        queue = self.program.hca.eqs.get(self.eqn)
        assert queue is not None
        self.first = queue.producer
        self.board.event(EqDoorbell(self.uar, self.eqn, self.first, True))
        self.irqs.clear()

    @property
    def program(self) -> Kernel:
        """The program on the board."""
        assert isinstance(self.board.program, Kernel)
        return self.board.program

    def events(self) -> list[Eqe]:
        """What is in the ring of events that is new, in order."""
        entries = [self.memory.read(self.ring + 64 * (index % 16), 64) for index in range(self.first, self.first + 16)]
        owners = [index >> 4 & 1 for index in range(self.first, self.first + 16)]
        mine = []
        for entry, owner in zip(entries, owners, strict=True):
            if entry[-1] & 1 != owner:
                break
            mine.append(Eqe.from_bytes(entry))
        return mine

    def told(self) -> list[int]:
        """Which slots the events name, in order."""
        return [CmdData.from_bytes(event.event_data).vector for event in self.events()]

    def complete(self, **fields: int) -> None:
        """The card writes a completion of a work request."""
        cqe = bytearray(Cqe64(**fields).to_bytes())
        hca = self.program.hca
        queue = hca.cqs.get(self.cqn)
        assert queue is not None

        def write(out: Effects) -> None:
            hca.now_ns, hca.out = self.clock.now_ns(), out
            write_cqe(hca, queue, cqe, solicited=False)

        self.board.step(write)

    def completions(self) -> list[Cqe64]:
        """What is in the ring of completions, in order."""
        entries = [self.memory.read(self.cq_ring + 64 * index, 64) for index in range(16)]
        return [Cqe64.from_bytes(entry) for entry in entries if entry[-1] >> 4 != CqeOpcode.INVALID]

    def port_changes(self, sub_type: int) -> None:
        """The card tells of its port."""
        hca = self.program.hca

        def post(out: Effects) -> None:
            hca.now_ns, hca.out = self.clock.now_ns(), out
            post_event(hca, EventType.PORT_CHANGE, sub_type, PortChangeData(port_num=1).to_bytes())

        self.board.step(post)

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
    assert driver.irqs == [3]


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


# ---- events ----


def test_an_event_is_lost(driver: Faulty) -> None:
    driver.faults.add("event PORT_CHANGE sub_type=1 port_num=1 lost")
    driver.port_changes(PortChangeSubtype.DOWN)
    driver.port_changes(PortChangeSubtype.ACTIVE)
    # the ring has no hole where it was
    assert [event.event_sub_type for event in driver.events()] == [PortChangeSubtype.ACTIVE]
    assert driver.irqs == [3]


def test_an_event_is_late_and_overtaken(driver: Faulty) -> None:
    driver.faults.add("event PORT_CHANGE nth=1 late=10ms")
    driver.port_changes(PortChangeSubtype.DOWN)
    driver.port_changes(PortChangeSubtype.ACTIVE)
    assert driver.irqs == [3]
    driver.board.event(EqDoorbell(driver.uar, driver.eqn, driver.first + 1, True))
    driver.wait_ns(SECOND // 100)
    assert [event.event_sub_type for event in driver.events()] == [PortChangeSubtype.ACTIVE, PortChangeSubtype.DOWN]
    assert driver.irqs == [3, 3]


def test_an_event_comes_twice_or_is_of_another_type(driver: Faulty) -> None:
    driver.faults.add(f"event any eqn={driver.eqn} nth=1 twice")
    driver.faults.add("event PORT_CHANGE nth=1 type=0x25")
    driver.faults.add("event CMD nth=1 lost")
    driver.port_changes(PortChangeSubtype.DOWN)
    driver.port_changes(PortChangeSubtype.DOWN)
    assert [event.event_type for event in driver.events()] == [EventType.PORT_CHANGE] * 2 + [0x25]
    driver.run(Op.ALLOC_PD)
    assert len(driver.events()) == 3


def test_an_event_tells_something_else(driver: Faulty) -> None:
    driver.faults.add("event PORT_CHANGE nth=2 flip=port_num:0xe")
    for _ in range(3):
        driver.port_changes(PortChangeSubtype.DOWN)
    assert [PortChangeData.from_bytes(event.event_data).port_num for event in driver.events()] == [1, 15, 1]
    for rule, why in (
        ("event any flip=cqn", "name a type of event"),
        ("event PORT_CHANGE flip=cqn:1", "it has port_num"),
        ("event PORT_CHANGE flip=port_num:0x10", "it is 1 to 0xf"),
    ):
        with pytest.raises(FaultRuleError, match=why):
            driver.faults.add(rule)


# ---- completions ----


def test_a_completion_is_lost_late_or_comes_twice(driver: Faulty) -> None:
    driver.faults.add("completion REQ qpn=0x41 wqe_counter=1 lost")
    driver.faults.add(f"completion REQ cqn={driver.cqn} wqe_counter=2 late=1s")
    driver.faults.add("completion REQ wqe_counter=3 twice")
    for counter in range(5):
        driver.complete(opcode=CqeOpcode.REQ, qpn=0x41, wqe_counter=counter)
    assert [entry.wqe_counter for entry in driver.completions()] == [0, 3, 3, 4]
    driver.wait_ns(SECOND)
    assert [entry.wqe_counter for entry in driver.completions()] == [0, 3, 3, 4, 2]
    assert [entry.owner for entry in driver.completions()] == [0] * 5


@pytest.mark.parametrize(
    ("opcode", "failed"), [(CqeOpcode.REQ, CqeOpcode.REQ_ERR), (CqeOpcode.RESP_SEND, CqeOpcode.RESP_ERR)]
)
def test_a_completion_with_a_syndrome(driver: Faulty, opcode: CqeOpcode, failed: CqeOpcode) -> None:
    driver.faults.add("completion any syndrome=REMOTE_ACCESS_ERR vendor_error_syndrome=0x88")
    # whoever waits for an error is woken by it
    driver.board.event(CqDoorbell(driver.uar, driver.cqn, 0, True))
    driver.complete(opcode=opcode, qpn=0x41, wqe_counter=7, srqn_uidx=9, byte_cnt=4096, send_wqe_opcode=8)
    (entry,) = driver.completions()
    error = ErrCqe64.from_bytes(entry.to_bytes())
    assert (error.opcode, error.syndrome, error.vendor_error_syndrome) == (failed, CqeSyndrome.REMOTE_ACCESS_ERR, 0x88)
    assert (error.qpn, error.wqe_counter, error.srqn_uidx, error.send_wqe_opcode) == (0x41, 7, 9, 8)
    assert [event.event_type for event in driver.events()] == [EventType.COMP]


def test_a_field_of_a_completion_is_flipped(driver: Faulty) -> None:
    driver.faults.add("completion RESP_SEND nth=1 flip=byte_cnt:0x101")
    for _ in range(2):
        driver.complete(opcode=CqeOpcode.RESP_SEND, byte_cnt=0x1000)
    assert [entry.byte_cnt for entry in driver.completions()] == [0x1101, 0x1000]


def test_what_is_late_for_a_queue_that_has_gone_is_dropped(driver: Faulty) -> None:
    driver.faults.add("completion any late=1s")
    driver.complete(opcode=CqeOpcode.REQ)
    driver.raw(cmd.DestroyCqIn(opcode=Op.DESTROY_CQ, cqn=driver.cqn).to_bytes())
    driver.wait_ns(SECOND)
    assert driver.completions() == []


# ---- interrupts ----


def test_an_interrupt_is_lost_or_late(driver: Faulty) -> None:
    driver.faults.add("interrupt vector=3 nth=1 lost")
    driver.faults.add("interrupt vector=3 nth=1 late=1s")
    driver.faults.add("interrupt vector=4 lost")
    driver.run(Op.ALLOC_PD)
    assert driver.irqs == []
    assert len(driver.events()) == 1
    driver.board.event(EqDoorbell(driver.uar, driver.eqn, driver.first, True))
    assert driver.irqs == []
    driver.wait_ns(SECOND)
    assert driver.irqs == [3]


def test_no_train_runs_where_entries_are_looked_at(driver: Faulty) -> None:
    rule = driver.faults.add("command any lost nth=1000")
    assert not driver.program.hca.is_looked_at
    looking = driver.faults.add("completion any lost nth=1000")
    assert driver.program.hca.is_looked_at
    driver.program.restore(driver.program.dump())
    assert driver.program.hca.is_looked_at
    driver.faults.remove(looking.number)
    assert not driver.program.hca.is_looked_at
    driver.faults.remove(rule.number)


# ---- health, slot and link: what happens at a time ----


def health(driver: Driver) -> HealthBuffer:
    return HealthBuffer.from_bytes(driver.bar_read(0x200, HealthBuffer.SIZE))


def test_an_assert_stands_in_the_health_buffer_until_it_is_over(driver: Faulty) -> None:
    before = health(driver)
    rule = driver.faults.add("health synd=1 rfr=1 severity=3 assert_var0=0xdead from=1s until=3s")
    driver.wait_ns(SECOND - 1)
    assert health(driver) == before
    assert (rule.seen, rule.hits) == (0, 0)
    driver.wait_ns(1)
    told = health(driver)
    assert (told.synd, told.rfr, told.severity, told.severity_valid, told.assert_var0) == (1, 1, 3, 1, 0xDEAD)
    assert told.fw_ver == before.fw_ver
    assert rule.hits == 1
    driver.wait_ns(2 * SECOND)
    assert health(driver) == before


def test_a_reset_cures_what_the_health_buffer_says(driver: Faulty) -> None:
    before = health(driver)
    driver.faults.add("health synd=8")
    driver.wait_ns(0)
    assert health(driver).synd == 8
    driver.board.reset("software")
    assert health(driver) == before


def test_the_health_counter_stops_and_the_clock_goes_on(driver: Faulty) -> None:
    def counts() -> tuple[bytes, bytes]:
        return driver.bar_read(0x1010), driver.bar_read(0x1004)

    rule = driver.faults.add("health stop")
    driver.wait_ns(0)
    counter, clock = counts()
    driver.wait_ns(SECOND)
    assert counts()[0] == counter
    assert counts()[1] != clock
    driver.faults.remove(rule.number)
    assert counts()[0] != counter


def test_slot_and_link_are_told_when_it_begins_and_ends(driver: Faulty) -> None:
    told: list[tuple[str, bool]] = []
    driver.board.on_removal = lambda removed: told.append(("removed", removed))
    driver.board.hold_link = lambda held: told.append(("held", held))
    driver.faults.add("card removed from=2s until=3s")
    driver.faults.add("link untrained from=1s")
    for _ in range(4):
        driver.wait_ns(SECOND)
    assert told == [("held", True), ("removed", True), ("removed", False)]
    driver.faults.clear()
    assert told[3:] == [("held", False)]


# ---- reads of the host's memory ----


@pytest.fixture
def gate(driver: Faulty) -> DmaGate:
    """A gate before the card's memory."""
    gate = DmaGate(driver.memory)  # type: ignore[arg-type]
    gate.set_open(True)
    driver.board.tamper_reads = gate.tamper
    return gate


def test_a_read_fails_or_is_damaged(driver: Faulty, gate: DmaGate) -> None:
    at = driver.alloc(4096)
    driver.memory.write(at, bytes(range(64)))
    driver.faults.add(f"dma addr={at}..{at + 4095} size=64 nth=2 fail")
    driver.faults.add("dma size=4 nth=1 damage=1:0x0f")
    assert gate.read(at, 64) == bytes(range(64))
    with pytest.raises(DmaError, match="rule 1 lets it fail"):
        gate.read(at, 64)
    assert gate.read(at, 64) == bytes(range(64))
    assert gate.read(at, 4) == bytes((0, 1 ^ 0x0F, 2, 3))
    driver.faults.clear()
    assert gate.read(at, 4) == bytes(range(4))


def test_a_read_sees_old_data(driver: Faulty, gate: DmaGate) -> None:
    at = driver.alloc(4096)
    driver.faults.add("dma size=8 skip=1 limit=1 stale")
    seen = []
    for value in range(4):
        driver.memory.write(at, bytes((value,)) * 8)
        seen.append(gate.read(at, 8)[0])
    assert seen == [0, 0, 2, 3]


def test_what_is_remembered_of_reads_is_bounded(driver: Faulty, gate: DmaGate) -> None:
    driver.faults.add("dma nth=1000000 stale")
    for index in range(2 * STALE_READS):
        gate.read(4096 + index, 8)
        gate.read(4096, STALE_BYTES + 1 + index)
    known = driver.faults._reads._known
    assert len(known) == STALE_READS
    assert max(map(len, known.values())) <= STALE_BYTES


def test_nothing_is_read_by_address_while_reads_are_looked_at(driver: Faulty, gate: DmaGate) -> None:
    before = gate.generation
    assert gate.spans()
    rule = driver.faults.add("dma nth=1000 fail")
    assert gate.spans() == []
    assert gate.generation != before
    driver.faults.remove(rule.number)
    assert gate.spans()
    gate.set_open(False)
    with pytest.raises(DmaError):
        gate.read(4096, 8)
