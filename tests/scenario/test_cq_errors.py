"""Completion queues seen from queue pairs: which completion makes an event, and what a dead queue means."""

import pytest

from firmware.model.counters import Count
from firmware.model.qp import SQER
from tests.scenario.world import ERR, ST_RC, ST_UC, ST_UD, CompletionQueue, End, SharedQueue, World, pair
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.wqe import WqeOpcode

COMPLETION, CQ_ERROR, CATASTROPHIC = 0x00, 0x04, 0x05
BAD_KEY = 0x999900


@pytest.mark.parametrize(
    ("requests", "woken"),
    [([False, True], 1), ([True, False], 1), ([True], 0), ([False], 1), ([True, True], 0), ([False, True, True], 1)],
)
def test_a_request_for_solicited_completions_does_not_narrow_one_for_the_next(requests: list[bool], woken: int) -> None:
    world, a, b = pair()
    b.card.events()
    for solicited_only in requests:
        b.recv_cq.arm(solicited_only)
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(8), 8)
    world.settle()
    assert b.card.events() == [(COMPLETION, b.recv_cq.cq.handle)] * woken


def test_a_queue_that_fired_may_be_asked_for_solicited_completions_only() -> None:
    world, a, b = pair()
    b.card.events()
    b.recv_cq.arm()
    for _ in range(2):
        b.post_recv(b.buffer(8), 8)
        a.send(a.buffer(8), 8)
        world.settle()
        b.recv_cq.poll()
        b.recv_cq.arm(solicited_only=True)
    assert len(b.card.events()) == 1


def overrun(cq: CompletionQueue) -> int:
    """Let a queue overrun, by a queue pair that goes with it; gives the number of that one."""
    filler = End(cq.card, cq=cq)
    filler.connect(filler)
    for _ in range((1 << cq.log_size) + 1):
        filler.post(WqeOpcode.NOP)
    assert cq.cq.failed
    filler.destroy()
    return filler.qpn


def single_cq(service: int, receiver: bool, **fields: int) -> tuple[World, End, End]:
    """A pair; the end that is tested has one completion queue of two entries, which has overrun already."""
    world = World()
    small = CompletionQueue(world.b if receiver else world.a, log_size=1)
    a = End(world.a, service, cq=None if receiver else small)
    b = End(world.b, service, cq=small if receiver else None)
    a.connect(b, **fields)
    b.connect(a, **fields)
    end = b if receiver else a
    filler = overrun(small)
    assert end.card.events() == [(CQ_ERROR, 0), (CATASTROPHIC, filler)]
    return world, a, b


def post(a: End, b: End) -> None:
    if a.qp.service == ST_UD:
        a.datagram(a.buffer(8), 8, 2, b.qpn)
    else:
        a.send(a.buffer(8), 8)


@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
@pytest.mark.parametrize("receiver", [False, True])
def test_a_queue_pair_that_cannot_complete_ends_with_a_catastrophic_event(service: int, receiver: bool) -> None:
    world, a, b = single_cq(service, receiver)
    for _ in range(3):
        b.post_recv(b.buffer(48), 48)
    post(a, b)
    world.settle()
    end = b if receiver else a
    assert end.qp.state == ERR
    # Once, although its other receives are flushed into the same queue.
    assert [event for event in end.card.events() if event[0] != COMPLETION] == [(CATASTROPHIC, end.qpn)]
    assert end.card.hca.count[Count.CQES_LOST] >= 1


@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
def test_a_send_error_that_cannot_be_reported_is_one_too(service: int) -> None:
    world, a, _ = single_cq(service, receiver=False)
    if service == ST_UD:
        a.post(WqeOpcode.SEND, bytes(48))
    else:
        a.send(a.buffer(8), 8, key=BAD_KEY)
    world.settle()
    assert a.qp.state == ERR
    assert a.card.events() == [(CATASTROPHIC, a.qpn)]


def test_a_send_error_that_can_be_reported_ends_an_unreliable_send_queue_only() -> None:
    _, a, _ = pair(ST_UC)
    a.send(a.buffer(8), 8, key=BAD_KEY)
    assert a.qp.state == SQER
    assert a.card.events() == []


def test_a_datagram_too_long_for_a_shared_receive_is_lost_with_its_error() -> None:
    world = World()
    srq = SharedQueue(world.b)
    a, b = End(world.a, ST_UD), End(world.b, ST_UD, srq=srq)
    a.connect(b)
    b.connect(a)
    srq.post_recv(b.buffer(47), 47)
    srq.post_recv(b.buffer(47), 47)
    post(a, b)
    world.settle()
    assert [(c.good, b.qp.state == ERR) for c in b.recv_cq.poll()] == [(False, False)]
    overrun(b.recv_cq)
    b.card.events()
    post(a, b)
    world.settle()
    assert b.qp.state == ERR
    assert (CATASTROPHIC, b.qpn) in b.card.events()


def test_work_requests_under_way_that_cannot_be_flushed_are_one_event() -> None:
    world, a, b = single_cq(ST_RC, receiver=False)
    world.fault = lambda packet: []
    for _ in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    lost = a.card.hca.count[Count.CQES_LOST]
    assert a.apply(Op.QP_2ERR) == 0
    assert a.card.hca.count[Count.CQES_LOST] == lost + 3
    assert a.card.events() == [(CATASTROPHIC, a.qpn)]


@pytest.mark.parametrize("posted", [0, 1, 3])
def test_what_is_flushed_into_a_dead_queue_is_one_loss_for_each_side(posted: int) -> None:
    _, a, b = pair()
    for end in (a, b):
        overrun(end.send_cq)
        overrun(end.recv_cq)
    for _ in range(posted):
        a.post_recv()
        b.post(WqeOpcode.NOP, ring=False)
        b.card.memory.write(b.dbr + 4, b.sq_posted.to_bytes(4, "big"))
    for end in (a, b):
        lost = end.card.hca.count[Count.CQES_LOST]
        assert end.apply(Op.QP_2ERR) == 0
        assert end.card.hca.count[Count.CQES_LOST] == lost + bool(posted)
    # All of it is gone.
    lost = a.card.hca.count[Count.CQES_LOST]
    assert a.apply(Op.QP_2ERR) == 0
    assert a.card.hca.count[Count.CQES_LOST] == lost


def test_a_queue_pair_reset_tells_anew() -> None:
    world, a, b = single_cq(ST_RC, receiver=False)
    for _ in range(2):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
        world.settle()
        assert a.card.events() == [(CATASTROPHIC, a.qpn)]
        for end, peer in ((a, b), (b, a)):
            end.apply(Op.QP_2RST)
            end.sq_posted = end.rq_posted = 0
            end.connect(peer)
