"""Headers that do not belong to their queue pair: partition, GIDs, multicast numbers (volume 1, 9.6.1)."""

import pytest

from firmware.model.counters import Count
from firmware.model.qp import ERR, INIT, RST
from firmware.transport.port import gids_match
from tests.scenario.card import PKEYS
from tests.scenario.tools import FIRST, counted, inject, lead, under_way
from tests.scenario.world import ST_RC, ST_UC, ST_UD, End, World, pair
from vhca.wire.packet import MULTICAST_LID_FIRST, PERMISSIVE_LID, RC, SEND, UC, UD, WRITE, Grh

GROUP = bytes.fromhex("ff12401bffff000000000000ffffffff")
PREFIX = bytes.fromhex("fd00000000000001")
STRANGER = bytes.fromhex("fe80000000000000") + bytes(7) + b"\x99"


@pytest.mark.parametrize(
    ("own", "theirs", "taken"),
    [
        (0xFFFF, 0xFFFF, True),
        (0xFFFF, 0x7FFF, True),
        (0x7FFF, 0xFFFF, True),
        (0x7FFF, 0x7FFF, False),
        (0x8123, 0x8124, False),
        (0x8123, 0x8122, False),
        (0x8001, 0x8000, False),
        (0x8001, 0x0001, True),
        (0x8000, 0x8000, False),
        (0x8000, 0x0000, False),
        (0x0000, 0x8000, False),
        (0x0000, 0x0000, False),
    ],
)
@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
def test_a_partition_matches_itself_unless_both_are_limited_or_it_is_the_invalid_one(
    service: int, own: int, theirs: int, taken: bool
) -> None:
    world, _, b = pair(service)
    b.card.manager.set_pkeys(own, *PKEYS[1:])
    if service == ST_UD:
        b.post_recv(b.buffer(60), 60)
        inject(world, b, service=UD, op=SEND, psn=0, payload=b"datagram", qkey=0x1234, pkey=theirs)
        assert bool(b.recv_cq.poll()) is taken
    else:
        target = b.buffer(8)
        inject(world, b, service=RC if service == ST_RC else UC, op=WRITE, psn=FIRST, payload=b"8 bytes!", va=target,
               rkey=b.card.key, dma_length=8, pkey=theirs)  # fmt: skip
        assert b.peek(target, 8) == (b"8 bytes!" if taken else bytes(8))
    if taken:
        assert world.b.hca.count[Count.RX_DROP_PKEY] == 0
    else:
        assert counted(world.b.hca.count, Count.EQES) == {Count.RX_DROP_PKEY: 1}


@pytest.mark.parametrize(("dgid", "taken"), [("own", True), ("stranger", False), ("group", False)])
def test_a_datagram_with_a_global_route_is_for_a_gid_of_the_port(dgid: str, taken: bool) -> None:
    world, a, b = pair(ST_UD)
    b.post_recv(b.buffer(60), 60)
    gid = {"own": b.card.port.gids[0], "stranger": STRANGER, "group": GROUP}[dgid]
    inject(world, b, service=UD, op=SEND, psn=0, payload=bytes(8), qkey=0x1234, grh=Grh(a.card.port.gids[0], gid))
    assert bool(b.recv_cq.poll()) is taken
    assert world.b.hca.count[Count.RX_DROP_GID] == (not taken)


@pytest.mark.parametrize(
    ("dlid", "taken"),
    [(MULTICAST_LID_FIRST, True), (PERMISSIVE_LID - 1, True), (2, False), (PERMISSIVE_LID, False)],
)
def test_the_multicast_queue_pair_number_needs_a_multicast_lid(dlid: int, taken: bool) -> None:
    world, a, b = pair(ST_UD)
    b.join(GROUP)
    b.post_recv(b.buffer(60), 60)
    inject(world, b, dlid=dlid, service=UD, op=SEND, psn=0, payload=bytes(8), qkey=0x1234, dest_qp=0xFFFFFF,
           grh=Grh(a.card.port.gids[0], GROUP))  # fmt: skip
    assert bool(b.recv_cq.poll()) is taken
    assert world.b.hca.count[Count.RX_DROP_DLID] == (not taken)


def routed_pair() -> tuple[World, End, End]:
    """A connection with a global route in both directions."""
    world = World()
    a, b = End(world.a), End(world.b)
    for end, peer in ((a, b), (b, a)):
        end.connect(peer, path_grh=1, path_rgid_rip=peer.card.port.gids[0], path_hop_limit=7)
    return world, a, b


@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("which", ["none", "right", "wrong source", "wrong destination"])
def test_a_connection_has_a_global_route_in_both_directions_or_in_none(routed: bool, which: str) -> None:
    world, a, b = routed_pair() if routed else pair()
    right = Grh(a.card.port.gids[0], b.card.port.gids[0])
    grh = {"none": None, "right": right, "wrong source": right._replace(sgid=STRANGER),
           "wrong destination": right._replace(dgid=STRANGER)}[which]  # fmt: skip
    target = b.buffer(8)
    inject(world, b, op=WRITE, psn=FIRST, payload=b"8 bytes!", va=target, rkey=b.card.key, dma_length=8, grh=grh)
    taken = which == ("right" if routed else "none")
    assert b.peek(target, 8) == (b"8 bytes!" if taken else bytes(8))
    assert world.b.hca.count[Count.RX_DROP_GID] == (not taken)


def test_a_connection_follows_a_new_prefix_of_its_port() -> None:
    world, a, b = routed_pair()
    own = a.card.port.gids[0]
    a.card.manager.set_port(gid_prefix=int.from_bytes(PREFIX, "big"))
    target = b.buffer(8)
    a.write(a.buffer(b"8 bytes!"), 8, target, b.card.key)
    grh = world.queue[0][1].route.grh
    assert grh is not None
    assert grh.sgid == PREFIX + own[8:]
    # The peer has not been told, and knows this one under the default prefix only.
    world.settle()
    assert b.peek(target, 8) == bytes(8)
    assert world.b.hca.count[Count.RX_DROP_GID] == 1
    # The other way round the default prefix is good for every port.
    inject(world, a, op=WRITE, psn=FIRST, payload=b"8 bytes!", va=a.buffer(8), rkey=a.card.key, dma_length=8,
           grh=Grh(b.card.port.gids[0], own), ack_req=True)  # fmt: skip
    assert world.a.hca.count[Count.RX_DROP_GID] == 0


@under_way
def test_answers_follow_a_new_prefix_too() -> None:
    world, a, b = routed_pair()
    own = b.card.port.gids[0]
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    b.card.manager.set_port(gid_prefix=int.from_bytes(PREFIX, "big"))
    world.deliver()
    ((_, answer),) = world.queue
    assert answer.route.grh is not None
    assert answer.route.grh.sgid == PREFIX + own[8:]


def test_gids_that_stand_for_one_port() -> None:
    own = PREFIX + bytes(7) + b"\1"
    local = bytes.fromhex("fe80000000000000") + bytes(7)
    assert gids_match(own, own)
    assert gids_match(local + b"\1", own)
    assert not gids_match(local + b"\2", own)
    assert not gids_match(own, local + b"\1")


@pytest.mark.parametrize("state", [RST, INIT, ERR])
def test_a_queue_pair_that_receives_nothing_in_its_state_drops(state: int) -> None:
    world, a, b = pair()
    lead(b, a, state)
    target = b.buffer(8)
    inject(world, b, op=WRITE, psn=FIRST, payload=b"8 bytes!", va=target, rkey=b.card.key, dma_length=8)
    assert counted(world.b.hca.count) == {Count.RX_DROP_QP_STATE: 1}
    assert b.peek(target, 8) == bytes(8)


@pytest.mark.parametrize("state", [RST, INIT, ERR])
def test_a_datagram_queue_pair_drops_in_such_a_state_too(state: int) -> None:
    world, a, b = pair(ST_UD)
    lead(b, a, state)
    b.post_recv(b.buffer(60), 60)
    inject(world, b, service=UD, op=SEND, psn=0, payload=bytes(8), qkey=0x1234)
    assert counted(world.b.hca.count) == {Count.RX_DROP_QP_STATE: 1}


@pytest.mark.parametrize("fields", [{"slid": 3}, {"dlid": 3}, {"slid": 2}])
def test_a_connection_has_one_way(fields: dict[str, int]) -> None:
    world, _, b = pair()
    inject(world, b, op=WRITE, psn=FIRST, **fields)
    assert counted(world.b.hca.count) == {Count.RX_DROP_PATH: 1}
