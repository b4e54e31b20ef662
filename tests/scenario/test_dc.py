"""The dynamically connected transport: one initiator, many targets, and what becomes of their connections."""

import struct

import pytest

from firmware import page_faults
from firmware.model.budget import CONNECTION_BYTES
from firmware.model.counters import Count
from firmware.model.objects import MODE_KLM, REMOTE_READ
from firmware.transport import dc
from firmware.transport.completion import SCATTER_64
from firmware.transport.lifecycle import QpEvent
from tests.packets import changed, divert
from tests.scenario.dynamic import KEY, USER_INDEX, Target, initiator, send, statuses, write
from tests.scenario.paging import PRESENT, Region, answer, faults
from tests.scenario.tools import FIRST, counted, inject, use_up
from tests.scenario.world import (
    ERR,
    World,
    data,
    packed_klms,
)
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeFormat, CqeSyndrome
from vhca.wire.connectx.eqe import Eqe, EventType
from vhca.wire.connectx.wqe import DatagramSegment, RaddrSegment, WqeOpcode
from vhca.wire.ib import decode, encode, split
from vhca.wire.packet import ACKNOWLEDGE, DC, READ_RESPONSE, Grh


def test_each_work_request_goes_to_the_target_that_it_names() -> None:
    world = World()
    a = initiator(world.a)
    targets = [Target(world.b), Target(world.b), Target(world.a)]
    places = []
    for target in targets:
        places.append(target.card.alloc(4096))
        for _ in range(4):
            target.srq.post_recv(places[-1], 4096)
    order = [0, 0, 1, 0, 2, 1, 1]
    for number, index in enumerate(order):
        send(a, targets[index], bytes([number]) * (number + 1))
    world.settle()
    assert statuses(a) == [0] * 7
    for index, target in enumerate(targets):
        got = target.cq.poll()
        assert [c.size for c in got] == [number + 1 for number, who in enumerate(order) if who == index]
        assert {(c.qpn, c.source_qpn, c.user) for c in got} == {(target.dctn, a.qpn, USER_INDEX)}
    # A run to one target is one connection.
    assert world.a.hca.count[Count.DC_CONNECTS] == 5


def test_connections_are_traced() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    target.srq.post_recv(target.card.alloc(64), 64)
    send(a, target, b"first")
    world.settle()
    target.run(Op.DRAIN_DCT)
    steps = [(details["from"], details["to"], details["why"]) for what, details in world.b.traces if what == "qp_state"]
    assert steps == [("RST", "RTS", QpEvent.CONNECT.value), ("RTS", "ERR", QpEvent.DISCONNECT.value)]


def test_a_small_message_is_in_the_targets_completion() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b, cqe_bytes=128, cs_res=SCATTER_64)
    place = target.card.alloc(256)
    for number, size in enumerate((64, 1, 65)):
        target.srq.post_recv(place, 128)
        content = bytes(range(1, size + 1))
        send(a, target, content)
        world.settle()
        (completion,) = target.cq.poll()
        assert (completion.syndrome, completion.size) == (0, size)
        entry = target.cq.raw(number)
        if size <= 64:
            assert entry[-1] >> 2 & 3 == CqeFormat.INLINE_64
            assert entry[:size] == content
            assert target.card.memory.read(place, 128) == bytes(128)
        else:
            assert entry[-1] >> 2 & 3 == CqeFormat.NO_INLINE
            assert target.card.memory.read(place, 128) == content + bytes(63)
    assert statuses(a) == [0] * 3


def test_every_operation_works() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    content = some_bytes(300_000)
    place = target.card.alloc(len(content))
    write(a, target, content, place)
    back = a.buffer(len(content))
    raddr = RaddrSegment(raddr=place, rkey=target.card.key).to_bytes()
    a.post(WqeOpcode.RDMA_READ, target.av() + raddr + a.sge(back, len(content)), fence=2)
    counter = target.card.alloc(8)
    target.card.memory.write(counter, (5).to_bytes(8, "little"))
    old = a.buffer(8)
    raddr = RaddrSegment(raddr=counter, rkey=target.card.key).to_bytes()
    a.post(WqeOpcode.ATOMIC_FA, target.av() + raddr + struct.pack(">QQ", 3, 0) + data(old, 8, world.a.key))
    target.srq.post_recv(place, 16)
    raddr = RaddrSegment(raddr=place, rkey=target.card.key).to_bytes()
    a.post(WqeOpcode.RDMA_WRITE_IMM, target.av() + raddr, imm=0xABC)
    a.post(WqeOpcode.NOP)
    world.settle()
    assert statuses(a) == [0] * 5
    assert a.peek(back, len(content)) == content
    assert int.from_bytes(a.peek(old, 8), "little") == 5
    assert int.from_bytes(target.card.memory.read(counter, 8), "little") == 8
    assert [c.extra for c in target.cq.poll()] == [0xABC]


def test_a_wrong_key_is_refused_and_told_once_per_arming() -> None:
    world = World()
    target = Target(world.b)
    target.run(Op.ARM_DCT_FOR_KEY_VIOLATION)
    world.b.events()
    for round_ in range(2):
        a = initiator(world.a)
        place = target.card.alloc(16)
        write(a, target, b"secret", place, key=KEY + 1)
        write(a, target, b"other", place)
        world.settle()
        assert statuses(a) == [CqeSyndrome.REMOTE_ACCESS_ERR, CqeSyndrome.WR_FLUSH_ERR]
        assert target.card.memory.read(place, 6) == bytes(6)
        assert target.dct.key_violations == round_ + 1
        # Nothing was ever executed for a stranger.
        assert "syn=0x62 msn=0" in next(line for line in world.ladder[::-1] if "<-" in line)
    event = Eqe.from_bytes(world.b.memory.read(world.b.eq_addr, 64))
    assert (event.event_type, event.event_sub_type) == (EventType.DCT_KEY_VIOLATION, 0)
    assert world.b.events() == [(EventType.DCT_KEY_VIOLATION, target.dctn)]


def test_an_error_ends_one_connection_and_not_the_target() -> None:
    world = World()
    target = Target(world.b, rights=REMOTE_READ)
    bad, good = initiator(world.a), initiator(world.a)
    target.srq.post_recv(target.card.alloc(64), 64)
    target.srq.post_recv(target.card.alloc(64), 64)
    write(bad, target, b"x", target.card.alloc(16))
    world.settle()
    assert statuses(bad) == [CqeSyndrome.REMOTE_INVAL_REQ_ERR]
    assert bad.qp.state == ERR
    send(good, target, b"fine")
    world.settle()
    assert statuses(good) == [0]
    # After a reset it connects anew.
    assert bad.apply(Op.QP_2RST) == 0
    bad.sq_posted = 0
    bad.card.memory.write(bad.dbr + 4, bytes(4))
    bad.to_init()
    bad.to_rtr()
    bad.to_rts()
    send(bad, target, b"fine too")
    world.settle()
    assert statuses(bad) == [0]
    assert [c.size for c in target.cq.poll()] == [4, 8]
    assert world.b.events() == []


@pytest.mark.parametrize("fields", [{"ext": 0}, {"rlid": 0xC000}])
def test_a_malformed_address_vector_is_a_local_error(fields: dict[str, int]) -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    segment = DatagramSegment(**{"ext": 1, "dqpn": target.dctn, "rlid": 2, **fields})
    a.post(WqeOpcode.SEND, segment.to_bytes() + a.sge(a.buffer(4), 4))
    world.settle()
    assert statuses(a) == [CqeSyndrome.LOCAL_QP_OP_ERR]


def test_a_target_that_is_not_there_uses_the_retries_up() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    target.run(Op.DESTROY_DCT)
    send(a, target, b"hello")
    world.pass_time(2_000_000_000)
    assert statuses(a) == [CqeSyndrome.TRANSPORT_RETRY_EXC_ERR]


def test_no_receive_means_waiting() -> None:
    world = World()
    a, target = initiator(world.a, rnr_retry=7), Target(world.b)
    send(a, target, b"early")
    world.pass_time(1_000_000)
    assert statuses(a) == []
    target.srq.post_recv(target.card.alloc(64), 64)
    world.pass_time(10_000_000)
    assert statuses(a) == [0]


def test_a_target_behind_another_one_is_served_although_that_one_was_waited_for() -> None:
    world = World()
    a, one, two = initiator(world.a, rnr_retry=7), Target(world.b), Target(world.b)
    two.srq.post_recv(two.card.alloc(64), 64)
    send(a, one, b"first")
    send(a, two, b"second")
    world.settle()
    assert statuses(a) == []
    # An acknowledgement that is late ends the first one before its time to come again.
    inject(world, a, service=DC, op=ACKNOWLEDGE, psn=FIRST, msn=1)
    assert statuses(a) == [0]
    world.pass_time(1_000_000)
    assert statuses(a) == [0]
    assert [c.size for c in two.cq.poll()] == [6]


def test_a_late_packet_of_an_old_connection_is_nothing() -> None:
    world = World()
    a, one, two = initiator(world.a), Target(world.b), Target(world.b)
    place = world.b.alloc(16)
    late = []
    world.fault = lambda packet: late.append(packet) or [packet]  # type: ignore[func-returns-value]
    write(a, one, b"old", place)
    world.settle()
    first = late[0]
    write(a, two, b"other", world.b.alloc(16))
    world.settle()
    write(a, one, b"new", place)
    world.settle()
    assert statuses(a) == [0, 0, 0]
    world.b.receive(first)
    world.settle()
    assert world.b.memory.read(place, 3) == b"new"
    assert world.b.hca.count[Count.RX_DROP_QP_STATE] == 1


@pytest.mark.parametrize("lost", range(6))
def test_any_lost_packet_is_made_up_for(lost: int) -> None:
    world = World()
    a, one, two = initiator(world.a), Target(world.b), Target(world.b)
    for target in (one, two):
        for _ in range(3):
            target.srq.post_recv(target.card.alloc(4096), 4096)
    count = iter(range(1000))
    world.fault = lambda packet: [] if next(count) == lost else [packet]
    for number, target in enumerate((one, two, one)):
        send(a, target, bytes([number]) * 1500)
    world.pass_time(2_000_000_000)
    assert statuses(a) == [0, 0, 0]
    assert [c.size for c in one.cq.poll()] == [1500, 1500]
    assert [c.size for c in two.cq.poll()] == [1500]


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        ({"dlid": 9}, Count.RX_DROP_PATH),
        ({"grh": Grh(bytes(16), b"\x99" * 16)}, Count.RX_DROP_GID),
        ({"pkey": 0x8123}, Count.RX_DROP_PKEY),
        ({"op": ACKNOWLEDGE}, Count.RX_DROP_UNKNOWN_QP),
        ({"op": READ_RESPONSE}, Count.RX_DROP_UNKNOWN_QP),
        ({"dest_qp": 0x3333}, Count.RX_DROP_UNKNOWN_QP),
    ],
)
def test_what_is_for_no_target_is_dropped_for_one_reason(change: dict[str, object], counter: Count) -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    target.srq.post_recv(target.card.alloc(64), 64)
    send(a, target, b"stranger")
    (card, packet) = world.queue.popleft()
    world.queue.append((card, changed(packet, **change)))
    world.settle()
    assert counted(world.b.hca.count) == {counter: 1}
    assert not target.dct.connections
    assert target.cq.poll() == []


@pytest.mark.parametrize("what", ["drained", "another port's"])
def test_a_target_that_is_not_ready_here_is_nobody(what: str) -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    if what == "drained":
        target.run(Op.DRAIN_DCT)
    else:
        # Past the door: these cards have one port.
        target.dct.port = 2
    send(a, target, b"hello")
    world.settle()
    assert counted(world.b.hca.count, Count.EQES) == {Count.RX_DROP_UNKNOWN_QP: 1}


def test_a_drained_target_gives_back_what_its_connections_took() -> None:
    world = World()
    target = Target(world.b)
    used = world.b.hca.budget.used
    for _ in range(3):
        write(initiator(world.a), target, b"x", world.b.alloc(16))
    world.settle()
    # Answers that wait are paid for, too.
    reader = initiator(world.a)
    size = 1 << 20
    for _ in range(2):
        raddr = RaddrSegment(raddr=world.b.alloc(4096), rkey=world.b.key).to_bytes()
        reader.post(WqeOpcode.RDMA_READ, target.av() + raddr + reader.sge(0, size))
    world.deliver(2)
    connections = [connection for _, connection in target.dct.connections.values()]
    assert len(connections[-1].responder.replies) == 2
    assert world.b.hca.budget.used >= used + 4 * CONNECTION_BYTES
    target.run(Op.DRAIN_DCT)
    assert world.b.hca.budget.used == used
    assert [connection.state for connection in connections] == [ERR] * 4
    # The answers go with it, and a second end gives nothing back twice.
    world.queue.clear()
    while world.b.turn():
        pass
    target.run(Op.DRAIN_DCT)
    assert (len(world.queue), world.b.hca.budget.used) == (0, used)


def test_a_new_connection_of_an_initiator_ends_its_old_one() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    place = target.card.alloc(8192)
    for _ in range(2):
        target.srq.post_recv(place, 8192)
    world.fault = split
    used = world.b.hca.budget.used
    send(a, target, bytes(3000))
    world.deliver(1)
    # The initiator starts anew in the middle of its message.
    world.queue.clear()
    ((_, old),) = target.dct.connections.values()
    assert a.apply(Op.QP_2RST) == 0
    a.card.memory.write(a.dbr, bytes(8))
    a.sq_posted = 0
    a.to_init()
    a.to_rtr()
    a.to_rts()
    send(a, target, b"anew")
    world.settle()
    assert [(c.syndrome, c.size) for c in target.cq.poll()] == [(CqeSyndrome.WR_FLUSH_ERR, 0), (0, 4)]
    assert (old.state, len(target.dct.connections)) == (ERR, 1)
    assert world.b.hca.budget.used == used + CONNECTION_BYTES


def test_a_connection_that_ends_waits_for_no_pages() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    region = Region(world.b, 4)
    raddr = RaddrSegment(raddr=region.addr, rkey=region.key).to_bytes()
    a.post(WqeOpcode.RDMA_READ, target.av() + raddr + a.sge(a.buffer(8), 8))
    world.deliver(1)
    (fault,) = faults(world.b)
    ((_, connection),) = target.dct.connections.values()
    (wanted,) = connection.page_requests
    target.run(Op.DRAIN_DCT)
    assert page_faults.is_over(wanted)
    world.queue.clear()
    region.set(PRESENT)
    answer(world.b, fault)
    while world.b.turn():
        pass
    assert not world.queue


def test_packets_of_a_connection_wait_behind_a_burst_that_is_stored_in_parts() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    entries = packed_klms(*[(16, world.b.key, target.card.alloc(16, 16)) for _ in range(512)])
    key = world.b.create_key(MODE_KLM, entries, len=8192)
    place = target.card.alloc(8)
    raddr = RaddrSegment(raddr=0, rkey=key).to_bytes()
    a.post(WqeOpcode.RDMA_WRITE, target.av() + raddr + a.sge(a.buffer(8192), 8192))
    write(a, target, b"behind it", place)
    world.deliver(2)
    assert target.card.memory.read(place, 9) == bytes(9)
    world.settle()
    assert target.card.memory.read(place, 9) == b"behind it"
    assert sum("WRITE" in line for line in world.ladder) == 2
    assert statuses(a) == [0, 0]


def test_a_connection_keeps_answers_for_sixteen_reads_and_atomics() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    write(a, target, b"x", target.card.alloc(8))
    world.settle()
    ((_, connection),) = target.dct.connections.values()
    assert connection.responder.resource_limit == 16


def test_draining_ends_connections_and_takes_no_more() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    target.srq.post_recv(target.card.alloc(4096), 4096)
    # Half a message: its receive is taken.
    world.fault = lambda packet: split(packet)[:2]
    send(a, target, bytes(4000))
    world.deliver(2)
    target.run(Op.DRAIN_DCT)
    assert [c.syndrome for c in target.cq.poll()] == [CqeSyndrome.WR_FLUSH_ERR]
    world.fault = None
    world.pass_time(3_000_000_000)
    assert statuses(a) == [CqeSyndrome.TRANSPORT_RETRY_EXC_ERR]
    assert target.cq.poll() == []


def test_the_number_of_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dc, "MAX_CONNECTIONS", 2)
    world = World()
    target = Target(world.b)
    for _ in range(4):
        a = initiator(world.a)
        write(a, target, b"x", world.b.alloc(16))
        world.settle()
        assert statuses(a) == [0]
    assert len(target.dct.connections) == 2


def test_a_card_without_memory_keeps_one_connection() -> None:
    world = World()
    target = Target(world.b)
    budget = world.b.hca.budget
    before = budget.used
    for _ in range(3):
        a = initiator(world.a)
        write(a, target, b"x", world.b.alloc(16))
        world.settle()
        assert statuses(a) == [0]
        assert len(target.dct.connections) == 1
        assert budget.used == before + CONNECTION_BYTES
        if not budget.full:
            before += use_up(world.b)
    target.run(Op.DRAIN_DCT)
    assert budget.used == before


def test_pages_of_either_side_may_be_missing() -> None:
    world = World()
    a, target = initiator(world.a, rnr_retry=7), Target(world.b)
    near, far = Region(world.a, 2), Region(world.b, 2)
    near.write(b"paged")
    target.srq.post_recv(far.addr, 4096, far.key)
    a.post(WqeOpcode.SEND, target.av() + a.sge(near.addr, 5, near.key))
    for _ in range(4):
        world.pass_time(10_000_000)
        for region in (near, far):
            for fault in faults(region.card):
                region.set(PRESENT)
                answer(region.card, fault)
    assert statuses(a) == [0]
    assert far.read(5) == b"paged"


def test_packets_have_a_form_on_the_wire() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    seen = []
    world.fault = lambda packet: [decode(encode(part)) for part in split(packet)] if not seen.append(packet) else []  # type: ignore[func-returns-value]
    content = some_bytes(3000)
    place = world.b.alloc(4096)
    write(a, target, content, place)
    world.settle()
    assert statuses(a) == [0]
    assert world.b.memory.read(place, 3000) == content
    assert {packet.service for packet in seen} == {DC}


def test_a_request_for_an_initiator_is_dropped() -> None:
    world = World()
    a, target = initiator(world.a), Target(world.b)
    seen = []
    world.fault = lambda packet: [packet] if not seen.append(packet) else []  # type: ignore[func-returns-value]
    write(a, target, b"x", world.b.alloc(16))
    world.settle()
    forged = seen[0]
    divert(forged, dlid=1, slid=2).dest_qp = a.qpn
    world.a.receive(forged)
    assert world.a.hca.count[Count.RX_DROP_DC_INITIATOR] == 1
    # And an answer that a target did not ask for.
    divert(seen[1], dlid=2).dest_qp = target.dctn
    world.b.receive(seen[1])
    assert world.b.hca.count[Count.RX_DROP_UNKNOWN_QP] == 1


def test_a_target_answers_from_the_lid_that_was_asked() -> None:
    world = World()
    world.b.manager.set_port(lid=8, lmc=2)
    a, target = initiator(world.a), Target(world.b)
    place = world.b.alloc(16)
    segment = DatagramSegment(ext=1, dqpn=target.dctn, rlid=10)
    raddr = RaddrSegment(raddr=place, rkey=world.b.key).to_bytes()
    a.post(
        WqeOpcode.RDMA_WRITE,
        KEY.to_bytes(8, "big") + segment.to_bytes()[8:] + raddr + a.sge(a.buffer(b"path"), 4),
    )
    world.settle()
    assert statuses(a) == [0]


@pytest.mark.parametrize("stranger", [False, True])
def test_a_global_route_names_the_target_s_port(stranger: bool) -> None:
    world = World()
    end, target = initiator(world.a), Target(world.b)
    target.srq.post_recv(target.card.alloc(64), 64)
    gid = world.b.port.gids[0]
    route = target.av(grh=1, hop_limit=3, rgid=gid[:15] + b"\x99" if stranger else gid)
    end.post(WqeOpcode.SEND, route + end.sge(end.buffer(b"over a router"), 13))
    world.settle()
    assert bool(target.cq.poll()) is not stranger
    assert bool(end.send_cq.poll()) is not stranger
    assert world.b.hca.count[Count.RX_DROP_GID] == stranger
