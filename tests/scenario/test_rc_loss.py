"""What a reliable connection does about what is lost, late or not taken: it asks again, waits, or gives up."""

import pytest

from firmware.model.counters import Count, QCount
from tests.scenario.tools import counter_set, lose
from tests.scenario.world import ERR, FOREVER_NS, RTS, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.ib import split
from vhca.wire.packet import ACKNOWLEDGE, READ_RESPONSE, Packet


@pytest.mark.parametrize("size", [100, 300_000])
def test_receiver_not_ready_waits_and_tries_again(size: int) -> None:
    world, a, b = pair()
    content = some_bytes(size)
    target = b.buffer(size)
    a.send(a.buffer(content), size)
    world.settle()
    assert world.b.hca.count[Count.RNR_NAKS] == 1
    assert a.send_cq.poll() == []
    b.post_recv(target, size)
    world.pass_time(1_000_000)
    assert b.peek(target, size) == content
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert len(b.recv_cq.poll()) == 1


def test_receiver_not_ready_gives_up_after_its_retries() -> None:
    world, a, _b = pair(rnr_retry=2)
    a.send(a.buffer(8), 8)
    a.send(a.buffer(8), 8)
    world.pass_time(50_000_000)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.RNR_RETRY_EXC_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert world.b.hca.count[Count.RNR_NAKS] == 3
    assert a.counter.values[QCount.REQ_RNR_RETRIES_EXCEEDED] == 1


def test_receiver_not_ready_for_ever_with_seven_retries() -> None:
    world, a, b = pair(rnr_retry=7)
    target = b.buffer(8)
    a.send(a.buffer(b"patience"), 8)
    world.pass_time(3_000_000)
    assert world.b.hca.count[Count.RNR_NAKS] > 100
    b.post_recv(target, 8)
    world.pass_time(1_000_000)
    assert b.peek(target, 8) == b"patience"


def test_lost_request_is_asked_for_by_one_nak() -> None:
    world, a, b = pair()
    target = b.buffer(64)
    world.fault = lose({0})
    for value in range(5):
        a.write(a.buffer(bytes([value]) * 64), 64, target, b.card.key, ring=False)
    a.ring()
    world.settle()
    assert b.peek(target, 64) == bytes([4]) * 64
    assert len(a.send_cq.poll()) == 5
    assert world.b.hca.count[Count.NAKS] == 1
    assert (b.counter.values[QCount.OUT_OF_SEQUENCE], a.counter.values[QCount.PACKET_SEQ_ERR]) == (4, 1)


def test_lost_acknowledgement_is_repeated_after_the_timeout() -> None:
    world, a, b = pair()
    target = b.buffer(8)
    b.post_recv(target, 8)
    world.fault = lose({1})
    a.send(a.buffer(8), 8)
    world.settle()
    assert a.send_cq.poll() == []
    world.pass_time(400_000_000)
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert len(b.recv_cq.poll()) == 1
    assert b.counter.values[QCount.DUPLICATE_REQUEST] == 1
    assert a.counter.values[QCount.LOCAL_ACK_TIMEOUT_ERR] == 1


def test_silence_ends_in_transport_retry_exceeded() -> None:
    world, a, b = pair(retry_count=2)
    world.fault = lambda packet: []
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ce=0)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ce=0)
    world.pass_time(1_000_000_000)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.TRANSPORT_RETRY_EXC_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert a.qp.state == ERR
    assert world.a.hca.count[Count.RETRANSMITS] == 2


def test_timeout_zero_waits_for_ever() -> None:
    world, a, b = pair(path_ack_timeout=0)
    world.fault = lambda packet: []
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.pass_time(100_000_000_000)
    assert a.qp.state == RTS


def test_lost_read_response_is_read_again_from_where_it_stopped() -> None:
    world, a, b = pair()
    content = some_bytes(700_000)
    source, target = b.buffer(content), a.buffer(700_000)
    # request, then bursts of responses: the second one is lost
    world.fault = lose({2})
    a.read(target, 700_000, source, b.card.key)
    world.pass_time(400_000_000)
    assert a.peek(target, 700_000) == content
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    requests = [line for line in world.ladder if "READ_REQ" in line]
    assert len(requests) == 2
    assert a.counter.values[QCount.IMPLIED_NAK_SEQ_ERR] == 1


def test_acknowledgement_beyond_a_read_implies_that_its_response_was_lost() -> None:
    world, a, b = pair()
    target = a.buffer(64)
    world.fault = lose({2})
    a.read(target, 64, b.buffer(b"r" * 64), b.card.key, ring=False)
    a.write(a.buffer(64), 64, b.buffer(64), b.card.key, ring=False)
    a.ring()
    world.settle()
    assert a.peek(target, 64) == b"r" * 64
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert a.counter.values[QCount.IMPLIED_NAK_SEQ_ERR] == 1


def test_counters_of_a_peer_without_receives() -> None:
    """Each RNR NAK that leads to another try is counted, the one that ends the trying is not."""
    world, a, b = pair(rnr_retry=2)
    a.send(a.buffer(8), 8)
    world.pass_time(FOREVER_NS)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.RNR_RETRY_EXC_ERR]
    assert counter_set(a) == {"rnr_nak_retry_err": 2, "req_rnr_retries_exceeded": 1, "req_cqe_error": 1}
    assert b.counter.values[QCount.OUT_OF_BUFFER] == 3


def test_counters_of_a_silent_peer() -> None:
    world, a, _ = pair(retry_count=2)
    world.fault = lambda packet: []
    a.write(a.buffer(8), 8, 0, 0)
    a.write(a.buffer(8), 8, 0, 0)
    world.pass_time(FOREVER_NS)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.TRANSPORT_RETRY_EXC_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert counter_set(a) == {
        # Every expiry, also the last one, after which there is no retry left.
        "local_ack_timeout_err": 3,
        "req_transport_retries_exceeded": 1,
        "req_cqe_error": 2,
        "req_cqe_flush_error": 1,
    }


def test_a_response_that_implies_an_ack_does_not_stand_in_for_the_lost_response_before_it() -> None:
    world, a, b = pair()
    content = some_bytes(3000)
    back = a.buffer(3000)

    def lose_ack_and_first_response(packet: Packet) -> list[Packet]:
        if packet.op == ACKNOWLEDGE and packet.msn == 1:
            return []
        if packet.op == READ_RESPONSE and world.fault is not None:
            world.fault = None
            return split(packet)[1:]
        return [packet]

    world.fault = lose_ack_and_first_response
    b.post_recv()
    a.send(0, 0)
    a.read(back, 3000, b.buffer(content), b.card.key)
    world.pass_time(1_000_000_000)
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert a.peek(back, 3000) == content
