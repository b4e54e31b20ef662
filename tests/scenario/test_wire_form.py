"""Two cards that share no object: everything between them goes as bytes, and everything works as without."""

import pytest

from tests.scenario.tools import under_way
from tests.scenario.world import ST_RC, ST_UC, World, pair
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.packet import Packet
from vhca.wire.trunk import decode_packet, encode_packet


def as_bytes(packet: Packet) -> list[Packet]:
    """The cable between two processes."""
    return [decode_packet(encode_packet(packet))]


def conversation(service: int, cable: bool) -> tuple[list[tuple[int, int]], bytes, bytes, list[str]]:
    """Long and short messages; returns completions of both sides, memory and ladder."""
    world, a, b = pair(service, world=World(4 << 20), mtu=3)
    if cable:
        world.fault = as_bytes
    size = 300_000
    a.card.memory.write(source := a.buffer(size), bytes(range(256)) * (size // 256) + bytes(size % 256))
    target = b.buffer(size)
    b.post_recv(b.buffer(size), size)
    b.post_recv(b.buffer(size), size)
    a.write(source, size, target, b.card.key)
    a.send(source, size)
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, source, 1025, target + 8, b.card.key, imm=7)
    if service == ST_RC:
        a.read(a.buffer(size), size, target, b.card.key)
        a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), target, b.card.key, 5)
    world.settle()
    done = [(c.kind, c.syndrome) for end in (a.send_cq, b.recv_cq) for c in end.poll()]
    return done, bytes(a.card.memory.data), bytes(b.card.memory.data), list(world.ladder)


@under_way
@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_cards_in_two_processes_would_not_notice(service: int) -> None:
    inside = conversation(service, cable=False)
    assert {syndrome for _, syndrome in inside[0]} == {0}
    assert len(inside[0]) == (7 if service == ST_RC else 5)
    assert conversation(service, cable=True) == inside
