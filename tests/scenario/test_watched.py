"""What a card tells of itself while somebody watches: each thing once, in its place among the effects."""

import pytest

from tests.scenario.world import End, pair
from tests.support.content import some_bytes
from vhca.chip.card_records import ToldRecord
from vhca.hw.effects import DmaWrite, EntryWrite, Told, Transmit
from vhca.wire.connectx.qpc import ServiceType
from vhca.wire.connectx.wqe import WqeOpcode


def told(end: End) -> list[str]:
    return [ToldRecord(effect).words()[0] for effect in end.card.effects if isinstance(effect, Told)]


def test_nothing_is_told_to_nobody() -> None:
    world, a, b = pair()
    a.write(a.buffer(some_bytes(100)), 100, b.buffer(100), b.card.key)
    world.settle()
    assert told(a) == told(b) == []
    a.card.firmware.watch(True)
    a.card.firmware.watch(False)
    a.write(a.buffer(some_bytes(100)), 100, b.buffer(100), b.card.key)
    world.settle()
    assert told(a) == []


def test_a_send_and_its_receive() -> None:
    world, a, b = pair()
    a.card.firmware.watch(True)
    b.card.firmware.watch(True)
    b.post_recv(b.buffer(4096), 4096)
    a.send_cq.arm()
    a.card.effects.clear()
    b.card.effects.clear()
    a.send(a.buffer(some_bytes(3000)), 3000)
    world.settle()
    qpn, cqn = f"{a.qpn:#08x}", f"{a.send_cq.cqn:#08x}"
    assert told(a) == [
        f"WQE 0 of QP {qpn}: SEND, 3000 bytes",
        f"CQE of CQ {cqn}: REQ, QP {qpn}, WQE 0, SEND",
        f"EQE of EQ {a.card.eqn}: COMP, cqn {cqn}",
    ]
    assert told(b) == [
        f"receive WQE 0 of QP {b.qpn:#08x}: room for 4096 bytes",
        f"CQE of CQ {b.recv_cq.cqn:#08x}: RESP_SEND, QP {b.qpn:#08x}, WQE 0, 3000 bytes",
    ]
    order = [type(effect) for effect in a.card.effects if isinstance(effect, Transmit | EntryWrite | Told)]
    assert order[0] is Told
    assert order[-4:] == [EntryWrite, Told, EntryWrite, Told]
    assert Transmit in order[1:-4]
    data = [index for index, effect in enumerate(b.card.effects) if isinstance(effect, DmaWrite)]
    taken = next(index for index, effect in enumerate(b.card.effects) if isinstance(effect, Told))
    assert taken < data[0]


def test_datagrams() -> None:
    world, a, b = pair(service=ServiceType.UD)
    a.card.firmware.watch(True)
    b.card.firmware.watch(True)
    b.post_recv(b.buffer(140), 140)
    a.datagram(a.buffer(some_bytes(100)), 100, 2, b.qpn)
    index = a.post(WqeOpcode.SEND)
    world.settle()
    assert told(a)[2] == f"WQE {index} of QP {a.qpn:#08x}: SEND, refused: no address vector"
    assert told(a)[0] == f"WQE 0 of QP {a.qpn:#08x}: SEND, 100 bytes"
    assert told(b)[0] == f"receive WQE 0 of QP {b.qpn:#08x}: room for 140 bytes"
    assert told(b)[1].endswith("WQE 0, 140 bytes")


def test_a_work_request_that_is_refused() -> None:
    world, a, _ = pair()
    a.card.firmware.watch(True)
    a.post(WqeOpcode.ENHANCED_MPSW)
    world.settle()
    words = told(a)
    assert words[0] == f"WQE 0 of QP {a.qpn:#08x}: ENHANCED_MPSW, refused: ctrl.opcode is not offered by this service"
    assert words[1].endswith("ENHANCED_MPSW, LOCAL_QP_OP_ERR")


def test_numbers_that_have_no_names() -> None:
    entry = bytes(56) + bytes((0x77, 0, 0, 5)) + bytes((0, 9, 0, 0x90))
    what, fields = ToldRecord(Told("completion", 3, 4, data=entry)).words()
    assert what == "CQE of CQ 0x000003: 0x09, QP 0x000005, WQE 9, 0 bytes"
    assert fields["opcode"] == "0x09"
    event = bytes((0, 0xEE, 0, 2)) + bytes(60)
    assert ToldRecord(Told("event", 1, 2, data=event)).words()[0] == "EQE of EQ 1: 0xee"
    assert ToldRecord(Told("send", 1, 2, code=0xEE)).words()[1]["opcode"] == "0xee"


@pytest.mark.parametrize("watched", [False, True])
def test_it_makes_no_difference_to_be_watched(watched: bool) -> None:
    world, a, b = pair()
    a.card.firmware.watch(watched)
    b.card.firmware.watch(watched)
    content = some_bytes(5000)
    target = b.buffer(5000)
    for _ in range(3):
        b.post_recv(b.buffer(5000), 5000)
        a.write(a.buffer(content), 5000, target, b.card.key)
        a.send(a.buffer(content), 5000)
    world.settle()
    assert b.peek(target, 5000) == content
    assert [done.syndrome for done in a.send_cq.poll() + b.recv_cq.poll()] == [0] * 9
