"""The requester's patience: retries, timeouts, receivers that are not ready, fences, and answers that do not fit."""

from collections.abc import Mapping

import pytest

from firmware.model.counters import Count
from tests.scenario.tools import FIRST, inject, lose, sent, stall, under_way
from tests.scenario.world import ERR, RTS, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode
from vhca.wire.ib import split
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, READ_RESPONSE, Packet

SECOND = 1_000_000_000
# An acknowledgement with credits: one like any other, but no card of ours sends it.
OURS = 0x1E
RNR, NAK_SEQUENCE, NAK_ACCESS = 0x21, 0x60, 0x62


def only_ours(packet: Packet) -> list[Packet]:
    """A link that carries nothing but what a test injects."""
    return [packet] if packet.syndrome in (OURS, RNR, NAK_ACCESS) else []


def test_each_message_has_all_its_retries() -> None:
    world, a, b = pair(retry_count=1)
    # Request, request again, acknowledgement: the first of each three is lost.
    world.fault = lose({0, 3, 6, 9})
    for _ in range(4):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
        world.pass_time(SECOND)
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 4


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_message_has_no_more_retries_than_were_set(retries: int) -> None:
    world, a, b = pair(retry_count=retries)
    world.fault = lambda packet: []
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.pass_time(10 * SECOND)
    assert sent(world, "WRITE") == 1 + retries
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.TRANSPORT_RETRY_EXC_ERR]


def test_each_message_may_wait_for_a_receive_as_often() -> None:
    world, a, b = pair(rnr_retry=1)
    for _ in range(4):
        a.send(a.buffer(8), 8)
        world.settle()
        b.post_recv(b.buffer(8), 8)
        world.pass_time(10_000_000)
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 4


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_message_waits_for_a_receive_no_more_often_than_was_set(retries: int) -> None:
    world, a, _ = pair(rnr_retry=retries)
    a.send(a.buffer(8), 8)
    world.pass_time(10 * SECOND)
    assert sent(world, "SEND") == 1 + retries
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.RNR_RETRY_EXC_ERR]


def test_a_second_word_of_the_same_receiver_costs_no_further_retry() -> None:
    world, a, _ = pair(rnr_retry=1)
    world.fault = only_ours
    a.send(a.buffer(8), 8)
    for _ in range(3):
        inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=RNR)
    assert a.qp.state == RTS
    assert a.qp.requester.rnr_left == 0


def test_while_a_receiver_is_not_ready_nothing_is_sent() -> None:
    world, a, b = pair()
    world.fault = only_ours
    a.send(a.buffer(8), 8)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=RNR)
    world.ladder.clear()
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert world.ladder == []


def test_progress_starts_the_timeout_anew() -> None:
    world, a, b = pair()
    world.fault = only_ours
    for _ in range(2):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    # The timeout is 268 ms.
    world.pass_time(200_000_000)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=OURS)
    world.pass_time(200_000_000)
    assert world.a.hca.count[Count.RETRANSMITS] == 0
    world.pass_time(200_000_000)
    assert world.a.hca.count[Count.RETRANSMITS] == 1


def test_what_is_sent_again_has_all_its_time() -> None:
    world, a, b = pair()
    world.fault = only_ours
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.pass_time(200_000_000)
    world.fault = lambda packet: [packet] if packet.syndrome == NAK_SEQUENCE else []
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=NAK_SEQUENCE)
    world.settle()
    assert sent(world, "WRITE") == 2
    world.pass_time(200_000_000)
    assert sent(world, "WRITE") == 2
    world.pass_time(100_000_000)
    assert sent(world, "WRITE") == 3


def test_a_message_that_is_sent_again_after_a_wait_has_all_its_time() -> None:
    world, a, _ = pair()
    world.fault = only_ours
    a.send(a.buffer(8), 8)
    world.pass_time(200_000_000)
    world.fault = lambda packet: [packet] if packet.syndrome == RNR else []
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=RNR)
    world.pass_time(1_000_000)
    assert sent(world, "SEND") == 2
    world.pass_time(200_000_000)
    assert sent(world, "SEND") == 2
    world.pass_time(100_000_000)
    assert sent(world, "SEND") == 3


@pytest.mark.parametrize("op", [READ_RESPONSE, ATOMIC_ACKNOWLEDGE])
def test_a_response_to_what_asks_for_none_is_a_ghost(op: int) -> None:
    world, a, b = pair()
    world.fault = only_ours
    source = a.buffer(b"8 bytes!")
    a.write(source, 8, b.buffer(8), b.card.key)
    inject(world, a, op=op, psn=FIRST, syndrome=OURS, payload=b"x" * 8 * (op == READ_RESPONSE))
    assert (world.a.hca.count[Count.RX_GHOST_ACKS], world.a.hca.count[Count.RX_BYTES]) == (1, 0)
    assert (a.qp.requester.una, a.qp.state, a.send_cq.poll()) == (FIRST, RTS, [])
    assert a.peek(source, 8) == b"8 bytes!"


def test_nothing_outstanding_needs_no_timeout() -> None:
    world, a, b = pair()
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert a.card.hca.timers.next_deadline() is None
    world.pass_time(SECOND)
    assert world.a.hca.count[Count.RETRANSMITS] == 0


def test_a_lost_response_is_asked_for_once() -> None:
    world, a, b = pair()
    content = some_bytes(5 * 1024)
    target = a.buffer(len(content))
    whole = True

    def lose_the_first_of_five(packet: Packet) -> list[Packet]:
        nonlocal whole
        parts = split(packet)
        if packet.op == READ_RESPONSE and whole:
            whole = False
            return parts[1:]
        return parts

    world.fault = lose_the_first_of_five
    a.read(target, len(content), b.buffer(content), b.card.key)
    world.settle()
    assert a.peek(target, len(content)) == content
    assert sent(world, "READ_REQ") == 2


@pytest.mark.parametrize(
    "psn", [FIRST + 1, FIRST + 100, FIRST - 2, FIRST - 100], ids=["next", "later", "before", "long before"]
)
def test_an_acknowledgement_of_what_was_never_sent_is_a_ghost(psn: int) -> None:
    world, a, b = pair()
    world.fault = only_ours
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    inject(world, a, op=ACKNOWLEDGE, psn=psn & 0xFFFFFF, syndrome=OURS)
    assert world.a.hca.count[Count.RX_GHOST_ACKS] == 1
    assert a.send_cq.poll() == []
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=OURS)
    assert [c.syndrome for c in a.send_cq.poll()] == [0]


@pytest.mark.parametrize("syndrome", [NAK_ACCESS, RNR])
def test_a_refusal_of_what_was_acknowledged_is_a_ghost(syndrome: int) -> None:
    world, a, b = pair(rnr_retry=0)
    world.fault = only_ours
    for _ in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 1, syndrome=OURS)
    # An ACK of the newest acknowledged packet would be a repeated one.
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 1, syndrome=syndrome)
    assert (a.qp.state, len(a.send_cq.poll())) == (RTS, 2)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 2, syndrome=syndrome)
    assert a.qp.state == ERR


@pytest.mark.parametrize(
    ("size", "count", "end"),
    [(1024, 1, True), (2048, 2, False), (1023, 1, False), (2049, 3, True), (2000, 2, True), (3072, 3, False)],
)
def test_a_response_of_another_length_is_a_bad_one(size: int, count: int, end: bool) -> None:
    world, a, b = pair()
    world.fault = only_ours
    target = a.buffer(4096)
    a.read(target, 2048, b.buffer(2048), b.card.key)
    inject(world, a, op=READ_RESPONSE, psn=FIRST, syndrome=OURS, payload=b"x" * size, count=count, end=end)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.BAD_RESP_ERR]
    assert a.peek(target, 4096) == bytes(4096)


def test_the_answer_to_an_atomic_is_none_to_a_read() -> None:
    world, a, b = pair()
    world.fault = only_ours
    a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    inject(world, a, op=ATOMIC_ACKNOWLEDGE, psn=FIRST, syndrome=OURS)
    assert world.a.hca.count[Count.RX_GHOST_ACKS] == 1
    assert a.send_cq.poll() == []


@under_way
@pytest.mark.parametrize("fence", [2, 3, 4])
def test_every_fence_that_is_one_waits(fence: int) -> None:
    world, a, b = pair()
    middle, target = a.buffer(b"stale"), b.buffer(5)
    a.read(middle, 5, b.buffer(b"fresh"), b.card.key, ring=False)
    a.write(middle, 5, target, b.card.key, fence=fence, ring=False)
    a.ring()
    assert len(world.queue) == 1
    world.settle()
    assert b.peek(target, 5) == b"fresh"


@under_way
@pytest.mark.parametrize("fence", [0, 1])
def test_without_a_fence_nothing_waits(fence: int) -> None:
    world, a, b = pair()
    middle, target = a.buffer(b"stale"), b.buffer(5)
    a.read(middle, 5, b.buffer(b"fresh"), b.card.key, ring=False)
    a.write(middle, 5, target, b.card.key, fence=fence, ring=False)
    a.ring()
    assert len(world.queue) == 2


def test_a_wish_to_wait_is_counted_once_and_as_nothing_else() -> None:
    world, a, _ = pair()
    world.fault = only_ours
    a.send(a.buffer(8), 8)
    before = dict(a.card.hca.count)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST, syndrome=RNR)
    assert _new(before, a.card.hca.count) == {Count.RX_PACKETS: 1, Count.RX_RNR_NAKS: 1}


def _new(before: Mapping[Count, int], after: Mapping[Count, int]) -> dict[Count, int]:
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}


def test_a_sequence_error_is_one_retry_and_as_many_more_as_there_are_losses() -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.syndrome == NAK_SEQUENCE else []
    a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    before = dict(a.card.hca.count)
    # The NAK of the WRITE says that the READ was executed, and no more: its response was lost (9.7.5.2.3).
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 1, syndrome=NAK_SEQUENCE)
    assert _new(before, a.card.hca.count) == {Count.RX_PACKETS: 1, Count.RX_NAKS: 1, Count.RETRANSMITS: 1}
    assert a.qp.requester.retries_left == 2


@under_way
def test_what_is_acknowledged_before_it_is_sent_again_is_not_sent_again() -> None:
    world, a, b = pair()
    world.fault = only_ours
    for _ in range(2):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    # The timer expires, and before the turn that sends again the acknowledgement is there.
    stall(world, a)
    assert a.card.hca.count[Count.RETRANSMITS] == 1
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 1, syndrome=OURS)
    world.settle()
    assert (sent(world, "WRITE"), len(a.send_cq.poll())) == (2, 2)
    world.fault = None
    place = b.buffer(8)
    # Past the door: so it would be if the link, and not the test, had made up the acknowledgement.
    b.qp.responder.epsn = FIRST + 2
    a.write(a.buffer(b"8 bytes!"), 8, place, b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert (b.peek(place, 8), sent(world, "WRITE")) == (b"8 bytes!", 3)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_response_that_finds_no_place_is_not_counted_as_received(atomic: bool) -> None:
    world, a, b = pair()
    if atomic:
        a.post(WqeOpcode.ATOMIC_FA, RaddrSegment(raddr=b.buffer(8), rkey=b.card.key).to_bytes() + bytes(16)
               + a.sge(a.buffer(8), 8, 0xBAD00))  # fmt: skip
    else:
        a.read(a.buffer(8), 8, b.buffer(8), b.card.key, key=0xBAD00)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert a.card.hca.count[Count.RX_BYTES] == 0
    assert (a.qp.requester.una, a.qp.requester.reads) == (FIRST, 1)
