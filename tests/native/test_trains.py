"""When there are trains and when not, and what they leave behind."""

import gc
from collections.abc import Callable
from random import Random

import pytest

from firmware.model.counters import TX_UD_PACKETS, Count, CountOf, Outcome
from firmware.model.objects import MODE_KLM
from firmware.model.qp import ERR, RTS
from firmware.model.segment import SEGMENT_COST_BYTES, TRAIN_BYTE_BUDGET
from firmware.native.library import loaded
from firmware.transport import cut_through
from firmware.transport.conversation import Conversation, Opened
from tests.scenario.queues import data
from tests.scenario.test_offloads import large_send
from tests.scenario.world import (
    BASE,
    FOREVER_NS,
    ST_UD,
    CompletionQueue,
    End,
    SharedQueue,
    World,
    packed_klms,
    pair,
)
from tests.support.ip import TCP, Ip, ip_packet
from vhca.hw.events import Reset
from vhca.hw.memory import Span
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.eqe import EventType
from vhca.wire.connectx.qpc import OptParam
from vhca.wire.connectx.srq import WqType
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode

pytestmark = pytest.mark.skipif(not loaded().there, reason=f"no engine in C: {loaded().reason}")


def rails() -> tuple[World, End, End]:
    world, a, b = pair()
    world.lay_rails()
    return world, a, b


def trains(end: End) -> int:
    return end.card.hca.count[Count.TRAINS]


def why(end: End) -> dict[int, int]:
    """Why messages were left to Python."""
    return dict(end.card.hca.count_of.numbers.get(CountOf.TRAIN_ENDS, {}))


def write(world: World, a: End, b: End, key: int | None = None) -> int:
    """The syndrome of one WRITE."""
    a.write(a.buffer(64), 64, b.buffer(64), b.card.key if key is None else key)
    world.settle()
    world.pass_time(FOREVER_NS)
    (completion,) = a.send_cq.poll()
    return completion.syndrome


def test_messages_go_by_train() -> None:
    world, a, b = rails()
    b.post_recv(b.buffer(100), 100)
    counters = a.card.port.counters, b.card.port.counters
    before = [(c.xmit_data, c.rcv_pkts) for c in counters]
    source = a.buffer(b"one hundred and twenty bytes" * 4)
    place, back = b.buffer(200), a.buffer(200)
    a.write(source, 112, place, b.card.key, ring=False)
    a.send(source, 100, ring=False)
    a.read(back, 112, place, b.card.key, ring=False)
    a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), b.buffer(8), b.card.key, 3)
    world.settle()
    assert world.ladder == []
    assert (trains(a), a.card.hca.count[Count.TRAIN_MESSAGES]) == (1, 4)
    assert [completion.good for completion in a.send_cq.poll()] == [True] * 4
    assert [completion.size for completion in b.recv_cq.poll()] == [100]
    assert b.peek(place, 112) == a.peek(back, 112) == b"one hundred and twenty bytes" * 4
    # 112 bytes: LRH, BTH, RETH, ICRC; the SEND; two requests; two answers, which acknowledge the rest.
    words = [8 + 12 + 16 + 112 + 4, 8 + 12 + 100 + 4, 8 + 12 + 16 + 4, 8 + 12 + 28 + 4]
    back_words = [8 + 12 + 4 + 112 + 4, 8 + 12 + 4 + 8 + 4]
    assert world.trains == [(4, sum(words) // 4, 2, sum(back_words) // 4)]
    after = [(c.xmit_data, c.rcv_pkts) for c in counters]
    assert [(new[0] - old[0], new[1] - old[1]) for new, old in zip(after, before, strict=True)] == [
        (world.trains[0][1], 2), (world.trains[0][3], 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "obstacle",
    [
        lambda world, a, b: setattr(world, "fault", lambda packet: [packet]),
        lambda world, a, b: setattr(world, "rails", False),
        lambda world, a, b: world.wire(b.card, _stray(world, a, b)),
    ],
)
def test_a_way_that_is_not_open_is_for_packets(obstacle: Callable[[World, End, End], None]) -> None:
    world, a, b = rails()
    assert write(world, a, b) == 0
    assert trains(a) == 1
    obstacle(world, a, b)
    a.write(a.buffer(64), 64, b.buffer(64), b.card.key)
    world.settle()
    assert trains(a) == 1
    assert any("WRITE" in line for line in world.ladder)
    assert [completion.good for completion in a.send_cq.poll()] == [True]


def _stray(world: World, a: End, b: End) -> object:
    """A packet that is on the cable for another reason."""
    seen: list[object] = []
    world.fault = lambda packet: seen.append(packet) or []  # type: ignore[func-returns-value]
    other, its_peer = End(world.a), End(world.b)
    other.connect(its_peer)
    its_peer.connect(other)
    other.write(other.buffer(8), 8, its_peer.buffer(8), its_peer.card.key)
    world.deliver()
    while world.a.turn():
        pass
    world.fault = None
    return seen[0]


def test_a_destroyed_key_is_refused_at_once() -> None:
    world, a, b = rails()
    key = b.card.register(b.buffer(4096), 4096)
    mine = b.card.register(BASE, 1 << 20)
    assert write(world, a, b, mine) == 0
    b.card.destroy_key(mine)
    assert write(world, a, b, mine) == CqeSyndrome.REMOTE_ACCESS_ERR
    assert a.qp.state != RTS
    assert key != mine


def test_a_key_that_a_work_request_invalidates_is_refused_at_once() -> None:
    world, a, b = rails()
    key = b.card.register(BASE, 1 << 20)
    assert write(world, a, b, key) == 0
    # Past the door: as LOCAL_INV of a kernel does, in the shortest way.
    b.card.mkey(key).free = True
    assert write(world, a, b, key) == CqeSyndrome.REMOTE_ACCESS_ERR


def test_keys_of_one_place_in_the_table_do_not_mix() -> None:
    world, a, b = rails()
    keys = [b.card.register(BASE, 1 << 20) for _ in range(1100)]
    for key in (keys[0], keys[1024], keys[0]):
        assert write(world, a, b, key) == 0
    b.card.destroy_key(keys[0])
    assert write(world, a, b, keys[1024]) == 0
    assert write(world, a, b, keys[0]) == CqeSyndrome.REMOTE_ACCESS_ERR


def test_memory_that_was_unmapped_is_not_touched() -> None:
    world, a, b = rails()
    assert write(world, a, b) == 0
    memory = b.card.memory
    before = bytes(memory.data)

    class Gone:
        generation = 1
        faults_at = 0

        def spans(self) -> list[Span]:
            return []

    b.card.hca.native._memory = Gone()
    a.write(a.buffer(64), 64, b.buffer(b"x" * 64), b.card.key)
    place = before.find(b"never")
    assert place == -1
    world.settle()
    assert trains(a) == 1
    assert any("WRITE" in line for line in world.ladder)


def test_an_armed_queue_of_the_other_card_sends_its_event() -> None:
    world, a, b = rails()
    b.post_recv(b.buffer(64), 64)
    b.recv_cq.arm()
    b.card.irqs.clear()
    b.card.update_eq(arm=True)
    a.send(a.buffer(64), 64)
    world.settle()
    assert trains(a) == 1
    assert [event.event_type for event in b.card.new_events()] == [EventType.COMP]
    assert b.card.irqs == [0]


def test_a_queue_pair_in_error_is_left_alone() -> None:
    world, a, b = rails()
    assert write(world, a, b) == 0
    b.apply(Op.QP_2ERR)
    assert b.qp.state == ERR
    assert write(world, a, b) == CqeSyndrome.TRANSPORT_RETRY_EXC_ERR
    assert trains(a) == 1


def test_other_rights_hold_at_once() -> None:
    world, a, b = rails()
    assert write(world, a, b) == 0
    assert b.apply(Op.RTS2RTS_QP, 1 << OptParam.RWE, rwe=0) == 0
    assert write(world, a, b) == CqeSyndrome.REMOTE_INVAL_REQ_ERR


def test_a_completion_queue_that_moves_is_followed() -> None:
    world, a, b = rails()
    queue = CompletionQueue(world.a, log_size=3)
    other, peer = End(world.a, cq=queue), End(world.b)
    other.connect(peer)
    peer.connect(other)
    for _ in range(20):
        other.write(other.buffer(8), 8, peer.buffer(8), peer.card.key)
        world.settle()
        assert [completion.good for completion in queue.poll()] == [True]
    assert trains(other) == 20
    assert a.qp.state == b.qp.state == RTS


def test_a_full_completion_queue_fails_as_ever() -> None:
    world, _, _ = rails()
    queue = CompletionQueue(world.a, log_size=1)
    a, b = End(world.a, cq=queue), End(world.b)
    a.connect(b)
    b.connect(a)
    for _ in range(5):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert queue.cq.failed
    assert a.qp.state == ERR


def test_a_message_that_is_too_long_for_a_train_goes_in_packets() -> None:
    world, a, b = pair(world=World(16 << 20))
    world.lay_rails()
    size = (1 << 20) + 1
    content = bytes(range(256)) * (size // 256 + 1)
    source, place = a.buffer(content[:size]), b.buffer(size)
    a.write(source, size, place, b.card.key)
    world.settle()
    assert trains(a) == 0
    assert b.peek(place, size) == content[:size]


def test_a_train_ends_where_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_through, "TRAIN_NS", 0)
    world, a, b = rails()
    world.at_once = False
    for number in range(60):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ring=number == 59)
    world.settle()
    assert a.card.hca.count[Count.TRAIN_MESSAGES] == 60
    size = TRAIN_BYTE_BUDGET >> 2
    big = a.buffer(size), b.buffer(size)
    for number in range(5):
        a.write(big[0], size, big[1], b.card.key, ring=number == 4)
    # A step's worth of bytes each: four, one.
    assert a.card.hca.count[Count.TRAIN_MESSAGES] == 64
    assert world.a.turn()
    assert a.card.hca.count[Count.TRAIN_MESSAGES] == 65
    assert not world.a.turn()


def test_long_lists_make_a_train_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest chooses how many pieces a message has: a step has so many of them at most."""
    monkeypatch.setattr(cut_through, "TRAIN_NS", 0)
    world = World()
    a, b = End(world.a, log_sq=13), End(world.b)
    a.connect(b)
    b.connect(a)
    world.lay_rails()
    pieces = 60
    segments = RaddrSegment(raddr=b.buffer(64), rkey=b.card.key).to_bytes() + a.sge(a.buffer(64), 1) * pieces
    for number in range(400):
        a.post(WqeOpcode.RDMA_WRITE, segments, ce=0, ring=number == 399)
    assert trains(a) == 1
    assert 200 < a.card.hca.count[Count.TRAIN_MESSAGES] <= TRAIN_BYTE_BUDGET // (SEGMENT_COST_BYTES * pieces)
    world.settle()
    assert a.card.hca.count[Count.TRAIN_MESSAGES] == 400


def test_a_destroyed_queue_pair_is_not_kept_by_its_peer() -> None:
    world, a, b = rails()
    assert write(world, a, b) == 0
    number = b.qpn
    b.destroy()
    while world.b.turn():
        pass
    assert world.b.hca.qps.get(number) is None
    assert write(world, a, b) == CqeSyndrome.TRANSPORT_RETRY_EXC_ERR


def listed(end: End) -> int:
    """A key of all of an end's memory that only Python can use: a list of one key."""
    return end.card.create_key(MODE_KLM, packed_klms((1 << 20, end.card.key, BASE)), start_addr=BASE, len=1 << 20)


def test_a_card_that_was_reset_is_not_written_to() -> None:
    world, a, b = rails()
    place = b.buffer(b"as it was")
    assert write(world, a, b) == 0
    far_qp = b.qp
    world.b.event(Reset("by its host"))
    # Its memory is freed in pieces: for a while, what was there still is.
    assert far_qp.state == RTS
    a.write(a.buffer(64), 9, place, b.card.key)
    world.settle()
    assert trains(a) == 1
    assert b.peek(place, 9) == b"as it was"


def test_nothing_of_a_card_that_is_gone_is_kept_by_its_peer() -> None:
    world, a, b = rails()
    assert write(world, a, b) == 0
    opened = a.qp.conversation.opened  # type: ignore[union-attr]
    assert opened.far() is world.b.hca
    assert not [item for item in gc.get_referrers(world.b.hca) if isinstance(item, Opened)]


def test_connections_in_turn_go_by_train_also_when_one_has_lost_its_peer() -> None:
    world, a, b = rails()
    other, its_peer = End(world.a), End(world.b)
    other.connect(its_peer)
    its_peer.connect(other)
    for _ in range(3):
        assert write(world, a, b) == write(world, other, its_peer) == 0
    assert trains(a) == 6
    its_peer.destroy()
    while world.b.turn():
        pass
    assert write(world, a, b) == 0
    assert write(world, other, b) == CqeSyndrome.TRANSPORT_RETRY_EXC_ERR
    assert write(world, a, b) == 0
    assert trains(a) == 8


def test_an_unusual_message_among_others_goes_alone() -> None:
    world, a, b = rails()
    place, key = b.buffer(64), listed(b)
    for number in range(31):
        a.write(a.buffer(8), 8, place, key if number == 10 else b.card.key, ring=number == 30)
    world.settle()
    assert (trains(a), a.card.hca.count[Count.TRAIN_MESSAGES]) == (2, 30)
    assert [completion.counter for completion in a.send_cq.poll()] == list(range(31))


def test_messages_that_are_all_unusual_go_together() -> None:
    world, a, b = rails()
    place, key = b.buffer(64), listed(b)
    for number in range(10):
        a.write(a.buffer(8), 8, place, key, ring=number == 9)
    # All of them are on the cable at once.
    assert len(world.queue) == 10
    world.settle()
    assert trains(a) == 0
    assert [completion.good for completion in a.send_cq.poll()] == [True] * 10
    assert why(a) == {Outcome.KEY: 1}


def test_a_stream_comes_back_to_trains_while_more_is_posted() -> None:
    """One receive that is late must not leave a busy connection to packets for ever."""
    world, a, b = pair(made={"log_sq": 6})
    world.lay_rails()
    place = b.buffer(64)
    a.send(a.buffer(8), 8)
    # The first try: nobody waits for it; it goes by packets, and comes again when the receiver is ready.
    assert world.queue
    posted = 0
    for _ in range(40):
        for _ in range(10):
            a.write(a.buffer(8), 8, place, b.card.key)
            posted += 1
        if posted == 10:
            b.post_recv(b.buffer(64), 64)
        world.deliver(3)
        world.a.turn()
        world.pass_time(1_000_000)
        a.send_cq.poll()
    assert a.card.hca.count[Count.TRAIN_MESSAGES] > 200


def test_a_failure_elsewhere_does_not_repeat_an_atomic_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are counted for the whole process: one of another guest's memory says nothing of this message."""
    world, a, b = rails()
    word = b.buffer((5).to_bytes(8, "little"))
    (span,) = b.card.memory.spans()
    # The number changes in the middle of the operation, which is what another thread might do.
    monkeypatch.setattr(type(a.card.memory), "faults_at", span.place + word - span.start)
    a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), word, b.card.key, 1)
    world.settle()
    assert [completion.good for completion in a.send_cq.poll()] == [True]
    assert int.from_bytes(b.peek(word, 8), "little") == 6


def test_long_lists_of_receives_make_a_train_of_segments_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of messages: of a large send, each segment takes a list that the other guest has made."""
    monkeypatch.setattr(cut_through, "TRAIN_NS", 0)
    pieces, segments = 255, 200
    world = World()
    # Entries of 4096 bytes, in the memory of as many of 64.
    pool = SharedQueue(world.b, log_size=14, log_wq_sz=8, log_wq_stride=12, wq_type=WqType.CYCLIC)
    a = End(world.a, ST_UD, ulp_stateless_offload_mode=1)
    b = End(world.b, ST_UD, srq=pool, cq=CompletionQueue(world.b, log_size=9))
    a.connect(b, mtu=5)
    b.connect(a, mtu=5)
    world.lay_rails()
    room = b.buffer(4096)
    receive = data(0, 0, b.card.key) * (pieces - 1) + data(room, 4096, b.card.key)
    for number in range(segments):
        b.card.memory.write(pool.addr + number * 4096, receive)
    b.card.memory.write(pool.dbr, segments.to_bytes(4, "big"))
    header = ip_packet(Random(1), Ip(Random(1), protocol=TCP), b"")
    large_send(a, b, header, bytes(segments), mss=1)
    sent = a.card.hca.count[TX_UD_PACKETS]
    assert trains(a) == 1
    assert 30 < sent <= TRAIN_BYTE_BUDGET // (SEGMENT_COST_BYTES * pieces) + 1
    world.settle()
    assert a.card.hca.count[TX_UD_PACKETS] == segments
    assert [completion.good for completion in a.send_cq.poll()] == [True]


@pytest.mark.parametrize("pieces", [1, 60])
def test_a_train_whose_time_is_up_ends_whatever_is_left_of_its_budget(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a piece takes depends on memory: pages that nobody has touched yet are a guest's choice, too."""
    monkeypatch.setattr(cut_through, "TRAIN_NS", 1)
    world = World()
    a, b = End(world.a, log_sq=13), End(world.b)
    a.connect(b)
    b.connect(a)
    world.lay_rails()
    world.at_once = False
    segments = RaddrSegment(raddr=b.buffer(64), rkey=b.card.key).to_bytes() + a.sge(a.buffer(64), 1) * pieces
    for number in range(100):
        a.post(WqeOpcode.RDMA_WRITE, segments, ce=0, ring=number == 99)
    assert trains(a) == 1
    assert 0 < a.card.hca.count[Count.TRAIN_MESSAGES] <= 16
    assert a.card.hca.count[Count.TRAIN_MESSAGES] * pieces <= 300
    world.settle()
    assert a.card.hca.count[Count.TRAIN_MESSAGES] == 100


def test_a_doorbell_is_answered_at_once_by_a_short_train() -> None:
    world, a, b = rails()
    assert write(world, a, b) == 0
    mine, theirs = a.buffer(b"at once!"), b.buffer(8)
    a.write(mine, 8, theirs, b.card.key, ring=False)
    a.write_record()
    a.card.ring_send_queue(a.last)
    # No turn was needed, and none is asked for.
    assert b.peek(theirs, 8) == b"at once!"
    assert not world.a.turn()
    # What an earlier doorbell has told of is looked for in a turn.
    a.card.ring_send_queue(a.last)
    assert world.a.turn()
    # So is what is more than a little.
    size = 256 << 10
    big = a.buffer(size), b.buffer(size)
    for _ in range(40):
        a.write(*(big[0], size, big[1], b.card.key), ring=False)
    a.write_record()
    a.card.ring_send_queue(a.last)
    assert 2 < a.card.hca.count[Count.TRAIN_MESSAGES] < 42
    assert world.a.turn()


def test_what_a_train_at_once_leaves_is_for_python() -> None:
    """Without another try: a page that was missing is not by then, but what came of it is nothing."""
    world, a, b = rails()
    assert write(world, a, b) == 0
    before = trains(a)
    # A key of that number is not there: nothing for C.
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key + 0x10000, ring=False)
    a.write_record()
    a.card.ring_send_queue(a.last)
    assert isinstance(a.qp.conversation, Conversation)
    assert a.qp.conversation.alone
    assert world.a.turn()
    assert not a.qp.conversation.alone
    world.settle()
    assert trains(a) == before
    assert [completion.good for completion in a.send_cq.poll()] == [False]
