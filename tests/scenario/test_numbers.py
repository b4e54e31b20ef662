"""Numbers that packets and completions carry: message sequence numbers, path bits, requests for acknowledgement."""

import pytest

from firmware.model.counters import Count
from firmware.model.segment import ASK_PACKETS
from firmware.transport.attributes import live_context
from firmware.transport.completion import EVENT_ACCESS_ERROR, FLUSHED, SCATTER_32, SCATTER_64, inline_bytes
from firmware.transport.replies import refuse
from firmware.transport.requester import MAX_PENDING
from tests.scenario.tools import FIRST, inject, under_way
from tests.scenario.world import RTS, ST_RC, ST_UD, CompletionQueue, End, World, pair
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import Cqe64, CqeSyndrome
from vhca.wire.connectx.wqe import DatagramSegment, WqeOpcode
from vhca.wire.packet import ACKNOWLEDGE, READ_REQUEST, READ_RESPONSE, Packet

OURS, RNR = 0x1E, 0x21
BAD_KEY = 0x999900


def test_every_message_moves_the_responder_s_sequence_number() -> None:
    world, a, b = pair()
    target = b.buffer(4096)
    answers: list[tuple[int, int]] = []

    def note(packet: Packet) -> list[Packet]:
        if packet.src_qp == 0 and packet.dest_qp == a.qpn:
            answers.append((packet.msn, packet.syndrome))
        return [packet]

    world.fault = note
    for number in range(1, 6):
        b.post_recv(b.buffer(8), 8)
        if number == 1:
            a.send(a.buffer(8), 8)
        elif number == 2:
            a.write(a.buffer(3000), 3000, target, b.card.key)
        elif number == 3:
            a.read(a.buffer(3000), 3000, target, b.card.key)
        elif number == 4:
            a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), target, b.card.key, 1)
        else:
            a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(8), 8, target, b.card.key, imm=1)
        world.settle()
        assert answers[-1] == (number, 0x1F)
        assert live_context(b.qp).rmsn == number
    assert live_context(a.qp).ssn == 5


def test_numbers_of_a_queue_pair_as_it_is_asked() -> None:
    world, a, b = pair()
    a.write(a.buffer(2000), 2000, b.buffer(2000), b.card.key)
    for _ in range(3):
        b.post_recv()
    a.send(0, 0)
    world.settle()
    left, right = live_context(a.qp), live_context(b.qp)
    assert (left.next_send_psn, left.last_acked_psn) == (FIRST + 3, FIRST + 2)
    assert (right.next_rcv_psn, right.hw_rq_counter, left.hw_rq_counter) == (FIRST + 3, 1, 0)
    assert (left.hw_sq_wqebb_counter, left.sw_sq_wqebb_counter) == (2, 2)
    assert (right.hw_sq_wqebb_counter, right.sw_sq_wqebb_counter) == (0, 0)
    world.fault = lambda packet: []
    for _ in range(3):
        a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.pass_time(300_000_000)
    world.fault = None
    assert live_context(a.qp).cur_retry_count == 2
    assert live_context(a.qp).sw_sq_wqebb_counter == 5
    world.settle()
    world.pass_time(300_000_000)
    assert len(a.send_cq.poll()) == 5
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert live_context(a.qp).last_acked_psn == FIRST + 6


def own_lids(world: World) -> None:
    """The port of `a` has LIDs 8 to 11, that of `b` has one."""
    world.a.manager.set_port(lid=8, lmc=2)


@under_way
@pytest.mark.parametrize(("bits", "slid"), [(0, 8), (1, 9), (3, 11), (7, 11)])
def test_a_connection_sends_from_the_lid_that_its_path_bits_choose(bits: int, slid: int) -> None:
    world = World()
    own_lids(world)
    a, b = End(world.a), End(world.b)
    a.connect(b, path_mlid=bits)
    b.connect(a, path_rlid=slid)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    assert world.queue[0][1].route.slid == slid
    world.settle()
    b.write(b.buffer(8), 8, a.buffer(8), a.card.key)
    world.deliver()
    # the answer comes from there, too
    assert world.queue[0][1].route.slid == slid
    world.settle()
    assert [c.syndrome for c in (*a.send_cq.poll(), *b.send_cq.poll())] == [0, 0]


@pytest.mark.parametrize(("lmc", "bits", "slid"), [(2, 0, 8), (2, 2, 10), (2, 5, 9), (0, 1, 8)])
def test_a_datagram_is_sent_from_the_lid_that_its_path_bits_choose(lmc: int, bits: int, slid: int) -> None:
    world = World()
    world.a.manager.set_port(lid=8, lmc=lmc)
    a, b = End(world.a, ST_UD), End(world.b, ST_UD)
    a.connect(b)
    b.connect(a)
    av = DatagramSegment(q_key=0x1234, ext=1, dqpn=b.qpn, rlid=2, mlid=bits).to_bytes()
    a.post(WqeOpcode.SEND, av + a.sge(a.buffer(8), 8))
    assert world.queue[0][1].route.slid == slid


@pytest.mark.parametrize(("dlid", "bits"), [(8, 0), (9, 1), (11, 3)])
def test_a_datagram_s_completion_says_to_which_lid_it_came(dlid: int, bits: int) -> None:
    world = World()
    own_lids(world)
    a, b = End(world.a, ST_UD), End(world.b, ST_UD)
    a.connect(b)
    b.connect(a)
    a.post_recv(a.buffer(60), 60)
    b.datagram(b.buffer(8), 8, dlid, a.qpn)
    world.settle()
    assert len(a.recv_cq.poll()) == 1
    assert Cqe64.from_bytes(a.recv_cq.raw(0)).ml_path == bits


@under_way
def test_a_long_run_of_packets_asks_on_its_way() -> None:
    world, a, b = pair()
    half = ASK_PACKETS // 2
    for packets in (half, half, half, half - 1, 1, 1):
        a.write(a.buffer(packets << 10), packets << 10, b.buffer(packets << 10), b.card.key, ring=False)
    a.ring()
    assert [packet.ack_req for _, packet in world.queue] == [False, True, False, False, True, True]


@under_way
def test_no_packet_tells_of_congestion() -> None:
    world, a, b = pair()
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    (_, request) = world.queue[0]
    assert (request.becn, request.fecn, request.migration, request.good) == (False, False, True, True)


@under_way
def test_local_work_does_not_hold_up_what_is_behind_it() -> None:
    world, a, b = pair()
    target = b.buffer(16)
    a.write(a.buffer(8), 8, target, b.card.key, ring=False)
    a.post(WqeOpcode.NOP, ring=False)
    a.write(a.buffer(8), 8, target + 8, b.card.key, ring=False)
    a.ring()
    assert len(world.queue) == 2
    world.settle()
    assert [c.counter for c in a.send_cq.poll()] == [0, 1, 2]


@pytest.mark.parametrize("service", [ST_RC, ST_UD])
@pytest.mark.parametrize("before", [1, 2, 65535, 65536])
def test_a_malformed_work_request_is_named_in_its_completion(before: int, service: int) -> None:
    _, a, _ = pair(service)
    assert a.qp.sq is not None
    # Past the door: as after so many requests.
    a.sq_posted = a.qp.sq.consumer = before
    a.post(WqeOpcode.RDMA_WRITE, ds=1)
    (done,) = a.send_cq.poll()
    assert (done.counter, done.syndrome) == (before & 0xFFFF, CqeSyndrome.LOCAL_QP_OP_ERR)


def only_ours(packet: Packet) -> list[Packet]:
    return [packet] if packet.syndrome in (OURS, RNR, 0x62) else []


def test_a_receiver_that_is_not_ready_has_taken_what_was_before() -> None:
    world, a, b = pair()
    world.fault = only_ours
    for _ in range(2):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    a.send(a.buffer(8), 8)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 2, syndrome=RNR)
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert a.qp.requester.rnr_waiting


def test_an_acknowledgement_of_a_read_s_last_packet_is_no_response() -> None:
    world, a, b = pair()
    world.fault = only_ours
    a.read(a.buffer(2048), 2048, b.buffer(2048), b.card.key)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 1, syndrome=OURS)
    assert a.send_cq.poll() == []
    assert a.qp.requester.una == FIRST
    assert world.a.hca.count[Count.RETRANSMITS] == 1


def test_a_refusal_behind_a_lost_response_does_not_fail_the_read() -> None:
    world, a, b = pair()
    world.fault = only_ours
    a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    a.write(a.buffer(8), 8, b.buffer(8), BAD_KEY)
    inject(world, a, op=ACKNOWLEDGE, psn=FIRST + 1, syndrome=0x62)
    # The READ is asked for again, and the refusal comes again behind its response.
    assert a.send_cq.poll() == []
    assert a.qp.state == RTS
    world.fault = None
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.REMOTE_ACCESS_ERR]


@pytest.mark.parametrize(("index", "shown"), [(0xFFFFFF, 0), (0, 0), (5, 5)])
def test_a_completion_shows_the_user_s_index_if_there_is_one(index: int, shown: int) -> None:
    world, a, b = pair(made={"user_index": index})
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(8), 8)
    a.send(a.buffer(8), 8, key=BAD_KEY)
    world.settle()
    assert [c.user for c in a.send_cq.poll()] == [shown] * 2
    assert [c.user for c in b.recv_cq.poll()] == [shown]


@pytest.mark.parametrize(
    ("mode", "cqe_bytes", "room"),
    [(SCATTER_32, 64, 32), (SCATTER_32, 128, 32), (SCATTER_64, 64, 0), (SCATTER_64, 128, 64), (0, 128, 0)],
)
def test_how_much_a_completion_holds(mode: int, cqe_bytes: int, room: int) -> None:
    queue = CompletionQueue(World().a, cqe_bytes=cqe_bytes)
    assert inline_bytes(mode, queue.cq) == room
    assert inline_bytes(mode, None) == (32 if mode == SCATTER_32 else 0)


@under_way
def test_responses_are_acknowledgements_without_credits() -> None:
    world, a, b = pair()
    a.read(a.buffer(2048), 2048, b.buffer(2048), b.card.key)
    world.deliver()
    (_, response) = world.queue[0]
    assert (response.op, response.syndrome, response.msn) == (READ_RESPONSE, 0x1F, 1)


def test_a_second_refusal_while_one_waits_is_none() -> None:
    world, _, b = pair(ST_RC, World(32 << 20))
    size = 3 << 20
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=b.buffer(size), rkey=b.card.key, dma_length=size)
    for nak in (0x61, 0x62):
        # Past the door: what was refused is looked at no more, so no peer brings a second refusal about.
        b.card.inside(lambda nak=nak: refuse(b.card.hca, b.qp, nak, FLUSHED, EVENT_ACCESS_ERROR, "twice"))  # type: ignore[misc]
    assert b.qp.state == RTS
    assert len(b.qp.responder.replies) == 2
    world.settle()
    assert sum("syn=0x6" in line for line in world.ladder) == 1


def test_the_first_message_may_have_the_number_0() -> None:
    world, a, b = pair(next_send_psn=0, next_rcv_psn=0)
    for _ in range(2):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
        a.read(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 4


def test_a_queue_pair_in_error_answers_no_more() -> None:
    world, _, b = pair(ST_RC, World(32 << 20))
    size = 3 << 20
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=b.buffer(size), rkey=b.card.key, dma_length=size)
    world.queue.clear()
    b.apply(Op.QP_2ERR)
    assert not b.qp.responder.replies
    world.settle()
    assert not world.queue


def test_work_requests_under_way_are_bounded() -> None:
    world = World()
    a, b = End(world.a, log_sq=11), End(world.b)
    a.connect(b)
    b.connect(a)
    world.fault = lambda packet: []
    for _ in range(MAX_PENDING + 100):
        a.write(0, 0, 0, 0, ring=False)
    a.ring()
    while a.card.turn():
        pass
    assert len(a.qp.requester.pending) == MAX_PENDING
