"""Memory in many small pieces: whatever is sent to or from it, a step takes a bounded number of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firmware.memory import FEW_PIECES, SMALL_PIECE_BYTES, STEP_PIECES
from firmware.model.counters import Count
from firmware.model.objects import MODE_KLM
from firmware.transport import backlog
from tests.scenario.world import ERR, ST_RC, ST_UC, ST_UD, Card, End, World, packed_klms, pair
from tests.support.content import some_bytes
from vhca.hw.effects import Effects
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import DatagramSegment, WqeOpcode
from vhca.wire.packet import READ_RESPONSE, WRITE, Packet

MTU = 4096
SIZE = 40 * MTU + 100
PIECE = 16


Step = Callable[[Callable[[Effects], object]], None]


class Crumbs:
    """A region of `size` bytes made of pieces; `piece` bytes of every `2 * piece` belong to it, from address 0 on."""

    def __init__(self, end: End, size: int = SIZE, piece: int = PIECE) -> None:
        self.card: Card = end.card
        self.size = size
        self.piece = piece
        self.addr = self.card.alloc(2 * size + 2 * piece)
        count = -(-size // piece)
        entries = packed_klms(*[(piece, self.card.key, self.addr + at * 2 * piece) for at in range(count)])
        self.key = self.card.create_key(MODE_KLM, entries, len=size)

    def write(self, data: bytes) -> None:
        """Let the region hold `data`."""
        for at in range(0, len(data), self.piece):
            self.card.memory.write(self.addr + 2 * at, data[at : at + self.piece])

    def read(self) -> bytes:
        """What the region holds."""
        raw = self.card.memory.read(self.addr, 2 * self.size + 2 * self.piece)
        whole = b"".join(raw[at : at + self.piece] for at in range(0, 2 * self.size, 2 * self.piece))
        return whole[: self.size]


class Watch:
    """The most pieces that one step of a card has taken."""

    def __init__(self, *cards: Card) -> None:
        self.most = 0
        for card in cards:
            card.step = self._watched(card, card.step)  # type: ignore[method-assign, assignment]

    def _watched(self, card: Card, step: Step) -> Step:
        def watched(action: Callable[[Effects], object]) -> None:
            before = card.hca.pieces
            step(action)
            self.most = max(self.most, card.hca.pieces - before)

        return watched


def stage(service: int = ST_RC) -> tuple[World, End, End, Watch]:
    world, a, b = pair(service, world=World(4 << 20), mtu=5)
    return world, a, b, Watch(world.a, world.b)


def bounded(watch: Watch) -> bool:
    """One walk that went as far as it may, and another one of a single packet or a part that fits."""
    return STEP_PIECES < watch.most <= 2 * STEP_PIECES + 2


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_write_from_crumbs_is_sent_in_short_bursts(service: int) -> None:
    world, a, b, watch = stage(service)
    source, target, data = Crumbs(a), b.buffer(SIZE), some_bytes(SIZE)
    source.write(data)
    walked = a.card.hca.pieces
    a.write(0, SIZE, target, b.card.key, key=source.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert b.peek(target, SIZE) == data
    assert bounded(watch)
    # That bursts are to be short is found out once, not at each of them.
    assert a.card.hca.pieces - walked <= SIZE // PIECE + 2 * STEP_PIECES
    # The next message is sent as always.
    before = len(world.ladder)
    plain = a.buffer(SIZE)
    a.write(plain, SIZE, target, b.card.key)
    world.settle()
    assert sum("WRITE" in line for line in world.ladder[before:]) <= 2


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
@pytest.mark.parametrize("immediate", [None, 7])
def test_a_write_to_crumbs_is_stored_in_parts(service: int, immediate: int | None) -> None:
    world, a, b, watch = stage(service)
    source, target, data = a.buffer(SIZE), Crumbs(b), some_bytes(SIZE)
    a.card.memory.write(source, data)
    opcode = WqeOpcode.RDMA_WRITE if immediate is None else WqeOpcode.RDMA_WRITE_IMM
    b.post_recv(b.buffer(8), 8)
    for _ in range(2):
        a.rdma(opcode, source, SIZE, 0, target.key, imm=immediate or 0)
        if immediate is not None:
            b.post_recv(b.buffer(8), 8)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert [(c.syndrome, c.size) for c in b.recv_cq.poll()] == ([(0, SIZE)] * 2 if immediate else [])
    assert target.read() == data
    assert bounded(watch)
    assert world.b.hca.count[Count.RX_BURSTS_CUT] > 0
    assert not world.b.hca.count[Count.RX_OUT_OF_SEQUENCE]
    assert not world.a.hca.count[Count.RETRANSMITS]


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_send_to_crumbs_is_stored_in_parts(service: int) -> None:
    world, a, b, watch = stage(service)
    source, target, data = a.buffer(SIZE), Crumbs(b), some_bytes(SIZE)
    a.card.memory.write(source, data)
    b.post_recv(0, SIZE, key=target.key)
    a.send(source, SIZE)
    world.settle()
    assert [(c.syndrome, c.size) for c in b.recv_cq.poll()] == [(0, SIZE)]
    assert target.read() == data
    assert bounded(watch)


def test_a_read_of_crumbs_is_answered_in_short_bursts() -> None:
    world, a, b, watch = stage()
    source, target, data = Crumbs(b), a.buffer(SIZE), some_bytes(SIZE)
    source.write(data)
    a.read(target, SIZE, 0, source.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert a.peek(target, SIZE) == data
    assert bounded(watch)


def test_a_read_into_crumbs_is_stored_in_parts() -> None:
    world, a, b, watch = stage()
    source, target, data = b.buffer(SIZE), Crumbs(a), some_bytes(SIZE)
    b.card.memory.write(source, data)
    a.read(0, SIZE, source, b.card.key, key=target.key)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert target.read() == data
    assert bounded(watch)
    assert not world.a.hca.count[Count.RETRANSMITS]


@pytest.mark.parametrize(
    ("service", "operation"),
    [(ST_RC, "send"), (ST_RC, "write"), (ST_RC, "read"), (ST_UC, "send"), (ST_UC, "write")],
)
def test_a_single_packet_takes_as_many_pieces_as_it_takes(service: int, operation: str) -> None:
    world, a, b, _ = stage(service)
    piece = MTU // (2 * STEP_PIECES)
    near, far = Crumbs(a, MTU, piece), Crumbs(b, MTU, piece)
    data = some_bytes(MTU)
    source, target = (far, near) if operation == "read" else (near, far)
    source.write(data)
    if operation == "send":
        b.post_recv(0, MTU, key=far.key)
        a.send(0, MTU, key=near.key)
    elif operation == "write":
        a.write(0, MTU, 0, far.key, key=near.key)
    else:
        a.read(0, MTU, 0, far.key, key=near.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert target.read() == data
    assert [(c.syndrome, c.size) for c in b.recv_cq.poll()] == ([(0, MTU)] if operation == "send" else [])
    assert not world.a.hca.count[Count.RX_BURSTS_CUT] + world.b.hca.count[Count.RX_BURSTS_CUT]


@pytest.mark.parametrize(
    ("service", "operation"),
    [(ST_RC, "send"), (ST_RC, "write"), (ST_RC, "read"), (ST_UC, "send"), (ST_UC, "write")],
)
@pytest.mark.parametrize("where", ["far", "near", "both"])
def test_two_packets_of_many_pieces_are_one_and_one(service: int, operation: str, where: str) -> None:
    world, a, b, watch = stage(service)
    size, piece = 2 * MTU, MTU // (2 * STEP_PIECES)
    far = Crumbs(b, size, size if where == "near" else piece)
    near = Crumbs(a, size, size if where == "far" else piece)
    data = some_bytes(size)
    source, target = (far, near) if operation == "read" else (near, far)
    source.write(data)
    if operation == "send":
        b.post_recv(0, size, key=far.key)
        a.send(0, size, key=near.key)
    elif operation == "write":
        a.write(0, size, 0, far.key, key=near.key)
    else:
        a.read(0, size, 0, far.key, key=near.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert target.read() == data
    # A walk of both packets that went as far as it may, and all of one packet.
    assert watch.most <= 3 * STEP_PIECES + 2


def test_datagrams_of_many_pieces_are_sent_a_few_in_a_step() -> None:
    world, a, b, watch = stage(ST_UD)
    source, data = Crumbs(a, MTU), some_bytes(MTU)
    source.write(data)
    places = [b.buffer(MTU + 40) for _ in range(20)]
    av = DatagramSegment(q_key=0x1234, ext=1, dqpn=b.qpn, rlid=2).to_bytes()
    for place in places:
        b.post_recv(place, MTU + 40)
        a.post(WqeOpcode.SEND, av + a.sge(0, MTU, source.key), ring=False)
    a.ring()
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 20
    assert [b.peek(place + 40, MTU) for place in places] == [data] * 20
    assert STEP_PIECES < watch.most <= 2 * STEP_PIECES + 2


def test_a_packet_of_too_many_pieces_is_refused_where_it_is_looked_at() -> None:
    world, a, b, watch = stage()
    target = Crumbs(b, size=2 * MTU, piece=1)
    a.write(a.buffer(2 * MTU), 2 * MTU, 0, target.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]
    assert watch.most <= FEW_PIECES + MTU // SMALL_PIECE_BYTES + 1 + STEP_PIECES + 1


def test_what_waits_behind_a_cut_burst_is_bounded_and_goes_with_the_queue_pair() -> None:
    world, a, b, _ = stage()
    target = Crumbs(b, size=64 << 10)
    source = a.buffer(64 << 10)
    for _ in range(3):
        a.write(source, 64 << 10, 0, target.key)
    while world.deliver() or a.card.turn():
        pass
    waiting = b.qp.backlog
    assert waiting is not None
    assert len(waiting) == 3
    packet = waiting[-1]
    for _ in range(2 * backlog.MAX_BYTES >> 16):
        world.b.receive(packet)
    assert sum(len(packet.payload) for packet in waiting) <= backlog.MAX_BYTES
    assert world.b.hca.count[Count.RX_DROP_BACKLOG] > 0
    b.apply(Op.QP_2ERR)
    assert b.qp.state == ERR
    assert b.qp.backlog is None
    world.settle()


@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_step_in_small_packets_has_no_more_of_them_than_one_in_large_ones(kind: str) -> None:
    """Where packets are looked at, for faults or to be recorded, each one costs."""
    world, a, b = pair(mtu=1)
    size = 1 << 20
    local, remote = a.buffer(size), b.buffer(size)
    bursts: list[int] = []
    steps: list[int] = []

    def look(packet: Packet) -> list[Packet]:
        if packet.op in (WRITE, READ_RESPONSE):
            bursts.append(packet.count)
        return [packet]

    world.fault = look
    for card in (world.a, world.b):
        step = card.step

        def counted(action: Callable[[Effects], object], step: Step = step) -> None:
            before = sum(bursts)
            step(action)
            steps.append(sum(bursts) - before)

        card.step = counted  # type: ignore[method-assign]
    if kind == "write":
        a.write(local, size, remote, b.card.key)
    else:
        a.read(local, size, remote, b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert sum(bursts) == size >> 8
    assert max(bursts) == 256
    assert 512 < max(steps) <= 1024 + 256
