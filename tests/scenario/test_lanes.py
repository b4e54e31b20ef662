"""Service levels leave by the lanes that the port's SL to VL table says, or not at all (7.6.6, 14.2.5.8)."""

import pytest

from firmware.model.counters import Count
from tests.scenario.world import ST_RC, ST_UC, ST_UD, World, pair
from vhca.wire import mad, smp
from vhca.wire.connectx.wqe import DatagramSegment, WqeOpcode


def set_lanes(world: World, *lanes: int) -> None:
    """SLtoVLMappingTable of the first card: the lanes of 16 service levels."""
    data = bytes(lanes[at] << 4 | lanes[at + 1] for at in range(0, 16, 2))
    world.a.manager.ask(mad.METHOD_SET, smp.SL_TO_VL, data)


def send(service: int, sl: int, prepare: tuple[int, ...] | None = None, code: int = 0) -> tuple[World, list[int]]:
    """Send a message on a service level; gives the lanes of the packets that left."""
    world, a, b = pair(service, path_sl=sl)
    if prepare is not None:
        set_lanes(world, *prepare)
    if code:
        world.a.manager.set_port(operational_vls=code)
    if service == ST_UD:
        av = DatagramSegment(q_key=0x1234, ext=1, dqpn=b.qpn, rlid=2, sl=sl).to_bytes()
        a.post(WqeOpcode.SEND, av + a.sge(a.buffer(8), 8))
    else:
        a.post(WqeOpcode.SEND, a.sge(a.buffer(8), 8))
    return world, [packet.route.vl for _, packet in world.queue]


@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
@pytest.mark.parametrize("sl", [0, 1, 5, 15])
def test_packets_have_the_lane_of_their_service_level(service: int, sl: int) -> None:
    assert send(service, sl)[1] == [sl % 4]
    assert send(service, sl, tuple(3 - lane % 4 for lane in range(16)))[1] == [3 - sl % 4]


@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
@pytest.mark.parametrize(("lane", "code"), [(15, 0), (4, 0), (1, 1), (3, 2)])
def test_what_has_no_operational_lane_is_discarded(service: int, lane: int, code: int) -> None:
    lanes = (0, lane, *[0] * 14)
    world, left = send(service, 1, lanes, code)
    assert left == []
    assert world.a.hca.count[Count.TX_DROP_PORT_INACTIVE] == 1
    assert world.a.port.counters.xmit_discards == 1
    assert send(service, 0, lanes, code)[1] == [0]


def test_a_connection_goes_on_by_another_lane_when_the_table_changes() -> None:
    world, a, _ = pair(ST_UC, path_sl=2)
    seen = []
    for lanes in ((0,) * 16, (1,) * 16, (15,) * 16, (2,) * 16):
        set_lanes(world, *lanes)
        a.post(WqeOpcode.SEND, a.sge(a.buffer(8), 8))
        seen.append([packet.route.vl for _, packet in world.queue])
        world.settle()
    assert seen == [[0], [1], [], [2]]


def test_no_train_leaves_without_a_lane_and_none_is_answered_without_one() -> None:
    world, a, b = pair(ST_RC, path_sl=2)
    for card in (world.a, world.b):
        card.manager.ask(mad.METHOD_SET, smp.SL_TO_VL, b"\xff" * 8)
        b.post_recv(b.buffer(8), 8)
        a.post(WqeOpcode.SEND, a.sge(a.buffer(8), 8))
        world.settle()
        assert (a.send_cq.poll(), b.recv_cq.poll()) == ([], []) if card is world.a else a.send_cq.poll() == []
        set_lanes(world, *[1] * 16)


def test_what_a_card_sends_to_itself_needs_no_lane() -> None:
    world, a, _ = pair(ST_UD)
    set_lanes(world, *[15] * 16)
    a.post_recv(a.buffer(60), 60)
    av = DatagramSegment(q_key=0x1234, ext=1, dqpn=a.qpn, rlid=1, sl=3).to_bytes()
    a.post(WqeOpcode.SEND, av + a.sge(a.buffer(8), 8))
    world.settle()
    assert len(a.recv_cq.poll()) == 1
