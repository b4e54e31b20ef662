"""Answers of a responder that wait: resources, repeated requests, and the refusal that ends a connection."""

import pytest

from firmware.model.budget import ANSWER_BYTES
from firmware.model.counters import Count
from firmware.model.segment import BURST_BYTES
from firmware.transport.replies import AT_ONCE_BYTES, READ_BUDGET
from tests.scenario.tools import FIRST, Steps, inject, large_region, sent, stall, under_way
from tests.scenario.world import ERR, RTS, ST_RC, End, World, pair
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.packet import (
    ATOMIC_ACKNOWLEDGE,
    COMPARE_SWAP,
    FETCH_ADD,
    READ_REQUEST,
    SEND,
    WRITE,
    Packet,
)

ACCESS_ERROR, INVALID_REQUEST = 0x11, 0x10
NAK_INVALID, NAK_ACCESS = "syn=0x61", "syn=0x62"


def large_pair(**fields: int) -> tuple[World, End, End]:
    """A pair on cards with room for messages of some MiB."""
    return pair(ST_RC, World(64 << 20), {}, **fields)


@pytest.mark.parametrize("second", ["read", "atomic"])
def test_a_repeated_read_takes_no_resource_of_its_own(second: str) -> None:
    world, a, b = large_pair(log_sra_max=0, log_rra_max=0)
    size = 3 << 20
    target, source = a.buffer(size), b.buffer(size)
    a.read(target, size, source, b.card.key)
    # Starts when the first one is complete: one at a time, as was agreed.
    if second == "read":
        a.read(target, 64, source, b.card.key)
    else:
        a.atomic(WqeOpcode.ATOMIC_FA, target, source, b.card.key, 1)
    world.deliver()
    stall(world, a)
    world.pass_time(5_000_000_000)
    assert world.b.hca.count[Count.RX_DUPLICATE_REQUESTS] == 1
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert b.qp.state == RTS


def test_no_more_answers_are_repeated_at_a_time_than_there_are_resources() -> None:
    world, _, b = large_pair(log_rra_max=0)
    size = 3 << 20
    source = b.buffer(size)
    whole = size // BURST_BYTES
    used = world.b.hca.budget.used

    def ask() -> None:
        inject(world, b, op=READ_REQUEST, psn=FIRST, va=source, rkey=b.card.key, dma_length=size)

    ask()
    world.settle()
    ask()
    world.b.turn()
    assert whole < sent(world, "READ_RESP") < 2 * whole
    # The answer under way has begun, so that another one would be needed.
    ask()
    assert world.b.hca.count[Count.RX_DROP_STALE_DUPLICATE] == 1
    assert world.b.hca.budget.used == used + ANSWER_BYTES
    world.settle()
    assert world.b.hca.budget.used == used
    assert sent(world, "READ_RESP") == 2 * whole
    ask()
    world.settle()
    assert sent(world, "READ_RESP") == 3 * whole


@pytest.mark.parametrize("op", [READ_REQUEST, FETCH_ADD])
def test_more_requests_than_resources_are_refused_behind_the_answers_under_way(op: int) -> None:
    world, _, b = large_pair(log_rra_max=1)
    size = 3 << 20
    source = b.buffer(size)
    for number in range(2):
        inject(world, b, op=READ_REQUEST, psn=FIRST + number * 3072 & 0xFFFFFF, va=source, rkey=b.card.key,
               dma_length=size)  # fmt: skip
    inject(world, b, op=op, psn=FIRST + 6144 & 0xFFFFFF, va=source, rkey=b.card.key)
    assert b.qp.state == RTS
    world.settle()
    assert b.qp.state == ERR
    # the whole of both answers, then the NAK
    assert sent(world, "READ_RESP") == 2 * size // BURST_BYTES
    assert NAK_INVALID in world.ladder[-1]
    assert b.card.events() == [(ACCESS_ERROR, b.qpn)]
    assert b.peek(source, 8) == bytes(8)


def test_requests_that_were_answered_leave_room_for_others() -> None:
    world, _, b = pair(log_rra_max=1)
    source = b.buffer(64)
    for number in range(20):
        op = (READ_REQUEST, FETCH_ADD, COMPARE_SWAP)[number % 3]
        inject(world, b, op=op, psn=FIRST + number & 0xFFFFFF, va=source, rkey=b.card.key,
               dma_length=0 if op != READ_REQUEST else 64)  # fmt: skip
    assert b.qp.state == RTS
    assert sent(world, "ATOMIC_ACK") + sent(world, "READ_RESP") == 20


def test_a_refusal_is_one_nak_and_one_event_even_if_a_read_before_it_fails() -> None:
    world, _, b = large_pair()
    size = 3 << 20
    region = b.buffer(size)
    rkey = b.card.register(region, size)
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=region, rkey=rkey, dma_length=size)
    b.card.events()
    inject(world, b, op=SEND, psn=FIRST + 3072 & 0xFFFFFF, start=False, payload=b"x")
    b.card.destroy_key(rkey)
    world.settle()
    assert (sent(world, NAK_ACCESS), sent(world, NAK_INVALID)) == (1, 0)
    assert b.card.events() == [(ACCESS_ERROR, b.qpn)]
    assert b.card.hca.count[Count.NAKS] == 1


def test_a_refusal_waits_for_repeated_answers_and_no_step_does_more_than_its_share() -> None:
    world = World(64 << 20)
    a, b = End(world.a), End(world.b)
    for end, peer in ((a, b), (b, a)):
        end.connect(peer, mtu=5)
    size = 64 << 20
    (target, lkey), (source, rkey) = large_region(a, size), large_region(b, size)
    a.read(target, size, source, rkey, key=lkey, ring=False)
    a.write(a.buffer(8), 8, 0, 0x999900, ring=False)
    a.ring()
    world.deliver()
    stall(world, a)
    b.card.events()
    steps = Steps(b.card)
    world.settle()
    assert READ_BUDGET - BURST_BYTES <= steps.most_bytes <= READ_BUDGET + BURST_BYTES
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.REMOTE_ACCESS_ERR]
    assert b.qp.state == ERR
    assert b.card.events() == [(ACCESS_ERROR, b.qpn)]


def test_a_refusal_waits_for_a_long_answer_and_no_step_does_more_than_its_share() -> None:
    world, _, b = pair()
    size = 64 << 20
    source, rkey = large_region(b, size)
    steps = Steps(b.card)
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=source, rkey=rkey, dma_length=size)
    inject(world, b, op=WRITE, psn=FIRST + 65536 & 0xFFFFFF, va=0, rkey=0x999900, payload=b"x", dma_length=1)
    world.settle()
    assert READ_BUDGET - BURST_BYTES <= steps.most_bytes <= READ_BUDGET + BURST_BYTES
    assert sent(world, "READ_RESP") == size // BURST_BYTES
    assert NAK_ACCESS in world.ladder[-1]
    assert b.qp.state == ERR


def test_behind_a_refusal_no_request_is_taken() -> None:
    world, _, b = large_pair()
    size = 3 << 20
    source, target = b.buffer(size), b.buffer(8)
    key = b.card.key
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=source, rkey=key, dma_length=size)
    behind = FIRST + 3072 & 0xFFFFFF
    inject(world, b, op=WRITE, psn=behind, va=0, rkey=0x999900, payload=b"x", dma_length=1)
    assert b.qp.state == RTS
    waiting = len(b.qp.responder.replies)
    for psn in (FIRST, behind, behind + 1):
        inject(world, b, op=WRITE, psn=psn, va=target, rkey=key, payload=b"too late", dma_length=8, ack_req=True)
        inject(world, b, op=READ_REQUEST, psn=psn, va=source, rkey=key, dma_length=8)
    assert len(b.qp.responder.replies) == waiting
    assert b.card.hca.count[Count.RX_DROP_REFUSED] == 6
    world.settle()
    assert b.peek(target, 8) == bytes(8)
    assert sent(world, NAK_ACCESS) == 1
    assert NAK_ACCESS in world.ladder[-1]
    # A queue pair that starts anew takes requests again.
    b.apply(Op.QP_2RST)
    assert not b.qp.responder.refusing


def test_a_receive_under_way_fails_when_the_refusal_is_sent() -> None:
    world, _, b = large_pair()
    size = 3 << 20
    b.post_recv(b.buffer(8), 8)
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=b.buffer(size), rkey=b.card.key, dma_length=size)
    inject(world, b, op=SEND, psn=FIRST + 3072 & 0xFFFFFF, payload=bytes(9))
    assert b.recv_cq.poll() == []
    world.settle()
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_LENGTH_ERR]
    assert NAK_INVALID in world.ladder[-1]


def test_a_waiting_answer_is_answer_enough_for_a_repeated_request() -> None:
    world, _, b = large_pair(log_rra_max=1)
    size = 3 << 20
    source, counter = b.buffer(size), b.buffer((10).to_bytes(8, "little"))
    read = {"op": READ_REQUEST, "va": source, "rkey": b.card.key, "dma_length": size}
    add = {"op": FETCH_ADD, "psn": FIRST + 3072 & 0xFFFFFF, "va": counter, "rkey": b.card.key, "swap_add": 1}
    inject(world, b, psn=FIRST, **read)
    while not sent(world, "READ_RESP"):
        assert world.b.turn()
    inject(world, b, **add)
    for _ in range(5):
        inject(world, b, psn=FIRST, **read)
        inject(world, b, **add)
    # The first MiB has left and may be lost: of that a repeat is worth something, once.
    assert world.b.hca.count[Count.RX_DROP_STALE_DUPLICATE] == 9
    world.settle()
    assert sent(world, "ATOMIC_ACK") == 1
    assert sent(world, "READ_RESP") == 2 * size // BURST_BYTES
    assert b.peek(counter, 8) == (11).to_bytes(8, "little")


def test_a_repeated_atomic_is_answered_again_behind_what_waits() -> None:
    world, _, b = large_pair(log_rra_max=1)
    size = 3 << 20
    source, counter = b.buffer(size), b.buffer((10).to_bytes(8, "little"))
    results: list[int] = []

    def note(packet: Packet) -> list[Packet]:
        if packet.op == ATOMIC_ACKNOWLEDGE:
            results.append(packet.original)
        return [packet]

    world.fault = note
    add = {"op": FETCH_ADD, "psn": FIRST, "va": counter, "rkey": b.card.key, "swap_add": 1}
    inject(world, b, **add)
    inject(world, b, op=READ_REQUEST, psn=FIRST + 1, va=source, rkey=b.card.key, dma_length=size)
    for _ in range(3):
        inject(world, b, **add)
    world.settle()
    assert results == [10, 10]
    assert b.peek(counter, 8) == (11).to_bytes(8, "little")


def test_answers_that_wait_are_bounded_whatever_a_peer_sends() -> None:
    world, _, b = large_pair(log_rra_max=0)
    size = 3 << 20
    source, target = b.buffer(size), b.buffer(8)
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=source, rkey=b.card.key, dma_length=size)
    psn = FIRST + 3072
    for _ in range(1000):
        # A gap, then what was missing, each with an answer of its own.
        inject(world, b, op=WRITE, psn=psn + 1 & 0xFFFFFF)
        inject(world, b, op=WRITE, psn=psn & 0xFFFFFF, va=target, rkey=b.card.key, ack_req=True)
        psn += 1
    assert len(b.qp.responder.replies) == 20
    assert b.card.hca.count[Count.RX_DROP_REPLIES] > 1900
    world.settle()
    # What was dropped was not executed, and is taken when it comes again.
    inject(world, b, op=WRITE, psn=b.qp.responder.epsn, va=target, rkey=b.card.key, payload=b"at last!", dma_length=8)
    assert b.peek(target, 8) == b"at last!"
    assert b.qp.state == RTS


@pytest.mark.parametrize("which", ["beyond its end", "elsewhere", "with another key", "longer"])
def test_a_repeated_read_asks_for_a_part_of_the_original(which: str) -> None:
    world, _, b = pair()
    source, elsewhere = b.buffer(8192), b.buffer(b"secret" * 9)
    original = {"op": READ_REQUEST, "psn": FIRST, "va": source, "rkey": b.card.key, "dma_length": 2048}
    inject(world, b, **original)
    changed: dict[str, object] = {
        "beyond its end": {"psn": FIRST + 1, "va": source + 1024},
        "elsewhere": {"va": elsewhere, "dma_length": 54},
        "with another key": {"rkey": b.card.register(source, 8192)},
        "longer": {"dma_length": 3072},
    }[which]  # type: ignore[assignment]
    world.ladder.clear()
    inject(world, b, **{**original, **changed})
    assert sent(world, "READ_RESP") == 0
    assert b.card.hca.count[Count.RX_DROP_STALE_DUPLICATE] == 1
    for part in ({}, {"psn": FIRST + 1, "va": source + 1024, "dma_length": 1024}):
        inject(world, b, **{**original, **part})
    assert sent(world, "READ_RESP") == 2


@pytest.mark.parametrize("field", ["va", "rkey", "op"])
def test_a_repeated_atomic_is_the_same_request(field: str) -> None:
    world, _, b = pair()
    counter = b.buffer(64)
    add = {"op": FETCH_ADD, "psn": FIRST, "va": counter, "rkey": b.card.key, "swap_add": 1}
    inject(world, b, **add)
    other = {"va": counter + 8, "rkey": b.card.register(counter, 64), "op": COMPARE_SWAP}[field]
    inject(world, b, **{**add, field: other})
    assert sent(world, "ATOMIC_ACK") == 1
    inject(world, b, **add)
    assert sent(world, "ATOMIC_ACK") == 2
    assert b.peek(counter, 16) == (1).to_bytes(8, "little") + bytes(8)


def test_a_repeated_atomic_gets_its_own_result_and_not_that_of_one_lap_ago() -> None:
    world = World(64 << 20)
    a, b = End(world.a), End(world.b)
    for end, peer in ((a, b), (b, a)):
        end.connect(peer, mtu=1, log_rra_max=2)
    size = ((1 << 23) - 1) * 256
    page, rkey = large_region(b, size)
    counter = b.buffer((10).to_bytes(8, "little"))
    results: list[int] = []

    def note(packet: Packet) -> list[Packet]:
        if packet.op == ATOMIC_ACKNOWLEDGE:
            results.append(packet.original)
        return [packet] if packet.op in (FETCH_ADD, READ_REQUEST, WRITE) else []

    def request(**fields: object) -> None:
        inject(world, b, mtu=256, **fields)
        # Two READs of 2 GiB: their answers are of no interest here, but that they have been sent is.
        for resource in b.qp.responder.resources:
            # Past the door: see above.
            resource.answered = True
        # Past the door: see above.
        b.qp.responder.replies.clear()

    world.fault = note
    add = {"op": FETCH_ADD, "psn": FIRST, "va": counter, "rkey": b.card.key, "swap_add": 1}
    request(**add)
    request(op=READ_REQUEST, psn=FIRST + 1, va=page, rkey=rkey, dma_length=size)
    request(op=READ_REQUEST, psn=FIRST + (1 << 23) & 0xFFFFFF, va=page, rkey=rkey, dma_length=size)
    request(op=WRITE, psn=FIRST - 1)
    request(**add)
    request(**add)
    assert results == [10, 11, 11]


@pytest.mark.parametrize(("length", "answers"), [(7, 0), (8, 1), (9, 1)])
def test_an_atomic_needs_eight_bytes_of_the_key(length: int, answers: int) -> None:
    world, _, b = pair()
    counter = b.buffer(64)
    rkey = b.card.register(counter, length)
    inject(world, b, op=FETCH_ADD, psn=FIRST, va=counter, rkey=rkey, swap_add=1)
    assert sent(world, "ATOMIC_ACK") == answers
    assert sent(world, NAK_ACCESS) == 1 - answers


def test_a_long_answer_waits_for_its_turn_and_a_short_one_does_not() -> None:
    """Requests are taken while the cable is full: their answers must not pile up on it."""
    world, _, b = large_pair(log_rra_max=4)
    source = b.buffer(1 << 20)
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=source, rkey=b.card.key, dma_length=AT_ONCE_BYTES)
    assert sent(world, "READ_RESP") == 1
    psn = FIRST + AT_ONCE_BYTES // 1024
    for number in range(8):
        inject(world, b, op=READ_REQUEST, psn=psn + number * 1024 & 0xFFFFFF, va=source, rkey=b.card.key,
               dma_length=1 << 20)  # fmt: skip
    assert sent(world, "READ_RESP") == 1
    world.settle()
    assert sent(world, "READ_RESP") == 1 + 8 * (1 << 20) // BURST_BYTES


@under_way
def test_responses_in_parts_say_which_is_the_first_and_which_the_last() -> None:
    world, a, b = pair(world=World(16 << 20))
    size = 3 * BURST_BYTES
    a.read(a.buffer(size), size, b.buffer(size), b.card.key)
    world.deliver(1)
    while b.card.turn():
        pass
    responses = [packet for _, packet in world.queue]
    assert [(packet.start, packet.end) for packet in responses] == [(True, False), (False, False), (False, True)]
    assert {packet.route.vl for packet in responses} == {0}


def test_an_atomic_that_waited_behind_a_read_is_answered_once_it_is_sent() -> None:
    world, a, b = pair(log_rra_max=1, log_sra_max=1)
    counter, size = b.buffer(8), 8192
    a.read(a.buffer(size), size, b.buffer(size), b.card.key)
    for _ in range(3):
        a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), counter, b.card.key, 1)
        world.settle()
    # None of them was refused as one too many.
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 4
    assert b.peek(counter, 8) == (3).to_bytes(8, "little")
