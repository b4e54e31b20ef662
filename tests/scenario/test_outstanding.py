"""What may be outstanding: READs, work requests, and what the card's budget counts for them."""

import pytest

from firmware.model.budget import WORK_REQUEST_BYTES
from firmware.model.counters import Count, QCount
from firmware.transport.requester import MAX_PENDING
from tests.scenario.test_xrc import xrc
from tests.scenario.tools import FIRST, inject, sent, stall, under_way
from tests.scenario.world import RTS, ST_RC, End, World, pair
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, FETCH_ADD, READ_REQUEST, READ_RESPONSE, XRC, Packet

OURS = 0x1E


def asked(world: World) -> int:
    """READ requests on the wire."""
    return sum(packet.op == READ_REQUEST for _, packet in world.queue)


@pytest.mark.parametrize("log_limit", [0, 1, 2])
def test_a_response_makes_room_for_one_read(log_limit: int) -> None:
    world, a, b = pair(log_sra_max=log_limit)
    world.fault = lambda packet: [packet] if packet.op == READ_REQUEST or packet.syndrome == OURS else []
    for _ in range(8):
        a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    under_way = 1 << log_limit
    assert asked(world) == under_way
    for number in range(3):
        world.queue.clear()
        inject(world, a, op=READ_RESPONSE, psn=FIRST + number, syndrome=OURS, payload=bytes(8))
        while a.card.turn():
            pass
        assert asked(world) == 1
    assert len(a.send_cq.poll()) == 3


@under_way
@pytest.mark.parametrize("log_limit", [0, 1])
def test_reads_that_are_sent_again_keep_to_the_limit(log_limit: int) -> None:
    world, a, b = pair(log_sra_max=log_limit)
    for _ in range(6):
        a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.queue.clear()
    stall(world, a)
    while a.card.turn():
        pass
    assert asked(world) == 1 << log_limit
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 6


def test_a_response_that_comes_before_its_read_is_sent_again_makes_room_once() -> None:
    world, a, b = pair(log_sra_max=1)
    world.fault = lambda packet: [packet] if packet.op == READ_REQUEST or packet.syndrome == OURS else []
    for _ in range(6):
        a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    stall(world, a)
    world.queue.clear()
    # Rewound, and not sent yet: the first responses come late.
    for psn in (FIRST, FIRST + 1):
        inject(world, a, op=READ_RESPONSE, psn=psn, syndrome=OURS, payload=bytes(8))
    world.queue.clear()
    while a.card.turn():
        pass
    assert asked(world) == 2
    assert len(a.send_cq.poll()) == 2


@under_way
def test_more_work_requests_than_may_be_under_way_go_on() -> None:
    world = World()
    a, b = End(world.a, log_sq=11), End(world.b)
    a.connect(b)
    b.connect(a)
    posted = MAX_PENDING + 100
    for _ in range(posted):
        a.write(0, 0, 0, 0, ring=False, ce=0)
    a.ring()
    world.settle()
    assert a.qp.sq is not None
    assert a.qp.sq.consumer == posted
    assert sent(world, "WRITE") == posted


def test_the_budget_counts_each_work_request_that_waits() -> None:
    world, a, b = pair()
    used = a.card.hca.budget.used
    world.fault = lambda packet: []
    for count in (1, 2, 3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
        assert a.card.hca.budget.used == used + count * WORK_REQUEST_BYTES
    world.fault = lambda packet: [packet] if packet.syndrome == OURS else []
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 1, syndrome=OURS)
    assert a.card.hca.budget.used == used + WORK_REQUEST_BYTES
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 2, syndrome=OURS)
    assert a.card.hca.budget.used == used


def test_an_answer_to_an_atomic_that_comes_twice_is_a_duplicate_and_no_more() -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.syndrome == OURS else []
    target = a.buffer(8)
    a.atomic(WqeOpcode.ATOMIC_FA, target, b.buffer(8), b.card.key, 1)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    for original in (7, 8):
        inject(world, a, op=ATOMIC_ACKNOWLEDGE, psn=FIRST, syndrome=OURS, original=original)
    assert (world.a.hca.count[Count.RX_DUPLICATE_RESPONSES], world.a.hca.count[Count.RX_GHOST_ACKS]) == (1, 0)
    assert a.peek(target, 8) == (7).to_bytes(8, "little")


@pytest.mark.parametrize("first", [0, 1, FIRST])
def test_an_acknowledgement_behind_a_read_does_not_stand_for_its_response(first: int) -> None:
    world, a, b = pair(next_send_psn=first, next_rcv_psn=first)
    world.fault = lambda packet: [packet] if packet.syndrome == OURS else []
    target = a.buffer(8)
    a.read(target, 8, b.buffer(b"response"), b.card.key)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    inject(world, a, op=ACKNOWLEDGE, psn=first + 1, syndrome=OURS)
    assert (a.send_cq.poll(), a.qp.requester.una) == ([], first)
    assert a.counter.values == {QCount.IMPLIED_NAK_SEQ_ERR: 1}
    world.fault = None
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert a.peek(target, 8) == b"response"


@pytest.mark.parametrize("packets", [1, 2])
def test_a_response_that_comes_twice_is_a_duplicate_to_its_last_packet(packets: int) -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.syndrome == OURS else []
    target = a.buffer(4096)
    for number in range(2):
        a.read(target + number * 2048, packets << 10, b.buffer(2048), b.card.key)
    for content in (b"x", b"y"):
        inject(world, a, op=READ_RESPONSE, psn=FIRST, count=packets, syndrome=OURS, payload=content * (packets << 10))
    assert a.qp.state == RTS
    assert world.a.hca.count[Count.RX_DUPLICATE_RESPONSES] == 1
    assert (world.a.hca.count[Count.RX_GHOST_ACKS], world.a.hca.count[Count.RX_BYTES]) == (0, packets << 10)
    assert a.peek(target, 4096) == (b"x" * (packets << 10)).ljust(4096, b"\0")


@pytest.mark.parametrize("atomic", [False, True])
def test_a_response_in_front_of_another_s_is_lost_and_no_ghost(atomic: bool) -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.syndrome == OURS else []
    target = a.buffer(8)
    a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    if atomic:
        a.atomic(WqeOpcode.ATOMIC_FA, target, b.buffer(8), b.card.key, 1)
        inject(world, a, op=ATOMIC_ACKNOWLEDGE, psn=FIRST + 1, syndrome=OURS, original=7)
    else:
        a.read(target, 8, b.buffer(8), b.card.key)
        inject(world, a, op=READ_RESPONSE, psn=FIRST + 1, syndrome=OURS, payload=b"too soon")
    assert (world.a.hca.count[Count.RX_GHOST_ACKS], world.a.hca.count[Count.RETRANSMITS]) == (0, 1)
    assert a.peek(target, 8) == bytes(8)
    world.fault = None
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]


def test_a_repeated_acknowledgement_is_no_progress() -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.syndrome == OURS else []
    for _ in range(2):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=OURS)
    stall(world, a)
    timers, left = a.card.hca.timers, a.qp.requester.retries_left
    while a.card.turn():
        pass
    deadline = timers.next_deadline()
    world.now_ns += 1000
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=OURS)
    assert (a.qp.requester.retries_left, timers.next_deadline()) == (left, deadline)
    assert deadline is not None
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 1, syndrome=OURS)
    assert timers.next_deadline() is None


def test_a_target_without_a_send_queue_takes_no_notice_of_an_acknowledgement() -> None:
    world, _, target, _, _ = xrc()
    world.settle()
    inject(world, target, op=ACKNOWLEDGE, service=XRC, psn=FIRST - 1, syndrome=OURS)
    assert (target.qp.state, target.card.hca.turns.take()) == (RTS, None)


def large_write(a: End, b: End, size: int) -> tuple[bytes, int]:
    content = bytes(range(256)) * (size >> 8)
    target = b.buffer(size)
    a.write(a.buffer(content), size, target, b.card.key)
    return content, target


@pytest.mark.parametrize("first", [0, FIRST])
def test_a_message_that_takes_many_steps_has_its_numbers_once(first: int) -> None:
    world, a, b = pair(ST_RC, World(16 << 20), next_send_psn=first, next_rcv_psn=first)
    content, target = large_write(a, b, 3 << 20)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert a.qp.requester.next_psn == first + 3072
    assert a.qp.requester.ssn == 1
    assert b.peek(target, len(content)) == content


def test_a_read_into_two_places() -> None:
    world, a, b = pair()
    first, second = a.buffer(3), a.buffer(5)
    remote = b.buffer(b"abcdefgh").to_bytes(8, "big") + b.card.key.to_bytes(4, "big") + bytes(4)
    a.post(WqeOpcode.RDMA_READ, remote + a.sge(first, 3) + a.sge(second, 5))
    world.settle()
    assert [(c.syndrome, c.size) for c in a.send_cq.poll()] == [(0, 8)]
    assert a.peek(first, 3) + a.peek(second, 5) == b"abcdefgh"


def test_each_operation_is_counted_where_it_is_executed() -> None:
    world, a, b = pair()
    place = b.buffer(64)
    a.write(a.buffer(5000), 5000, b.buffer(5000), b.card.key)
    for _ in range(2):
        a.read(a.buffer(8), 8, place, b.card.key)
    for _ in range(3):
        a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), place, b.card.key, 1)
    world.settle()
    assert b.counter.values == {QCount.RX_WRITE_REQUESTS: 1, QCount.RX_READ_REQUESTS: 2, QCount.RX_ATOMIC_REQUESTS: 3}
    assert a.counter.values == {}


def test_an_older_request_of_the_same_number_is_not_looked_at() -> None:
    """A lap of the circle ago an atomic had the number that a READ has now: it is not what is repeated."""
    world, _, b = pair(log_rra_max=2)
    counter = b.buffer(8)
    answers: list[Packet] = []

    def note(packet: Packet) -> list[Packet]:
        if packet.op == ATOMIC_ACKNOWLEDGE:
            answers.append(packet)
        return [packet]

    world.fault = note
    add = {"op": FETCH_ADD, "psn": FIRST, "va": counter, "rkey": b.card.key, "swap_add": 1}
    inject(world, b, **add)
    responder = b.qp.responder
    # Past the door: what lies between, a lap of the circle, is of no interest here.
    responder.epsn = FIRST
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=counter, rkey=b.card.key, dma_length=8)
    assert len(answers) == 1
    inject(world, b, **add)
    assert len(answers) == 1
    assert b.card.hca.count[Count.RX_DROP_STALE_DUPLICATE] == 1
