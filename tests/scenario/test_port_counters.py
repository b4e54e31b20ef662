"""What a port counts of the transport's drops: wrong keys, packets that cannot leave, SMPs without a receive."""

import pytest

from firmware.model.counters import Count
from firmware.model.qp import ReadJob
from tests.scenario.dynamic import Target, initiator
from tests.scenario.dynamic import send as send_dc
from tests.scenario.test_ud import management, smp
from tests.scenario.tools import FIRST, inject
from tests.scenario.world import ST_QP0, ST_QP1, ST_RC, ST_UC, ST_UD, World, pair
from vhca.wire.packet import RC, SEND, UC, UD, WRITE

FOREIGN = 0x8123


def test_each_datagram_with_a_wrong_key_is_one_violation() -> None:
    world, _, b = pair(ST_UD)
    b.post_recv(b.buffer(60), 60)
    fields = {"service": UD, "op": SEND, "psn": 0, "payload": bytes(8), "qkey": 0x1234}
    inject(world, b, **fields)
    assert b.card.manager.violations() == (0, 0)
    inject(world, b, **{**fields, "qkey": 0x99})
    assert b.card.manager.violations() == (1, 0)
    inject(world, b, **{**fields, "pkey": FOREIGN})
    assert b.card.manager.violations() == (1, 1)


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_each_packet_of_a_connection_with_a_wrong_partition_is_one_violation(service: int) -> None:
    world, _, b = pair(service)
    for expected in (1, 2):
        inject(world, b, op=WRITE, service=RC if service == ST_RC else UC, psn=FIRST, pkey=FOREIGN)
        assert b.card.manager.violations() == (0, expected)


def test_a_request_for_a_target_with_a_wrong_partition_is_one_violation() -> None:
    world = World()
    world.a.manager.set_pkeys(FOREIGN)
    send_dc(initiator(world.a), Target(world.b), b"stranger")
    world.settle()
    assert world.b.manager.violations() == (0, 1)


def test_general_management_knows_both_keys_and_the_subnet_s_own_none() -> None:
    world = World()
    _, b = management(world, ST_QP1)
    fields = {"service": UD, "op": SEND, "psn": 0, "payload": smp(4), "dest_qp": 1, "qkey": 0x80010000}
    inject(world, b, **{**fields, "qkey": 0x80010001})
    inject(world, b, **{**fields, "pkey": FOREIGN})
    assert b.card.manager.violations() == (1, 1)
    _, d = management(world, ST_QP0)
    inject(world, d, **{**fields, "payload": smp(), "dest_qp": 0, "vl": 15, "qkey": 5, "pkey": FOREIGN})
    assert b.card.manager.violations() == (1, 1)


@pytest.mark.parametrize("service", [ST_RC, ST_UD])
def test_packets_that_cannot_leave_are_discards(service: int) -> None:
    world, a, b = pair(service)
    world.a.unplug()
    if service == ST_RC:
        a.write(a.buffer(5000), 5000, b.buffer(5000), b.card.key)
    else:
        for _ in range(5):
            a.datagram(a.buffer(8), 8, 2, b.qpn)
    assert not world.queue
    assert world.a.port.counters.xmit_discards == 5
    assert world.b.port.counters.xmit_discards == 0


def test_answers_that_cannot_leave_are_discards() -> None:
    world, a, b = pair(world=World(32 << 20))
    size = 3 << 20
    a.read(a.buffer(size), size, b.buffer(size), b.card.key)
    world.deliver()
    before = b.qp.responder.replies[0]
    assert isinstance(before, ReadJob)
    left = size - before.offset
    world.b.unplug()
    while b.card.turn():
        pass
    assert world.b.port.counters.xmit_discards == left // 1024


@pytest.mark.parametrize(("running", "lost"), [(False, 2), (True, 1)])
def test_subnet_management_packets_without_a_receive_are_dropped_from_vl15(running: bool, lost: int) -> None:
    world = World()
    a, b = management(world, ST_QP0)
    if running:
        b.post_recv(b.buffer(296), 296)
    else:
        b.destroy()
    for _ in range(2):
        a.datagram(a.buffer(smp(mgmt_class=0x81)), 256, 2, 0, qkey=0)
    world.settle()
    assert world.b.port.counters.vl15_dropped == lost


def test_other_datagrams_without_a_receive_are_not() -> None:
    world = World()
    a, b = management(world, ST_QP1)
    a.datagram(a.buffer(smp(4)), 256, 2, 1, qkey=0x80010000)
    world.settle()
    b.destroy()
    a.datagram(a.buffer(smp(4)), 256, 2, 1, qkey=0x80010000)
    world.settle()
    assert world.b.hca.count[Count.RX_DROP_NO_RECEIVE] == 1
    assert world.b.port.counters.vl15_dropped == 0
