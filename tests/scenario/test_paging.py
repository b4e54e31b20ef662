"""On-demand paging: who waits for which page, what the peer sees of it, and what a refusal ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware import page_faults
from firmware.model.counters import Count, QCount
from tests.scenario.paging import (
    ABSENT,
    FENCE,
    PAGE,
    PRESENT,
    READABLE,
    Region,
    answer,
    atomic,
    av_send,
    datagrams,
    deaf,
    faults,
    refuse_all,
    resume,
    serve,
    statuses,
)
from tests.scenario.tools import lose
from tests.scenario.world import (
    ERR,
    ST_RC,
    ST_UC,
    End,
    SharedQueue,
    World,
    pair,
)
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import WqeOpcode


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
    world = World()
    deaf(world.a)
    _, a, b = pair(world=world)
    region = Region(world.a, 1)
    a.write(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
    assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR]
    for operation in ("read", "atomic"):
        world = World()
        deaf(world.a)
        _, a, b = pair(world=world)
        region = Region(world.a, 1)
        if operation == "read":
            a.read(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
        else:
            atomic(a, region.addr, region.key, b.buffer(8), world.b.key)
        world.settle()
        assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR], operation


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
        world = World()
        deaf(world.b)
        _, a, b = pair(world=world)
        region = Region(world.b, 1)
        b.post_recv(region.addr, PAGE, region.key)
        if operation == "send":
            a.send(a.buffer(8), 8)
        else:
            getattr(a, operation)(a.buffer(8), 8, region.addr, region.key)
        world.settle()
        assert statuses(a)[0] == [syndrome]


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


def test_a_datagram_queue_that_is_rung_while_it_waits_for_pages_asks_for_them_once() -> None:
    world, a, b = datagrams()
    region = Region(world.a, 1)
    av_send(a, region.addr, 5, region.key, b)
    for _ in range(2):
        a.ring()
    (fault,) = faults(world.a)
    region.set(PRESENT)
    answer(world.a, fault)
    world.settle()
    assert (statuses(a), len(world.a.hca.page_faults.outstanding)) == (([0], []), 0)


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
    assert resume(world.a, 1) == Status.BAD_RES


# ---- anything goes ----


@settings(max_examples=60)
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
    gone.destroy()
    (request,) = card.hca.page_faults.outstanding.values()
    assert page_faults.is_over(request)
    region.set(PRESENT)
    answer(card, fault)
    world.settle()
