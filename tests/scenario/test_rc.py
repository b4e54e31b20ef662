"""Reliable connection: one scenario per rule."""

import pytest

from firmware.model.counters import Count, QCount
from firmware.model.objects import LOCAL_READ, LOCAL_WRITE
from firmware.transport.attributes import live_context
from tests.packets import packet_of
from tests.scenario.tools import lose
from tests.scenario.world import ALL_RIGHTS, ERR, FOREVER_NS, RTS, ST_RC, End, SharedQueue, World, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeOpcode, CqeSyndrome
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode
from vhca.wire.ib import split
from vhca.wire.packet import ACKNOWLEDGE, READ_RESPONSE, SEND, WRITE, Packet, Route

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


def test_reads_outstanding_are_limited() -> None:
    world, a, b = pair(log_sra_max=1)
    source, target = b.buffer(64), a.buffer(64)
    for _ in range(5):
        a.read(target, 64, source, b.card.key, ring=False)
    a.ring()
    assert len(world.queue) == 2
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 5


def test_too_many_reads_are_an_invalid_request() -> None:
    world = World()
    a, b = End(world.a), End(world.b)
    a.connect(b, log_sra_max=7)
    b.connect(a, log_rra_max=0)
    source, target = b.buffer(3 << 19), a.buffer(3 << 19)
    for _ in range(2):
        a.read(target, 3 << 19, source, b.card.key, ring=False)
    a.ring()
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.REMOTE_INVAL_REQ_ERR]


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


def test_receive_too_short_is_an_error_on_both_sides() -> None:
    world, a, b = pair()
    b.post_recv(b.buffer(8), 8)
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(16), 16)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_INVAL_REQ_ERR]
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_LENGTH_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert (a.qp.state, b.qp.state) == (ERR, ERR)
    # The completion tells; an event is for what no completion can tell.
    assert world.b.events() == []


@pytest.mark.parametrize("mistake", ["key", "variant", "right", "range", "wrap", "domain", "free", "bus"])
@pytest.mark.parametrize("opcode", [WqeOpcode.RDMA_WRITE, WqeOpcode.RDMA_READ])
def test_remote_access_error(mistake: str, opcode: int) -> None:
    world, a, b = pair()
    region = b.buffer(8192)
    rights = ALL_RIGHTS if mistake != "right" else LOCAL_READ | LOCAL_WRITE
    pages = (1 << 60).to_bytes(8, "big") * 3 if mistake == "bus" else None
    pd = world.b.alloc_pd() if mistake == "domain" else None
    rkey = world.b.register(region, 8192, rights, pages, pd, free=int(mistake == "free"))
    va = region
    if mistake == "key":
        rkey += 0x100
    elif mistake == "variant":
        rkey ^= 1
    elif mistake == "range":
        va += 8190
    elif mistake == "wrap":
        va = (1 << 64) - 2
    a.rdma(opcode, a.buffer(8), 8, va, rkey)
    a.rdma(opcode, a.buffer(8), 8, va, rkey)
    if mistake == "bus" and opcode == WqeOpcode.RDMA_WRITE:
        # A posted write cannot fail in the firmware: the board counts it.
        return
    world.settle()
    syndrome = CqeSyndrome.REMOTE_OP_ERR if mistake == "bus" else CqeSyndrome.REMOTE_ACCESS_ERR
    assert [c.syndrome for c in a.send_cq.poll()] == [syndrome, CqeSyndrome.WR_FLUSH_ERR], world.show()
    assert (a.qp.state, b.qp.state) == (ERR, ERR)
    assert world.b.events()[-1] == (0x05 if mistake == "bus" else 0x11, b.qpn)


def test_zero_bytes_need_no_key() -> None:
    world, a, _b = pair()
    a.write(0, 0, 0, 0)
    a.read(0, 0, 0, 0)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]


@pytest.mark.parametrize(
    ("right", "opcode"), [("rwe", WqeOpcode.RDMA_WRITE), ("rre", WqeOpcode.RDMA_READ), ("rae", WqeOpcode.ATOMIC_FA)]
)
def test_operation_that_is_not_enabled_is_an_invalid_request(right: str, opcode: int) -> None:
    world, a, b = pair(ST_RC, None, {}, **{right: 0})
    if opcode == WqeOpcode.ATOMIC_FA:
        a.atomic(opcode, a.buffer(8), b.buffer(8), b.card.key, 1)
    else:
        a.rdma(opcode, a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_INVAL_REQ_ERR]


def test_misaligned_atomic_is_an_invalid_request() -> None:
    world, a, b = pair()
    a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), b.buffer(16) + 4, b.card.key, 1)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_INVAL_REQ_ERR]


def test_local_protection_error_waits_for_its_turn() -> None:
    world, a, b = pair()
    target = b.buffer(8)
    a.write(a.buffer(b"first ok"), 8, target, b.card.key, ring=False)
    a.write(0x5000, 8, target, b.card.key, key=0x123400, ring=False)
    a.write(a.buffer(8), 8, target, b.card.key, ring=False)
    a.ring()
    assert a.send_cq.poll() == []
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.LOCAL_PROT_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert b.peek(target, 8) == b"first ok"


def test_read_into_a_read_only_region_is_a_local_protection_error() -> None:
    world, a, b = pair()
    region = a.buffer(4096)
    key = world.a.register(region, 4096, LOCAL_READ)
    a.read(region, 8, b.buffer(8), b.card.key, key=key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR]


def test_message_beyond_log_msg_max_is_a_local_length_error() -> None:
    world, a, b = pair(log_msg_max=10)
    a.write(a.buffer(1025), 1025, b.buffer(1025), b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_LENGTH_ERR]


@pytest.mark.parametrize("override", [{"qpn": 0x99}, {"wqe_index": 5}, {"ds": 0}, {"ds": 63}])
def test_malformed_wqe_is_a_queue_pair_operation_error(override: dict[str, int]) -> None:
    world, a, _b = pair()
    a.post(WqeOpcode.SEND, a.sge(a.buffer(8), 8), ce=0, **override)
    world.settle()
    (done,) = a.send_cq.poll()
    assert (done.kind, done.counter, done.syndrome) == (CqeOpcode.REQ_ERR, 0, CqeSyndrome.LOCAL_QP_OP_ERR)
    assert a.qp.state == ERR


@pytest.mark.parametrize("opcode", [0x0E, 0x14, 0x18, 0x77, 0xFF])
def test_opcode_that_is_not_offered_is_a_queue_pair_operation_error(opcode: int) -> None:
    _world, a, _b = pair()
    a.post(opcode, bytes(48), ce=0)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_QP_OP_ERR]


def test_error_flushes_both_queues_in_order_whether_signalled_or_not() -> None:
    world, a, b = pair()
    world.fault = lambda packet: []
    for _ in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ce=0)
        a.post_recv(a.buffer(8), 8)
    assert a.apply(Op.QP_2ERR) == 0
    assert [(c.counter, c.syndrome) for c in a.send_cq.poll()] == [(i, CqeSyndrome.WR_FLUSH_ERR) for i in range(3)]
    assert [(c.counter, c.syndrome) for c in a.recv_cq.poll()] == [(i, CqeSyndrome.WR_FLUSH_ERR) for i in range(3)]
    # The drain of the driver: an unsignalled write of nothing, then a receive that only the record shows.
    assert a.apply(Op.QP_2ERR) == 0
    a.write(0, 0, 0, 0, ce=0)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.WR_FLUSH_ERR]
    a.post_recv()
    world.pass_time(5_000_000)
    assert [c.syndrome for c in a.recv_cq.poll()] == [CqeSyndrome.WR_FLUSH_ERR]


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


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        ({"slid": 7}, Count.RX_DROP_PATH),
        ({"pkey": 0x8123}, Count.RX_DROP_PKEY),
        ({"op": READ_RESPONSE, "psn": 5}, Count.RX_GHOST_ACKS),
        ({"op": ACKNOWLEDGE, "psn": 5}, Count.RX_GHOST_ACKS),
    ],
)
def test_foreign_packet_is_dropped(change: dict[str, int], counter: Count) -> None:
    world, _a, b = pair()
    fields = {"dlid": 2, "slid": 1, "service": 0, "op": WRITE, "dest_qp": b.qpn, "psn": 0xFFFFF0, **change}
    world.wire(world.a, packet_of(**fields))
    world.settle()
    assert world.b.hca.count[counter] == 1
    assert b.qp.state == RTS


@pytest.mark.parametrize(
    "packets",
    [
        [{"op": SEND, "start": False}],
        [{"op": SEND, "end": False, "payload": bytes(1024)}, {"op": SEND, "psn": 0xFFFFF1}],
        [
            {"op": SEND, "end": False, "payload": bytes(1024)},
            {"op": WRITE, "psn": 0xFFFFF1, "start": False, "payload": b"1"},
        ],
        [{"op": SEND, "end": False, "payload": bytes(1000)}],
        [{"op": SEND, "payload": bytes(1025)}],
        [{"op": WRITE, "payload": bytes(8), "dma_length": 9}],
        [{"op": WRITE, "payload": bytes(8), "dma_length": 7}],
    ],
)
def test_malformed_sequence_is_an_invalid_request(packets: list[dict[str, object]]) -> None:
    world, _a, b = pair()
    target = b.buffer(4096)
    b.post_recv(target, 4096)
    for change in packets:
        fields: dict[str, object] = {"dlid": 2, "slid": 1, "service": 0, "op": WRITE, "dest_qp": b.qpn, "psn": 0xFFFFF0,
                                     "va": target, "rkey": b.card.key, "mtu": 1024}  # fmt: skip
        world.wire(world.a, packet_of(**{**fields, **change}))
    while world.queue:
        world.deliver()
        if world.queue and world.queue[0][0] is world.a:
            break
    assert b.qp.state == ERR
    assert any("syn=0x61" in line for line in world.ladder)


def test_burst_whose_first_packets_are_known_is_cut() -> None:
    world, _a, b = pair()
    target = b.buffer(4096)
    burst = Packet(
        route=Route(2, 1),
        service=0,
        op=WRITE,
        dest_qp=b.qpn,
        psn=0xFFFFF0,
        payload=b"A" * 2048,
        count=2,
        end=False,
        mtu=1024,
        va=target,
        rkey=b.card.key,
        dma_length=4096,
    )
    world.wire(world.a, burst)
    again = Packet(
        route=Route(2, 1),
        service=0,
        op=WRITE,
        dest_qp=b.qpn,
        psn=0xFFFFF0,
        payload=b"A" * 1024 + b"B" * 3072,
        count=4,
        mtu=1024,
        va=target,
        rkey=b.card.key,
        dma_length=4096,
        ack_req=True,
    )
    world.wire(world.a, again)
    world.deliver(2)
    assert b.peek(target, 4096) == b"A" * 2048 + b"B" * 2048
    assert "psn=0xfffff3" in world.ladder[-1]
    assert "ACK" in world.ladder[-1]


def counters(end: End) -> dict[str, int]:
    return {name.value: value for name, value in end.counter.values.items() if value}


def test_counters_of_a_peer_without_receives() -> None:
    """Each RNR NAK that leads to another try is counted, the one that ends the trying is not."""
    world, a, b = pair(rnr_retry=2)
    a.send(a.buffer(8), 8)
    world.pass_time(FOREVER_NS)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.RNR_RETRY_EXC_ERR]
    assert counters(a) == {"rnr_nak_retry_err": 2, "req_rnr_retries_exceeded": 1, "req_cqe_error": 1}
    assert b.counter.values[QCount.OUT_OF_BUFFER] == 3


def test_counters_of_a_silent_peer() -> None:
    world, a, _ = pair(retry_count=2)
    world.fault = lambda packet: []
    a.write(a.buffer(8), 8, 0, 0)
    a.write(a.buffer(8), 8, 0, 0)
    world.pass_time(FOREVER_NS)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.TRANSPORT_RETRY_EXC_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert counters(a) == {
        # Every expiry, also the last one, after which there is no retry left.
        "local_ack_timeout_err": 3,
        "req_transport_retries_exceeded": 1,
        "req_cqe_error": 2,
        "req_cqe_flush_error": 1,
    }


@pytest.mark.parametrize(
    ("mistake", "sender", "receiver"),
    [
        ("local key", "req_local_protection", ""),
        ("opcode", "local_operation_error", ""),
        ("remote key", "req_remote_access_errors", "resp_remote_access_errors"),
        ("right", "req_remote_invalid_request", "resp_remote_invalid_request"),
        ("long", "req_remote_invalid_request", "resp_local_length_error"),
        ("receive key", "req_remote_operation_errors", "resp_local_protection"),
    ],
)
def test_each_error_moves_its_counter(mistake: str, sender: str, receiver: str) -> None:
    world, a, b = pair(rwe=int(mistake != "right"))
    buffer, target = a.buffer(64), b.buffer(64)
    b.post_recv(target, 8, key=0x7700 if mistake == "receive key" else None)
    if mistake == "opcode":
        a.post(0x7F)
    elif mistake in ("long", "receive key"):
        a.send(buffer, 8 if mistake == "receive key" else 16)
    else:
        a.write(buffer, 8, target, 0x7700 if mistake == "remote key" else world.b.key,
                key=0x7700 if mistake == "local key" else a.card.key)  # fmt: skip
    world.settle()
    assert counters(a) == {sender: 1, "req_cqe_error": 1}
    assert not receiver or counters(b)[receiver] == 1


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
