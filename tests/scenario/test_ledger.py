"""What waits is charged to the card's budget, to the byte, and given back whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firmware.memory import STEP_PIECES
from firmware.model.budget import ANSWER_BYTES, PACKET_BYTES, RESOURCE_BYTES, WORK_REQUEST_BYTES
from firmware.model.counters import Count
from firmware.transport import account, backlog
from tests.scenario.test_pieces import Crumbs
from tests.scenario.tools import under_way, use_up
from tests.scenario.world import ST_UC, End, World, pair
from vhca.wire.connectx.cmd import Op
from vhca.wire.packet import WRITE, Packet, Route

MTU = 1024
# A responder of four READs and atomics at a time (log_rra_max 2) has memory for them from the start.
RESERVED = 4 * RESOURCE_BYTES


def crowded(service: int = 0) -> tuple[World, End, End, int]:
    """A burst of four packets has arrived at `b`: one is stored, three wait. The fourth result is what was charged."""
    world, a, b = pair(service)
    target = Crumbs(b, 8 * MTU, MTU // STEP_PIECES)
    before = b.card.hca.budget.used
    a.write(a.buffer(4 * MTU), 4 * MTU, 0, target.key)
    world.deliver(1)
    assert b.qp.backlog is not None
    assert [packet.count for packet in b.qp.backlog] == [3]
    return world, a, b, before


@pytest.mark.parametrize("service", [0, ST_UC])
def test_packets_that_wait_behind_a_part_are_charged_while_they_wait(service: int) -> None:
    world, a, b, before = crowded(service)
    budget = b.card.hca.budget
    assert budget.used == before + 3 * MTU + PACKET_BYTES
    a.write(a.buffer(100), 100, b.buffer(100), b.card.key)
    world.deliver(1)
    assert budget.used == before + 3 * MTU + 100 + 2 * PACKET_BYTES
    # One part is one acknowledgement at most, and it is not the first that asks.
    assert not any("ACK" in line for line in world.ladder)
    world.settle()
    assert budget.used == before
    assert len(a.send_cq.poll()) == 2


@pytest.mark.parametrize("op", [Op.QP_2RST, Op.QP_2ERR])
def test_packets_that_wait_are_given_back_with_their_connection(op: Op) -> None:
    world, _, b, before = crowded()
    assert b.apply(op) == 0
    left = before - RESERVED if op == Op.QP_2RST else before
    assert b.card.hca.budget.used == left
    assert not b.qp.backlog
    world.settle()
    assert b.card.hca.budget.used == left


def test_a_card_without_memory_keeps_no_packet() -> None:
    world, a, b, _ = crowded()
    use_up(b.card)
    a.write(a.buffer(100), 100, b.buffer(100), b.card.key)
    world.deliver(1)
    assert b.qp.backlog is not None
    assert len(b.qp.backlog) == 1
    assert b.card.hca.count[Count.RX_DROP_CARD_MEMORY] == 1
    packet = Packet(Route(2, 1), 0, WRITE, b.qpn, 0, bytes(100))
    assert account.keep(b.card.hca, packet) is False


# What waits already in a crowded queue pair leaves room for so much.
PACKETS_LEFT = backlog.BACKLOG_PACKETS - 1
BYTES_LEFT = backlog.MAX_BYTES - 3 * MTU


@pytest.mark.parametrize(
    ("count", "size", "kept"),
    [(PACKETS_LEFT, 0, PACKETS_LEFT), (PACKETS_LEFT + 1, 0, PACKETS_LEFT), (16, BYTES_LEFT // 16, 16),
     (17, BYTES_LEFT // 16, 16), (2, BYTES_LEFT // 2 + 1, 1)],
)  # fmt: skip
def test_so_many_packets_wait_and_so_many_bytes(count: int, size: int, kept: int) -> None:
    _, _, b, _ = crowded()
    for _ in range(count):
        b.card.receive(Packet(Route(2, 1), 0, WRITE, b.qpn, 0, bytes(size)))
    assert b.qp.backlog is not None
    assert (len(b.qp.backlog) - 1, b.card.hca.count[Count.RX_DROP_BACKLOG]) == (kept, count - kept)


def work_requests(world: World, a: End, b: End) -> int:
    world.fault = lambda packet: []
    for _ in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    return 3 * WORK_REQUEST_BYTES


def answers(world: World, a: End, b: End) -> int:
    # What waits is counted when the next one comes.
    for _ in range(3):
        b.read(b.buffer(8192), 8192, a.buffer(8192), a.card.key)
    world.deliver(3)
    return 2 * ANSWER_BYTES


@under_way
@pytest.mark.parametrize("waiting", [work_requests, answers])
@pytest.mark.parametrize("op", [Op.QP_2RST, Op.QP_2ERR])
def test_what_waits_is_given_back_with_its_queue_pair(waiting: Callable[[World, End, End], int], op: Op) -> None:
    world, a, b = pair()
    budget = a.card.hca.budget
    before = budget.used
    charged = waiting(world, a, b)
    assert budget.used == before + charged
    assert a.apply(op) == 0
    if op == Op.QP_2ERR:
        assert a.apply(Op.QP_2RST) == 0
    assert budget.used == before - RESERVED
    a.card.memory.write(a.dbr, bytes(8))
    a.connect(b)
    world.settle()
    assert budget.used == before


def test_a_card_whose_memory_is_used_to_the_byte_fetches_one_work_request_at_a_time() -> None:
    world, a, b = pair()
    world.fault = lambda packet: []
    use_up(a.card)
    for _ in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ring=False)
    a.ring()
    assert len(a.qp.requester.pending) == 1


def test_flushed_work_requests_are_given_back_at_once() -> None:
    world, a, b = pair()
    budget = a.card.hca.budget
    before = budget.used
    world.fault = lambda packet: []
    for _ in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    assert budget.used == before + 3 * WORK_REQUEST_BYTES
    assert a.apply(Op.QP_2ERR) == 0
    assert budget.used == before
