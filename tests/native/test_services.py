"""What goes by train beside plain reliable connections: shared receive queues, UC, mixed lists, keys taken back."""

from typing import Any

import pytest

from firmware.model.counters import Count, Outcome
from firmware.native.library import loaded
from tests.native.test_trains import rails, trains, why
from tests.scenario.world import BASE, ST_RC, ST_UC, ST_UD, End, SharedQueue, World, pair
from vhca.wire.connectx.cqe import CqeOpcode, CqeSyndrome
from vhca.wire.connectx.eqe import EventType
from vhca.wire.connectx.srq import WqType
from vhca.wire.connectx.wqe import WqeOpcode

pytestmark = pytest.mark.skipif(not loaded().there, reason=f"no engine in C: {loaded().reason}")

# Slots of a linked list in an order that is not that of memory.
ORDER = [0, *(slot * 7 % 15 + 1 for slot in range(15))]


def messages(end: End) -> int:
    return end.card.hca.count[Count.TRAIN_MESSAGES]


def shared(service: int = ST_RC, **fields: Any) -> tuple[World, End, End, SharedQueue]:
    """A connection whose receives are of a shared queue."""
    world = World()
    world.lay_rails()
    order = None if fields.get("wq_type") == WqType.CYCLIC else ORDER
    queue = SharedQueue(world.b, order=order, **fields)
    a, b = End(world.a, service), End(world.b, service, srq=queue)
    a.connect(b)
    b.connect(a)
    return world, a, b, queue


@pytest.mark.parametrize("form", [{}, {"wq_type": WqType.CYCLIC}], ids=["list", "ring"])
def test_receives_of_a_shared_queue_are_taken_in_its_order(form: dict[str, Any]) -> None:
    world, a, b, queue = shared(**form)
    place = b.buffer(64 * 20)
    for number in range(20):
        queue.post_recv(place + 64 * number, 64)
        a.send(a.buffer(bytes([number]) * 64), 64)
    world.settle()
    assert messages(a) == 20
    ring = list(range(20)) if form else [ORDER[number % 16] for number in range(20)]
    assert [completion.counter for completion in b.recv_cq.poll()] == ring
    assert b.peek(place, 64 * 20) == b"".join(bytes([number]) * 64 for number in range(20))
    assert (queue.srq.consumed, trains(a)) == (20, 20)


def test_two_connections_share_one_queue_by_train() -> None:
    world, a, b, queue = shared()
    other, peer = End(world.a), End(world.b, srq=queue)
    other.connect(peer)
    peer.connect(other)
    place = b.buffer(64 * 10)
    for number in range(10):
        queue.post_recv(place + 64 * number, 64)
        (a, other)[number & 1].send(a.buffer(bytes([number]) * 64), 64)
    world.settle()
    assert messages(a) == 10
    assert b.peek(place, 64 * 10) == b"".join(bytes([number]) * 64 for number in range(10))
    assert [c.counter for c in b.recv_cq.poll()] == ORDER[0:10:2]
    assert [c.counter for c in peer.recv_cq.poll()] == ORDER[1:10:2]


def test_the_limit_of_a_shared_queue_is_told_in_front_of_the_completion() -> None:
    world, a, b, queue = shared(lwm=3)
    for _ in range(6):
        queue.post_recv(b.buffer(64), 64)
    b.card.new_events()
    b.recv_cq.arm()
    for number in range(5):
        a.send(a.buffer(64), 64, ring=number == 4)
    world.settle()
    # Four of six leave two: Python takes that one, with its event, and the rest goes by train again.
    assert messages(a) == 4
    assert why(a) == {Outcome.LIMIT: 1}
    kinds = [event.event_type for event in b.card.new_events()]
    assert kinds == [EventType.COMP, EventType.SRQ_RQ_LIMIT]
    assert queue.srq.limit == 0
    assert len(b.recv_cq.poll()) == 5


def test_keys_of_a_shared_queue_are_those_of_its_domain() -> None:
    world = World()
    world.lay_rails()
    domain = world.b.alloc_pd()
    queue = SharedQueue(world.b, pd=domain)
    a, b = End(world.a), End(world.b, srq=queue)
    a.connect(b)
    b.connect(a)
    place = b.buffer(64)
    queue.post_recv(place, 64, b.card.register(place, 64, pd=domain))
    a.send(a.buffer(b"domain of the queue"), 19)
    queue.post_recv(place, 64, b.card.register(place, 64))
    world.settle()
    assert messages(a) == 1
    assert b.peek(place, 19) == b"domain of the queue"
    a.send(a.buffer(8), 8)
    world.settle()
    assert [completion.syndrome for completion in b.recv_cq.poll()] == [0, CqeSyndrome.LOCAL_PROT_ERR]


def test_datagrams_of_a_shared_queue() -> None:
    world, a, b, queue = shared(ST_UD)
    place = b.buffer(100)
    queue.post_recv(place, 100)
    a.datagram(a.buffer(b"datagram"), 8, b.card.port.lid, b.qpn)
    world.settle()
    assert messages(a) == 1
    (got,) = b.recv_cq.poll()
    assert (got.size, got.counter, got.user) == (48, 0, queue.number)
    assert b.peek(place + 40, 8) == b"datagram"


def test_unreliable_connections_go_by_train() -> None:
    world, a, b = pair(ST_UC)
    world.lay_rails()
    place = b.buffer(8192)
    for _ in range(3):
        b.post_recv(place + 4096, 4096)
    a.write(a.buffer(b"w" * 3000), 3000, place, b.card.key, ring=False)
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(b"i" * 10), 10, place + 3000, b.card.key, imm=9, ring=False)
    a.send(a.buffer(b"s" * 1025), 1025, ring=False)
    a.send(a.buffer(b"t" * 5), 5, imm=3)
    world.settle()
    assert (messages(a), world.ladder) == (4, [])
    assert [c.kind for c in b.recv_cq.poll()] == [CqeOpcode.RESP_WR_IMM, CqeOpcode.RESP_SEND, CqeOpcode.RESP_SEND_IMM]
    assert b.peek(place, 3010) == b"w" * 3000 + b"i" * 10
    # Nobody answers.
    assert [(there, back) for there, _, back, _ in world.trains] == [(3 + 1 + 2 + 1, 0)]
    assert [completion.good for completion in a.send_cq.poll()] == [True] * 4


def test_what_an_unreliable_responder_drops_is_dropped_among_trains() -> None:
    world, a, b = pair(ST_UC)
    world.lay_rails()
    place = b.buffer(64)
    a.write(a.buffer(8), 8, place, b.card.key)
    a.send(a.buffer(8), 8)
    world.settle()
    a.write(a.buffer(b"lost!!!!"), 8, place, 0x1200)
    world.settle()
    a.write(a.buffer(b"arrived!"), 8, place, b.card.key)
    world.settle()
    assert [completion.good for completion in a.send_cq.poll()] == [True] * 4
    assert b.peek(place, 8) == b"arrived!"
    dropped = [b.card.hca.count[reason] for reason in (Count.RX_DROP_NO_RECEIVE, Count.RX_DROP_UC_KEY)]
    assert dropped == [1, 1]
    assert messages(a) == 2


def test_unreliable_messages_do_not_overtake_those_on_the_cable() -> None:
    world, a, b = pair(ST_UC)
    place = b.buffer(8)
    a.write(a.buffer(b"earlier!"), 8, place, b.card.key)
    assert world.queue
    world.lay_rails()
    a.write(a.buffer(b"later!!!"), 8, place, b.card.key)
    assert len(world.queue) == 2
    world.settle()
    assert b.peek(place, 8) == b"later!!!"
    assert trains(a) == 0


def inline(content: bytes) -> bytes:
    raw = (1 << 31 | len(content)).to_bytes(4, "big") + content
    return raw + bytes(-len(raw) % 16)


def test_inline_data_and_pointers_in_any_order() -> None:
    world, a, b = rails()
    place = b.buffer(64)
    b.post_recv(place, 64)
    parts = inline(b"one ") + a.sge(a.buffer(b"two "), 4) + inline(b"") + inline(b"three and a bit ")
    a.post(WqeOpcode.SEND, parts + a.sge(a.buffer(b"four"), 4))
    world.settle()
    assert messages(a) == 1
    assert b.peek(place, 28) == b"one two three and a bit four"


def test_a_key_that_the_peer_takes_back_is_gone_for_the_next_message() -> None:
    world, a, b = rails()
    place = b.buffer(64)
    key = b.card.register(place, 64)
    b.post_recv()
    b.post_recv()
    a.write(a.buffer(b"before"), 6, place, key, ring=False)
    a.post(WqeOpcode.SEND_INVAL, imm=key, ring=False)
    a.write(a.buffer(b"behind"), 6, place, key)
    world.settle()
    assert messages(a) == 2
    (got,) = [c for c in b.recv_cq.poll() if c.good]
    assert (got.kind, got.extra) == (CqeOpcode.RESP_SEND_INV, key)
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0, CqeSyndrome.REMOTE_ACCESS_ERR]
    assert b.peek(place, 6) == b"before"
    assert b.card.hca.count[Count.REMOTE_INVALIDATES] == 1


@pytest.mark.parametrize("fields", [{"en_rinval": 0}, {"qpn": 0x7777}, {"pd": 0}])
def test_a_key_that_may_not_be_taken_back_stays(fields: dict[str, Any]) -> None:
    world, a, b = rails()
    fields = {name: value or b.card.alloc_pd() if name == "pd" else value for name, value in fields.items()}
    key = b.card.register(BASE, 4096, **fields)
    b.post_recv()
    a.post(WqeOpcode.SEND_INVAL, imm=key)
    world.settle()
    assert messages(a) == 0
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]
    assert not b.card.mkey(key).free


def test_a_nop_completes_and_is_no_request() -> None:
    world, a, b = rails()
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ring=False)
    a.post(WqeOpcode.NOP, ring=False)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert messages(a) == 3
    assert [(c.good, c.counter) for c in a.send_cq.poll()] == [(True, 0), (True, 1), (True, 2)]
    assert (a.qp.requester.ssn, b.qp.responder.msn) == (2, 2)
    # Counters of packets know of two.
    assert [there for there, *_ in world.trains] == [2]
