"""Reliable connection: one scenario per rule."""

import pytest

from firmware.transport.attributes import live_context
from tests.scenario.tools import lose, under_way
from tests.scenario.world import End, SharedQueue, World, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeOpcode, CqeSyndrome
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode

SIZES = [0, 1, 64, 1023, 1024, 1025, 4096, 65536, 262144, 262145, 600_001]


@pytest.mark.parametrize("size", SIZES)
def test_write_reaches_remote_memory(size: int) -> None:
    world, a, b = pair()
    content = some_bytes(size)
    source, target = a.buffer(content), b.buffer(size)
    index = a.write(source, size, target, b.card.key)
    world.settle()
    assert b.peek(target, size) == content
    done = a.send_cq.poll()
    assert [(c.kind, c.counter, c.syndrome) for c in done] == [(CqeOpcode.REQ, index, 0)], world.show()
    assert b.recv_cq.poll() == []


@pytest.mark.parametrize("size", SIZES)
def test_send_fills_the_receive(size: int) -> None:
    world, a, b = pair()
    content = some_bytes(size)
    source, target = a.buffer(content), b.buffer(size)
    counter = b.post_recv(target, size)
    a.send(source, size, imm=0xCAFEBABE, se=1)
    world.settle()
    assert b.peek(target, size) == content
    (done,) = b.recv_cq.poll()
    assert (done.kind, done.counter, done.size, done.extra) == (CqeOpcode.RESP_SEND_IMM, counter, size, 0xCAFEBABE)
    assert done.solicited
    assert [c.syndrome for c in a.send_cq.poll()] == [0]


@pytest.mark.parametrize("size", SIZES)
def test_read_brings_remote_memory(size: int) -> None:
    world, a, b = pair()
    content = some_bytes(size)
    source, target = b.buffer(content), a.buffer(size)
    a.read(target, size, source, b.card.key)
    world.settle()
    assert a.peek(target, size) == content
    (done,) = a.send_cq.poll()
    assert (done.syndrome, done.size) == (0, size), world.show()


def test_queue_of_mixed_sizes_completes_in_order() -> None:
    world, a, b = pair()
    source, target = a.buffer(some_bytes(9000)), b.buffer(200_000)
    expected = bytearray(200_000)
    at = 0
    for index in range(40):
        size = (index * 977) % 9000
        a.write(source, size, target + at, b.card.key, ce=2 if index % 3 == 0 else 0, ring=False)
        expected[at : at + size] = a.peek(source, size)
        at += size // 2
    a.ring()
    world.settle()
    assert b.peek(target, 200_000) == bytes(expected)
    assert [c.counter for c in a.send_cq.poll()] == [index for index in range(40) if index % 3 == 0]


@under_way
def test_one_acknowledgement_covers_a_drain() -> None:
    world, a, b = pair()
    source, target = a.buffer(64), b.buffer(64)
    for _ in range(20):
        a.write(source, 64, target, b.card.key, ring=False)
    a.ring()
    assert [packet.ack_req for _, packet in world.queue] == [False] * 19 + [True]
    world.settle()
    assert len(a.send_cq.poll()) == 20
    assert sum("ACK" in line for line in world.ladder) == 1


def test_inline_data_and_wqe_that_wraps() -> None:
    world, a, b = pair()
    target = b.buffer(300)
    for _ in range(62):
        a.post(WqeOpcode.NOP, ce=0, ring=False)
    a.ring()
    content = some_bytes(200)
    segments = RaddrSegment(raddr=target, rkey=b.card.key).to_bytes() + (1 << 31 | 200).to_bytes(4, "big") + content
    a.post(WqeOpcode.RDMA_WRITE, segments)
    world.settle()
    assert b.peek(target, 200) == content
    assert [c.syndrome for c in a.send_cq.poll()] == [0]


def test_gather_and_scatter_lists() -> None:
    world, a, b = pair()
    content = some_bytes(3000)
    source, target = a.buffer(content), b.buffer(3000)
    b.post_recv(sges=[b.sge(target + 1000, 500), b.sge(target, 1000), b.sge(target + 1500, 1500)])
    a.post(WqeOpcode.SEND, a.sge(source, 100) + a.sge(source + 100, 2000) + a.sge(source + 2100, 900))
    world.settle()
    assert b.peek(target + 1000, 500) == content[:500]
    assert b.peek(target, 1000) == content[500:1500]
    assert b.peek(target + 1500, 1500) == content[1500:]


def test_write_with_immediate_consumes_a_receive_and_reports_the_length() -> None:
    world, a, b = pair()
    target = b.buffer(5000)
    index = b.post_recv()
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(b"w" * 5000), 5000, target, b.card.key, imm=5)
    world.settle()
    (got,) = b.recv_cq.poll()
    assert (got.kind, got.counter, got.size, got.extra) == (CqeOpcode.RESP_WR_IMM, index, 5000, 5)
    assert b.peek(target, 5000) == b"w" * 5000


@under_way
def test_payload_comes_before_its_completion() -> None:
    world, a, b = pair()
    b.recv_cq.arm()
    b.card.update_eq(arm=True)
    b.card.effects.clear()
    b.post_recv(b.buffer(100), 100)
    a.send(a.buffer(100), 100)
    world.deliver()
    kinds = [type(effect).__name__ for effect in b.card.effects]
    assert kinds == ["DmaWrite", "EntryWrite", "EntryWrite", "RaiseIrq", "Transmit"]


def test_atomics_return_the_old_value_in_host_order_and_are_not_repeated() -> None:
    world, a, b = pair()
    counter, result = b.buffer((40).to_bytes(8, "little")), a.buffer(8)
    a.atomic(WqeOpcode.ATOMIC_FA, result, counter, b.card.key, 2)
    world.settle()
    assert (int.from_bytes(b.peek(counter, 8), "little"), int.from_bytes(a.peek(result, 8), "little")) == (42, 40)
    a.atomic(WqeOpcode.ATOMIC_CS, result, counter, b.card.key, 7, 41)
    world.settle()
    assert (int.from_bytes(b.peek(counter, 8), "little"), int.from_bytes(a.peek(result, 8), "little")) == (42, 42)
    a.atomic(WqeOpcode.ATOMIC_CS, result, counter, b.card.key, 7, 42)
    world.settle()
    assert int.from_bytes(b.peek(counter, 8), "little") == 7
    # The answer is lost: the same answer comes again, the operation does not.
    world.fault = lose({1})
    a.atomic(WqeOpcode.ATOMIC_FA, result, counter, b.card.key, (1 << 64) - 1)
    world.pass_time(400_000_000)
    assert (int.from_bytes(b.peek(counter, 8), "little"), int.from_bytes(a.peek(result, 8), "little")) == (6, 7)
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 4


@under_way
def test_reads_outstanding_are_limited() -> None:
    world, a, b = pair(log_sra_max=1)
    source, target = b.buffer(64), a.buffer(64)
    for _ in range(5):
        a.read(target, 64, source, b.card.key, ring=False)
    a.ring()
    assert len(world.queue) == 2
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 5


@under_way
def test_fence_waits_for_the_read_and_sends_what_it_brought() -> None:
    world, a, b = pair()
    source, middle, target = b.buffer(b"fresh data!"), a.buffer(b"stale data!"), b.buffer(11)
    a.read(middle, 11, source, b.card.key, ring=False)
    a.write(middle, 11, target, b.card.key, fence=2, ring=False)
    a.ring()
    assert len(world.queue) == 1
    world.settle()
    assert b.peek(target, 11) == b"fresh data!"
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]


def test_long_message_keeps_to_the_window() -> None:
    world, a, b = pair(world=World(32 << 20))
    content = some_bytes(5 << 20)
    source, target = a.buffer(content), b.buffer(5 << 20)
    a.write(source, 5 << 20, target, b.card.key)
    assert sum(len(packet.payload) for _, packet in world.queue) <= 2 << 20
    world.settle()
    assert b.peek(target, 5 << 20) == content
    assert [c.syndrome for c in a.send_cq.poll()] == [0]


def test_zero_bytes_need_no_key() -> None:
    world, a, _b = pair()
    a.write(0, 0, 0, 0)
    a.read(0, 0, 0, 0)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]


def test_reset_forgets_everything_without_completions() -> None:
    world, a, b = pair()
    world.fault = lambda packet: []
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    a.post_recv(a.buffer(8), 8)
    assert a.apply(Op.QP_2RST) == 0
    world.pass_time(2_000_000_000)
    assert a.send_cq.poll() == a.recv_cq.poll() == []
    assert live_context(a.qp).state == 0


def test_after_a_reset_both_queues_begin_anew() -> None:
    world, a, b = pair()
    for _ in range(2):
        for number in range(3):
            b.post_recv(b.buffer(8), 8)
            a.send(a.buffer(8), 8)
            world.settle()
            assert [c.counter for c in a.send_cq.poll()] == [c.counter for c in b.recv_cq.poll()] == [number]
        for end, peer in ((a, b), (b, a)):
            assert end.apply(Op.QP_2RST) == 0
            end.card.memory.write(end.dbr, bytes(8))
            end.sq_posted = end.rq_posted = 0
            end.connect(peer)


def test_sends_posted_before_rts_start_with_it() -> None:
    world = World()
    a, b = End(world.a), End(world.b)
    b.connect(a)
    a.to_init()
    a.to_rtr(b)
    target = b.buffer(5)
    a.write(a.buffer(b"early"), 5, target, b.card.key)
    assert not world.queue
    a.to_rts()
    world.settle()
    assert b.peek(target, 5) == b"early"


def test_last_wqe_event_of_a_queue_pair_with_srq() -> None:
    world = World()
    srq = SharedQueue(world.b)
    a, b = End(world.a), End(world.b, srq=srq)
    a.connect(b)
    b.connect(a)
    target = b.buffer(16)
    srq.post_recv(target, 8)
    srq.post_recv(target + 8, 8)
    a.send(a.buffer(b"one srq!"), 8)
    a.send(a.buffer(b"two srq!"), 8)
    world.settle()
    assert [(c.counter, c.user) for c in b.recv_cq.poll()] == [(0, srq.number), (1, srq.number)]
    assert b.peek(target, 16) == b"one srq!two srq!"
    b.apply(Op.QP_2ERR)
    b.apply(Op.QP_2ERR)
    assert world.b.events().count((0x13, b.qpn)) == 1
    # Receives of a shared queue are not this queue pair's to flush: nothing is polled.
    assert world.b.hca.timers.next_deadline() is None


def test_send_with_invalidate() -> None:
    world, a, b = pair()
    region = b.buffer(4096)
    rkey = world.b.register(region, 4096)
    b.post_recv()
    b.post_recv()
    a.post(WqeOpcode.SEND_INVAL, imm=rkey)
    world.settle()
    (got,) = b.recv_cq.poll()
    assert (got.kind, got.extra) == (CqeOpcode.RESP_SEND_INV, rkey)
    a.post(WqeOpcode.SEND_INVAL, imm=rkey)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.REMOTE_ACCESS_ERR]
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.WR_FLUSH_ERR]


def test_answers_stay_in_order_behind_a_long_read() -> None:
    world, a, b = pair(world=World(32 << 20))
    content = some_bytes(3 << 20)
    source, target = b.buffer(content), a.buffer(3 << 20)
    a.read(target, 3 << 20, source, b.card.key, ring=False)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ring=False)
    a.ring()
    world.settle()
    assert a.peek(target, 3 << 20) == content
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert sum("READ_REQ" in line for line in world.ladder) == 1


def test_refusal_behind_a_long_read_does_not_overtake_it() -> None:
    world, a, b = pair(world=World(32 << 20))
    source, target = b.buffer(3 << 20), a.buffer(3 << 20)
    a.read(target, 3 << 20, source, b.card.key, ring=False)
    # Small enough to fit into the window next to the read.
    a.write(a.buffer(8), 8, b.buffer(8), 0x999900, ring=False)
    a.ring()
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.REMOTE_ACCESS_ERR]


def test_connection_to_itself_through_the_card() -> None:
    world = World()
    a, b = End(world.a), End(world.a)
    a.connect(b)
    b.connect(a)
    content = some_bytes(3000)
    target, back = b.buffer(3000), a.buffer(3000)
    a.write(a.buffer(content), 3000, target, a.card.key, ring=False)
    a.read(back, 3000, target, a.card.key, ring=False)
    a.ring()
    world.settle()
    assert a.peek(back, 3000) == content
    assert not world.queue


def test_inline_data_next_to_pointers_is_sent_in_order() -> None:
    world, a, b = pair()
    content = some_bytes(5000)
    inline = b"header of the message"
    segment = (0x80000000 | len(inline)).to_bytes(4, "big") + inline
    segment += bytes(-len(segment) % 16)
    place = b.buffer(6000)
    b.post_recv(place, 6000)
    whole = a.sge(a.buffer(content[:3000]), 3000) + segment + a.sge(a.buffer(content[3000:]), 2000)
    a.post(WqeOpcode.SEND, whole)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert [c.size for c in b.recv_cq.poll()] == [5000 + len(inline)]
    assert b.peek(place, 5000 + len(inline)) == content[:3000] + inline + content[3000:]
