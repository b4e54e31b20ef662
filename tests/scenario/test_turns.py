"""Work that a host can make long is done in turns: no step is longer than its budget, and nothing is lost between."""

import pytest

from firmware.model.counters import Count
from firmware.model.qp import RTS, SQER, STATE_NAMES
from firmware.transport import ud
from firmware.transport.completion import FLUSH_BUDGET
from firmware.transport.teardown import FLUSH_EFFECTS, FLUSH_PERIOD_NS
from tests.scenario.tools import under_way
from tests.scenario.world import ERR, ST_UC, ST_UD, Card, CompletionQueue, End, World, pair
from vhca.hw.effects import EntryWrite
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.ib import split
from vhca.wire.packet import SEND, UD, Grh, Packet, Route

LOG_DEEP = 11
GID = bytes.fromhex("ff12401bffff0000") + bytes(7) + b"\x07"


def deep_end(world: World, card: Card, service: int = 0) -> End:
    return End(card, service, log_sq=LOG_DEEP, log_rq=LOG_DEEP, cq=CompletionQueue(card, log_size=LOG_DEEP + 1))


def entries(card: Card) -> int:
    """Completions and events that the steps since the last call wrote."""
    written = sum(isinstance(effect, EntryWrite) for effect in card.effects)
    card.effects.clear()
    return written


def test_a_full_ring_in_error_is_flushed_in_pieces_and_in_order() -> None:
    world = World(64 << 20)
    a, b = deep_end(world, world.a), End(world.b)
    a.connect(b)
    for _ in range(1 << LOG_DEEP):
        a.post(WqeOpcode.NOP, ring=False)
        a.post_recv()
    entries(world.a)
    assert a.apply(Op.QP_2ERR) == 0
    a.write_record()
    a.card.ring_send_queue(a.last)
    assert entries(world.a) <= 3 * FLUSH_BUDGET
    while world.a.turn():
        assert entries(world.a) <= 2 * FLUSH_BUDGET
    done = a.send_cq.poll()
    assert len(done) == 2 << LOG_DEEP
    for kind in {completion.kind for completion in done}:
        assert [item.counter for item in done if item.kind == kind] == list(range(1 << LOG_DEEP))
    assert {completion.syndrome for completion in done} == {5}


@pytest.mark.parametrize("state", range(len(STATE_NAMES)))
def test_a_ring_is_a_turn_in_the_states_that_send_or_flush(state: int) -> None:
    world, a, _ = pair()
    world.at_once = False
    while a.card.turn():
        pass
    hca = a.card.hca
    # Past the door: no command leads to SQD, and the others are led to elsewhere.
    a.qp.state = state
    a.post(WqeOpcode.NOP, ring=False)
    a.card.memory.write(a.dbr + 4, (1).to_bytes(4, "big"))
    a.card.ring_send_queue(a.last)
    sends = state in (RTS, ERR, SQER)
    assert (bool(hca.turns), hca.count[Count.DOORBELLS_EARLY]) == (sends, not sends)
    assert a.send_cq.poll() == []
    while a.card.turn():
        pass
    assert [c.syndrome == 0 for c in a.send_cq.poll()] == [state == RTS] * sends


def test_a_look_at_queues_in_error_leaves_some_for_the_next() -> None:
    world = World(64 << 20)
    ends = [deep_end(world, world.a) for _ in range(8)]
    peer = End(world.b)
    for end in ends:
        end.connect(peer)
        assert end.apply(Op.QP_2ERR) == 0
        for _ in range(FLUSH_BUDGET):
            end.post_recv()
    entries(world.a)
    world.now_ns += FLUSH_PERIOD_NS
    world.a.run_timers()
    assert FLUSH_EFFECTS < entries(world.a) <= FLUSH_EFFECTS + FLUSH_BUDGET
    world.pass_time(5 * FLUSH_PERIOD_NS)
    assert [len(end.recv_cq.poll()) for end in ends] == [FLUSH_BUDGET] * 8


def test_what_was_posted_before_an_error_is_flushed_even_if_the_queue_comes_back_early() -> None:
    world = World(64 << 20)
    a, b = deep_end(world, world.a, ST_UC), End(world.b, ST_UC)
    a.connect(b)
    b.connect(a)
    place = a.buffer(8)
    a.write(place, 8, 0, b.card.key, key=0x666600, ring=False)
    posted = FLUSH_BUDGET * 3
    for _ in range(posted):
        a.write(place, 8, b.buffer(8), b.card.key, ring=False)
    a.ring()
    assert a.qp.state == SQER
    assert a.apply(Op.SQERR2RTS_QP) == 0
    last = a.write(place, 8, b.buffer(8), b.card.key)
    world.settle()
    done = a.send_cq.poll()
    assert [item.syndrome for item in done] == [4] + [5] * posted + [0]
    assert done[-1].counter == last


def test_a_queue_pair_that_is_reset_while_it_is_flushed_reports_no_more() -> None:
    world = World(64 << 20)
    a, b = deep_end(world, world.a), End(world.b)
    a.connect(b)
    for _ in range(1 << LOG_DEEP):
        a.post(WqeOpcode.NOP, ring=False)
    assert a.apply(Op.QP_2ERR) == 0
    assert a.apply(Op.QP_2RST) == 0
    a.send_cq.poll()
    world.settle()
    assert a.send_cq.poll() == []


def multicast(world: World, members: int, payload: bytes) -> tuple[list[End], Packet]:
    group = [End(world.b, ST_UD) for _ in range(members)]
    for end in group:
        end.to_init()
        end.to_rtr()
        end.post_recv(end.buffer(128), 128)
        end.join(GID)
    grh = Grh(bytes(16), GID, 0, 0, 1)
    return group, Packet(Route(0xC001, 1, grh=grh), UD, SEND, ud.MULTICAST_QPN, 0, payload, pkey=0xFFFF, qkey=0x1234)


def test_a_large_group_gets_its_copies_in_pieces_and_in_order() -> None:
    world = World(16 << 20)
    group, packet = multicast(world, 3 * ud.COPY_BUDGET, b"one")
    world.b.receive(packet)
    done = [end for end in group if end.recv_cq.poll()]
    assert len(done) == ud.COPY_BUDGET
    late = group[-1]
    late.post_recv(late.buffer(128), 128)
    world.b.receive(packet)
    assert not late.recv_cq.poll(), "the second datagram must not overtake the first"
    world.settle()
    assert len(late.recv_cq.poll()) == 2
    assert all(end.recv_cq.poll() for end in group if end is not late and end not in done)
    assert not world.b.hca.copies


def test_datagrams_to_groups_that_wait_for_their_copies_are_bounded() -> None:
    world = World(16 << 20)
    _, packet = multicast(world, 2 * ud.COPY_BUDGET, b"one")
    for _ in range(ud.MAX_COPYING + 5):
        world.b.receive(packet)
    assert len(world.b.hca.copies) == ud.MAX_COPYING
    assert world.b.hca.count[Count.RX_DROP_MULTICAST_BACKLOG] == 5


def test_queues_take_turns() -> None:
    world, a, b = pair(world=World(64 << 20))
    c, d = End(world.a), End(world.b)
    c.connect(d)
    d.connect(c)
    size = 4 << 20
    a.write(a.buffer(size), size, b.buffer(size), b.card.key)
    c.write(c.buffer(8), 8, d.buffer(8), d.card.key)
    world.settle()
    assert [item.good for item in a.send_cq.poll() + c.send_cq.poll()] == [True, True]
    lines = [line for line in world.ladder if "->" in line]
    small = next(number for number, line in enumerate(lines) if " 8 B" in line)
    assert small < len(lines) - 1, "the short message waited for the end of the long one"


def test_unfinished_work_of_a_queue_pair_in_error_is_dropped() -> None:
    world, a, _ = pair()
    a.post(WqeOpcode.NOP, ring=False)
    world.a.memory.write(a.dbr + 4, (1).to_bytes(4, "big"))
    world.a.ring_send_queue(a.last)
    assert world.a.hca.turns
    a.apply(Op.QP_2ERR)
    assert a.qp.state == ERR
    world.settle()
    assert [item.syndrome for item in a.send_cq.poll()] == [5]


def test_a_record_that_is_always_ahead_has_one_ring_flushed_for_each_doorbell() -> None:
    world = World(64 << 20)
    a, b = End(world.a, cq=CompletionQueue(world.a, log_size=12)), End(world.b)
    a.connect(b)
    assert a.apply(Op.QP_2ERR) == 0
    world.a.memory.write(a.dbr + 4, (0xFFFF).to_bytes(4, "big"))
    world.a.ring_send_queue(a.last)
    world.settle()
    assert len(a.send_cq.poll()) == 1 << 6
    # Receives have no doorbell: their record is looked at every two ms, and gives one ring each time.
    world.a.memory.write(a.dbr, (0xFFFF).to_bytes(4, "big"))
    world.pass_time(5_000_000)
    assert len(a.send_cq.poll()) == 2 << 6


def test_flushing_into_a_dead_queue_is_no_work() -> None:
    world = World(64 << 20)
    a, b = End(world.a, log_sq=LOG_DEEP, log_rq=LOG_DEEP, cq=CompletionQueue(world.a, log_size=1)), End(world.b)
    a.connect(b)
    for _ in range(1 << LOG_DEEP):
        a.post(WqeOpcode.NOP, ring=False)
        a.post_recv()
    assert a.apply(Op.QP_2ERR) == 0
    a.ring()
    assert a.qp.send_cq is not None
    assert a.qp.send_cq.failed
    world.settle()
    assert world.a.hca.count[Count.CQES_LOST] < 2 * FLUSH_BUDGET
    assert a.qp.sq is not None
    assert a.qp.sq.consumer == 1 << LOG_DEEP


def test_what_is_left_of_a_flush_goes_on_without_a_ring() -> None:
    world = World(64 << 20)
    a, b = deep_end(world, world.a, ST_UC), End(world.b, ST_UC)
    a.connect(b)
    b.connect(a)
    place = a.buffer(8)
    a.write(place, 8, 0, b.card.key, key=0x666600, ring=False)
    posted = FLUSH_BUDGET * 4
    for _ in range(posted):
        a.write(place, 8, b.buffer(8), b.card.key, ring=False)
    a.ring()
    assert a.apply(Op.SQERR2RTS_QP) == 0
    world.settle()
    assert [item.syndrome for item in a.send_cq.poll()] == [4] + [5] * posted


def test_a_flush_in_turns_takes_what_was_posted_at_the_ring_and_no_more() -> None:
    world = World(64 << 20)
    a, b = deep_end(world, world.a), End(world.b)
    a.connect(b)
    assert a.apply(Op.QP_2ERR) == 0
    rung = FLUSH_BUDGET * 2
    for _ in range(rung):
        a.post(WqeOpcode.NOP, ring=False)
    a.ring()
    for _ in range(10):
        a.post(WqeOpcode.NOP, ring=False)
    a.card.memory.write(a.dbr + 4, a.sq_posted.to_bytes(4, "big"))
    world.settle()
    assert len(a.send_cq.poll()) == rung
    a.ring()
    world.settle()
    assert len(a.send_cq.poll()) == 10


def test_a_receive_under_way_is_flushed_once_and_before_those_behind_it() -> None:
    world = World(64 << 20)
    a, b = End(world.a), deep_end(world, world.b)
    a.connect(b)
    b.connect(a)
    for _ in range(FLUSH_BUDGET * 2 + 1):
        b.post_recv(b.buffer(16), 4096)
    world.fault = split
    a.send(a.buffer(3000), 3000)
    world.deliver(1)
    assert b.qp.responder.recv is not None
    assert b.apply(Op.QP_2ERR) == 0
    world.settle()
    assert [c.counter for c in b.recv_cq.poll()] == list(range(FLUSH_BUDGET * 2 + 1))


def test_a_host_may_take_back_what_is_being_flushed() -> None:
    world = World(64 << 20)
    a, b = deep_end(world, world.a), End(world.b)
    a.connect(b)
    for _ in range(FLUSH_BUDGET * 2):
        a.post_recv()
    assert a.apply(Op.QP_2ERR) == 0
    a.card.memory.write(a.dbr, (0).to_bytes(4, "big"))
    world.settle()
    assert FLUSH_BUDGET <= len(a.recv_cq.poll()) <= FLUSH_BUDGET * 2


def test_a_send_queue_that_cannot_be_read_is_not_flushed_again_and_again() -> None:
    world = World(64 << 20)
    cq = CompletionQueue(world.a, log_size=LOG_DEEP + 1)
    place, nowhere = world.a.alloc(64 * FLUSH_BUDGET), 1 << 50
    pages = [*range(place, place + 64 * FLUSH_BUDGET, 4096), *[nowhere] * (64 << LOG_DEEP >> 12)]
    a, b = End(world.a, log_sq=LOG_DEEP, has_rq=False, cq=cq, pages=pages), End(world.b)
    a.connect(b)
    a.sq_posted = FLUSH_BUDGET * 2
    a.write_record()
    assert a.apply(Op.QP_2ERR) == 0
    world.settle()
    assert len(a.send_cq.poll()) == FLUSH_BUDGET
    assert a.card.hca.count[Count.DMA_READ_ERRORS] == 1


@under_way
def test_what_was_walked_before_a_step_is_not_charged_to_it() -> None:
    world, a, b = pair()
    # Past the door: a count that runs freely, as after months.
    a.card.hca.pieces = b.card.hca.pieces = 1 << 50
    for number in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ring=number == 2)
    # In one step, before any further turn.
    assert sum("WRITE" in line for line in world.ladder) == 3
    for _ in range(3):
        a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert [completion.syndrome for completion in a.send_cq.poll()] == [0] * 6
