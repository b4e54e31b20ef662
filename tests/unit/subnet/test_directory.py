"""Records of the directory beyond those that every host asks for: tables, lanes, aliases, paths of many, traces."""

from random import Random

import pytest

from tests.unit.fabric.bench import Bench, Card, Turns
from tests.unit.subnet.test_administration import CREATE, CREATE_MASK, GROUP, SaBench, query
from tests.unit.subnet.test_partitions import THREE
from vhca.fabric import shapes
from vhca.fabric.counters import Drop
from vhca.fabric.fabric import Fabric
from vhca.sim.clock import VirtualClock
from vhca.subnet import lanes
from vhca.subnet.multicast import IPOIB_BROADCAST
from vhca.subnet.partitions import Group, Partitions
from vhca.subnet.rmpp import MAX_REQUEST_BYTES, REQUESTS_PER_LID, RETRIES
from vhca.wire import mad as m
from vhca.wire import sa, smp
from vhca.wire.mad import SaMad
from vhca.wire.sa import GuidInfoRecord, PathRecord

MULTI = sa.MULTI_PATH_SGID_COUNT | sa.MULTI_PATH_DGID_COUNT


class TreeBench(SaBench):
    """Four cards at the hosts of a fat tree of two levels, with two ways between leaves."""

    def __init__(self, lmc: int = 0) -> None:
        self.turns = Turns()
        self.clock = VirtualClock(1)
        tree = shapes.fat_tree(4, radix=4, levels=2)
        self.fabric = Fabric(self.turns.call_soon, self.clock, topology=tree, random=Random(1), lmc=lmc, num_ports=36)
        self.cards = [Card(self.fabric, f"h{n}", 0x1000 + n, self.clock.now_ns) for n in range(4)]
        self.run()
        assert self.fabric.active()


def test_forwarding_tables_are_those_of_the_switches() -> None:
    bench = TreeBench()
    bench.join(bench.cards[0], GROUP, CREATE_MASK, **CREATE)
    bench.join(bench.cards[3], GROUP)
    switches = {switch.lid: switch for switch in bench.fabric.switches.values()}
    linear = bench.table(query(m.METHOD_GET_TABLE, sa.LINEAR_TABLE_RECORD), sa.LinearTableRecord)
    assert {record.lid for record in linear} == set(switches)  # type: ignore[attr-defined]
    for record in linear:
        assert isinstance(record, sa.LinearTableRecord)
        assert record.ports == bytes(switches[record.lid].lft[64 * record.block : 64 * record.block + 64])
    multicast = bench.table(query(m.METHOD_GET_TABLE, sa.MULTICAST_TABLE_RECORD), sa.MulticastTableRecord)
    assert multicast
    for group in multicast:
        assert isinstance(group, sa.MulticastTableRecord)
        first = 0xC000 + 32 * group.block
        mft = switches[group.lid].mft
        assert smp.unpack_words(group.masks) == [
            mft.get(lid, 0) >> 16 * group.position & 0xFFFF for lid in range(first, first + 32)
        ]
    wanted = sa.LinearTableRecord(lid=bench.cards[0].lid)
    assert bench.one(query(m.METHOD_GET, sa.LINEAR_TABLE_RECORD, wanted, 1)).status == 0x300


def test_lanes_are_what_agents_say_at_this_moment() -> None:
    bench = SaBench(2)
    switch, card = bench.fabric.switch, bench.cards[0]
    switch.ports[2].set_lanes(1, bytes([3] * 16))
    wanted = sa.SlToVlRecord(lid=switch.lid, in_port=1, out_port=2)
    answer = bench.one(query(m.METHOD_GET, sa.SL_TO_VL_RECORD, wanted, 0b111))
    assert sa.SlToVlRecord.from_bytes(answer.data).lanes == bytes([0x33] * 8)
    card.sma.port(1).lanes = bytes([1] * 16)
    own = sa.SlToVlRecord(lid=card.lid)
    (record,) = bench.table(query(m.METHOD_GET_TABLE, sa.SL_TO_VL_RECORD, own, 1), sa.SlToVlRecord)
    assert isinstance(record, sa.SlToVlRecord)
    assert (record.in_port, record.out_port, record.lanes) == (0, 1, bytes([0x11] * 8))
    every = bench.table(query(m.METHOD_GET_TABLE, sa.SL_TO_VL_RECORD), sa.SlToVlRecord)
    assert len(every) == 2 + 3 * 3
    blocks = bench.table(query(m.METHOD_GET_TABLE, sa.VL_ARBITRATION_RECORD, own, 1), sa.VlArbitrationRecord)
    weights = {record.block: record.weights for record in blocks if isinstance(record, sa.VlArbitrationRecord)}
    assert weights == {
        2: bytes(64),
        4: bytes(64),
        1: card.sma.port(1).weights[0].ljust(64, b"\0"),
        3: card.sma.port(1).weights[1].ljust(64, b"\0"),
    }
    bench.cards[1].silent = True
    silent = sa.SlToVlRecord(lid=bench.cards[1].lid)
    assert bench.sa(card, query(m.METHOD_GET, sa.SL_TO_VL_RECORD, silent, 1)) == []
    bench.pass_time(0.5)
    assert SaMad.from_bytes(card.inbox[-1].payload).status == 0x300


def test_too_many_lanes_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MAX_QUESTIONS", 10)
    bench = SaBench(2)
    asked = bench.fabric.manager.transactions.asked
    assert bench.one(query(m.METHOD_GET_TABLE, sa.SL_TO_VL_RECORD)).status == 0x100
    assert bench.fabric.manager.transactions.asked == asked


def test_a_port_gets_alias_guids_and_is_found_by_them() -> None:
    bench = SaBench(2)
    a, b = bench.cards
    wanted = GuidInfoRecord(lid=a.lid, guids=smp.pack_guids([0, 0x77, 0, 0x88]).ljust(64, b"\0"))
    mask = 1 | 1 << 5 | 1 << 6
    answer = bench.one(query(m.METHOD_SET, sa.GUID_INFO_RECORD, wanted, mask), a)
    assert (answer.method, answer.status) == (m.METHOD_GET_RESP, 0)
    guids = smp.unpack_guids(GuidInfoRecord.from_bytes(answer.data).guids)
    assert guids[:2] == [0x1000, 0x77]
    assert guids[2] >> 40 == 0x0002C9, "0 asks for one that the manager makes"
    assert guids[3:] == [0] * 5, "what the mask does not name stays"
    assert _guids(a) == guids
    path = PathRecord(sgid=b.gid, dgid=m.gid(smp.DEFAULT_GID_PREFIX, 0x77))
    found = PathRecord.from_bytes(
        bench.one(query(m.METHOD_GET, sa.PATH_RECORD, path, sa.PATH_SGID | sa.PATH_DGID), b).data
    )
    assert (found.dlid, found.dgid) == (a.lid, path.dgid)
    (shown,) = [
        record
        for record in bench.table(query(m.METHOD_GET_TABLE, sa.GUID_INFO_RECORD), GuidInfoRecord)
        if isinstance(record, GuidInfoRecord) and record.lid == a.lid
    ]
    assert smp.unpack_guids(shown.guids) == guids
    bench.pass_time(12)
    assert _guids(a) == guids, "a light sweep knows them"
    # Nobody gets one that another port has; what is given back is free.
    steal = GuidInfoRecord(lid=b.lid, guids=smp.pack_guids([0, 0x77, 0x1000]).ljust(64, b"\0"))
    answer = bench.one(query(m.METHOD_SET, sa.GUID_INFO_RECORD, steal, mask), b)
    assert smp.unpack_guids(GuidInfoRecord.from_bytes(answer.data).guids) == [0x1001] + [0] * 7
    answer = bench.one(query(m.METHOD_DELETE, sa.GUID_INFO_RECORD, wanted, 1 | 1 << 5), a)
    assert answer.method == m.METHOD_DELETE_RESP
    assert _guids(a)[1:] == [0, guids[2], 0, 0, 0, 0, 0]
    bench.one(query(m.METHOD_SET, sa.GUID_INFO_RECORD, steal, 1 | 1 << 5), b)
    assert b.sma.port(1).guids[1] == 0x77
    for lid, block, bits in (
        (b.lid, 0, 1 | 1 << 5),
        (a.lid, 1, 1 | 1 << 5),
        (a.lid, 0, 1 | 1 << 4),
        (a.lid, 0, 1 << 5),
    ):
        other = GuidInfoRecord(lid=lid, block=block, guids=bytes(64))
        assert bench.one(query(m.METHOD_SET, sa.GUID_INFO_RECORD, other, bits), a).status == 0x200
    assert bench.fabric.counters()["sa.not_ones_own"] == 2
    bench.fabric.link_down("hca0")
    bench.run()
    bench.fabric.link_up("hca0")
    bench.pass_time(12)
    assert _guids(a)[1:] == [0] * 7, "what was away begins anew"


def _guids(card: Card) -> list[int]:
    guids = card.sma.port(1).guids
    return [*guids, *[0] * (8 - len(guids))]


def multi(sources: list[Card], targets: list[Card], **fields: int) -> tuple[sa.MultiPathRecord, bytes]:
    record = sa.MultiPathRecord(sgid_count=len(sources), dgid_count=len(targets), **fields)
    return record, b"".join(card.gid for card in (*sources, *targets))


def test_paths_between_any_of_some_and_any_of_others() -> None:
    bench = SaBench(4)
    a, b, c, d = bench.cards
    record, gids = multi([a, b], [c, d])
    request = query(m.METHOD_GET_MULTI, sa.MULTI_PATH_RECORD, record.to_bytes() + gids, MULTI)
    (answer,) = bench.sa(a, request)
    assert (answer.method, answer.attr_id, answer.status) == (m.METHOD_GET_MULTI_RESP, sa.PATH_RECORD, 0)
    # Four paths are two segments.
    assert answer.rmpp_flags == m.RMPP_ACTIVE | m.RMPP_FIRST
    ack = query(m.METHOD_GET_MULTI, sa.PATH_RECORD, rmpp_version=1, rmpp_type=m.RMPP_ACK)
    ack.rmpp_flags, ack.segment_number, ack.payload_length = 1, 1, 3
    (more,) = bench.sa(a, ack)
    data = answer.data + more.data[: more.payload_length - 20]
    paths = [PathRecord.from_bytes(data[at : at + 64]) for at in range(0, len(data), 64)]
    assert [(path.slid, path.dlid) for path in paths] == [(s.lid, t.lid) for s in (a, b) for t in (c, d)]
    record, gids = multi([a], [b, c, d], numb_path=1, mtu=5, mtu_selector=2)
    mask = MULTI | sa.MULTI_PATH_MTU | sa.MULTI_PATH_NUMB_PATH
    (answer,) = bench.sa(a, query(m.METHOD_GET_MULTI, sa.MULTI_PATH_RECORD, record.to_bytes() + gids, mask))
    assert answer.payload_length == 3 * 64 + 20
    for count, mask, status in ((1, 0, 0x600), (200, MULTI, 0x200), (0, MULTI, 0x600)):
        wrong = sa.MultiPathRecord(sgid_count=count, dgid_count=1)
        assert bench.one(query(m.METHOD_GET_MULTI, sa.MULTI_PATH_RECORD, wrong, mask)).status == status


def segments(request: SaMad, data: bytes) -> list[SaMad]:
    count = -(-len(data) // 200)
    found = []
    for number in range(1, count + 1):
        mad = SaMad.from_bytes(request.to_bytes())
        piece = data[200 * (number - 1) : 200 * number]
        mad.rmpp_version, mad.rmpp_type, mad.rmpp_flags = 1, m.RMPP_DATA, m.RMPP_ACTIVE
        mad.segment_number, mad.data = number, piece.ljust(200, b"\0")
        if number == 1:
            mad.rmpp_flags |= m.RMPP_FIRST
        if number == count:
            mad.rmpp_flags |= m.RMPP_LAST
            mad.payload_length = len(piece) + 20
        found.append(mad)
    return found


def test_a_request_of_many_segments_is_acknowledged_and_answered() -> None:
    bench = SaBench(3)
    a, b, c = bench.cards
    record, gids = multi([a] * 10, [b, c] * 10)
    request = query(m.METHOD_GET_MULTI, sa.MULTI_PATH_RECORD, b"", MULTI)
    first, second, last = segments(request, record.to_bytes() + gids)
    (ack,) = bench.sa(a, first)
    assert (ack.rmpp_type, ack.segment_number) == (m.RMPP_ACK, 1)
    assert ack.payload_length > 1
    # One that is lost is asked for by the number of the last one that came in order.
    (ack,) = bench.sa(a, last)
    assert (ack.rmpp_type, ack.segment_number) == (m.RMPP_ACK, 1)
    assert [mad.segment_number for mad in bench.sa(a, second)] == [2]
    ack, answer = bench.sa(a, last)
    assert (ack.rmpp_type, ack.segment_number) == (m.RMPP_ACK, 3)
    assert (answer.method, answer.segment_number, answer.status) == (m.METHOD_GET_MULTI_RESP, 1, 0)
    assert answer.payload_length == 200 * 64 + 20 * 64, "200 paths"


def test_requests_of_many_segments_take_little_and_not_for_ever() -> None:
    bench = SaBench(2)
    card = bench.cards[0]
    long = bench.fabric.administration._long
    for tid in range(REQUESTS_PER_LID + 3):
        request = query(m.METHOD_GET_MULTI, sa.MULTI_PATH_RECORD, b"", MULTI, tid=tid)
        bench.sa(card, segments(request, bytes(500))[0])
        assert len(long._arriving) <= REQUESTS_PER_LID
    request = query(m.METHOD_GET_MULTI, sa.MULTI_PATH_RECORD, b"", MULTI, tid=99)
    for mad in segments(request, bytes(MAX_REQUEST_BYTES + 400)):
        answers = bench.sa(card, mad)
    assert not any(answers), "given up before"
    assert max(len(one.data) for one in long._arriving.values()) <= MAX_REQUEST_BYTES
    bench.pass_time(6)
    assert not long._arriving
    assert bench.fabric.administration.next_deadline() is None
    assert bench.sa(card, segments(request, bytes(500))[1]) == [], "nobody began it"


def test_with_an_lmc_each_path_has_lids_and_a_way_of_its_own() -> None:
    bench = TreeBench(lmc=1)
    a, d = bench.cards[0], bench.cards[3]
    assert all(card.lid % 2 == 0 and card.sma.port(1).lmc == 1 for card in bench.cards)
    wanted = PathRecord(sgid=a.gid, dgid=d.gid)
    found = bench.table(query(m.METHOD_GET_TABLE, sa.PATH_RECORD, wanted, sa.PATH_SGID | sa.PATH_DGID), PathRecord)
    assert [(path.slid, path.dlid) for path in found] == [  # type: ignore[attr-defined]
        (a.lid, d.lid),
        (a.lid + 1, d.lid + 1),
    ]
    leaf = next(switch for switch in bench.fabric.switches.values() if switch is a.port.switch_port.switch)
    assert leaf.lft[d.lid] != leaf.lft[d.lid + 1], "by another cable"
    for path in found:
        assert isinstance(path, PathRecord)
        d.inbox.clear()
        a.port.send(a.data(path.dlid, slid=path.slid))
        bench.run()
        assert len(d.inbox) == 1
    a.port.send(a.data(d.lid, slid=a.lid + 2))
    bench.run()
    assert leaf.dropped()[Drop.BAD_SLID] == 1, "these two and no others are its own"


def test_a_path_is_traced_from_node_to_node() -> None:
    bench = TreeBench()
    a, d = bench.cards[0], bench.cards[3]
    wanted = PathRecord(sgid=a.gid, dgid=d.gid)
    request = query(m.METHOD_GET_TRACE_TABLE, sa.PATH_RECORD, wanted, sa.PATH_SGID | sa.PATH_DGID)
    (first,) = bench.sa(a, request)
    assert (first.method, first.attr_id, first.status) == (m.METHOD_GET_TABLE_RESP, sa.TRACE_RECORD, 0)
    data = first.data
    acked = 1
    while not first.rmpp_flags & m.RMPP_LAST:
        ack = query(m.METHOD_GET_TRACE_TABLE, sa.TRACE_RECORD, rmpp_version=1, rmpp_type=m.RMPP_ACK)
        ack.rmpp_flags, ack.segment_number, ack.payload_length = 1, acked, acked + 1
        (first,) = bench.sa(a, ack)
        data += first.data[: first.payload_length - 20] if first.rmpp_flags & m.RMPP_LAST else first.data
        acked += 1
    nodes = [sa.TraceRecord.from_bytes(data[at : at + 48]) for at in range(0, 48 * 5, 48)]
    assert [node.node_type for node in nodes] == [1, 2, 2, 2, 1]
    assert (nodes[0].node_guid, nodes[-1].node_guid) == (0x1000, 0x1003)
    way = bench.fabric.plant
    assert way is not None
    guids = {node.guid: node.name for node in way.topology.nodes.values()}
    from vhca.fabric.chart import route

    hops = [f"{guids[node.node_guid]}/{node.exit_port}" for node in nodes[1:-1]]
    assert hops == route(bench.fabric, "h0", "h3")[1:]
    assert all(node.entry_port for node in nodes[1:])


def test_reports_are_repeated_until_they_are_acknowledged() -> None:
    bench = SaBench(3)
    a, b, _ = bench.cards
    bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, m.InformInfo(is_generic=1, subscribe=1, trap_number=66)), b)
    b.inbox.clear()
    bench.join(a, GROUP, CREATE_MASK, **CREATE)
    (report,) = (SaMad.from_bytes(packet.payload) for packet in b.inbox)
    bench.pass_time(1.2)
    assert [SaMad.from_bytes(packet.payload).tid for packet in b.inbox] == [report.tid] * 2
    report.method = m.METHOD_REPORT_RESP
    bench.sa(b, report)
    bench.pass_time(5)
    assert b.inbox == []
    assert "sa.responses" not in bench.fabric.counters()
    bench.join(a, GROUP[:-1] + b"\2", CREATE_MASK, **CREATE)
    bench.pass_time(10)
    assert len(b.inbox) == 1 + RETRIES, "and not for ever"
    assert bench.fabric.administration.next_deadline() is None


def test_parts_of_service_data_are_compared_one_by_one() -> None:
    bench = SaBench(2)
    data = bytes(range(64))
    record = sa.ServiceRecord(service_id=7, gid=bench.cards[0].gid, pkey=0xFFFF, data=data)
    assert bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record)).status == 0
    for bit, at in ((7, 0), (22, 15), (23, 16), (30, 30), (31, 32), (34, 44), (35, 48), (36, 56)):
        wanted = sa.ServiceRecord(data=bytes(at) + data[at : at + 8].ljust(64 - at, b"\0"))
        assert bench.one(query(m.METHOD_GET, sa.SERVICE_RECORD, wanted, 1 << bit)).status == 0
        wrong = sa.ServiceRecord(data=bytes(at) + b"\xee" * (64 - at))
        assert bench.one(query(m.METHOD_GET, sa.SERVICE_RECORD, wrong, 1 << bit)).status == 0x300


# Who sees what


class PartitionedSa(SaBench):
    """Cards 0 and 1 are full members of one, 2 a limited one, of two as well; 3 is in neither."""

    def __init__(self) -> None:
        blue = Group(bytes.fromhex("ff12401b8001000000000000ffffffff"), 0x8001, 0xB1B, mtu=5, rate=16)
        Bench.__init__(self, 4, partitions=Partitions(THREE.partitions, [blue]))
        self.run()
        self.blue = blue.mgid

    def pkey_of(self, a: Card, b: Card, asker: Card, **fields: int) -> int:
        wanted = PathRecord(sgid=a.gid, dgid=b.gid, **fields)
        mask = sa.PATH_SGID | sa.PATH_DGID | (sa.PATH_PKEY if fields else 0)
        answer = self.one(query(m.METHOD_GET, sa.PATH_RECORD, wanted, mask), asker)
        return PathRecord.from_bytes(answer.data).pkey if not answer.status else -answer.status


def test_paths_have_a_partition_that_both_ends_share() -> None:
    bench = PartitionedSa()
    a, b, c, d = bench.cards
    assert bench.pkey_of(a, b, a) == 0x8001
    assert bench.pkey_of(a, c, a) == 0x8001
    assert bench.pkey_of(c, a, c) == 1, "as the source has it"
    assert bench.pkey_of(a, b, a, pkey=1) == 0x8001
    assert bench.pkey_of(a, b, a, pkey=0xFFFF) == -0x300, "limited members of the default partition, both"
    assert bench.pkey_of(a, d, a) == -0x500, "it does not even know of it"
    assert bench.pkey_of(a, b, d) == -0x500


def test_who_shares_no_partition_with_a_port_sees_nothing_of_it() -> None:
    bench = PartitionedSa()
    a, b, c, d = bench.cards
    for layout, attr in ((sa.NodeRecord, sa.NODE_RECORD), (sa.PKeyTableRecord, sa.P_KEY_TABLE_RECORD)):
        for asker, seen in ((a, {a, b, c}), (c, {a, b, c}), (d, {d})):
            found = bench.table(query(m.METHOD_GET_TABLE, attr, sm_key=1), layout, asker)
            # The manager is a full member of the default partition.
            lids = {record.lid for record in found}  # type: ignore[attr-defined]
            assert lids == {card.lid for card in seen} | {bench.fabric.manager.lid}
    found = bench.table(query(m.METHOD_GET_TABLE, sa.LINK_RECORD), sa.LinkRecord, d)
    assert len(found) == 2


def test_only_members_join_the_groups_of_a_partition_and_see_them() -> None:
    bench = PartitionedSa()
    a, b, c, d = bench.cards
    assert bench.join(d, bench.blue)[0] == 0x200
    assert bench.join(a, bench.blue)[0] == bench.join(c, bench.blue)[0] == 0
    assert bench.join(d, GROUP, CREATE_MASK, qkey=5, pkey=0x8001)[0] == 0x200
    assert bench.join(c, GROUP, CREATE_MASK, qkey=5, pkey=0x8001)[0] == 0, "limited members make groups, too"
    assert bench.join(b, GROUP, CREATE_MASK, qkey=5, pkey=0x8001)[0] == 0
    assert bench.join(a, IPOIB_BROADCAST)[0] == 0x200, "the file made none for all"
    for asker, count in ((a, 2), (d, 0)):
        found = bench.table(query(m.METHOD_GET_TABLE, sa.MC_MEMBER_RECORD), sa.McMemberRecord, asker)
        assert len(found) == count
    group = PathRecord(dgid=bench.blue, sgid=c.gid)
    answer = bench.one(query(m.METHOD_GET, sa.PATH_RECORD, group, sa.PATH_SGID | sa.PATH_DGID), c)
    assert PathRecord.from_bytes(answer.data).pkey == 1
    bench.leave(a, bench.blue)
    bench.leave(c, bench.blue)
    assert bench.join(a, bench.blue)[0] == 0, "it is there without members, too"
