"""What queue pairs ask the host for when pages are missing, and what becomes of datagrams that wait for them."""

import pytest

from firmware.model.budget import PACKET_BYTES, PAGE_REQUEST_BYTES
from firmware.model.counters import Count
from firmware.model.qp import INIT, RST, RTR
from firmware.model.send_wqe import PAGING
from firmware.transport import page_waits
from firmware.transport.retry import RNR_DELAY_NS
from tests.scenario.paging import PAGE, PRESENT, Region, answer, av_send, datagrams, faults, registrar, serve, statuses
from tests.scenario.tools import FIRST, inject
from tests.scenario.world import ERR, RTS, End, World, pair
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.qpc import Qpc
from vhca.wire.connectx.wqe import AtomicSegment, RaddrSegment, WqeOpcode
from vhca.wire.packet import READ_RESPONSE, SEND, UD, WRITE

BURST = 256 << 10


@pytest.mark.parametrize("burst", [0, 1, 2])
def test_a_writer_s_target_is_asked_for_up_to_the_end_of_the_message(burst: int) -> None:
    world, a, _ = pair(rnr_retry=7)
    size = 3 * BURST - 8
    region = Region(world.b, 3 * BURST // PAGE)
    region.set(PRESENT, 0, burst * BURST // PAGE)
    a.write(a.buffer(size), size, region.addr, region.key)
    world.settle()
    (fault,) = faults(world.b)
    assert (fault.va, fault.pages) == (region.addr + burst * BURST, BURST // PAGE)
    assert fault.ahead == (2 - burst) * BURST // PAGE
    region.set(PRESENT)
    answer(world.b, fault)
    world.pass_time(100_000_000)
    assert statuses(a) == ([0], [])


def test_a_receive_is_asked_for_no_further_than_the_packets_at_hand() -> None:
    world, a, b = pair(rnr_retry=7)
    region = Region(world.b, 3 * BURST // PAGE)
    b.post_recv(region.addr, 3 * BURST, region.key)
    a.send(a.buffer(2 * BURST), 2 * BURST)
    world.settle()
    (fault,) = faults(world.b)
    assert (fault.va, fault.pages, fault.ahead) == (region.addr, BURST // PAGE, 0)


def test_an_atomic_s_page_is_asked_for_alone() -> None:
    world, a, _ = pair(rnr_retry=7)
    region = Region(world.b, 4)
    a.atomic(0x12, a.buffer(8), region.addr, region.key, 1)
    world.settle()
    assert [(fault.pages, fault.ahead) for fault in faults(world.b)] == [(1, 0)]


def test_a_datagram_s_pages_are_asked_for_alone() -> None:
    world, a, b = datagrams()
    near, far = Region(world.a, 4), Region(world.b, 4)
    av_send(a, near.addr, 100, near.key, b)
    b.post_recv(far.addr, 200, far.key)
    assert [(fault.pages, fault.ahead) for fault in faults(world.a)] == [(1, 0)]
    inject(world, b, service=UD, op=SEND, psn=0, payload=b"x", qkey=0x1234)
    assert [(fault.pages, fault.ahead) for fault in faults(world.b)] == [(1, 0)]


def test_a_response_that_comes_while_its_place_is_missing_asks_no_second_time() -> None:
    world, a, b = pair()
    region = Region(world.a, 1)
    a.read(region.addr, 8, b.buffer(8), b.card.key, key=region.key)
    world.queue.clear()
    for _ in range(3):
        inject(world, a, op=READ_RESPONSE, psn=FIRST, payload=b"8 bytes!", syndrome=0x1F)
    assert len(faults(world.a)) == 1
    assert world.a.hca.count[Count.RX_DROP_PAGING] == 2


def waiting(count: int) -> tuple[World, End, Region, list[int], int]:
    """A datagram queue pair with `count` datagrams, whose first receive has no page; the places of the others.

    The last result is what the card was charged before they came.
    """
    world, a, b = datagrams()
    region = Region(world.b, 1)
    b.post_recv(region.addr, 64, region.key)
    places = [b.buffer(64) for _ in range(count)]
    for place in places:
        b.post_recv(place, 64)
    registrar(world.b)
    before = world.b.hca.budget.used
    for number in range(count):
        a.datagram(a.buffer(bytes([number + 1])), 1, 2, b.qpn)
    world.settle()
    return world, b, region, places, before


def test_datagrams_that_wait_come_once_and_in_order() -> None:
    world, b, region, places, _ = waiting(4)
    assert serve(world, region) == 1
    assert [(c.counter, c.size) for c in b.recv_cq.poll()] == [(number, 41) for number in range(4)]
    assert region.read(1, 40) == b"\1"
    assert [b.peek(place + 40, 1) for place in places] == [b"\2", b"\3", b"\4", b"\0"]


@pytest.mark.parametrize("op", [Op.QP_2ERR, Op.QP_2RST])
def test_datagrams_that_wait_go_with_their_queue_pair(op: Op) -> None:
    world, b, region, _, before = waiting(3)
    assert world.b.hca.budget.used == before + 3 * (PACKET_BYTES + 1) + PAGE_REQUEST_BYTES
    (fault,) = faults(world.b)
    assert b.apply(op) == 0
    world.settle()
    assert world.b.hca.budget.used == before + PAGE_REQUEST_BYTES
    # The receive that the first one had taken ends with those behind it.
    flushed = [(number, CqeSyndrome.WR_FLUSH_ERR) for number in range(4)]
    assert [(c.counter, c.syndrome) for c in b.recv_cq.poll()] == (flushed if op == Op.QP_2ERR else [])
    region.set(PRESENT)
    answer(world.b, fault)
    world.settle()
    assert region.read(64) == bytes(64)
    assert world.b.hca.budget.used == before


def test_the_side_that_a_fault_belongs_to() -> None:
    _, a, b = pair()
    responder = a.qp.responder
    for state, alive in ((RTR, True), (RTS, True), (INIT, True), (RST, False), (ERR, False)):
        # Past the door: the ways into some of the states make the responder anew.
        a.qp.state = state
        assert page_waits.alive(a.qp, responder) is alive
    # Past the door: back.
    a.qp.state = RTS
    assert not page_waits.alive(a.qp, b.qp.responder)


@pytest.mark.parametrize("code", range(32))
def test_a_peer_is_asked_to_wait_for_pages_2_56_ms_at_least(code: int) -> None:
    _, a, _ = pair(min_rnr_nak=code)
    own = RNR_DELAY_NS[code]
    assert RNR_DELAY_NS[page_waits.receiver_code(a.qp)] == max(own, 2_560_000)
    assert Qpc.from_bytes(a.qp.context.to_bytes()).min_rnr_nak == code


def test_a_key_s_pages_that_never_come_end_a_write_that_waits_once() -> None:
    world, _, b = pair()
    region = Region(world.b, 1)
    for _ in range(3):
        inject(world, b, op=WRITE, psn=FIRST, va=region.addr, rkey=region.key, dma_length=8, payload=bytes(8))
    assert len(faults(world.b)) == 1
    assert world.b.hca.count[Count.RNR_NAKS] == 3


def test_a_queue_pair_remembers_only_the_requests_that_it_still_waits_for() -> None:
    world, a, b = pair()
    region = Region(world.a, 8)
    for page in range(8):
        a.write(region.addr + page * PAGE, 8, b.buffer(8), b.card.key, key=region.key)
        world.settle()
        assert len(a.qp.page_requests) == 1
        (fault,) = faults(world.a)
        region.set(PRESENT, page, 1)
        answer(world.a, fault)
        world.settle()
    assert statuses(a)[0] == [0] * 8


def test_a_read_whose_place_is_refused_ends_when_the_host_has_said_so() -> None:
    world, a, b = pair()
    region = Region(world.a, 1)
    a.read(region.addr, 8, b.buffer(8), b.card.key, key=region.key)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    for _ in range(100):
        world.settle()
        for fault in faults(world.a):
            answer(world.a, fault, good=False)
        world.settle()
        if a.qp.state == ERR or a.qp.requester.pending[0].fault not in (0, PAGING):
            break
        world.pass_time(200_000_000)
    assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR, CqeSyndrome.WR_FLUSH_ERR]


def test_a_datagram_that_was_flushed_while_it_waited_is_not_refused_as_well() -> None:
    world, a, b = datagrams()
    region = Region(world.a, 1)
    av_send(a, region.addr, 100, region.key, b)
    assert a.apply(Op.QP_2ERR) == 0
    for _ in range(20):
        for fault in faults(world.a):
            answer(world.a, fault, good=False)
        world.pass_time(400_000_000)
    assert statuses(a)[0] == [CqeSyndrome.WR_FLUSH_ERR]


@pytest.mark.parametrize("atomic", [False, True])
def test_a_response_that_waits_for_its_pages_is_not_lost_whatever_is_acknowledged_behind_it(atomic: bool) -> None:
    world, a, b = pair(retry_count=0)
    region = Region(world.a, 1)
    source = b.buffer((7).to_bytes(8, "little"))
    if atomic:
        segments = RaddrSegment(raddr=source, rkey=b.card.key).to_bytes() + AtomicSegment(swap_add=1).to_bytes()
        a.post(WqeOpcode.ATOMIC_FA, segments + a.sge(region.addr, 8, region.key))
    else:
        a.read(region.addr, 8, source, b.card.key, key=region.key)
    for _ in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert a.counter.values == {}
    (fault,) = faults(world.a)
    region.set(PRESENT)
    answer(world.a, fault)
    world.settle()
    assert statuses(a)[0] == [0] * 4
    assert region.read(8) == (7).to_bytes(8, "little")
