"""A host takes objects away while a peer's message is under way, and asks for work out of all proportion."""

from __future__ import annotations

import pytest

from firmware.memory import AccessError, find_key, translate
from firmware.model.counters import Count
from firmware.model.objects import LOCAL_READ, MODE_KLM, MODE_MTT, REPEAT_BLOCK
from firmware.transport.completion import FLUSH_BUDGET
from tests.scenario.registration import REGISTER, entries, free_key, register, umr, used_key
from tests.scenario.test_xrc import segment, xrc
from tests.scenario.world import (
    ERR,
    ST_RC,
    ST_UC,
    ST_XRC,
    CompletionQueue,
    End,
    World,
    packed_klms,
    pair,
)
from vhca.hw.effects import DmaWrite, EntryWrite
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.eqe import EventType
from vhca.wire.connectx.wqe import MkeyMask, WqeOpcode
from vhca.wire.ib import split
from vhca.wire.packet import READ_REQUEST, Packet, Route

REGION = 64 << 10


def _half_a_write(service: int) -> tuple[World, End, int, int]:
    """The first packet of a two-packet WRITE to a key of its own has arrived at `b`."""
    world, a, b = pair(service)
    left, right = a.buffer(b"\xaa" * 2048), b.buffer(REGION)
    key = b.card.register(right, REGION)
    world.fault = split
    a.write(left, 2048, right, key)
    world.deliver(1)
    assert b.peek(right, 2048) == b"\xaa" * 1024 + bytes(1024)
    return world, b, right, key


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_key_destroyed_during_a_write_takes_no_more_of_it(service: int) -> None:
    world, b, right, key = _half_a_write(service)
    b.card.destroy_key(key)
    world.settle()
    assert b.peek(right + 1024, 1024) == bytes(1024)


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_key_registered_anew_during_a_write_keeps_its_new_borders(service: int) -> None:
    world, b, right, key = _half_a_write(service)
    fresh = b.buffer(8192)
    register(b, b.card.mkey(key), [fresh & ~0xFFF], variant=key & 0xFF, check_free=0, start_addr=right, len=512)
    assert [c.syndrome for c in b.send_cq.poll()] == [0]
    b.card.effects.clear()
    world.settle()
    assert b.peek(right + 1024, 1024) == bytes(1024)
    assert not [effect for effect in b.card.effects if isinstance(effect, DmaWrite)]


def _indirect(world: World, klms: list[tuple[int, int, int]], length: int) -> int:
    return world.a.create_key(MODE_KLM, packed_klms(*klms), len=length)


def _cut_up(world: World, key: int, length: int) -> list[tuple[int, int]]:
    hca = world.a.hca
    mkey = find_key(hca, world.a.pd, 0, key, 0, length, LOCAL_READ)
    return translate(hca, mkey, 0, length, LOCAL_READ)


def test_lists_of_crumbs_in_lists_of_crumbs_are_refused() -> None:
    world = World(1 << 20)
    size = 1 << 15
    crumbs = _indirect(world, [(0, 0, 0)] * size + [(1, world.a.key, 0x10_0000)] * size, size)
    twice = _indirect(world, [(1, crumbs, at) for at in range(size)], size)
    with pytest.raises(AccessError, match="too small"):
        _cut_up(world, twice, size)
    assert len(_cut_up(world, twice, 100)) == 100


def test_rounds_without_columns_lead_nowhere() -> None:
    world = World(1 << 20)
    key = _indirect(world, [(4096, REPEAT_BLOCK, 0xFFFFFFFF_0000_0002), (0, 0, 0), (0, 0, 0)], 1 << 40)
    with pytest.raises(AccessError, match="repeat block"):
        _cut_up(world, key, 4096)


def test_a_program_cannot_name_bus_addresses() -> None:
    world, a, _ = pair(made={"fre": 0})
    mkey = free_key(world.a)
    register(a, mkey, [0x10_0000] * 4)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]
    assert mkey.free
    assert not mkey.mtts


def test_a_program_can_invalidate_its_key_and_no_more() -> None:
    world, a, _ = pair(made={"fre": 0})
    mkey = used_key(world.a)
    umr(a, mkey, mask=1 << MkeyMask.FREE, free=1, variant=mkey.variant)
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert mkey.free
    umr(a, mkey, mask=1 << MkeyMask.FREE, free=0)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]
    assert mkey.free


def test_a_small_request_cannot_make_a_large_table() -> None:
    world, a, _ = pair()
    mkey = free_key(world.a, MODE_MTT, octwords=1 << 21)
    umr(a, mkey, mask=REGISTER, payload=entries([0x10_0000] * 8), offset=0xFFFC, log_page_size=12, len=4096)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]
    assert len(mkey.mtts) == 0


def test_a_long_receive_queue_is_flushed_in_parts() -> None:
    world = World()
    cq = CompletionQueue(world.a, log_size=12)
    end = End(world.a, ST_RC, log_rq=12, cq=cq)
    end.to_init()
    for _ in range(3000):
        end.post_recv()
    end.card.effects.clear()
    end.apply(Op.QP_2ERR)
    assert sum(isinstance(effect, EntryWrite) for effect in end.card.effects) <= FLUSH_BUDGET + 1
    world.pass_time(10_000_000)
    assert [c.counter for c in cq.poll()] == list(range(3000))


def test_receives_that_come_while_a_queue_is_in_error_are_flushed_in_turns_behind_one_look() -> None:
    world = World()
    cq = CompletionQueue(world.a, log_size=12)
    end = End(world.a, ST_RC, log_rq=12, cq=cq)
    end.to_init()
    end.apply(Op.QP_2ERR)
    for _ in range(3000):
        end.post_recv()
    # Up to the next look at the doorbell record, and not to the one behind it.
    deadline = world.a.firmware.next_deadline()
    assert deadline is not None
    world.now_ns = deadline
    world.a.run_timers()
    while world.a.turn():
        pass
    assert [c.counter for c in cq.poll()] == list(range(3000))


def test_asking_again_and_again_does_not_pile_answers_up() -> None:
    world, a, b = pair(world=World(16 << 20), log_rra_max=2)
    size = 4 << 20
    place = b.card.alloc(1)
    key = b.card.key
    a.read(a.buffer(1), 1, place, key)
    world.settle()
    ask = Packet(
        route=Route(2, 1), service=0, op=READ_REQUEST, dest_qp=b.qpn, psn=0xFFFFF1, va=place, rkey=key, dma_length=size
    )
    for _ in range(50):
        world.wire(world.a, ask)
        world.deliver(1)
    assert len(b.qp.responder.replies) <= 6


def test_a_message_to_a_destroyed_xrc_queue_completes_nowhere() -> None:
    world, a, target, srq, cq = xrc()
    assert target.qp.service == ST_XRC
    srq.post_recv(srq.card.alloc(4096), 4096)
    world.fault = split
    a.post(WqeOpcode.SEND, segment(srq.number) + a.sge(a.buffer(3000), 3000))
    world.deliver(1)
    assert cq.cq.refs == 1
    srq.card.destroy(Op.DESTROY_XRC_SRQ, srq.number)
    world.settle()
    assert cq.poll() == []
    assert cq.cq.refs == 0
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_INVAL_REQ_ERR]
    assert target.qp.state == ERR
    # The receive has no completion to lose, so the queue pair has no catastrophic event.
    assert {kind for kind, _ in target.card.events()} == {EventType.SRQ_LAST_WQE, EventType.WQ_INVAL_REQ_ERROR}


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_message_without_end_ends_at_2_gib(service: int) -> None:
    world, a, b = pair(service)
    # Room for 8 GiB: the same buffer again and again.
    buffer = b.buffer(4096)
    b.post_recv(sges=[b.sge(buffer, (1 << 31) - 1)] * 3)
    world.fault = split
    a.send(a.buffer(2048), 2048)
    world.deliver(1)
    assert b.qp.responder.offset == 1024
    # Past the door: two million packets would bring this about.
    b.qp.responder.offset = (1 << 31) - 1023
    world.settle()
    if service == ST_RC:
        assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_LENGTH_ERR]
        assert b.qp.state == ERR
    else:
        assert b.recv_cq.poll() == []
        assert b.card.hca.count[Count.RX_DROP_TOO_LONG] == 1
