"""What ends a reliable connection, on which side and with which syndrome, and what it drops."""

import pytest

from firmware.model.counters import Count
from firmware.model.objects import LOCAL_READ, LOCAL_WRITE
from tests.packets import packet_of
from tests.scenario.tools import counter_set, under_way
from tests.scenario.world import ALL_RIGHTS, ERR, RTS, ST_RC, End, World, pair
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeOpcode, CqeSyndrome
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.packet import ACKNOWLEDGE, READ_RESPONSE, SEND, WRITE, Packet, Route


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


@under_way
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
    assert counter_set(a) == {sender: 1, "req_cqe_error": 1}
    assert not receiver or counter_set(b)[receiver] == 1
