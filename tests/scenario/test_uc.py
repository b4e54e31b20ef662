"""Unreliable connection: whole messages or none, and not a word about it."""

import pytest

from firmware.model.counters import Count, QCount
from firmware.model.qp import SQER
from tests.scenario.tools import FIRST, counted, inject
from tests.scenario.world import ERR, ST_UC, CompletionQueue, End, World, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import Cqe64, CqeOpcode, CqeSyndrome
from vhca.wire.connectx.eqe import EventType
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.ib import split
from vhca.wire.packet import FETCH_ADD, READ_REQUEST, SEND, UC, WRITE, Packet


@pytest.mark.parametrize("size", [0, 1, 5000, 600_000])
def test_write_and_send_arrive_and_complete_at_once(size: int) -> None:
    world, a, b = pair(ST_UC)
    content = some_bytes(size)
    target, place = b.buffer(size), b.buffer(size)
    b.post_recv(place, size)
    a.write(a.buffer(content), size, target, b.card.key)
    a.send(a.buffer(content), size, imm=3)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert b.peek(target, size) == b.peek(place, size) == content
    (got,) = b.recv_cq.poll()
    assert (got.kind, got.size, got.extra) == (CqeOpcode.RESP_SEND_IMM, size, 3)
    assert not any("ACK" in line for line in world.ladder)


def test_write_with_immediate() -> None:
    world, a, b = pair(ST_UC)
    target = b.buffer(5000)
    b.post_recv()
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(b"u" * 5000), 5000, target, b.card.key, imm=9)
    world.settle()
    (got,) = b.recv_cq.poll()
    assert (got.kind, got.size, got.extra) == (CqeOpcode.RESP_WR_IMM, 5000, 9)


def test_message_with_a_hole_is_dropped_and_its_receive_serves_the_next_one() -> None:
    world, a, b = pair(ST_UC)
    first = True

    def drop_second_packet(packet: Packet) -> list[Packet]:
        nonlocal first
        parts = split(packet)
        if first:
            del parts[1]
            first = False
        return parts

    world.fault = drop_second_packet
    target = b.buffer(4096)
    b.post_recv(target, 4096)
    a.send(a.buffer(b"lost" * 1024), 4096)
    a.send(a.buffer(b"next" * 1024), 4096)
    world.settle()
    (got,) = b.recv_cq.poll()
    assert (got.counter, b.peek(target, 4096)) == (0, b"next" * 1024)
    assert world.b.hca.count[Count.RX_DROP_UC_SEQUENCE] == 2


@pytest.mark.parametrize("mistake", ["no_receive", "too_long", "right", "key"])
def test_what_cannot_be_taken_is_dropped_and_counted(mistake: str) -> None:
    world, a, b = pair(ST_UC, None, rwe=0 if mistake == "right" else 1)
    counter = {"no_receive": Count.RX_DROP_NO_RECEIVE, "too_long": Count.RX_DROP_TOO_LONG,
               "right": Count.RX_DROP_UC_RIGHTS, "key": Count.RX_DROP_UC_KEY}[mistake]  # fmt: skip
    if mistake == "too_long":
        b.post_recv(b.buffer(4), 4)
    if mistake in ("no_receive", "too_long"):
        a.send(a.buffer(8), 8)
    else:
        a.write(a.buffer(8), 8, b.buffer(8), 0x777700 if mistake == "key" else b.card.key)
    world.settle()
    assert a.send_cq.poll()[0].good
    assert b.recv_cq.poll() == []
    assert world.b.hca.count[counter] == 1


def test_read_and_atomics_are_not_offered() -> None:
    for opcode in (WqeOpcode.RDMA_READ, WqeOpcode.ATOMIC_FA):
        _, a, b = pair(ST_UC)
        a.rdma(opcode, a.buffer(8), 8, b.buffer(8), b.card.key)
        assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_QP_OP_ERR]
        assert a.qp.state == SQER


def test_bad_receive_key_ends_the_queue_pair() -> None:
    world, a, b = pair(ST_UC)
    b.post_recv(b.buffer(8), 8, key=0x999900)
    a.send(a.buffer(8), 8)
    world.settle()
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR]
    assert b.qp.state == ERR


def test_connection_starts_anywhere() -> None:
    world = World()
    world, a, b = pair(ST_UC, world, next_rcv_psn=5)
    target = b.buffer(8)
    a.write(a.buffer(b"whatever"), 8, target, b.card.key)
    world.settle()
    assert b.peek(target, 8) == b"whatever"


def test_after_a_send_error_and_its_recovery_messages_go_on() -> None:
    world, a, b = pair(ST_UC)
    content = some_bytes(3000)
    place = b.buffer(3000)
    b.post_recv(place, 3000)
    # A message of several packets whose key is wrong: none of them leaves.
    a.post(WqeOpcode.SEND, a.sge(a.buffer(content), 3000, key=0xBAD00))
    world.settle()
    assert a.qp.state == SQER
    a.send_cq.poll()
    assert a.apply(Op.SQERR2RTS_QP) == 0
    a.post(WqeOpcode.SEND, a.sge(a.buffer(content), 3000))
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert [c.size for c in b.recv_cq.poll()] == [3000]
    assert b.peek(place, 3000) == content


def test_after_a_flush_and_its_recovery_a_message_of_many_steps_goes_on() -> None:
    world, a, b = pair(ST_UC, World(16 << 20))
    size = 3 << 20
    content = some_bytes(size)
    source, target = a.buffer(content), b.buffer(size)
    # The first one is under way, one is fetched behind it and one is not, when the error comes.
    for key in (0xBAD00, a.card.key, a.card.key):
        a.write(source, size, target, b.card.key, key=key, ring=False)
    a.ring()
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR] + [CqeSyndrome.WR_FLUSH_ERR] * 2
    assert a.apply(Op.SQERR2RTS_QP) == 0
    for _ in range(2):
        a.write(source, size, target, b.card.key, ring=False)
    a.ring()
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert b.peek(target, size) == content
    assert b.counter.values == {QCount.RX_WRITE_REQUESTS: 2}


def test_the_first_message_establishes_the_connection_of_a_receiver() -> None:
    world = World()
    a, b = End(world.a, ST_UC), End(world.b, ST_UC)
    a.connect(b)
    b.to_init()
    b.to_rtr(a)
    for _ in range(2):
        b.post_recv(b.buffer(8), 8)
        a.send(a.buffer(8), 8)
    world.settle()
    assert world.b.events() == [(EventType.COMM_EST, b.qpn)]
    assert len(b.recv_cq.poll()) == 2


def test_a_write_with_immediate_that_finds_no_receive_is_dropped_as_a_whole() -> None:
    world, a, b = pair(ST_UC)
    target = b.buffer(8)
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(b"8 bytes!"), 8, target, b.card.key, imm=1)
    world.settle()
    assert b.peek(target, 8) == bytes(8)
    assert world.b.hca.count[Count.RX_DROP_NO_RECEIVE] == 1
    assert b.counter.values == {QCount.OUT_OF_BUFFER: 1}
    b.post_recv()
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(b"8 bytes!"), 8, target, b.card.key, imm=1)
    world.settle()
    assert b.peek(target, 8) == b"8 bytes!"
    assert b.counter.values == {QCount.OUT_OF_BUFFER: 1, QCount.RX_WRITE_REQUESTS: 1}


def test_a_send_that_finds_no_receive_is_counted_for_its_queue_pair() -> None:
    world, a, b = pair(ST_UC)
    a.send(a.buffer(8), 8)
    world.settle()
    assert b.counter.values == {QCount.OUT_OF_BUFFER: 1}


@pytest.mark.parametrize(
    ("fields", "counter"),
    [
        ({"payload": bytes(1025)}, Count.RX_DROP_MALFORMED),
        ({"payload": bytes(1023), "end": False}, Count.RX_DROP_MALFORMED),
        ({"payload": bytes(1024), "count": 2}, Count.RX_DROP_MALFORMED),
        ({"op": READ_REQUEST}, Count.RX_DROP_UC_OPCODE),
        ({"op": FETCH_ADD}, Count.RX_DROP_UC_OPCODE),
        ({"start": False, "payload": b"x"}, Count.RX_DROP_UC_SEQUENCE),
    ],
)
def test_a_packet_that_is_none_of_a_message_is_dropped_for_one_reason(
    fields: dict[str, object], counter: Count
) -> None:
    world, _, b = pair(ST_UC)
    target = b.buffer(4096)
    base = {"service": UC, "op": WRITE, "psn": FIRST, "va": target, "rkey": b.card.key,
            "dma_length": len(fields.get("payload", b""))}  # type: ignore[arg-type]  # fmt: skip
    inject(world, b, **{**base, **fields})
    assert counted(world.b.hca.count) == {Count.RX_PACKETS: fields.get("count", 1), counter: 1}
    # And the next message is taken.
    inject(world, b, **{**base, "psn": FIRST + 1, "payload": b"next", "dma_length": 4})
    assert b.peek(target, 5) == b"next\0"


@pytest.mark.parametrize("size", [8, 24])
def test_a_write_of_more_or_less_than_it_announces_is_dropped(size: int) -> None:
    world, _, b = pair(ST_UC)
    target = b.buffer(64)
    inject(world, b, service=UC, op=WRITE, psn=FIRST, va=target, rkey=b.card.key, dma_length=16, payload=b"x" * size)
    assert b.peek(target, 64) == bytes(64)
    assert counted(world.b.hca.count) == {Count.RX_PACKETS: 1, Count.RX_DROP_UC_LENGTH: 1}


def test_a_key_that_goes_during_a_message_stops_it() -> None:
    world, _, b = pair(ST_UC)
    target = b.buffer(2048)
    rkey = b.card.register(target, 2048)
    fields = {"service": UC, "op": WRITE, "va": target, "rkey": rkey, "dma_length": 2048, "payload": b"x" * 1024}
    inject(world, b, psn=FIRST, end=False, **fields)
    b.card.destroy_key(rkey)
    inject(world, b, psn=FIRST + 1, start=False, **fields)
    assert b.peek(target, 2048) == b"x" * 1024 + bytes(1024)
    assert b.counter.values == {}
    assert counted(world.b.hca.count) == {Count.RX_PACKETS: 2, Count.RX_BYTES: 1024, Count.RX_DROP_UC_KEY: 1}


@pytest.mark.parametrize("immediate", [None, 9])
def test_a_completion_tells_where_a_message_came_from(immediate: int | None) -> None:
    world, a, b = pair(ST_UC, path_sl=3)
    world.b.manager.set_port(lid=8, lmc=2)
    b.post_recv(b.buffer(8), 8)
    inject(world, b, dlid=11, service=UC, op=SEND, psn=FIRST, payload=b"hello", sl=3, immediate=immediate,
           solicited=True)  # fmt: skip
    (got,) = b.recv_cq.poll()
    assert (got.slid, got.source_qpn, got.size, got.extra, got.solicited) == (1, a.qpn, 5, immediate or 0, True)
    view = Cqe64.from_bytes(b.recv_cq.raw(0))
    assert (view.sl, view.ml_path, view.grh) == (3, 3, 0)


def test_a_receive_queue_that_is_dead_ends_the_queue_pair() -> None:
    world = World()
    a = End(world.a, ST_UC)
    b = End(world.b, ST_UC, cq=CompletionQueue(world.b, log_size=1))
    a.connect(b)
    b.connect(a)
    for _ in range(4):
        b.post_recv(b.buffer(8), 8)
        a.send(a.buffer(8), 8)
    world.settle()
    assert b.qp.state == ERR
