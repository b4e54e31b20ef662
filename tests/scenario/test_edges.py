"""Rare turns of the road: memory that is not there, answers that do not fit, duplicates of answers, dead queues."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firmware.model.counters import Count
from firmware.model.qp import RTR, SQER
from tests.scenario.tools import counted, inject, under_way
from tests.scenario.world import ERR, RTS, ST_RC, ST_UC, ST_UD, CompletionQueue, End, World, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode
from vhca.wire.ib import split
from vhca.wire.packet import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    FETCH_ADD,
    READ_REQUEST,
    READ_RESPONSE,
    WRITE,
    Grh,
    Packet,
)

NOWHERE = 1 << 50


@pytest.mark.parametrize(("service", "state"), [(ST_RC, ERR), (ST_UC, SQER), (ST_UD, SQER)])
@pytest.mark.parametrize("what", ["record", "ring"])
def test_send_queue_that_cannot_be_read_is_a_fatal_event(service: int, state: int, what: str) -> None:
    world = World()
    peer = End(world.b, service)
    a = End(world.a, service, dbr_addr=NOWHERE) if what == "record" else End(world.a, service, pages=[NOWHERE] * 2)
    a.connect(peer)
    a.post(WqeOpcode.NOP)
    assert a.qp.state == state
    assert (0x05, a.qpn) in world.a.events()
    assert world.a.hca.count[Count.DMA_READ_ERRORS] >= 1


@pytest.mark.parametrize(("service", "names"), [(ST_RC, (0x05,)), (ST_UC, (0x05,)), (ST_UD, (0x05,))])
def test_receive_queue_that_cannot_be_read_is_a_fatal_event(service: int, names: tuple[int, ...]) -> None:
    world = World()
    a, b = End(world.a, service), End(world.b, service, dbr_addr=NOWHERE)
    a.connect(b)
    b.connect(a)
    if service == ST_UD:
        a.datagram(a.buffer(8), 8, 2, b.qpn)
    else:
        a.send(a.buffer(8), 8)
    world.settle()
    assert b.qp.state == ERR
    assert [event for event, _ in world.b.events()] == list(names)
    if service == ST_RC:
        assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_OP_ERR]


def test_receive_with_a_bad_key_is_a_remote_operation_error() -> None:
    world, a, b = pair()
    b.post_recv(b.buffer(8), 8, key=0x999900)
    a.send(a.buffer(8), 8)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_OP_ERR]
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR]


def test_datagram_receive_with_a_bad_key_ends_the_queue_pair() -> None:
    world, a, b = pair(ST_UD)
    b.post_recv(b.buffer(60), 60, key=0x999900)
    a.datagram(a.buffer(8), 8, 2, b.qpn)
    world.settle()
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR]
    assert b.qp.state == ERR


@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
def test_dead_send_cq_ends_the_queue_pair(service: int) -> None:
    world = World()
    small = CompletionQueue(world.a, log_size=1)
    a, b = End(world.a, service, cq=small), End(world.b, service)
    a.connect(b)
    b.connect(a)
    for _ in range(4):
        if service == ST_UD:
            a.datagram(a.buffer(8), 8, 2, b.qpn)
        else:
            a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert a.qp.state == ERR
    assert 0x04 in [event for event, _ in world.a.events()]


@pytest.mark.parametrize(
    "answer",
    [
        {"payload": bytes(63)},
        {"payload": bytes(65)},
        {"payload": bytes(1024), "end": False},
        {"payload": bytes(2048), "count": 2},
    ],
)
def test_answer_of_the_wrong_length_is_a_bad_response(answer: dict[str, object]) -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.op == READ_RESPONSE and packet.syndrome == 0x1E else []
    a.read(a.buffer(64), 64, b.buffer(64), b.card.key)
    inject(world, a, op=READ_RESPONSE, psn=0xFFFFF0, syndrome=0x1E, **answer)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.BAD_RESP_ERR]


def test_answer_of_another_kind_is_ignored() -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.syndrome == 0x1E else []
    a.read(a.buffer(64), 64, b.buffer(64), b.card.key)
    inject(world, a, op=ATOMIC_ACKNOWLEDGE, psn=0xFFFFF0, syndrome=0x1E)
    assert world.a.hca.count[Count.RX_GHOST_ACKS] == 1
    assert a.qp.state == RTS


def test_reserved_acknowledgement_is_a_counted_drop() -> None:
    world, a, b = pair()
    world.fault = lambda packet: [packet] if packet.op == ACKNOWLEDGE and packet.syndrome == 0x7F else []
    a.write(a.buffer(64), 64, b.buffer(64), b.card.key)
    inject(world, a, op=ACKNOWLEDGE, psn=0xFFFFF0, syndrome=0x7F)
    assert world.a.hca.count[Count.RX_DROP_SYNDROME] == 1
    assert a.qp.state == RTS


def test_answers_that_come_twice_are_cut_or_dropped() -> None:
    world, a, b = pair()
    content = some_bytes(4096)
    target = a.buffer(4096)
    world.fault = lambda packet: []
    a.read(target, 4096, b.buffer(content), b.card.key)
    world.fault = None
    inject(world, a, op=READ_RESPONSE, psn=0xFFFFF0, payload=content[:2048], count=2, end=False)
    inject(world, a, op=READ_RESPONSE, psn=0xFFFFF0, payload=content[:1024], end=False)
    inject(world, a, op=READ_RESPONSE, psn=0xFFFFF0, payload=content, count=4)
    assert a.peek(target, 4096) == content
    assert [c.syndrome for c in a.send_cq.poll()] == [0]


def test_acknowledgement_inside_a_read_brings_no_data_and_completes_nothing() -> None:
    world, a, b = pair()
    content = some_bytes(4096)
    target = a.buffer(4096)
    world.fault = lambda packet: []
    a.read(target, 4096, b.buffer(content), b.card.key)
    world.fault = None
    inject(world, a, op=ACKNOWLEDGE, psn=0xFFFFF1, syndrome=0x1F)
    assert a.send_cq.poll() == []
    assert a.qp.requester.una == 0xFFFFF0
    world.pass_time(400_000_000)
    assert a.peek(target, 4096) == content
    assert [c.syndrome for c in a.send_cq.poll()] == [0]


def test_duplicate_read_is_answered_again_and_a_forgotten_one_is_not() -> None:
    world, a, b = pair(log_rra_max=0)
    source = b.buffer(b"r" * 64)
    fields = {"op": READ_REQUEST, "va": source, "rkey": b.card.key, "dma_length": 64}
    inject(world, b, psn=0xFFFFF0, **fields)
    inject(world, b, psn=0xFFFFF0, **fields)
    assert sum("READ_RESP" in line for line in world.ladder) == 2
    inject(world, b, psn=0xFFFFF1, **fields)
    inject(world, b, psn=0xFFFFF0, **fields)
    assert world.b.hca.count[Count.RX_DROP_STALE_DUPLICATE] == 1
    # A duplicate must not reach further than the original did.
    inject(world, b, psn=0xFFFFF1, **{**fields, "dma_length": 65})
    assert world.b.hca.count[Count.RX_DROP_STALE_DUPLICATE] == 2
    assert a.qp.state == RTS


def test_duplicate_of_an_atomic_under_another_operation_is_stale() -> None:
    world, _, b = pair()
    place = b.buffer(8)
    fields = {"va": place, "rkey": b.card.key, "swap_add": 1, "psn": 0xFFFFF0}
    inject(world, b, op=FETCH_ADD, **fields)
    inject(world, b, op=READ_REQUEST, dma_length=8, **fields)
    assert world.b.hca.count[Count.RX_DROP_STALE_DUPLICATE] == 1
    assert b.peek(place, 8) == (1).to_bytes(8, "little")


@under_way
def test_global_route_is_checked_in_both_directions() -> None:
    world = World()
    a, b = End(world.a), End(world.b)
    for end, peer in ((a, b), (b, a)):
        end.to_init()
        end.to_rtr(peer, path_grh=1, path_rgid_rip=peer.card.port.gids[0], path_hop_limit=7)
        end.to_rts()
    target = b.buffer(8)
    a.write(a.buffer(b"with GRH"), 8, target, b.card.key)
    grh = world.queue[0][1].route.grh
    assert grh is not None
    assert (grh.sgid, grh.dgid, grh.hop_limit) == (world.a.port.gids[0], world.b.port.gids[0], 7)
    world.settle()
    assert b.peek(target, 8) == b"with GRH"
    for wrong in (None, Grh(bytes(16), world.b.port.gids[0])):
        inject(world, b, op=WRITE, psn=0xFFFFF1, grh=wrong)
    assert world.b.hca.count[Count.RX_DROP_GID] == 2


def test_first_packet_in_rtr_announces_the_connection() -> None:
    world = World()
    a, b = End(world.a), End(world.b)
    a.connect(b)
    b.to_init()
    b.to_rtr(a)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert b.qp.state == RTR
    assert world.b.events() == [(0x02, b.qpn)]


@under_way
def test_key_that_is_invalidated_during_a_message_stops_it() -> None:
    world, a, b = pair()
    region = b.buffer(400_000)
    rkey = b.card.register(region, 400_000)
    a.write(a.buffer(400_000), 400_000, region, rkey)
    world.deliver()
    world.b.destroy_key(rkey)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]


def test_memory_that_goes_during_a_long_read() -> None:
    world, a, b = pair(world=World(32 << 20))
    size = 3 << 20
    region = b.buffer(size)
    rkey = b.card.register(region, size)
    a.read(a.buffer(size), size, region, rkey)
    world.deliver()
    world.b.destroy_key(rkey)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]
    assert b.qp.state == ERR


def test_local_error_in_the_middle_of_a_long_message() -> None:
    world, a, b = pair()
    source = a.buffer(400_000)
    segments = a.sge(source, 300_000) + a.sge(source, 100_000, 0x123400)
    a.write(source, 8, b.buffer(8), b.card.key)
    b.post_recv(b.buffer(400_000), 400_000)
    a.post(WqeOpcode.SEND, segments)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.LOCAL_PROT_ERR]
    # The peer is left with half a message: its receive is flushed when it leaves the state.
    assert b.recv_cq.poll() == []
    b.apply(Op.QP_2ERR)
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.WR_FLUSH_ERR]


def test_inactive_port_loses_what_is_sent_and_the_retry_brings_it() -> None:
    world, a, b = pair()
    target = b.buffer(8)
    world.a.unplug()
    a.write(a.buffer(b"after up"), 8, target, b.card.key)
    assert not world.queue
    assert world.a.hca.count[Count.TX_DROP_PORT_INACTIVE] == 1
    world.a.plug(1)
    world.pass_time(400_000_000)
    assert b.peek(target, 8) == b"after up"


def reorder(first: int, second: int) -> Callable[[Packet], list[Packet]]:
    """A link on which packet number `second` overtakes `first`."""
    held: list[Packet] = []
    numbers = iter(range(1 << 30))

    def link(packet: Packet) -> list[Packet]:
        number = next(numbers)
        if number == first:
            held.append(packet)
            return []
        return [packet, *held] if number == second else [packet]

    return link


def test_reordered_requests_still_arrive_once() -> None:
    world, a, b = pair()
    place = b.buffer(8)
    world.fault = reorder(0, 1)
    for _ in range(3):
        a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), place, b.card.key, 1, ring=False)
    a.ring()
    world.pass_time(400_000_000)
    assert b.peek(place, 8) == (3).to_bytes(8, "little")
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 3


@under_way
def test_more_posted_than_a_step_takes_goes_on_in_the_next() -> None:
    world = World()
    cq = CompletionQueue(world.a, log_size=10)
    a, b = End(world.a, log_sq=9, cq=cq), End(world.b)
    a.connect(b)
    b.connect(a)
    target, source = b.buffer(8), a.buffer(8)
    for _ in range(500):
        a.write(source, 8, target, b.card.key, ring=False)
    a.ring()
    assert 0 < len(world.queue) < 500
    world.settle()
    assert [c.counter for c in cq.poll()] == list(range(500))


def test_more_datagrams_than_a_step_takes_go_on_in_the_next() -> None:
    world = World()
    cq = CompletionQueue(world.a, log_size=10)
    a, b = End(world.a, ST_UD, log_sq=10, cq=cq), End(world.b, ST_UD)
    a.connect(b)
    b.connect(a)
    source = a.buffer(8)
    for _ in range(200):
        a.datagram(source, 8, 2, b.qpn, ring=False)
    a.ring()
    assert 0 < len(world.queue) < 200
    world.settle()
    assert len(cq.poll()) == 200


def test_the_doorbell_alone_posts_to_a_queue_without_a_record() -> None:
    world, a, b = pair(made={"send_dbr_mode": 1})
    target = b.buffer(64)
    for turn in range(100):
        a.write(a.buffer(turn.to_bytes(8, "big")), 8, target, world.b.key, ring=False)
        world.a.memory.write(a.dbr + 4, (a.sq_posted & 0xFFFF).to_bytes(4, "big"))
        # A request to look at the queue, which is not the doorbell: the record says nothing.
        a.apply(Op.RTS2RTS_QP)
        world.settle()
        assert not a.send_cq.poll()
        a.ring()
        world.settle()
        assert [c.syndrome for c in a.send_cq.poll()] == [0]
        assert b.peek(target, 8) == turn.to_bytes(8, "big")


def test_inline_data_in_two_packets_are_sent_again_from_the_second_on() -> None:
    world, a, b = pair(mtu=1)
    content = some_bytes(600)
    target = b.buffer(600)
    segments = RaddrSegment(raddr=target, rkey=b.card.key).to_bytes()
    lost: list[Packet] = []

    def lose_the_last(packet: Packet) -> list[Packet]:
        first, *others = split(packet)
        if others and not lost:
            lost.extend(others)
            return [replace(first, ack_req=True)]
        return [packet]

    world.fault = lose_the_last
    a.post(WqeOpcode.RDMA_WRITE, segments + (1 << 31 | 600).to_bytes(4, "big") + content)
    world.pass_time(500_000_000)
    assert sum("WRITE[L]" in line for line in world.ladder) == 1
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert b.peek(target, 600) == content


@pytest.mark.parametrize(("size", "status"), [(1024, 0), (1025, CqeSyndrome.LOCAL_LENGTH_ERR)])
def test_a_message_is_as_long_as_was_set_at_most(size: int, status: int) -> None:
    world, a, b = pair(log_msg_max=10)
    a.write(a.buffer(size), size, b.buffer(size), b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [status]


def test_a_port_that_is_down_executes_nothing() -> None:
    world, a, b = pair()
    b.card.unplug()
    place = b.buffer(8)
    b.post_recv(b.buffer(8), 8)
    a.write(a.buffer(b"8 bytes!"), 8, place, b.card.key)
    a.send(a.buffer(8), 8)
    world.deliver(2)
    # An event tells the host of the cable.
    assert counted(b.card.hca.count) == {Count.RX_DROP_PORT_INACTIVE: 2, Count.EQES: 1}
    assert (b.peek(place, 8), b.recv_cq.poll(), len(world.queue)) == (bytes(8), [], 0)
