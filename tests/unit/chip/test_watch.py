"""What a card tells of itself on its board: commands, doorbells, interrupts; and that nobody pays who does not ask."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from firmware import boot
from firmware.kernel import Kernel
from tests.support.driver import PAGE, Driver
from vhca.chip.card_records import EventRecord, layouts_of
from vhca.chip.middleware import ProgramTap, tapped
from vhca.fabric.capture import CardRecord
from vhca.fabric.pcapng import INBOUND, OUTBOUND
from vhca.hw.effects import Effects
from vhca.hw.events import CqDoorbell, EqDoorbell, Event, InterfaceChange, LinkChange, SqDoorbell
from vhca.wire.connectx import cmd, registers
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.eqe import EventType


class Listener:
    """Keeps what a card tells."""

    def __init__(self, driver: Driver) -> None:
        self.records: list[CardRecord] = []
        self.end: Callable[[], None] = driver.board.watch(self.records.append)

    def words(self) -> list[str]:
        found = [record.words()[0] for record in self.records]
        self.records.clear()
        return found


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.probe()
    return driver


def test_a_command_with_its_names_and_numbers(driver: Driver) -> None:
    listener = Listener(driver)
    driver.run(Op.ALLOC_PD)
    (record,) = listener.records
    words, fields = record.words()
    assert words == "ALLOC_PD: OK; pd 1"
    assert fields == {
        "record": "command",
        "op": "ALLOC_PD",
        "opcode": "0x800",
        "slot": 0,
        "status": "OK",
        "input_bytes": 16,
        "pd": 1,
    }
    assert record.direction == OUTBOUND


def test_a_command_that_is_refused(driver: Driver) -> None:
    listener = Listener(driver)
    output = driver.raw(cmd.DestroyQpIn(opcode=Op.DESTROY_QP, qpn=0x1234).to_bytes())
    (record,) = listener.records
    words, fields = record.words()
    assert fields["status"] == "BAD_RES"
    assert fields["syndrome"] == f"{int.from_bytes(output[4:8], 'big'):#010x}"
    assert words == f"DESTROY_QP: BAD_RES, syndrome {fields['syndrome']}; qpn 0x001234"
    listener.records.clear()
    driver.raw((0xFFFF).to_bytes(2, "big") + bytes(14))
    assert listener.words()[0].startswith("0xffff: BAD_OP, syndrome 0x")


def test_events_and_interrupts_in_order(driver: Driver) -> None:
    eqn, _ = driver.create_eq(4, 1 << EventType.CMD, vector=3)
    listener = Listener(driver)
    driver.board.event(EqDoorbell(driver.uar, eqn, 0, True))
    driver.run(Op.NOP)
    assert listener.words() == [
        f"doorbell EQ {eqn}: seen up to 0, armed",
        "NOP: OK",
        f"EQE of EQ {eqn}: CMD, vector 1",
        "interrupt: vector 3",
    ]


def test_doorbells_before_the_card_has_looked_at_them(driver: Driver) -> None:
    listener = Listener(driver)
    driver.board.event(SqDoorbell(16, 12 << 8 | 0x08, 0x41 << 8 | 3))
    driver.board.event(CqDoorbell(16, 0x20, 7, solicited=True))
    driver.board.link_change(1, up=False)
    assert listener.words() == [
        "doorbell SQ of QP 0x000041: up to WQE 12, RDMA_WRITE",
        "doorbell CQ 0x000020: seen up to 7, wants the next solicited",
        "link of port 1: down",
    ]
    assert EventRecord(InterfaceChange(7)).words()[0] == "interface: state 7"
    assert EventRecord(LinkChange(1, up=True)).direction == INBOUND
    driver.board.reset("for the test")
    assert listener.words() == ["reset: for the test"]


def test_no_payload_and_no_key_is_told(driver: Driver) -> None:
    listener = Listener(driver)
    secret = 0x5EC2E75EC2E75EC2
    mad = bytes((1, 1, 1, 1)) + bytes(20) + secret.to_bytes(8, "big") + bytes(224)
    driver.raw(cmd.MadIfcIn(opcode=Op.MAD_IFC, port=1, mad=mad).to_bytes(), 0x110)
    context = cmd.CreateMkeyIn(opcode=Op.CREATE_MKEY)
    context.memory_key_mkey_entry.start_addr = secret
    context.memory_key_mkey_entry.pd = 0x5EC2E7
    driver.raw(context.to_bytes(), 16)
    driver.run(Op.QUERY_SPECIAL_CONTEXTS, out_size=cmd.QuerySpecialContextsOut.SIZE)
    names = {"register_id": registers.RegisterId.PAOS}
    driver.raw(cmd.AccessRegisterIn(opcode=Op.ACCESS_REG, **names).to_bytes() + secret.to_bytes(8, "big") * 2, 32)
    assert len(listener.records) == 4
    for record in listener.records:
        words, fields = record.words()
        said = words + json.dumps(fields)
        for text in (f"{secret:x}", str(secret), f"{0x5EC2E7:x}", str(0x5EC2E7)):
            assert text not in said.lower()
        assert not [name for name in fields if "key" in name and not name.endswith("_index")]


def test_every_command_of_the_card_has_a_layout() -> None:
    from firmware.commands.registry import COMMANDS

    for opcode, entry in COMMANDS.items():
        asked, _ = layouts_of(Op(opcode).name)
        assert asked is entry.layout or entry.layout is cmd.BareIn, Op(opcode).name


def test_a_card_that_nobody_watches_is_as_it_was(driver: Driver) -> None:
    program = driver.board.firmware
    one, other = Listener(driver), Listener(driver)
    assert driver.board.firmware is not program
    driver.run(Op.NOP)
    one.end()
    driver.run(Op.NOP)
    other.end()
    driver.run(Op.NOP)
    assert driver.board.firmware is program
    assert isinstance(program, Kernel)
    assert not program.hca.watched
    assert (len(one.records), len(other.records)) == (1, 2)


def test_a_card_that_failed_is_watched_when_it_has_started_again() -> None:
    class Fails(ProgramTap):
        def handle(self, event: Event, now_ns: int, out: Effects) -> None:
            if isinstance(event, LinkChange) and not event.up:
                raise RuntimeError("for the test")
            super().handle(event, now_ns, out)

    driver = Driver(image=tapped(boot, Fails))
    driver.probe()
    listener = Listener(driver)
    driver.board.link_change(1, up=False)
    assert driver.board.dead
    driver.board.link_change(1, up=True)
    driver.board.reset("again")
    assert not driver.board.dead
    listener.records.clear()
    driver.bar_write(0x10, (driver.queue >> 32).to_bytes(4, "big"))
    driver.bar_write(0x14, (driver.queue & 0xFFFFFFFF).to_bytes(4, "big"))
    driver.probe()
    said = listener.words()
    assert [words for words in said if words.startswith("ENABLE_HCA: OK")]
    listener.end()
    assert not listener.records
    assert driver.alloc(PAGE)
