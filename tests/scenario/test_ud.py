"""Datagrams and the management queue pairs: one scenario per rule."""

import struct

import pytest

from firmware.model.counters import Count, QCount
from firmware.model.qp import SQER
from firmware.transport.port import origin
from tests.packets import packet_of
from tests.scenario.tools import counted, inject, sent
from tests.scenario.world import ERR, ST_QP0, ST_QP1, ST_UD, CompletionQueue, End, SharedQueue, World, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeGrh, CqeOpcode, CqeSyndrome
from vhca.wire.connectx.wqe import DatagramSegment, WqeOpcode
from vhca.wire.mad import CLASS_PERF, METHOD_GET, METHOD_GET_RESP
from vhca.wire.packet import MULTICAST_LID_FIRST, PERMISSIVE_LID, SEND, UD, Grh, Packet, Route

GID = bytes.fromhex("ff12401bffff000000000000ffffffff")


def ud_pair() -> tuple[World, End, End]:
    return pair(ST_UD)


def management(world: World, service: int) -> tuple[End, End]:
    ends = End(world.a, service), End(world.b, service)
    for end in ends:
        end.to_init(q_key=0 if service == ST_QP0 else 0x80010000)
        end.to_rtr(mtu=1, log_msg_max=8)
        end.to_rts()
    return ends


def smp(mgmt_class: int = 0x01, method: int = 0x81, dr_slid: int = PERMISSIVE_LID) -> bytes:
    return struct.pack(">BBBB28xHH", 1, mgmt_class, 1, method, dr_slid, PERMISSIVE_LID) + bytes(256 - 36)


def test_datagram_is_delivered_behind_the_grh_area() -> None:
    world, a, b = ud_pair()
    content = some_bytes(100)
    target = b.buffer(b"\xee" * 140)
    b.post_recv(target, 140)
    index = a.datagram(a.buffer(content), 100, 2, b.qpn)
    world.settle()
    assert b.peek(target, 140) == b"\xee" * 40 + content
    (sent,) = a.send_cq.poll()
    assert (sent.kind, sent.counter, sent.syndrome) == (CqeOpcode.REQ, index, 0)
    (got,) = b.recv_cq.poll()
    assert (got.kind, got.size, got.slid, got.source_qpn, got.grh) == (CqeOpcode.RESP_SEND, 140, 1, a.qpn, 0)
    assert got.extra & 0xFFFF == 0xFFFF


def test_grh_lands_in_the_buffer() -> None:
    world, a, b = ud_pair()
    target = b.buffer(200)
    b.post_recv(target, 200)
    a.datagram(a.buffer(b"x" * 10), 10, 2, b.qpn, imm=7, grh=world.b.port.gids[0])
    world.settle()
    (got,) = b.recv_cq.poll()
    assert (got.grh, got.kind, got.extra) == (CqeGrh.IN_BUFFER, CqeOpcode.RESP_SEND_IMM, 7)
    grh = b.peek(target, 40)
    assert grh[0] >> 4 == 6
    # BTH, DETH, immediate, 10 bytes padded to 12, ICRC
    assert int.from_bytes(grh[4:6], "big") == 12 + 8 + 4 + 12 + 4
    assert grh[6] == 0x1B
    assert grh[8:24] == world.a.port.gids[0]
    assert grh[24:40] == world.b.port.gids[0]


def test_wrong_qkey_is_dropped_and_counted() -> None:
    world, a, b = ud_pair()
    b.post_recv(b.buffer(200), 200)
    a.datagram(a.buffer(b"x"), 1, 2, b.qpn, qkey=0x999)
    world.settle()
    assert b.recv_cq.poll() == []
    assert world.b.hca.count[Count.RX_DROP_QKEY] == 1
    assert a.send_cq.poll()[0].good


def test_privileged_qkey_means_the_own_one() -> None:
    world, a, b = ud_pair()
    b.post_recv(b.buffer(200), 200)
    a.datagram(a.buffer(b"x"), 1, 2, b.qpn, qkey=0x80000000)
    world.settle()
    assert len(b.recv_cq.poll()) == 1


def test_partition_mismatch_is_dropped() -> None:
    world = World()
    a, b = End(world.a, ST_UD), End(world.b, ST_UD)
    a.connect(b, path_pkey_index=1)
    b.connect(a)
    b.post_recv(b.buffer(200), 200)
    a.datagram(a.buffer(b"x"), 1, 2, b.qpn)
    world.settle()
    assert world.b.hca.count[Count.RX_DROP_PKEY] == 1
    assert b.recv_cq.poll() == []


def test_datagrams_have_numbers() -> None:
    world = World()
    a, b = End(world.a, ST_UD), End(world.b, ST_UD)
    a.connect(b, next_send_psn=0xFFFFFE)
    for _ in range(4):
        a.datagram(a.buffer(8), 8, 2, b.qpn)
    assert [packet.psn for _, packet in world.queue] == [0xFFFFFE, 0xFFFFFF, 0, 1]


@pytest.mark.parametrize(("index", "gid"), [(0, "own"), (1, "empty"), (255, "none")])
def test_a_datagram_s_source_is_the_gid_that_it_names(index: int, gid: str) -> None:
    world, a, b = ud_pair()
    av = DatagramSegment(q_key=0x1234, ext=1, dqpn=b.qpn, rlid=2, grh=1, src_addr_index=index, sl=5, tclass=6,
                         hop_limit=7, flow_label=8, rgid=world.b.port.gids[0]).to_bytes()  # fmt: skip
    a.post(WqeOpcode.SEND, av + a.sge(a.buffer(8), 8))
    (_, packet) = world.queue[0]
    prefix_alone = world.a.port.gids[0][:8] + bytes(8)
    source = {"own": world.a.port.gids[0], "empty": prefix_alone, "none": bytes(16)}[gid]
    assert packet.route.grh == Grh(source, world.b.port.gids[0], 6, 8, 7)
    assert (packet.route.sl, packet.route.vl, packet.mtu, packet.src_qp) == (5, 1, 1024, a.qpn)


def test_a_datagram_longer_than_what_is_posted_is_an_error_and_no_more() -> None:
    world, a, b = ud_pair()
    av = DatagramSegment(q_key=0x1234, ext=1, dqpn=b.qpn, rlid=2).to_bytes()
    a.post(WqeOpcode.SEND, av, ds=8)
    assert [(c.counter, c.syndrome) for c in a.send_cq.poll()] == [(0, CqeSyndrome.LOCAL_QP_OP_ERR)]
    assert not world.queue
    assert a.qp.state == SQER


def test_a_member_on_another_port_gets_no_copy() -> None:
    world, a, b = ud_pair()
    other = End(world.b, ST_UD)
    other.connect(a)
    # Past the door: these cards have one port.
    other.qp.port = 2
    for end in (other, b):
        end.join(GID)
        end.post_recv(end.buffer(60), 60)
    inject(world, b, dlid=MULTICAST_LID_FIRST, service=UD, op=SEND, psn=0, payload=bytes(8), qkey=0x1234,
           dest_qp=0xFFFFFF, grh=Grh(a.card.port.gids[0], GID))  # fmt: skip
    assert (len(b.recv_cq.poll()), len(other.recv_cq.poll())) == (1, 0)


@pytest.mark.parametrize(("method", "taken"), [(METHOD_GET, True), (METHOD_GET_RESP, False)])
def test_a_management_datagram_that_nobody_attends_may_be_taken_by_the_card(method: int, taken: bool) -> None:
    world, _, b = ud_pair()
    inject(world, b, dest_qp=1, service=UD, op=SEND, psn=0, payload=smp(CLASS_PERF, method), qkey=0x80010000)
    assert sent(world, "<-") == taken
    assert b.card.hca.count[Count.RX_DROP_NO_MANAGEMENT_QP] == (not taken)


def test_no_receive_drops_silently() -> None:
    world, a, b = ud_pair()
    a.datagram(a.buffer(b"x"), 1, 2, b.qpn)
    world.settle()
    assert world.b.hca.count[Count.RX_DROP_NO_RECEIVE] == 1
    assert b.counter.values[QCount.OUT_OF_BUFFER] == 1


def test_too_short_receive_is_not_consumed() -> None:
    world, a, b = ud_pair()
    b.post_recv(b.buffer(60), 60)
    a.datagram(a.buffer(b"x" * 30), 30, 2, b.qpn)
    a.datagram(a.buffer(b"x" * 20), 20, 2, b.qpn)
    world.settle()
    assert [c.size for c in b.recv_cq.poll()] == [60]
    assert world.b.hca.count[Count.RX_DROP_TOO_LONG] == 1


@pytest.mark.parametrize("route", [False, True])
@pytest.mark.parametrize(("room", "size", "taken"), [(39, 0, False), (40, 0, True), (50, 11, False), (50, 10, True)])
def test_a_receive_that_is_too_short_is_not_touched(room: int, size: int, taken: bool, route: bool) -> None:
    world, a, b = ud_pair()
    place = b.buffer(b"\xee" * 64)
    b.post_recv(place, room)
    a.datagram(a.buffer(bytes(16)), size, 2, b.qpn, grh=world.b.port.gids[0] if route else None)
    world.settle()
    assert [c.size for c in b.recv_cq.poll()] == [40 + size] * taken
    assert world.b.hca.count[Count.RX_DROP_TOO_LONG] == (not taken)
    if not taken:
        assert b.peek(place, 64) == b"\xee" * 64


def test_longer_than_mtu_is_a_local_length_error_and_stops_sending_only() -> None:
    world, a, b = ud_pair()
    source = a.buffer(2000)
    a.datagram(source, 2000, 2, b.qpn)
    a.datagram(source, 1, 2, b.qpn)
    world.settle()
    done = a.send_cq.poll()
    assert [c.syndrome for c in done] == [CqeSyndrome.LOCAL_LENGTH_ERR, CqeSyndrome.WR_FLUSH_ERR]
    assert a.qp.state == SQER
    a.post_recv(a.buffer(60), 60)
    b.datagram(b.buffer(b"y"), 1, 1, a.qpn)
    world.settle()
    assert len(a.recv_cq.poll()) == 1
    assert a.apply(Op.SQERR2RTS_QP) == 0
    b.post_recv(b.buffer(60), 60)
    a.datagram(source, 1, 2, b.qpn)
    world.settle()
    assert a.send_cq.poll()[0].good


def test_bad_key_is_a_local_protection_error() -> None:
    world, a, b = ud_pair()
    segments = DatagramSegment(ext=1, dqpn=b.qpn, rlid=2).to_bytes() + a.sge(a.buffer(4), 4, 0xABCD00)
    a.post(WqeOpcode.SEND, segments)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR]


@pytest.mark.parametrize("opcode", [WqeOpcode.RDMA_WRITE, WqeOpcode.RDMA_READ, WqeOpcode.UMR, 0x77])
def test_unknown_opcode_is_a_queue_pair_operation_error(opcode: int) -> None:
    _world, a, _b = ud_pair()
    index = a.post(opcode, bytes(64))
    (done,) = a.send_cq.poll()
    assert (done.kind, done.counter, done.syndrome) == (CqeOpcode.REQ_ERR, index, CqeSyndrome.LOCAL_QP_OP_ERR)


def test_own_lid_turns_round_inside_the_card() -> None:
    world = World()
    a, peer = End(world.a, ST_UD), End(world.a, ST_UD)
    for end in (a, peer):
        end.connect(end)
    target = peer.buffer(100)
    peer.post_recv(target, 100)
    a.datagram(a.buffer(b"hello"), 5, 1, peer.qpn)
    assert not world.queue
    world.settle()
    assert peer.peek(target + 40, 5) == b"hello"
    a.post_recv(target, 100)
    a.datagram(a.buffer(b"again"), 5, 1, a.qpn)
    world.settle()
    assert len(a.recv_cq.poll()) == 1


def test_a_sender_of_multicasts_is_known_by_every_lid_of_its_port() -> None:
    world, a, _ = pair(ST_UD, made={"block_lb_mc": 1})
    a.card.manager.set_port(lid=8, lmc=2)
    a.join(GID)
    a.post_recv(a.buffer(100), 100)
    av = DatagramSegment(q_key=0x1234, ext=1, dqpn=0xFFFFFF, rlid=MULTICAST_LID_FIRST, mlid=3, grh=1, rgid=GID)
    a.post(WqeOpcode.SEND, av.to_bytes() + a.sge(a.buffer(b"m"), 1))
    world.settle()
    assert a.recv_cq.poll() == []
    assert world.a.hca.count[Count.RX_MULTICAST_LOOPBACK_BLOCKED] == 1


@pytest.mark.parametrize("blocked", [False, True])
def test_multicast_reaches_members_on_both_cards(blocked: bool) -> None:
    world, a, b = pair(ST_UD, made={"block_lb_mc": int(blocked)})
    for end in (a, b):
        end.join(GID)
        end.post_recv(end.buffer(100), 100)
    a.datagram(a.buffer(b"m"), 1, MULTICAST_LID_FIRST, 0xFFFFFF, grh=GID)
    world.settle()
    assert [c.grh for c in b.recv_cq.poll()] == [CqeGrh.IN_BUFFER]
    assert len(a.recv_cq.poll()) == (not blocked)
    assert world.a.hca.count[Count.RX_MULTICAST_LOOPBACK_BLOCKED] == blocked
    b.datagram(b.buffer(b"m"), 1, MULTICAST_LID_FIRST, 0xFFFFFF, grh=bytes([0xFF]) * 16)
    world.settle()
    assert world.a.hca.count[Count.RX_DROP_MULTICAST_UNKNOWN] == 1


def test_shared_receive_queue_serves_datagrams() -> None:
    world = World()
    srq = SharedQueue(world.b)
    a, b = End(world.a, ST_UD), End(world.b, ST_UD, srq=srq)
    a.connect(b)
    b.connect(a)
    target = b.buffer(100)
    srq.post_recv(target, 100)
    a.datagram(a.buffer(b"srq"), 3, 2, b.qpn)
    world.settle()
    (got,) = b.recv_cq.poll()
    assert (got.counter, got.user, b.peek(target + 40, 3)) == (0, srq.number, b"srq")


def test_qp0_sends_on_vl15_without_grh_from_the_permissive_lid() -> None:
    world = World()
    a, b = management(world, ST_QP0)
    target = b.buffer(296)
    b.post_recv(target, 296)
    mad = smp(mgmt_class=0x81)
    a.datagram(a.buffer(mad), 256, PERMISSIVE_LID, 0, qkey=0)
    (item,) = world.queue
    packet = item[1]
    assert (packet.route.vl, packet.route.sl, packet.route.slid, packet.route.dlid, packet.pkey) == (
        15,
        0,
        0xFFFF,
        0xFFFF,
        0xFFFF,
    )
    assert (packet.src_qp, packet.qkey, packet.dest_qp) == (0, 0, 0)
    world.settle()
    (got,) = b.recv_cq.poll()
    assert (got.qpn, got.size, got.source_qpn) == (b.qpn, 296, 0)
    assert b.peek(target + 40, 256) == mad


@pytest.mark.parametrize(
    ("mgmt_class", "first_leg", "source"),
    [(0x01, 0xFFFF, 1), (0x80, 0xFFFF, 1), (0x82, 0xFFFF, 1), (0x81, 0xFFFF, 0xFFFF), (0x81, 1, 1), (0x81, 0xFFFE, 1),
     (0x81, 0xFEFF, 1), (0x81, 0x00FF, 1), (0x81, 0xFF00, 1)],
)  # fmt: skip
def test_an_smp_comes_from_the_port_s_lid_unless_its_first_leg_is_directed(
    mgmt_class: int, first_leg: int, source: int
) -> None:
    world = World()
    a, _ = management(world, ST_QP0)
    a.datagram(a.buffer(smp(mgmt_class, dr_slid=first_leg)), 256, 2, 0, qkey=0)
    ((_, packet),) = world.queue
    assert packet.route.slid == source


@pytest.mark.parametrize(("lid", "bits"), [(6, 0), (7, 1), (0xC001, 0)])
def test_path_bits_say_to_which_of_its_lids_a_datagram_came(lid: int, bits: int) -> None:
    _, _, b = ud_pair()
    b.card.manager.set_port(lid=6, lmc=1)
    assert origin(b.card.port, Packet(Route(lid, 1, 3), UD, SEND, b.qpn, 0)) == (1, bits, 3)


def test_smp_for_the_agent_does_not_reach_the_host() -> None:
    world = World()
    a, b = management(world, ST_QP0)
    handled = world.b.hca.count[Count.SMPS_HANDLED]
    for _ in range(2):
        b.post_recv(b.buffer(296), 296)
    for method in (METHOD_GET, METHOD_GET_RESP):
        a.datagram(a.buffer(smp(method=method)), 256, 2, 0, qkey=0)
    world.settle()
    assert world.b.hca.count[Count.SMPS_HANDLED] == handled + 1
    assert len(b.recv_cq.poll()) == 1


def test_smps_pass_while_the_port_is_not_active_and_nothing_else_does() -> None:
    world = World()
    a, b = management(world, ST_QP0)
    c, d = management(world, ST_QP1)
    world.a.unplug()
    world.b.unplug()
    b.post_recv(b.buffer(296), 296)
    d.post_recv(d.buffer(296), 296)
    a.datagram(a.buffer(smp()), 256, 2, 0, qkey=0)
    c.datagram(c.buffer(smp(4)), 256, 2, 1, qkey=0x80010000)
    world.settle()
    assert len(b.recv_cq.poll()) == 1
    assert d.recv_cq.poll() == []
    assert world.a.hca.count[Count.TX_DROP_PORT_INACTIVE] == 1


def test_qp1_names_itself_one_and_carries_its_partition() -> None:
    world = World()
    a, b = management(world, ST_QP1)
    b.post_recv(b.buffer(296), 296)
    a.datagram(a.buffer(smp(3)), 256, 2, 1, qkey=0x80000000)
    packet = world.queue[0][1]
    assert (packet.src_qp, packet.qkey, packet.pkey, packet.route.vl) == (1, 0x80010000, 0xFFFF, 0)
    world.settle()
    (got,) = b.recv_cq.poll()
    assert (got.source_qpn, got.extra, got.slid) == (1, 0xFFFF, 1)


def test_send_only_gsi_queue_pair_names_qp1_as_its_source() -> None:
    world, a, _b = pair(ST_UD, made={"deth_sqpn": 1}, q_key=0x80010000)
    (_c, d) = management(world, ST_QP1)
    d.post_recv(d.buffer(296), 296)
    a.datagram(a.buffer(smp(3)), 256, 2, 1, qkey=0x80000000)
    world.settle()
    assert [got.source_qpn for got in d.recv_cq.poll()] == [1]


def test_receives_of_an_error_queue_pair_are_flushed_without_a_doorbell() -> None:
    world, _a, b = ud_pair()
    assert b.apply(Op.QP_2ERR) == 0
    assert b.recv_cq.poll() == []
    index = b.post_recv()
    world.pass_time(3_000_000)
    assert [(c.kind, c.counter, c.syndrome) for c in b.recv_cq.poll()] == [
        (CqeOpcode.RESP_ERR, index, CqeSyndrome.WR_FLUSH_ERR)
    ]
    b.post(WqeOpcode.SEND, DatagramSegment(ext=1).to_bytes(), ce=0)
    assert [(c.kind, c.syndrome) for c in b.send_cq.poll()] == [(CqeOpcode.REQ_ERR, CqeSyndrome.WR_FLUSH_ERR)]
    assert b.qp.state == ERR
    assert b.apply(Op.QP_2RST) == 0
    world.pass_time(3_000_000)
    assert b.recv_cq.poll() == []


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        ({"dest_qp": 0x999}, Count.RX_DROP_UNKNOWN_QP),
        ({"dest_qp": 2}, Count.RX_DROP_UNKNOWN_QP),
        ({"dest_qp": 2, "vl": 15, "payload": b"\x01\x01".ljust(256, b"\0")}, Count.RX_DROP_UNKNOWN_QP),
        ({"good": False}, Count.RX_DROP_CRC),
        ({"service": 0}, Count.RX_DROP_SERVICE),
        ({"dlid": 9}, Count.RX_DROP_DLID),
        ({"dest_qp": 1, "payload": b"short"}, Count.RX_DROP_MALFORMED),
        ({"start": False, "grh": Grh(bytes(16), bytes(16))}, Count.RX_DROP_MALFORMED),
        ({"invalidate_rkey": 1, "grh": Grh(bytes(16), bytes(16))}, Count.RX_DROP_MALFORMED),
        ({"dest_qp": 0xFFFFFF, "op": 1}, Count.RX_DROP_MALFORMED),
        ({"dest_qp": 1}, Count.RX_DROP_NO_MANAGEMENT_QP),
        ({"dest_qp": 0}, Count.RX_DROP_SMP),
        ({"dest_qp": 0, "vl": 15, "payload": b"\x01\x04".ljust(256, b"\0")}, Count.RX_DROP_SMP),
        ({"dest_qp": 0, "payload": b"\x01\x01".ljust(256, b"\0")}, Count.RX_DROP_SMP),
        ({"dest_qp": 0, "vl": 15, "payload": b"\x01\x01\x01\x81".ljust(256, b"\0")}, Count.RX_DROP_NO_MANAGEMENT_QP),
        ({"dest_qp": 0, "vl": 15, "dlid": 9, "payload": b"\x01\x01".ljust(256, b"\0")}, Count.RX_DROP_DLID),
        ({"dest_qp": 1, "vl": 15}, Count.RX_DROP_PORT_INACTIVE),
        ({"payload": bytes(4097)}, Count.RX_DROP_MALFORMED),
        ({"qkey": 5}, Count.RX_DROP_QKEY),
        ({"pkey": 0x8123}, Count.RX_DROP_PKEY),
        (
            {"dest_qp": 0xFFFFFF, "dlid": MULTICAST_LID_FIRST, "grh": Grh(bytes(16), GID)},
            Count.RX_DROP_MULTICAST_UNKNOWN,
        ),
        ({"dest_qp": 0xFFFFFF, "grh": Grh(bytes(16), GID)}, Count.RX_DROP_DLID),
        ({"dest_qp": 0xFFFFFF, "dlid": PERMISSIVE_LID, "grh": Grh(bytes(16), GID)}, Count.RX_DROP_DLID),
        ({"grh": Grh(bytes(16), GID)}, Count.RX_DROP_GID),
    ],
)
def test_what_is_for_nobody_is_a_counted_drop(change: dict[str, object], counter: Count) -> None:
    world, _a, b = ud_pair()
    fields = {"dlid": 2, "slid": 1, "service": UD, "op": SEND, "dest_qp": b.qpn, "psn": 0, "payload": bytes(256),
              "qkey": 0x1234, **change}  # fmt: skip
    b.post_recv(b.buffer(300), 300)
    handled = world.b.hca.count[Count.SMPS_HANDLED]
    world.wire(world.a, packet_of(**fields))
    world.settle()
    assert world.b.hca.count[Count.SMPS_HANDLED] == handled
    # Once, and it goes no further.
    assert counted(world.b.hca.count) == {counter: 1}
    assert b.recv_cq.poll() == []


def test_a_dead_cq_takes_the_queue_pair_with_it() -> None:
    world = World()
    small = CompletionQueue(world.b, log_size=1)
    a, b = End(world.a, ST_UD), End(world.b, ST_UD, cq=small)
    a.connect(b)
    b.connect(a)
    for _ in range(4):
        b.post_recv(b.buffer(60), 60)
        a.datagram(a.buffer(b"x"), 1, 2, b.qpn)
    world.settle()
    assert b.qp.state == ERR
    assert 0x04 in [event for event, _ in world.b.events()]


def test_a_datagram_may_have_4096_bytes() -> None:
    world, _, b = ud_pair()
    b.post_recv(b.buffer(4136), 4136)
    inject(world, b, service=UD, op=SEND, psn=0, payload=bytes(4096), qkey=0x1234)
    assert len(b.recv_cq.poll()) == 1


def test_a_port_that_is_not_active_copies_no_multicast_to_its_own_members() -> None:
    world, a, _ = ud_pair()
    a.join(GID)
    a.post_recv(a.buffer(60), 60)
    for active in (False, True):
        if active:
            world.a.plug(1)
        else:
            world.a.unplug()
        a.datagram(a.buffer(b"m"), 1, MULTICAST_LID_FIRST, 0xFFFFFF, grh=GID)
        world.settle()
        assert len(a.recv_cq.poll()) == active
        assert world.a.hca.count[Count.RX_DROP_PORT_INACTIVE] == 0
