"""What a completion tells beside its status: the time, its bytes, whether it makes an event; and what is counted."""

from __future__ import annotations

import pytest

from firmware.model.counters import Count, QCount
from tests.scenario.tools import FIRST, inject, tallied
from tests.scenario.world import pair
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import Cqe64, CqeSyndrome, ErrCqe64
from vhca.wire.connectx.eqe import EventType
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.packet import ACKNOWLEDGE

NOW_NS = 123_456_789_012_345


def test_the_time_is_that_of_the_card_s_clock() -> None:
    world, a, b = pair()
    world.now_ns = NOW_NS
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(8), 8)
    world.settle()
    ticks = NOW_NS * a.card.hca.info.timer_khz // 1_000_000
    for cq in (a.send_cq, b.recv_cq):
        assert Cqe64.from_bytes(cq.raw(0)).timestamp == ticks


def test_bytes_are_told_of_what_was_stored_and_not_of_what_was_sent() -> None:
    world, a, b = pair()
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(8), 8)
    a.write(a.buffer(100), 100, b.buffer(100), b.card.key)
    a.read(a.buffer(100), 100, b.buffer(100), b.card.key)
    a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), b.buffer(8), b.card.key, 1)
    world.settle()
    assert [c.size for c in a.send_cq.poll()] == [0, 0, 100, 8]
    assert [c.size for c in b.recv_cq.poll()] == [8]


@pytest.mark.parametrize(("mode", "entries", "event"), [(0, 0, False), (1, 0, False), (2, 1, False), (3, 1, True)])
def test_a_send_completes_and_makes_an_event_as_it_says(mode: int, entries: int, event: bool) -> None:
    world, a, b = pair()
    a.card.events()
    a.send_cq.arm(solicited_only=True)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ce=mode)
    world.settle()
    assert len(a.send_cq.poll()) == entries
    assert [kind for kind, _ in a.card.events()] == [EventType.COMP] * event


@pytest.mark.parametrize("solicited", [False, True])
def test_a_receive_makes_an_event_of_a_queue_armed_for_solicited_ones_if_its_sender_says(solicited: bool) -> None:
    world, a, b = pair()
    b.card.events()
    b.recv_cq.arm(solicited_only=True)
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(8), 8, se=int(solicited))
    world.settle()
    assert [c.solicited for c in b.recv_cq.poll()] == [solicited]
    assert [kind for kind, _ in b.card.events() if kind == EventType.COMP] == [EventType.COMP] * solicited


def test_an_error_makes_an_event_of_a_queue_armed_for_solicited_ones() -> None:
    # Volume 1, 11.4.2.2: an unsuccessful completion counts as a solicited one.
    world, a, _ = pair()
    a.card.events()
    for cq in (a.send_cq, a.recv_cq):
        cq.arm(solicited_only=True)
    a.post_recv(a.buffer(8), 8)
    world.fault = lambda packet: []
    a.send(a.buffer(8), 8)
    assert a.apply(Op.QP_2ERR) == 0
    assert [kind for kind, _ in a.card.events()] == [EventType.COMP] * 2
    sent, received = (ErrCqe64.from_bytes(cq.raw(0)) for cq in (a.send_cq, a.recv_cq))
    assert (sent.syndrome, sent.vendor_error_syndrome, sent.send_wqe_opcode) == (5, 0, WqeOpcode.SEND)
    assert (received.syndrome, received.vendor_error_syndrome, received.send_wqe_opcode) == (5, 0, 0)
    assert a.counter.values == {
        QCount.REQ_CQE_ERROR: 1, QCount.REQ_CQE_FLUSH_ERROR: 1,
        QCount.RESP_CQE_ERROR: 1, QCount.RESP_CQE_FLUSH_ERROR: 1,
    }  # fmt: skip
    assert tallied(a.card) == {}


def test_errors_that_are_no_flushes_are_counted_by_their_syndrome() -> None:
    world, a, b = pair()
    b.post_recv(b.buffer(4), 4)
    b.post_recv()
    for _ in range(2):
        a.send(a.buffer(8), 8)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_INVAL_REQ_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_LENGTH_ERR, CqeSyndrome.WR_FLUSH_ERR]
    counts = [tallied(end.card) for end in (a, b)]
    assert counts == [{"send_errors_0x12": 1}, {"receive_errors_0x01": 1}]


def test_a_response_in_error_is_dropped_and_nothing_else_is_counted() -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.syndrome == 0x1E else []
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    assert a.apply(Op.QP_2ERR) == 0
    before = dict(a.card.hca.count)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=0x1E)
    after = dict(a.card.hca.count)
    assert {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)} == {
        Count.RX_DROP_QP_STATE: 1
    }
