"""On-demand paging: who waits for which page, what the peer sees of it, and what a refusal ends."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware import page_faults
from firmware.memory import PageFault, direct, find_key, translate
from firmware.model.counters import Count, QCount
from firmware.model.objects import LOCAL_READ, LOCAL_WRITE, MODE_KLM, MODE_KSM, MODE_MTT, Mkey
from firmware.transport import engine, lifecycle
from tests.scenario.tools import lose
from tests.scenario.world import (
    ALL_RIGHTS,
    ERR,
    ST_RC,
    ST_REG_UMR,
    ST_UC,
    ST_UD,
    Card,
    End,
    SharedQueue,
    World,
    data,
    pair,
)
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.eqe import Eqe, EventType, MemoryFaultData
from vhca.wire.connectx.wqe import MkeyMask, RaddrSegment, UmrCtrlSegment, UmrMkeySegment, WqeOpcode

PAGE = 4096
ABSENT, READABLE, PRESENT = 0, 1, 3
# Behind earlier READs and atomics: their results may be what is sent.
FENCE = 2


@dataclass
class Fault:
    """A page fault event as the host reads it."""

    token: int
    key: int
    va: int
    pages: int
    ahead: int


class Region:
    """A region whose pages come and go; address = bus address."""

    def __init__(self, card: Card, pages: int, rights: int = ALL_RIGHTS) -> None:
        self.card = card
        self.addr = card.alloc(pages * PAGE)
        self.pages = pages
        self.mkey = Mkey(variant=0x33, pd=card.pd.handle, rights=rights, mode=MODE_MTT, start=self.addr,
                         length=pages * PAGE, mtts=bytearray(pages * 8), paged=True,
                         capacity_octwords=pages)  # fmt: skip
        card.hca.mkeys.add(self.mkey)
        self.key = self.mkey.handle << 8 | 0x33

    def set(self, rights: int, first: int = 0, count: int | None = None) -> None:
        """Let pages come or go, as a UMR of the host does."""
        for page in range(first, self.pages if count is None else first + count):
            struct.pack_into(">Q", self.mkey.mtts or b"", page * 8, (self.addr + page * PAGE) | rights)
        self.mkey.translation_changed()

    def write(self, content: bytes, at: int = 0) -> None:
        self.card.memory.write(self.addr + at, content)

    def read(self, size: int, at: int = 0) -> bytes:
        return self.card.memory.read(self.addr + at, size)


def faults(card: Card) -> list[Fault]:
    """New page faults; other events are passed over."""
    out = []
    while True:
        raw = card.memory.read(card.eq_addr + (card.eq_consumer & 63) * 64, 64)
        if raw[63] & 1 != card.eq_consumer >> 6 & 1:
            break
        card.eq_consumer += 1
        event = Eqe.from_bytes(raw)
        if event.event_type == EventType.PAGE_FAULT:
            assert event.event_sub_type == 2
            view = MemoryFaultData.from_bytes(event.event_data)
            assert view.last
            out.append(Fault(view.token_47_32 << 32 | view.token_31_0, view.mkey, view.va, view.demand_fault_pages,
                             view.post_demand_fault_pages))  # fmt: skip
    card.eq.consumer = card.eq.producer
    return out


def answer(card: Card, fault: Fault, good: bool = True) -> None:
    done = []
    card.step(lambda: done.append(engine.page_fault_answered(card.hca, fault.token, good)))
    assert done == [True]


def serve(world: World, region: Region) -> int:
    """Bring in what is asked for until nobody asks; returns how often."""
    for count in range(100):
        world.pass_time(10_000_000)
        asked = faults(region.card)
        if not asked:
            return count
        for fault in asked:
            assert fault.key == region.key
            assert fault.va % PAGE == 0
            region.set(PRESENT, (fault.va - region.addr) // PAGE, fault.pages)
            answer(region.card, fault)
    raise AssertionError("the faults never end")


def refuse_all(world: World, card: Card) -> int:
    """Refuse what is asked for until nobody asks."""
    for count in range(100):
        asked = faults(card)
        if not asked:
            return count
        for fault in asked:
            answer(card, fault, good=False)
        world.pass_time(400_000_000)
    raise AssertionError("the faults never end")


def statuses(end: End) -> tuple[list[int], list[int]]:
    return [c.syndrome for c in end.send_cq.poll()], [c.syndrome for c in end.recv_cq.poll()]


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_send_waits_for_its_pages_and_what_follows_waits_behind_it(service: int) -> None:
    world, a, b = pair(service)
    region = Region(world.a, 3)
    content = some_bytes(2 * PAGE)
    region.write(content, 100)
    into = b.buffer(3 * PAGE)
    for _ in range(3):
        b.post_recv(into, 3 * PAGE)
    a.send(a.buffer(b"first"), 5)
    a.send(region.addr + 100, 2 * PAGE, key=region.key)
    a.send(a.buffer(b"third"), 5)
    world.settle()
    assert statuses(a) == ([0], [])
    assert [c.size for c in b.recv_cq.poll()] == [5]
    (fault,) = faults(world.a)
    assert (fault.key, fault.va, fault.pages) == (region.key, region.addr, 3)
    # As long as it takes, and without a retry.
    world.pass_time(10_000_000_000)
    assert faults(world.a) == []
    assert QCount.LOCAL_ACK_TIMEOUT_ERR not in a.counter.values
    region.set(PRESENT)
    answer(world.a, fault)
    world.settle()
    assert statuses(a) == ([0, 0], [])
    assert [c.size for c in b.recv_cq.poll()] == [2 * PAGE, 5]


def test_a_request_that_was_lost_is_repeated_while_one_behind_it_waits_for_pages() -> None:
    world, a, b = pair()
    region = Region(a.card, 1)
    target = b.buffer(8)
    world.fault = lose({0})
    a.write(a.buffer(b"repeated"), 8, target, b.card.key)
    a.write(region.addr, 8, b.buffer(8), b.card.key, key=region.key)
    world.pass_time(1_000_000_000)
    assert len(faults(a.card)) == 1
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert b.peek(target, 8) == b"repeated"


def test_the_event_names_the_first_missing_page_and_wishes_for_the_rest() -> None:
    world, a, b = pair()
    size = (300 << 10) + 8
    region = Region(world.a, 80)
    region.set(PRESENT, 0, 2)
    a.write(region.addr + 8, size, b.buffer(size), world.b.key, key=region.key)
    world.settle()
    (fault,) = faults(world.a)
    assert (fault.va, fault.pages) == (region.addr + 2 * PAGE, 63)
    # The first burst ends inside page 64.
    assert fault.ahead == -(-(size - (256 << 10)) // PAGE)
    region.set(PRESENT)
    answer(world.a, fault)
    world.settle()
    assert statuses(a) == ([0], [])


def test_a_page_that_went_again_is_asked_for_again() -> None:
    world, a, b = pair()
    region = Region(world.a, 1)
    a.write(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
    for _ in range(3):
        (fault,) = faults(world.a)
        answer(world.a, fault)
        world.settle()
    region.set(PRESENT)
    answer(world.a, faults(world.a)[0])
    world.settle()
    assert statuses(a) == ([0], [])


def test_a_page_that_may_be_read_is_missing_for_a_store() -> None:
    world, a, _ = pair()
    region = Region(world.b, 1)
    region.set(READABLE)
    a.read(a.buffer(8), 8, region.addr, region.key)
    world.settle()
    assert faults(world.b) == []
    a.write(a.buffer(b"12345678"), 8, region.addr, region.key)
    world.settle()
    assert [fault.va for fault in faults(world.b)] == [region.addr]


def test_a_refusal_that_is_repeated_fails_the_send() -> None:
    world, a, b = pair()
    region = Region(world.a, 1)
    a.write(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
    a.write(a.buffer(8), 8, b.buffer(8), world.b.key)
    begin = world.now_ns
    assert refuse_all(world, world.a) == page_faults.REFUSALS
    assert world.now_ns - begin > page_faults.DOUBT_NS
    assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert a.qp.state == ERR


def test_a_refusal_by_mistake_is_forgiven() -> None:
    world, a, b = pair()
    region = Region(world.a, 1)
    a.write(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
    answer(world.a, faults(world.a)[0], good=False)
    region.set(PRESENT)
    world.pass_time(page_faults.PACE_NS[0] + 1000)
    assert statuses(a) == ([0], [])
    assert faults(world.a) == []


def test_without_an_event_queue_for_faults_a_missing_page_is_an_error() -> None:
    world, a, b = pair()
    world.a.eq.event_mask &= ~(1 << EventType.PAGE_FAULT)
    region = Region(world.a, 1)
    a.write(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
    assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR]
    for operation in ("read", "atomic"):
        world, a, b = pair()
        world.a.eq.event_mask &= ~(1 << EventType.PAGE_FAULT)
        region = Region(world.a, 1)
        if operation == "read":
            a.read(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
        else:
            atomic(a, region.addr, region.key, b.buffer(8), world.b.key)
        world.settle()
        assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR], operation


def atomic(end: End, local: int, lkey: int, remote: int, rkey: int, add: int = 1, **more: int) -> None:
    segments = RaddrSegment(raddr=remote, rkey=rkey).to_bytes() + struct.pack(">QQ", add, 0)
    end.post(WqeOpcode.ATOMIC_FA, segments + data(local, 8, lkey), **more)


def test_a_read_whose_answer_cannot_be_stored_is_asked_for_again() -> None:
    world, a, b = pair()
    region = Region(world.a, 40)
    content = some_bytes(40 * PAGE)
    source = b.buffer(content)
    a.read(region.addr, len(content), source, world.b.key, key=region.key)
    a.write(a.buffer(8), 8, b.buffer(8), world.b.key)
    world.settle()
    assert statuses(a) == ([], [])
    assert serve(world, region) >= 1
    assert statuses(a) == ([0, 0], [])
    assert region.read(len(content)) == content


def test_an_atomic_whose_answer_cannot_be_stored_is_executed_once() -> None:
    world, a, b = pair()
    region = Region(world.a, 1)
    counter = b.buffer((41).to_bytes(8, "little"))
    atomic(a, region.addr, region.key, counter, world.b.key)
    world.settle()
    (fault,) = faults(world.a)
    world.pass_time(1_000_000_000)
    region.set(PRESENT)
    answer(world.a, fault)
    world.settle()
    assert statuses(a) == ([0], [])
    assert int.from_bytes(region.read(8), "little") == 41
    assert int.from_bytes(b.peek(counter, 8), "little") == 42


@pytest.mark.parametrize("shared", [False, True])
def test_a_receive_without_its_pages_asks_the_peer_to_wait(shared: bool) -> None:
    world = World()
    srq = SharedQueue(world.b) if shared else None
    a, b = End(world.a), End(world.b, srq=srq)
    a.connect(b, rnr_retry=7)
    b.connect(a)
    region = Region(world.b, 80)
    content = some_bytes(70 * PAGE)
    for at in (0, 71 * PAGE):
        if srq is not None:
            srq.post_recv(region.addr + at, 71 * PAGE - at // 10, region.key)
        else:
            b.post_recv(region.addr + at, 71 * PAGE - at // 10, region.key)
    a.send(a.buffer(content), len(content))
    a.send(a.buffer(b"more"), 4)
    world.settle()
    assert world.b.hca.count[Count.RNR_NAKS] == 1
    assert serve(world, region) >= 2
    assert statuses(a) == ([0, 0], [])
    assert [(c.syndrome, c.size) for c in b.recv_cq.poll()] == [(0, len(content)), (0, 4)]
    assert region.read(len(content)) == content
    assert region.read(4, 71 * PAGE) == b"more"
    # One event for each missing stretch, however often the peer came back.
    assert world.b.hca.count[Count.PAGE_FAULTS] < 4


def test_while_a_receive_waits_there_is_one_event() -> None:
    world, a, b = pair(rnr_retry=7)
    region = Region(world.b, 1)
    b.post_recv(region.addr, PAGE, region.key)
    a.send(a.buffer(8), 8)
    world.pass_time(100_000_000)
    assert world.b.hca.count[Count.RNR_NAKS] > 10
    assert len(faults(world.b)) == 1


def test_a_write_with_immediate_takes_one_receive() -> None:
    world, a, b = pair(rnr_retry=7)
    region = Region(world.b, 2)
    b.post_recv()
    b.post_recv()
    content = some_bytes(PAGE + 9)
    a.write(a.buffer(content), len(content), region.addr + 1, region.key)
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(b"x"), 1, region.addr, region.key, imm=5)
    region.set(ABSENT)
    serve(world, region)
    region.set(ABSENT)
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(b"y"), 1, region.addr, region.key, imm=6)
    serve(world, region)
    assert statuses(a) == ([0, 0, 0], [])
    assert [(c.counter, c.extra) for c in b.recv_cq.poll()] == [(0, 5), (1, 6)]
    assert region.read(len(content), 1) == content
    assert region.read(1) == b"y"


def test_a_read_of_missing_pages_is_answered_late_and_in_order() -> None:
    world, a, b = pair(log_rra_max=3, log_sra_max=3)
    region = Region(world.b, 80)
    content = some_bytes(80 * PAGE)
    region.write(content)
    into = a.buffer(len(content))
    a.read(into, len(content), region.addr, region.key)
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(b"behind"), 6)
    atomic(a, a.buffer(8), world.a.key, b.buffer(8), world.b.key)
    world.settle()
    assert statuses(a) == ([], [])
    # A peer that loses patience and asks again does not make it more.
    world.pass_time(600_000_000)
    assert sum(type(job).__name__ == "ReadJob" for job in b.qp.responder.replies) <= 2
    assert serve(world, region) >= 1
    assert statuses(a) == ([0, 0, 0], [])
    assert a.peek(into, len(content)) == content


def test_an_atomic_on_a_missing_page_is_executed_once_it_is_there() -> None:
    world, a, _ = pair(rnr_retry=7)
    region = Region(world.b, 1)
    region.write((7).to_bytes(8, "little"))
    into = a.buffer(8)
    atomic(a, into, world.a.key, region.addr, region.key, add=3)
    world.settle()
    (fault,) = faults(world.b)
    # Readable is not enough, although it is read first.
    region.set(READABLE)
    answer(world.b, fault)
    serve(world, region)
    assert statuses(a) == ([0], [])
    assert int.from_bytes(a.peek(into, 8), "little") == 7
    assert int.from_bytes(region.read(8), "little") == 10


@pytest.mark.parametrize(
    ("operation", "local", "receive"),
    [
        ("send", CqeSyndrome.REMOTE_OP_ERR, CqeSyndrome.LOCAL_PROT_ERR),
        ("write", CqeSyndrome.REMOTE_ACCESS_ERR, None),
        ("read", CqeSyndrome.REMOTE_ACCESS_ERR, None),
        ("atomic", CqeSyndrome.REMOTE_ACCESS_ERR, None),
    ],
)
def test_a_peer_hears_of_pages_that_never_come(operation: str, local: int, receive: int | None) -> None:
    world, a, b = pair(rnr_retry=7, path_ack_timeout=0)
    region = Region(world.b, 1)
    if operation == "send":
        b.post_recv(region.addr, PAGE, region.key)
        a.send(a.buffer(8), 8)
    elif operation == "write":
        a.write(a.buffer(8), 8, region.addr, region.key)
    elif operation == "read":
        a.read(a.buffer(8), 8, region.addr, region.key)
    else:
        atomic(a, a.buffer(8), world.a.key, region.addr, region.key)
    world.settle()
    refuse_all(world, world.b)
    assert statuses(a)[0] == [local]
    assert b.qp.state == ERR
    assert statuses(b)[1] == ([] if receive is None else [receive])


def test_a_receiver_without_fault_events_refuses_at_once() -> None:
    for operation, syndrome in (("write", CqeSyndrome.REMOTE_ACCESS_ERR), ("read", CqeSyndrome.REMOTE_ACCESS_ERR),
                                ("send", CqeSyndrome.REMOTE_OP_ERR)):  # fmt: skip
        world, a, b = pair()
        world.b.eq.event_mask &= ~(1 << EventType.PAGE_FAULT)
        region = Region(world.b, 1)
        b.post_recv(region.addr, PAGE, region.key)
        if operation == "send":
            a.send(a.buffer(8), 8)
        else:
            getattr(a, operation)(a.buffer(8), 8, region.addr, region.key)
        world.settle()
        assert statuses(a)[0] == [syndrome]


def datagrams() -> tuple[World, End, End]:
    world = World()
    a, b = End(world.a, ST_UD), End(world.b, ST_UD)
    for end in (a, b):
        end.to_init()
        end.to_rtr(mtu=5)
        end.to_rts()
    return world, a, b


def test_datagrams_wait_for_pages_on_their_way_out() -> None:
    world, a, b = datagrams()
    region = Region(world.a, 1)
    region.write(b"paged")
    for _ in range(2):
        b.post_recv(b.buffer(100), 100)
    av_send(a, region.addr, 5, region.key, b)
    a.datagram(a.buffer(b"x"), 1, 2, b.qpn)
    world.settle()
    assert statuses(a) == ([], [])
    serve(world, region)
    assert statuses(a) == ([0, 0], [])
    assert [c.size for c in b.recv_cq.poll()] == [45, 41]


def av_send(end: End, addr: int, size: int, key: int, peer: End) -> None:
    saved = end.card.key
    end.card.key = key
    end.datagram(addr, size, peer.card.port.lid, peer.qpn)
    end.card.key = saved


def test_a_datagram_without_pages_to_send_fails_in_the_end() -> None:
    world, a, b = datagrams()
    region = Region(world.a, 1)
    av_send(a, region.addr, 5, region.key, b)
    refuse_all(world, world.a)
    assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR]


def test_datagrams_that_cannot_be_stored_are_kept_in_order_and_not_without_end() -> None:
    world, a, b = datagrams()
    region = Region(world.b, 1)
    usual = b.buffer(64)
    b.post_recv(usual, 64)
    b.post_recv(region.addr, 64, region.key)
    for _ in range(60):
        b.post_recv(usual, 64)
    for number in range(70):
        a.datagram(a.buffer(bytes([number])), 1, 2, b.qpn)
        world.settle()
    assert [c.counter for c in b.recv_cq.poll()] == [0]
    assert world.b.hca.count[Count.RX_DROP_PAGING] == 5
    serve(world, region)
    assert [c.counter for c in b.recv_cq.poll()] == list(range(1, 62))
    assert region.read(1, 40) == b"\1"


def test_a_datagram_whose_receive_has_no_pages_fails_it_in_the_end() -> None:
    world, a, b = datagrams()
    region = Region(world.b, 1)
    b.post_recv(region.addr, 64, region.key)
    a.datagram(a.buffer(b"x"), 1, 2, b.qpn)
    world.settle()
    refuse_all(world, world.b)
    assert statuses(b)[1] == [CqeSyndrome.LOCAL_PROT_ERR]
    assert b.qp.state == ERR


def test_an_answer_after_the_queue_pair_was_reset_or_failed_changes_nothing() -> None:
    for op in (Op.QP_2RST, Op.QP_2ERR):
        world, a, b = pair(rnr_retry=7)
        near, far = Region(world.a, 1), Region(world.b, 2)
        b.post_recv(far.addr, PAGE, far.key)
        a.read(a.buffer(8), 8, far.addr + PAGE, far.key)
        a.send(near.addr, 8, key=near.key)
        b.send(b.buffer(8), 8)
        world.settle()
        pending = [(card, fault) for card in (world.a, world.b) for fault in faults(card)]
        assert len(pending) == 2
        for end in (a, b):
            assert end.apply(op) == 0
        statuses(a), statuses(b)
        for card, fault in pending:
            answer(card, fault)
            world.pass_time(1_000_000)
        assert statuses(a) == statuses(b) == ([], [])


def test_no_more_requests_are_outstanding_than_the_event_queue_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_faults, "MAX_OUTSTANDING", 2)
    world = World()
    ends = []
    region = Region(world.a, 4)
    for number in range(4):
        a, b = End(world.a), End(world.b)
        a.connect(b)
        b.connect(a)
        a.write(region.addr + number * PAGE, 8, b.buffer(8), world.b.key, key=region.key)
        ends.append(a)
    asked = faults(world.a)
    assert len(asked) == 2
    region.set(PRESENT)
    while asked:
        answer(world.a, asked.pop(0))
        asked += faults(world.a)
    world.settle()
    assert [statuses(end)[0] for end in ends] == [[0]] * 4


def test_an_unknown_token_is_nobodys() -> None:
    world = World()
    assert not engine.page_fault_answered(world.a.hca, 1, True)


# ---- registration by work request ----


def umr(end: End, mkey: Mkey, payload: bytes, offset: int = 0, mask: int = 0, **fields: int) -> int:
    ctrl = UmrCtrlSegment(mkey_mask=mask, xlt_octowords=len(payload) // 16, translation_offset_en=1, xlt_offset=offset)
    segment = UmrMkeySegment(mkey_7_0=mkey.variant, **fields)
    body = ctrl.to_bytes() + segment.to_bytes() + end.sge(end.buffer(payload), len(payload))
    end.post(WqeOpcode.UMR, body, imm=mkey.handle << 8 | mkey.variant)
    (completion,) = end.send_cq.poll()
    return completion.syndrome


def registration_queue(world: World) -> End:
    queue = End(world.a, ST_REG_UMR, has_rq=False)
    queue.connect(queue)
    return queue


def mtts(*entries: int) -> bytes:
    return struct.pack(f">{len(entries)}Q", *entries)


def test_entries_come_and_go_by_work_request() -> None:
    world, a, b = pair()
    queue = registration_queue(world)
    area = world.a.alloc(16 * PAGE)
    mkey = Mkey(variant=1, pd=world.a.pd.handle, rights=ALL_RIGHTS, mode=MODE_MTT, start=area, length=16 * PAGE,
                umr_enabled=True, capacity_octwords=8)  # fmt: skip
    world.a.hca.mkeys.add(mkey)
    key = mkey.handle << 8 | 1
    assert umr(queue, mkey, bytes(64)) == 0
    assert umr(queue, mkey, bytes(64), offset=4) == 0
    a.write(area + 12 * PAGE, 8, b.buffer(8), world.b.key, key=key)
    (fault,) = faults(world.a)
    assert fault.va == area + 12 * PAGE
    assert umr(queue, mkey, mtts(*[(area + page * PAGE) | PRESENT for page in range(8, 16)]), offset=4) == 0
    answer(world.a, fault)
    world.settle()
    assert statuses(a) == ([0], [])
    with pytest.raises(PageFault):
        translate(world.a.hca, mkey, area + 7 * PAGE, 8, LOCAL_READ)
    assert translate(world.a.hca, mkey, area + 8 * PAGE + 5, PAGE, LOCAL_WRITE) == [(area + 8 * PAGE + 5, PAGE)]
    # All there: from now on one stretch.
    assert umr(queue, mkey, mtts(*[(area + page * PAGE) | PRESENT for page in range(8)])) == 0
    assert translate(world.a.hca, mkey, area, 16 * PAGE, LOCAL_WRITE) == [(area, 16 * PAGE)]
    assert direct(mkey, area + 5) == area + 5
    # The table's end.
    assert umr(queue, mkey, bytes(64), offset=8) == CqeSyndrome.MW_BIND_ERR


def test_entries_that_were_never_loaded_cannot_be_left_out() -> None:
    for mode in (MODE_MTT, MODE_KSM, MODE_KLM):
        world = World()
        mkey = Mkey(variant=1, pd=world.a.pd.handle, mode=mode, umr_enabled=True, capacity_octwords=1 << 20)
        world.a.hca.mkeys.add(mkey)
        assert umr(registration_queue(world), mkey, bytes(64), offset=4) == CqeSyndrome.MW_BIND_ERR


def test_a_list_of_pages_counts_in_whole_blocks() -> None:
    world = World()
    queue = registration_queue(world)
    for pages, next_block in ((8, 4), (9, 8), (10, 8)):
        mkey = Mkey(variant=1, pd=world.a.pd.handle, mode=MODE_MTT, umr_enabled=True, capacity_octwords=64,
                    mtts=bytearray(8 * pages), paged=True)  # fmt: skip
        world.a.hca.mkeys.add(mkey)
        assert umr(queue, mkey, bytes(64), offset=next_block + 4) == CqeSyndrome.MW_BIND_ERR
        assert queue.apply(Op.QP_2RST) == 0
        queue = registration_queue(world)
        assert umr(queue, mkey, bytes(64), offset=next_block) == 0


def test_registration_waits_for_the_pages_of_its_entries() -> None:
    world, a, _ = pair()
    region = Region(world.a, 1)
    target = Mkey(variant=1, pd=world.a.pd.handle, mode=MODE_MTT, umr_enabled=True, capacity_octwords=4)
    world.a.hca.mkeys.add(target)
    region.write(mtts(*[0x7000 | PRESENT] * 8))
    a.qp.context.fre = 1
    ctrl = UmrCtrlSegment(xlt_octowords=4).to_bytes() + UmrMkeySegment(mkey_7_0=1).to_bytes()
    a.post(WqeOpcode.UMR, ctrl + a.sge(region.addr, 64, region.key), imm=target.handle << 8 | 1)
    assert statuses(a) == ([], [])
    assert serve(world, region) == 1
    assert statuses(a) == ([0], [])
    assert bytes(target.mtts or b"") == mtts(*[0x7000 | PRESENT] * 8)


def test_a_whole_address_space_in_pieces_of_gigabytes() -> None:
    """What the driver does for an implicit region: an indirect key over empty ones, filled as faults come."""
    world, a, b = pair()
    queue = registration_queue(world)
    hca = world.a.hca
    pd = world.a.pd.handle
    log_piece = 34
    # A key of one huge missing page: an access to it says where it was.
    empty = Mkey(variant=1, pd=pd, rights=ALL_RIGHTS, mode=MODE_MTT, length64=True, log_page_size=61,
                 mtts=bytearray(64), paged=True)  # fmt: skip
    hca.mkeys.add(empty)
    whole = Mkey(variant=2, pd=pd, rights=ALL_RIGHTS, mode=MODE_KSM, length64=True, free=True, umr_enabled=True,
                 capacity_octwords=8)  # fmt: skip
    hca.mkeys.add(whole)
    empty_key, whole_key = empty.handle << 8 | 1, whole.handle << 8 | 2
    table = b"".join(struct.pack(">4xIQ", empty_key, n << log_piece) for n in range(8))
    mask = 1 << MkeyMask.PAGE_SIZE | 1 << MkeyMask.PAGE_SIZE_5 | 1 << MkeyMask.FREE
    assert umr(queue, whole, table, mask=mask, log_page_size=log_piece) == 0
    va = (3 << log_piece) + 5 * PAGE + 8
    a.write(va, 8, b.buffer(8), world.b.key, key=whole_key)
    (fault,) = faults(world.a)
    assert (fault.key, fault.va, fault.pages) == (empty_key, va & -PAGE, 1)
    page = world.a.alloc(PAGE)
    child = Mkey(variant=3, pd=pd, rights=ALL_RIGHTS, mode=MODE_MTT, length64=True, start=3 << log_piece,
                 umr_enabled=True, capacity_octwords=4, mtts=bytearray(64), paged=True)  # fmt: skip
    hca.mkeys.add(child)
    child_key = child.handle << 8 | 3
    ksms = struct.pack(">4xIQ", child_key, 3 << log_piece)
    assert umr(queue, whole, table[: 3 * 16] + ksms) == 0
    answer(world.a, fault)
    world.settle()
    (fault,) = faults(world.a)
    assert (fault.key, fault.va) == (child_key, va & -PAGE)
    assert umr(queue, child, mtts(0, 0, 0, 0, 0, page | PRESENT, 0, 0)) == 0
    answer(world.a, fault)
    world.settle()
    assert statuses(a) == ([0], [])
    # Behind the entries of a key without a length there is nothing.
    mkey = find_key(hca, pd, a.qpn, child_key, (3 << log_piece) + 8 * PAGE, 1, LOCAL_READ)
    with pytest.raises(Exception, match="no entry"):
        translate(hca, mkey, (3 << log_piece) + 8 * PAGE, 1, LOCAL_READ)


def shown(world: World, *children: Region) -> tuple[Mkey, Callable[[Region], None]]:
    """A region of the driver's implicit kind that shows one of its children; and how to make it show another."""
    queue = registration_queue(world)
    log_piece = 16
    whole = Mkey(variant=2, pd=world.a.pd.handle, rights=ALL_RIGHTS, mode=MODE_KSM, start=0, length=4 << log_piece,
                 free=True, umr_enabled=True, capacity_octwords=4)  # fmt: skip
    world.a.hca.mkeys.add(whole)
    mask = 1 << MkeyMask.PAGE_SIZE | 1 << MkeyMask.PAGE_SIZE_5 | 1 << MkeyMask.FREE

    def show(child: Region) -> None:
        table = struct.pack(">4xIQ", child.key, child.addr) * 4
        assert umr(queue, whole, table, mask=mask, log_page_size=log_piece) == 0

    show(children[0])
    return whole, show


def test_a_child_that_its_region_still_shows_is_refused_until_the_host_has_taken_it_out() -> None:
    """The host forgets a child first and updates the region later, on a busy machine seconds later."""
    world, a, b = pair()
    old, new = Region(world.a, 1), Region(world.a, 1)
    whole, show = shown(world, old, new)
    a.write(8, 8, b.buffer(8), world.b.key, key=whole.handle << 8 | 2)
    end = world.now_ns + 9_000_000_000
    refusals = 0
    while world.now_ns < end:
        for fault in faults(world.a):
            assert fault.key == old.key
            answer(world.a, fault, good=False)
            refusals += 1
        world.pass_time(10_000_000)
    assert statuses(a) == ([], [])
    # some every third of a second: the host is not flooded with what it refuses
    assert 20 < refusals < 60
    new.set(PRESENT)
    show(new)
    world.pass_time(page_faults.PACE_NS[1])
    assert statuses(a) == ([0], [])


def test_a_child_that_is_refused_for_long_fails_who_waits() -> None:
    world, a, b = pair()
    whole, _ = shown(world, Region(world.a, 1))
    a.write(8, 8, b.buffer(8), world.b.key, key=whole.handle << 8 | 2)
    begin = world.now_ns
    refuse_all(world, world.a)
    assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR]
    assert world.now_ns - begin > page_faults.DOUBT_SHOWN_NS


def test_a_dispute_of_long_ago_is_not_continued() -> None:
    world, a, b = pair()
    region = Region(world.a, 1)
    for _ in range(2):
        a.write(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
        for _ in range(page_faults.REFUSALS - 1):
            answer(world.a, faults(world.a)[0], good=False)
            world.pass_time(400_000_000)
        (last,) = faults(world.a)
        world.pass_time(page_faults.FORGOTTEN_NS)
        answer(world.a, last, good=False)
        world.pass_time(400_000_000)
        assert statuses(a) == ([], [])
        region.set(PRESENT)
        answer(world.a, faults(world.a)[0])
        world.settle()
        assert statuses(a) == ([0], [])
        region.set(ABSENT)


# ---- anything goes ----


@settings(max_examples=60, deadline=None)
@given(
    work=st.lists(
        st.tuples(st.sampled_from(["send", "write", "read", "atomic"]), st.integers(0, 5), st.integers(1, 2 * PAGE)),
        min_size=1,
        max_size=8,
    ),
    moves=st.lists(
        st.tuples(st.booleans(), st.integers(0, 7), st.sampled_from([ABSENT, READABLE, PRESENT])), max_size=40
    ),
)
def test_pages_that_come_and_go_change_no_result(
    work: list[tuple[str, int, int]], moves: list[tuple[bool, int, int]]
) -> None:
    """Whatever is missing when, the memory in the end is that of a run in which nothing was."""
    results = []
    for paged in (False, True):
        world, a, b = pair(rnr_retry=7, path_ack_timeout=0)
        near, far = Region(world.a, 8), Region(world.b, 8)
        near.write(bytes(n % 251 for n in range(8 * PAGE)))
        far.write(bytes(n % 241 for n in range(8 * PAGE)))
        if not paged:
            near.set(PRESENT)
            far.set(PRESENT)
        for number, (kind, page, size) in enumerate(work):
            here, there = near.addr + page * PAGE + 8 * number, far.addr + (7 - page - 1) * PAGE
            if kind == "send":
                b.post_recv(there, 2 * PAGE, far.key)
                a.send(here, size, key=near.key, fence=FENCE)
            elif kind == "atomic":
                atomic(a, here, near.key, there, far.key, add=size, fence=FENCE)
            else:
                getattr(a, kind)(here, size, there, far.key, key=near.key, fence=FENCE)
        script = list(moves) if paged else []
        for _ in range(400):
            world.pass_time(3_000_000)
            asked = [(region, fault) for region in (near, far) for fault in faults(region.card)]
            for region, fault in asked:
                region.set(PRESENT, (fault.va - region.addr) // PAGE, fault.pages)
                answer(region.card, fault)
            if script:
                remote, page, rights = script.pop()
                (far if remote else near).set(rights, page, 1)
            elif not asked and len(a.qp.requester.pending) == 0:
                break
        assert statuses(a)[0] == [0] * len(work), world.show()
        results.append((near.read(8 * PAGE), far.read(8 * PAGE)))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", ["send", "datagram", "request", "reply"])
def test_a_queue_pair_goes_before_the_host_has_answered_its_faults(kind: str) -> None:
    """The card forgets it at once: the answer that comes later, or never, finds nobody."""
    world, a, b = datagrams() if kind == "datagram" else pair()
    card, gone = (world.b, b) if kind in ("request", "reply") else (world.a, a)
    region = Region(card, 1)
    if kind == "send":
        a.send(region.addr, 8, key=region.key)
    elif kind == "datagram":
        av_send(a, region.addr, 8, region.key, b)
    elif kind == "request":
        a.write(a.buffer(8), 8, region.addr, region.key)
    else:
        a.read(a.buffer(8), 8, region.addr, region.key)
    while world.deliver() or a.card.turn() or b.card.turn():
        pass
    (fault,) = faults(card)
    qp = gone.qp
    card.step(lambda: lifecycle.reset(card.hca, qp))
    card.hca.qps.remove(qp)
    (request,) = card.hca.page_faults.outstanding.values()
    assert page_faults.is_over(request)
    region.set(PRESENT)
    answer(card, fault)
    world.settle()
