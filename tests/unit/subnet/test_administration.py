import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packets import divert
from tests.unit.fabric.bench import Bench, Card
from vhca.layout import Layout
from vhca.subnet.multicast import IPOIB_BROADCAST, LIFE_TIME
from vhca.wire import mad as m
from vhca.wire import sa, smp
from vhca.wire.mad import SaMad
from vhca.wire.packet import Grh
from vhca.wire.sa import McMemberRecord, PathRecord

GROUP = bytes.fromhex("ff12601bffff00000000000000000001")


def query(method: int, attr: int, record: bytes | Layout = b"", mask: int = 0, **fields: int) -> SaMad:
    mad = SaMad(
        base_version=1,
        mgmt_class=m.CLASS_SUBN_ADM,
        class_version=2,
        method=method,
        tid=0x1234,
        attr_id=attr,
        component_mask=mask,
        data=bytes(record).ljust(200, b"\0"),
    )
    for name, value in fields.items():
        setattr(mad, name, value)
    return mad


class SaBench(Bench):
    def __init__(self, cards: int = 3) -> None:
        super().__init__(cards)
        self.run()

    def one(self, request: SaMad, card: Card | None = None) -> SaMad:
        answers = self.sa(card or self.cards[0], request)
        assert len(answers) == 1
        assert answers[0].tid == 0x1234
        return answers[0]

    def table(self, request: SaMad, layout: type[Layout], card: Card | None = None) -> list[Layout]:
        """Receive a table the way a host does: acknowledge each window."""
        card = card or self.cards[0]
        answers = self.sa(card, request)
        data, segment = b"", 0
        while True:
            for answer in answers:
                segment += 1
                assert (answer.method, answer.status) == (m.METHOD_GET_TABLE_RESP, 0)
                assert (answer.rmpp_type, answer.rmpp_flags & 1) == (m.RMPP_DATA, 1)
                assert answer.segment_number == segment
                last = answer.rmpp_flags & m.RMPP_LAST
                data += answer.data[: answer.payload_length - 20] if last else answer.data
                stride = answer.attr_offset * 8
                if last:
                    assert stride == sa.stride_bytes(layout)
                    return [layout.from_bytes(data[at : at + stride]) for at in range(0, len(data), stride)]
            ack = query(m.METHOD_GET_TABLE, request.attr_id, rmpp_version=1, rmpp_type=m.RMPP_ACK)
            ack.rmpp_flags, ack.segment_number, ack.payload_length = 1, segment, segment + 2
            answers = self.sa(card, ack)
            assert answers

    def join(self, card: Card, mgid: bytes, mask: int = 0, **fields: int) -> tuple[int, McMemberRecord]:
        record = McMemberRecord(mgid=mgid, port_gid=card.gid, join_state=fields.pop("join_state", 1), **fields)
        mask |= sa.MC_MGID | sa.MC_PORT_GID | sa.MC_JOIN_STATE
        answer = self.one(query(m.METHOD_SET, sa.MC_MEMBER_RECORD, record, mask), card)
        return answer.status, McMemberRecord.from_bytes(answer.data)

    def leave(self, card: Card, mgid: bytes, join_state: int = 1) -> int:
        record = McMemberRecord(mgid=mgid, port_gid=card.gid, join_state=join_state)
        mask = sa.MC_MGID | sa.MC_PORT_GID | sa.MC_JOIN_STATE
        answer = self.one(query(m.METHOD_DELETE, sa.MC_MEMBER_RECORD, record, mask), card)
        assert answer.method == m.METHOD_DELETE_RESP
        return answer.status

    def heard(self, sender: Card, mlid: int) -> list[int]:
        """Who receives what `sender` sends to a group."""
        for card in self.cards:
            card.inbox.clear()
        sender.port.send(sender.data(mlid))
        self.run()
        return [number for number, card in enumerate(self.cards) if card.inbox]


CREATE = {"qkey": 5, "pkey": 0xFFFF}
CREATE_MASK = sa.MC_QKEY | sa.MC_PKEY | sa.MC_TCLASS | sa.MC_SL | sa.MC_FLOW_LABEL


def test_class_port_info() -> None:
    answer = SaBench().one(query(m.METHOD_GET, m.ATTR_CLASS_PORT_INFO))
    info = m.ClassPortInfo.from_bytes(answer.data)
    assert (answer.method, answer.status, info.class_version) == (0x81, 0, 2)
    assert info.capability_mask2 & sa.CAP2_SEND_ONLY_FULL_MEMBER


def test_a_path_has_the_smaller_mtu_of_its_ends() -> None:
    bench = SaBench()
    a = bench.cards[0]
    small = bench.add_card(mtu=2048)
    bench.run()
    assert (small.state, small.sma.port(1).mtu_bytes) == (smp.PORT_ACTIVE, 2048)
    answer = bench.one(
        query(m.METHOD_GET, sa.PATH_RECORD, PathRecord(slid=a.lid, dlid=small.lid), sa.PATH_SLID | sa.PATH_DLID)
    )
    assert PathRecord.from_bytes(answer.data).mtu == smp.MTU_2048


def test_path_record_as_hosts_ask_for_it() -> None:
    bench = SaBench()
    a, b, _ = bench.cards
    wanted = PathRecord(dgid=b.gid, sgid=a.gid, numb_path=1, pkey=0xFFFF, reversible=1)
    mask = sa.PATH_DGID | sa.PATH_SGID | sa.PATH_NUMB_PATH | sa.PATH_PKEY | 1 << 11
    answer = bench.one(query(m.METHOD_GET, sa.PATH_RECORD, wanted, mask))
    path = PathRecord.from_bytes(answer.data)
    assert (answer.status, answer.attr_offset) == (0, 8)
    assert (path.slid, path.dlid, path.pkey, path.sl) == (a.lid, b.lid, 0xFFFF, 0)
    assert (path.mtu, path.mtu_selector, path.rate, path.rate_selector) == (5, 2, 16, 2)
    assert (path.reversible, path.hop_limit, path.life_time) == (1, 0, 14)
    assert bench.table(query(m.METHOD_GET_TABLE, sa.PATH_RECORD, wanted, mask), PathRecord) == [path]
    by_lid = PathRecord(slid=a.lid, dlid=b.lid)
    answer = bench.one(query(m.METHOD_GET, sa.PATH_RECORD, by_lid, sa.PATH_SLID | sa.PATH_DLID))
    assert PathRecord.from_bytes(answer.data).dgid == b.gid


@pytest.mark.parametrize(
    ("fields", "mask", "status"),
    [
        ({"mtu_selector": sa.SELECT_GREATER, "mtu": 5}, sa.PATH_MTU_SELECTOR | sa.PATH_MTU, 0x300),
        ({"mtu_selector": sa.SELECT_LESS, "mtu": 5}, sa.PATH_MTU_SELECTOR | sa.PATH_MTU, 0x300),
        ({"mtu_selector": sa.SELECT_BEST, "mtu": 1}, sa.PATH_MTU_SELECTOR | sa.PATH_MTU, 0),
        ({"rate_selector": sa.SELECT_EXACTLY, "rate": 3}, sa.PATH_RATE_SELECTOR | sa.PATH_RATE, 0x300),
        ({"pkey": 0x8001}, sa.PATH_PKEY, 0x300),
        ({"pkey": 0x7FFF}, sa.PATH_PKEY, 0),
        ({"sl": 3}, sa.PATH_SL, 0x300),
        ({"life_time_selector": sa.SELECT_LESS, "life_time": LIFE_TIME}, 0b11 << 20, 0x300),
        ({"life_time_selector": sa.SELECT_LESS, "life_time": LIFE_TIME + 1}, 0b11 << 20, 0),
        ({"slid": 999}, sa.PATH_SLID, 0x300),
    ],
)
def test_path_selectors(fields: dict[str, int], mask: int, status: int) -> None:
    bench = SaBench(2)
    a, b = bench.cards
    wanted = PathRecord(dgid=b.gid, sgid=a.gid, **fields)
    mask |= sa.PATH_DGID | sa.PATH_SGID
    assert bench.one(query(m.METHOD_GET, sa.PATH_RECORD, wanted, mask)).status == status


def test_path_errors() -> None:
    bench = SaBench()
    unknown = PathRecord(dgid=bytes(15) + b"\1")
    assert bench.one(query(m.METHOD_GET, sa.PATH_RECORD, unknown, sa.PATH_DGID)).status == 0x500
    assert bench.one(query(m.METHOD_GET, sa.PATH_RECORD)).status == 0x600
    group = PathRecord(dgid=GROUP)
    assert bench.one(query(m.METHOD_GET, sa.PATH_RECORD, group, sa.PATH_DGID)).status == 0x500


def test_join_creates_and_traffic_flows_at_once() -> None:
    bench = SaBench()
    a, b, c = bench.cards
    status, created = bench.join(a, GROUP, CREATE_MASK, **CREATE)
    assert status == 0
    assert (created.mlid, created.mtu, created.rate, created.qkey, created.join_state) == (0xC001, 5, 16, 5, 1)
    assert bench.heard(b, created.mlid) == [0]
    assert bench.join(b, GROUP)[1].mlid == created.mlid
    assert bench.heard(a, created.mlid) == [1]
    assert bench.heard(c, created.mlid) == [0, 1]
    status, send_only = bench.join(c, GROUP, join_state=sa.JOIN_SEND_ONLY_FULL)
    assert (status, send_only.join_state) == (0, 8)
    assert bench.heard(a, created.mlid) == [1], "send-only members get nothing"
    path = PathRecord(dgid=GROUP, sgid=a.gid)
    answer = bench.one(query(m.METHOD_GET, sa.PATH_RECORD, path, sa.PATH_DGID | sa.PATH_SGID))
    assert PathRecord.from_bytes(answer.data).dlid == created.mlid
    assert bench.leave(b, GROUP) == 0
    assert bench.heard(c, created.mlid) == [0]
    assert bench.leave(b, GROUP) == 0x200
    assert bench.leave(c, GROUP, sa.JOIN_SEND_ONLY_FULL) == 0
    assert bench.leave(a, GROUP) == 0
    assert bench.fabric.switch.mft == {}
    assert GROUP not in bench.fabric.administration.multicast.groups


def test_ipoib_broadcast_group_is_there_and_stays() -> None:
    bench = SaBench()
    a, b, _ = bench.cards
    status, record = bench.join(a, IPOIB_BROADCAST, sa.MC_PKEY, pkey=0xFFFF)
    assert status == 0
    assert (record.mlid, record.qkey, record.mtu, record.pkey, record.scope) == (0xC000, 0xB1B, 5, 0xFFFF, 2)
    assert bench.heard(b, 0xC000) == [0]
    assert bench.leave(a, IPOIB_BROADCAST) == 0
    assert bench.heard(b, 0xC000) == []
    assert bench.join(b, IPOIB_BROADCAST)[0] == 0


def test_join_errors() -> None:
    bench = SaBench()
    a = bench.cards[0]
    assert bench.join(a, GROUP)[0] == 0x200
    assert bench.join(a, GROUP, sa.MC_QKEY | sa.MC_PKEY, **CREATE)[0] == 0x600
    assert bench.join(a, GROUP, CREATE_MASK, join_state=4, **CREATE)[0] == 0x200
    assert bench.join(a, b"\xfe" + bytes(15), CREATE_MASK, **CREATE)[0] == 0x200
    assert bench.join(a, IPOIB_BROADCAST, sa.MC_QKEY, qkey=6)[0] == 0x200
    mtu = sa.MC_MTU | sa.MC_MTU_SELECTOR
    assert bench.join(a, IPOIB_BROADCAST, mtu, mtu=4, mtu_selector=2)[0] == 0x200
    assert bench.join(a, GROUP, CREATE_MASK | mtu, mtu=5, mtu_selector=0, **CREATE)[0] == 0x200
    stranger = McMemberRecord(mgid=IPOIB_BROADCAST, port_gid=bytes(16), join_state=1)
    mask = sa.MC_MGID | sa.MC_PORT_GID | sa.MC_JOIN_STATE
    assert bench.one(query(m.METHOD_SET, sa.MC_MEMBER_RECORD, stranger, mask)).status == 0x500
    record = McMemberRecord(mgid=IPOIB_BROADCAST, port_gid=a.gid)
    assert bench.one(query(m.METHOD_SET, sa.MC_MEMBER_RECORD, record, sa.MC_MGID)).status == 0x600


def test_groups_can_be_asked_for_and_chosen_by_the_sa() -> None:
    bench = SaBench()
    a, b, _ = bench.cards
    mtu = sa.MC_MTU | sa.MC_MTU_SELECTOR
    status, record = bench.join(a, bytes(16), CREATE_MASK | mtu, mtu=4, mtu_selector=0, **CREATE)
    assert (status, record.mtu, record.mgid[0]) == (0, 5, 0xFF)
    assert bench.join(b, bytes(16), CREATE_MASK, **CREATE)[1].mgid != record.mgid
    found = bench.table(query(m.METHOD_GET_TABLE, sa.MC_MEMBER_RECORD), McMemberRecord)
    assert len(found) == 3
    wanted = McMemberRecord(mlid=record.mlid)
    assert len(bench.table(query(m.METHOD_GET_TABLE, sa.MC_MEMBER_RECORD, wanted, 1 << 3), McMemberRecord)) == 1
    mine = McMemberRecord(port_gid=a.gid)
    found = bench.table(query(m.METHOD_GET_TABLE, sa.MC_MEMBER_RECORD, mine, sa.MC_PORT_GID), McMemberRecord)
    assert [r.join_state for r in found if isinstance(r, McMemberRecord)] == [1]
    assert bench.one(query(m.METHOD_GET, sa.MC_MEMBER_RECORD)).status == 0x400


def test_ports_that_go_leave_their_groups() -> None:
    bench = SaBench()
    a, b, _ = bench.cards
    mlid = bench.join(a, GROUP, CREATE_MASK, **CREATE)[1].mlid
    bench.join(a, IPOIB_BROADCAST)
    bench.fabric.link_down("hca0")
    bench.run()
    assert GROUP not in bench.fabric.administration.multicast.groups
    assert bench.fabric.switch.mft == {}
    bench.fabric.link_up("hca0")
    bench.run()
    assert bench.heard(b, mlid) == []


def test_ports_are_found_by_what_they_can_do() -> None:
    """As `saquery -s` looks for managers and an SRP daemon for targets: ports that have at least these bits."""
    bench = SaBench(2)
    wanted = sa.PortInfoRecord()
    wanted.info.capability_mask = smp.CAP_IS_SM
    at_least = query(m.METHOD_GET_TABLE, sa.PORT_INFO_RECORD, wanted, sa.PORT_INFO_CAPABILITY_MASK, attr_mod=1 << 31)
    (manager,) = bench.table(at_least, sa.PortInfoRecord)
    assert isinstance(manager, sa.PortInfoRecord)
    assert (manager.lid, manager.port_num) == (bench.fabric.manager.lid, 0)
    exactly = query(m.METHOD_GET_TABLE, sa.PORT_INFO_RECORD, wanted, sa.PORT_INFO_CAPABILITY_MASK)
    assert bench.table(exactly, sa.PortInfoRecord) == []


def test_tables_in_many_segments() -> None:
    bench = SaBench(8)
    nodes = bench.table(query(m.METHOD_GET_TABLE, sa.NODE_RECORD), sa.NodeRecord)
    assert len(nodes) == 9
    names = {node.description.rstrip(b"\0") for node in nodes if isinstance(node, sa.NodeRecord)}
    assert names == {b"vhca switch", *(b"hca%d" % n for n in range(8))}
    ports = bench.table(query(m.METHOD_GET_TABLE, sa.PORT_INFO_RECORD), sa.PortInfoRecord)
    assert len(ports) == 8 + 37
    wanted = sa.PortInfoRecord(lid=bench.cards[3].lid)
    mine = bench.table(query(m.METHOD_GET_TABLE, sa.PORT_INFO_RECORD, wanted, 1), sa.PortInfoRecord)
    assert len(mine) == 1
    links = bench.table(query(m.METHOD_GET_TABLE, sa.LINK_RECORD), sa.LinkRecord)
    assert len(links) == 16
    assert len(bench.table(query(m.METHOD_GET_TABLE, sa.SWITCH_INFO_RECORD), sa.SwitchInfoRecord)) == 1
    assert len(bench.table(query(m.METHOD_GET_TABLE, sa.SM_INFO_RECORD), sa.SmInfoRecord)) == 1
    pkeys = query(m.METHOD_GET_TABLE, sa.P_KEY_TABLE_RECORD)
    assert bench.one(pkeys).status == 0x200, "for those who are trusted"
    pkeys.sm_key = 1
    assert len(bench.table(pkeys, sa.PKeyTableRecord)) == 9
    nobody = sa.NodeRecord(lid=4000)
    assert bench.table(query(m.METHOD_GET_TABLE, sa.NODE_RECORD, nobody, 1), sa.NodeRecord) == []
    assert bench.one(query(m.METHOD_GET, sa.NODE_RECORD, nobody, 1)).status == 0x300
    switches = sa.NodeRecord()
    switches.info.node_type = 2
    found = bench.one(query(m.METHOD_GET, sa.NODE_RECORD, switches, 1 << 4))
    assert sa.NodeRecord.from_bytes(found.data).lid == bench.fabric.manager.lid


def test_segments_are_repeated_then_the_table_is_given_up() -> None:
    bench = SaBench(4)
    card = bench.cards[0]
    request = query(m.METHOD_GET_TABLE, sa.NODE_RECORD)
    assert [a.segment_number for a in bench.sa(card, request)] == [1]
    card.inbox.clear()
    bench.pass_time(5.5)
    answers = [SaMad.from_bytes(p.payload) for p in card.inbox]
    assert [(a.rmpp_type, a.segment_number) for a in answers] == [(1, 1)] * 3 + [(m.RMPP_ABORT, 0)]
    assert bench.fabric.administration.next_deadline() is None
    bench.sa(card, request)
    stop = query(m.METHOD_GET_TABLE, sa.NODE_RECORD, rmpp_version=1, rmpp_type=m.RMPP_STOP)
    stop.rmpp_flags = 1
    assert bench.sa(card, stop) == []
    assert bench.fabric.administration.next_deadline() is None


def test_services_live_until_their_lease_ends() -> None:
    bench = SaBench()
    record = sa.ServiceRecord(service_id=7, gid=bench.cards[0].gid, pkey=0xFFFF, lease_s=2, name=b"x".ljust(64))
    assert bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record)).status == 0
    wanted = sa.ServiceRecord(service_id=7)
    answer = bench.one(query(m.METHOD_GET, sa.SERVICE_RECORD, wanted, 1), bench.cards[1])
    assert sa.ServiceRecord.from_bytes(answer.data) == record
    bench.clock.advance(2_000_000_000)
    assert bench.one(query(m.METHOD_GET, sa.SERVICE_RECORD, wanted, 1)).status == 0x300
    assert bench.one(query(m.METHOD_DELETE, sa.SERVICE_RECORD, record)).status == 0x300
    record.lease_s = 0xFFFFFFFF
    bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record))
    assert bench.one(query(m.METHOD_DELETE, sa.SERVICE_RECORD, record)).status == 0


def test_subscribers_hear_about_groups_and_ports() -> None:
    bench = SaBench()
    a, b, _ = bench.cards
    inform = m.InformInfo(is_generic=1, subscribe=1, trap_number=0xFFFF, qpn=1)
    answer = bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform), b)
    assert (answer.status, m.InformInfo.from_bytes(answer.data)) == (0, inform)
    assert len(bench.table(query(m.METHOD_GET_TABLE, sa.INFORM_INFO_RECORD), sa.InformInfoRecord)) == 1
    b.inbox.clear()
    bench.join(a, GROUP, CREATE_MASK, **CREATE)
    bench.fabric.link_down("hca0")
    bench.run()
    reports = [SaMad.from_bytes(p.payload) for p in b.inbox]
    notices = [m.Notice.from_bytes(r.data) for r in reports]
    assert {r.method for r in reports} == {m.METHOD_REPORT}
    assert [n.trap_number for n in notices] == [66, 67, 65]
    assert [n.details[6:22] for n in notices] == [GROUP, GROUP, a.gid]
    inform.subscribe = 0
    bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform), b)
    b.inbox.clear()
    bench.fabric.link_up("hca0")
    bench.run()
    assert b.inbox == []


def test_unsupported_requests() -> None:
    bench = SaBench()
    assert bench.one(query(m.METHOD_GET, 0x3A)).status == 0x0C
    assert bench.one(query(m.METHOD_GET_TABLE, 0x99)).status == 0x0C
    assert bench.one(query(m.METHOD_SET, 0x99)).status == 0x0C
    assert bench.one(query(m.METHOD_SET, sa.NODE_RECORD)).status == 0x08
    assert bench.one(query(m.METHOD_GET, sa.NODE_RECORD, class_version=1)).status == 0x04
    assert bench.sa(bench.cards[0], query(m.METHOD_GET_RESP, sa.NODE_RECORD)) == []
    assert bench.sa(bench.cards[0], query(m.METHOD_GET, sa.NODE_RECORD), qkey=1) == []
    assert bench.one(query(m.METHOD_GET, sa.NODE_RECORD, mgmt_class=m.CLASS_BM)).status == 0x0C
    half = query(m.METHOD_GET_TABLE, sa.NODE_RECORD, rmpp_type=1)
    half.rmpp_flags = 3
    assert bench.sa(bench.cards[0], half) == []
    counters = bench.fabric.counters()
    assert [counters[k] for k in ("sa.responses", "switch.dropped.keys")] == [1] * 2


def test_answers_go_back_by_the_route_of_the_question() -> None:
    bench = SaBench()
    a = bench.cards[0]
    packet = a.data(bench.fabric.manager.lid, query(m.METHOD_GET, m.ATTR_CLASS_PORT_INFO).to_bytes(), dest_qp=1)
    packet.qkey, packet.src_qp = m.QP1_QKEY, 0x77
    divert(packet, sl=4, grh=Grh(a.gid, bytes(16), 1, 2, 3))
    a.port.send(packet)
    bench.run()
    reply = a.inbox[-1]
    assert (reply.dest_qp, reply.src_qp, reply.route.sl, reply.qkey, reply.route.dlid) == (
        0x77,
        1,
        4,
        m.QP1_QKEY,
        a.lid,
    )
    assert reply.route.grh is not None
    assert (reply.route.grh.dgid, reply.route.grh.sgid) == (a.gid, bytes(16))


@settings(max_examples=100)
@given(
    st.binary(min_size=256, max_size=256),
    st.sampled_from([1, 2, 0x12, 0x13, 0x14, 0x15]),
    st.sampled_from(
        [1, 2, 3, *range(0x11, 0x19), 0x20, 0x30, 0x31, 0x33, 0x35, 0x36, 0x38, 0x39, 0x3A, 0xF3],
    ),
    st.booleans(),
)
def test_any_bytes_are_survived(noise: bytes, method: int, attr: int, zero_rmpp: bool) -> None:
    bench = SaBench(1)
    mad = bytearray(noise)
    mad[:4] = bytes((1, 3, 2, method))
    mad[16:18] = attr.to_bytes(2, "big")
    if zero_rmpp:
        mad[24:44] = bytes(20)  # the SM_Key behind it, too
    card = bench.cards[0]
    for _ in range(2):
        card.port.send(card.data(1, bytes(mad), dest_qp=1, qkey=m.QP1_QKEY, src_qp=1))
        bench.run()
        mad[56:72] = IPOIB_BROADCAST
        mad[72:88] = card.gid
    bench.pass_time(6)


def test_all_paths_from_all_to_all() -> None:
    bench = SaBench(5)
    paths = bench.table(query(m.METHOD_GET_TABLE, sa.PATH_RECORD), PathRecord)
    lids = [bench.fabric.manager.lid, *(card.lid for card in bench.cards)]
    assert sorted((path.slid, path.dlid) for path in paths) == sorted((a, b) for a in lids for b in lids)  # type: ignore[attr-defined]


def test_more_records_than_an_answer_has_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vhca.subnet.administration.MAX_RECORDS", 35)
    bench = SaBench(5)
    assert bench.one(query(m.METHOD_GET_TABLE, sa.PATH_RECORD)).status == 0x100
    some = PathRecord(slid=bench.cards[0].lid)
    assert len(bench.table(query(m.METHOD_GET_TABLE, sa.PATH_RECORD, some, sa.PATH_SLID), PathRecord)) == 6


@pytest.mark.parametrize(
    ("fields", "mask", "result"),
    [
        # Codes of rates are not in order: 18 is 300 Gbit/s, 16 is 100, 10 is 120, 8 is 60, 2 is 2.5.
        ({"rate_selector": sa.SELECT_GREATER, "rate": 18}, sa.MC_RATE_SELECTOR | sa.MC_RATE, None),
        ({"rate_selector": sa.SELECT_GREATER, "rate": 16}, sa.MC_RATE_SELECTOR | sa.MC_RATE, None),
        ({"rate_selector": sa.SELECT_EXACTLY, "rate": 10}, sa.MC_RATE_SELECTOR | sa.MC_RATE, None),
        ({"rate_selector": sa.SELECT_LESS, "rate": 2}, sa.MC_RATE_SELECTOR | sa.MC_RATE, None),
        ({"rate_selector": sa.SELECT_EXACTLY, "rate": 63}, sa.MC_RATE_SELECTOR | sa.MC_RATE, None),
        ({"rate_selector": sa.SELECT_LESS, "rate": 8}, sa.MC_RATE_SELECTOR | sa.MC_RATE, ("rate", 12)),
        ({"rate_selector": sa.SELECT_LESS, "rate": 18}, sa.MC_RATE_SELECTOR | sa.MC_RATE, ("rate", 16)),
        ({"rate_selector": sa.SELECT_BEST, "rate": 2}, sa.MC_RATE_SELECTOR | sa.MC_RATE, ("rate", 16)),
        ({"mtu_selector": sa.SELECT_GREATER, "mtu": 6}, sa.MC_MTU_SELECTOR | sa.MC_MTU, None),
        ({"mtu_selector": sa.SELECT_LESS, "mtu": 1}, sa.MC_MTU_SELECTOR | sa.MC_MTU, None),
        ({"mtu_selector": sa.SELECT_LESS, "mtu": 5}, sa.MC_MTU_SELECTOR | sa.MC_MTU, ("mtu", 4)),
    ],
)
def test_a_new_group_has_the_best_that_was_asked_for_and_can_be(
    fields: dict[str, int], mask: int, result: tuple[str, int] | None
) -> None:
    bench = SaBench(1)
    status, record = bench.join(bench.cards[0], bytes(16), CREATE_MASK | mask, **CREATE, **fields)
    if result is None:
        assert status == 0x200
    else:
        assert (status, getattr(record, result[0])) == (0, result[1])


def test_mgids_that_hosts_may_not_choose() -> None:
    bench = SaBench(1)
    for first, status in (("ff12a01b", 0x200), ("ff22a01c", 0x200), ("ff15a01b", 0), ("ff1fa01c", 0), ("ff020000", 0)):
        assert bench.join(bench.cards[0], bytes.fromhex(first) + bytes(11) + b"\1", CREATE_MASK, **CREATE)[0] == status


def test_who_leaves_hears_what_is_left_of_the_membership() -> None:
    bench = SaBench(1)
    card = bench.cards[0]
    bench.join(card, GROUP, CREATE_MASK, join_state=5, **CREATE)
    record = McMemberRecord(mgid=GROUP, port_gid=card.gid, join_state=4)
    leave = query(m.METHOD_DELETE, sa.MC_MEMBER_RECORD, record, sa.MC_MGID | sa.MC_PORT_GID | sa.MC_JOIN_STATE)
    assert McMemberRecord.from_bytes(bench.one(leave).data).join_state == 1


def test_a_service_is_found_by_its_key_and_never_shows_it() -> None:
    bench = SaBench(1)
    record = sa.ServiceRecord(service_id=7, gid=bench.cards[0].gid, pkey=0xFFFF, key=b"secret".ljust(16))
    answer = bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record))
    assert sa.ServiceRecord.from_bytes(answer.data).key == bytes(16)
    for key, status in ((record.key, 0), (bytes(16), 0x300)):
        answer = bench.one(query(m.METHOD_GET, sa.SERVICE_RECORD, sa.ServiceRecord(key=key), sa.SERVICE_KEY))
        assert answer.status == status
        assert sa.ServiceRecord.from_bytes(answer.data).key == bytes(16)
    # Some programs have the prefix of the GID the wrong way round: what counts is whose GUID it is.
    record.gid = bytes(6) + b"\x80\xfe" + record.gid[8:]
    assert bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record)).status == 0
    bench.fabric.link_down("hca0")
    bench.run()
    assert list(bench.fabric.administration.services.all(bench.clock.now_ns())) == []


def test_nobody_unsubscribes_from_what_he_is_not_subscribed_to() -> None:
    bench = SaBench(1)
    inform = m.InformInfo(is_generic=1, subscribe=0, trap_number=66, qpn=1)
    assert bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform)).status == 0x200


def test_who_is_trusted_sees_the_members_of_groups() -> None:
    bench = SaBench(3)
    a, b, _ = bench.cards
    bench.join(a, GROUP, CREATE_MASK, **CREATE)
    bench.join(b, GROUP, join_state=sa.JOIN_SEND_ONLY_FULL)
    one = McMemberRecord(mgid=GROUP)
    for sm_key, members in ((0, [(bytes(16), 0)]), (1, [(a.gid, 1), (b.gid, 8)])):
        found = bench.table(
            query(m.METHOD_GET_TABLE, sa.MC_MEMBER_RECORD, one, sa.MC_MGID, sm_key=sm_key), McMemberRecord
        )
        assert [(record.port_gid, record.join_state) for record in found] == members  # type: ignore[attr-defined]
    full = McMemberRecord(mgid=GROUP, join_state=1)
    request = query(m.METHOD_GET_TABLE, sa.MC_MEMBER_RECORD, full, sa.MC_MGID | sa.MC_JOIN_STATE, sm_key=1)
    assert len(bench.table(request, McMemberRecord)) == 1


def test_answers_under_way_take_so_much_for_each_asker(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SaBench(8)
    sender = bench.fabric.administration._rmpp
    size = -(-9 * sa.stride_bytes(sa.NodeRecord) // m.SA_DATA_BYTES) * m.SA_DATA_BYTES
    for limit, left in ((100 * size, 4), (3 * size, 3), (size - 1, 1)):
        monkeypatch.setattr("vhca.subnet.rmpp.BYTES_PER_LID", limit)
        for tid in range(10):
            bench.sa(bench.cards[0], query(m.METHOD_GET_TABLE, sa.NODE_RECORD, tid=tid))
        bench.sa(bench.cards[1], query(m.METHOD_GET_TABLE, sa.NODE_RECORD, tid=99))
        assert len(sender._transfers) == left + 1
        assert [key[2] for key in sender._transfers if key[0] == bench.cards[0].lid] == list(range(10 - left, 10))
