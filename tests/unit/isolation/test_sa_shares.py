"""A guest asks the SA for more than its share by other names, or for what the SA has to ask others, without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.fabric.bench import Card
from tests.unit.isolation.test_sa_borders import mgid, post
from tests.unit.subnet.test_administration import CREATE, CREATE_MASK, GROUP, SaBench, query
from tests.unit.subnet.test_directory import PartitionedSa
from vhca.management.fair_queue import FairQueue, Job
from vhca.subnet import lanes, paths, records
from vhca.subnet.administration import REQUESTS_PER_LID
from vhca.subnet.manager import SubnetManager
from vhca.wire import mad as m
from vhca.wire import sa, smp
from vhca.wire.mad import SaMad
from vhca.wire.sa import GuidInfoRecord, McMemberRecord, PathRecord, ServiceRecord

MEMBER = sa.MC_MGID | sa.MC_PORT_GID | sa.MC_JOIN_STATE


def gid(guid: int) -> bytes:
    return m.gid(smp.DEFAULT_GID_PREFIX, guid)


def set_alias(bench: SaBench, card: Card, *guids: int, method: int = m.METHOD_SET) -> int:
    """Have these GUIDs from entry 1 on."""
    wanted = GuidInfoRecord(lid=card.lid, guids=smp.pack_guids([0, *guids]).ljust(64, b"\0"))
    mask = 1 | sum(1 << 5 + n for n in range(len(guids)))
    return bench.one(query(method, sa.GUID_INFO_RECORD, wanted, mask), card).status


def make_group(bench: SaBench, card: Card, number: int, guid: int) -> int:
    record = McMemberRecord(mgid=mgid(number), port_gid=gid(guid), join_state=1, **CREATE)
    return bench.one(query(m.METHOD_SET, sa.MC_MEMBER_RECORD, record, MEMBER | CREATE_MASK), card).status


def offer(bench: SaBench, card: Card, number: int, guid: int) -> int:
    record = ServiceRecord(service_id=number, gid=gid(guid), pkey=0xFFFF, lease_s=0xFFFFFFFF)
    return bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record), card).status


def subscribe(bench: SaBench, card: Card, qpn: int = 1, trap: int = 0xFFFF) -> None:
    inform = m.InformInfo(is_generic=1, subscribe=1, trap_number=trap, qpn=qpn)
    assert bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform), card).status == 0


def notices(card: Card) -> list[m.Notice]:
    mads = [SaMad.from_bytes(packet.payload) for packet in card.inbox]
    return [m.Notice.from_bytes(mad.data) for mad in mads if mad.method == m.METHOD_REPORT]


def steps(bench: SaBench, counted: Callable[[], int]) -> int:
    """Run all turns; gives the most that was counted in one."""
    most = 0
    while bench.turns._queue:
        before = counted()
        bench.turns.one()
        most = max(most, counted() - before)
    return most


class Calls:
    """Counts the calls of a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.number = 0
        original = getattr(module, name)

        def called(*arguments: Any) -> Any:
            self.number += 1
            return original(*arguments)

        monkeypatch.setattr(module, name, called)


# GUIDs beside its own


def test_other_guids_of_a_port_give_it_no_more_groups_and_services() -> None:
    bench = SaBench(2)
    card = bench.cards[0]
    administration = bench.fabric.administration
    administration.multicast.share = administration.services.share = 5
    for cycle in range(3):
        assert set_alias(bench, card, 0x700 + cycle) == 0
        done = [make_group(bench, card, 10 * cycle + n, 0x700 + cycle) for n in range(7)]
        assert done == [0] * 5 + [m.SA_STATUS_NO_RESOURCES] * 2
        assert make_group(bench, card, 99, 0x1000) == m.SA_STATUS_NO_RESOURCES
        done = [offer(bench, card, n, 0x700 + cycle) for n in range(7)]
        assert done == [0] * 5 + [m.SA_STATUS_NO_RESOURCES] * 2
        assert offer(bench, card, 99, 0x1000) == m.SA_STATUS_NO_RESOURCES
        bench.pass_time(0.1)
    # With a GUID that was given up went what was told by it.
    assert len(administration.multicast.groups) == 1 + 5
    assert len(list(administration.services.all(0))) == 5
    assert set_alias(bench, card, 0x702, method=m.METHOD_DELETE) == 0
    assert len(administration.multicast.groups) == 1
    assert list(administration.services.all(0)) == []
    assert not administration.multicast._memberships
    assert not administration.multicast._owners
    assert bench.fabric.switch.mft == {}
    assert [make_group(bench, card, n, 0x1000) for n in range(6)] == [0] * 5 + [m.SA_STATUS_NO_RESOURCES]


def test_a_membership_does_not_go_to_who_gets_the_guid_next() -> None:
    bench = SaBench(3)
    one, two, sender = bench.cards
    assert set_alias(bench, one, 0x777) == 0
    assert make_group(bench, one, 1, 0x777) == 0
    assert offer(bench, one, 7, 0x777) == 0
    assert bench.join(sender, mgid(1))[0] == 0
    mlid = bench.fabric.administration.multicast.groups[mgid(1)].record.mlid
    assert bench.heard(sender, mlid) == [0]
    # It is no passing membership: a sweep leaves it.
    bench.fabric.manager.sweep()
    bench.run()
    assert bench.heard(sender, mlid) == [0]
    assert set_alias(bench, one, 0x777, method=m.METHOD_DELETE) == 0
    assert set_alias(bench, two, 0x777) == 0
    assert bench.heard(sender, mlid) == []
    found = bench.table(query(m.METHOD_GET_TABLE, sa.SERVICE_RECORD), ServiceRecord, sender)
    assert found == []


def test_an_alias_costs_one_port_s_entries_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SaBench(3)
    before = dict(bench.fabric.manager.topology._guids)
    monkeypatch.setattr(type(bench.fabric.manager.topology), "index", lambda self: pytest.fail("all ports"))
    assert set_alias(bench, bench.cards[0], 0x71, 0x72) == 0
    assert set_alias(bench, bench.cards[0], 0x73) == 0
    added = bench.fabric.manager.topology._guids.items() - before.items()
    assert {guid for guid, _ in added} == {0x72, 0x73}


# What agents have to be asked for


def test_lanes_are_looked_for_and_asked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SaBench(3)
    looked = Calls(monkeypatch, lanes, "matches")
    card = bench.cards[0]
    nothing = sa.SlToVlRecord(out_port=99)
    post(bench, card, [query(m.METHOD_GET_TABLE, sa.SL_TO_VL_RECORD, nothing, 0b100)])
    assert steps(bench, lambda: looked.number) <= 16
    assert looked.number >= 3 + 4 * 4
    looked.number = 0
    absent = sa.SlToVlRecord(lid=999)
    post(bench, card, [query(m.METHOD_GET_TABLE, sa.SL_TO_VL_RECORD, absent, 0b001)])
    bench.run()
    assert looked.number == 0, "a LID is looked up"
    monkeypatch.setattr(lanes, "QUESTIONS_AT_ONCE", 4)
    inquiries = bench.fabric.manager.inquiries
    post(bench, card, [query(m.METHOD_GET_TABLE, sa.VL_ARBITRATION_RECORD)])
    assert steps(bench, lambda: inquiries.asked) <= 4
    assert inquiries.asked == 4 * (3 + 4)


def test_the_manager_does_not_wait_for_what_others_ask_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SaBench(3)
    greedy, modest, silent = bench.cards
    silent.silent = True
    manager = bench.fabric.manager
    sweeps = bench.fabric.counters()["sm.heavy_sweeps"]
    own = sa.VlArbitrationRecord(lid=silent.lid)
    for _ in range(10):
        post(bench, greedy, [query(m.METHOD_GET_TABLE, sa.VL_ARBITRATION_RECORD, own, 1, tid=n) for n in range(50)])
        bench.run()
    assert bench.fabric.administration._queue.waiting(greedy.lid) == REQUESTS_PER_LID
    assert len(manager.inquiries._works) == 1, "one of its requests is under way"
    assert not manager.transactions._works
    assert bench.fabric.counters()["sa.too_many_requests"] == 500 - REQUESTS_PER_LID
    silent.silent = False
    modest.inbox.clear()
    wanted = sa.VlArbitrationRecord(lid=modest.lid)
    post(bench, modest, [query(m.METHOD_GET_TABLE, sa.VL_ARBITRATION_RECORD, wanted, 1)])
    bench.pass_time(0.3)
    assert modest.inbox, "it waits for one request of the other one"
    bench.pass_time(5)
    assert bench.fabric.administration._queue.waiting(greedy.lid) == 0
    assert bench.fabric.counters()["sm.heavy_sweeps"] == sweeps, "whoever asks makes nobody sweep"


def test_aliases_and_joins_wait_in_their_sender_s_queue_while_the_manager_is_busy() -> None:
    bench = SaBench(3)
    greedy, _, silent = bench.cards
    silent.silent = True
    manager = bench.fabric.manager
    manager.sweep()
    bench.run()
    wanted = GuidInfoRecord(lid=greedy.lid, guids=bytes(64))
    join = McMemberRecord(mgid=GROUP, port_gid=greedy.gid, join_state=1, **CREATE)
    for n in range(200):
        post(bench, greedy, [query(m.METHOD_SET, sa.MC_MEMBER_RECORD, join, MEMBER | CREATE_MASK, tid=n)])
        bench.run()
    assert bench.fabric.administration._queue.waiting(greedy.lid) == REQUESTS_PER_LID
    assert len(manager.tables._waiting) == REQUESTS_PER_LID
    bench.pass_time(3)
    assert bench.fabric.administration._queue.waiting(greedy.lid) == 0
    manager.sweep()
    bench.run()
    works = len(manager.transactions._works)
    for n in range(200):
        post(bench, greedy, [query(m.METHOD_SET, sa.GUID_INFO_RECORD, wanted, 1 | 1 << 5, tid=n)])
        bench.run()
    assert len(manager.transactions._works) == works + 1
    assert bench.fabric.administration._queue.waiting(greedy.lid) == REQUESTS_PER_LID
    bench.pass_time(5)
    assert bench.fabric.administration._queue.waiting(greedy.lid) == 0
    assert not bench.fabric.administration._queue._held


def test_a_job_that_waits_for_others_lets_everybody_else_go_on() -> None:
    turns: list[Callable[[], None]] = []
    queue = FairQueue(turns.append, 3)
    done: list[str] = []
    ends: list[Callable[[], None]] = []

    def patient() -> Job:
        for number in range(2):
            done.append(f"a{number}")
            ends.append(queue.pause())
            if number:
                ends[1]()  # at once
            yield
        done.append("a2")

    def job(name: str) -> Job:
        done.append(name)
        yield

    def run() -> None:
        while turns:
            turns.pop(0)()

    assert queue.put(1, patient())
    assert queue.put(1, job("behind"))
    assert queue.put(2, job("b"))
    run()
    assert done == ["a0", "b"]
    assert queue.put(1, job("last"))
    assert not queue.put(1, job("too many"))
    assert queue.put(2, job("c"))
    run()
    assert done[2:] == ["c"]
    ends[0]()
    run()
    assert done[3:] == ["a1", "a2", "behind", "last"]
    frees = [queue.hold(1), queue.hold(1)]
    assert queue.put(1, job("held"))
    assert not queue.put(1, job("too many"))
    run()
    assert queue.waiting(1) == 2
    for free in frees:
        free()
    assert queue.waiting(1) == 0


# Paths


def test_a_trace_is_looked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SaBench(8)
    made = Calls(monkeypatch, paths, "_path")
    none = PathRecord(sl=5)
    post(bench, bench.cards[0], [query(m.METHOD_GET_TRACE_TABLE, sa.PATH_RECORD, none, sa.PATH_SL)])
    assert steps(bench, lambda: made.number) <= 16
    assert made.number == 9 * 9
    answers = [SaMad.from_bytes(packet.payload) for packet in bench.cards[0].inbox]
    assert answers[-1].attr_id == sa.TRACE_RECORD


def test_what_has_no_row_counts_as_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SaBench(3)
    looked = 0
    every = records.EVERY[sa.PKeyTableRecord]

    def counted(manager: SubnetManager) -> Iterator[records.Row]:
        nonlocal looked
        for row in every(manager):
            looked += 1
            yield row

    monkeypatch.setitem(records.EVERY, sa.PKeyTableRecord, counted)  # type: ignore[misc]
    post(bench, bench.cards[0], [query(m.METHOD_GET_TABLE, sa.P_KEY_TABLE_RECORD, sm_key=1)])
    assert steps(bench, lambda: looked) <= 16
    assert looked == 3 + 37, "cards, and all ports of the switch"


# Reports


def test_groups_of_one_port_do_not_keep_others_from_hearing_who_came_and_went() -> None:
    bench = SaBench(4)
    greedy, modest, _, _ = bench.cards
    for qpn in range(1, bench.fabric.administration.subscribers.share + 1):
        subscribe(bench, greedy, qpn, 66)
    subscribe(bench, modest, 1, 65)
    modest.inbox.clear()
    record = McMemberRecord(mgid=GROUP, port_gid=greedy.gid, join_state=1, **CREATE)
    both = [
        query(method, sa.MC_MEMBER_RECORD, record, MEMBER | CREATE_MASK) for method in (m.METHOD_SET, m.METHOD_DELETE)
    ]
    for cycle in range(2000):
        post(bench, greedy, both)
        for _ in range(14):
            bench.turns.one()
        if cycle == 1900:
            bench.fabric.link_down("hca2")
    bench.pass_time(2)
    # It may have been repeated, since nobody acknowledges it here.
    assert {(notice.trap_number, notice.details[6:22]) for notice in notices(modest)} == {(65, gid(0x1002))}
    assert "sa.reports_lost" not in bench.fabric.counters()


def test_reports_that_one_port_does_not_acknowledge_take_nobody_s_place() -> None:
    bench = SaBench(3)
    silent, modest, maker = bench.cards
    reports = bench.fabric.administration._registrar.reports
    reports.share = 20
    for qpn in range(1, 11):
        subscribe(bench, silent, qpn, 66)
    subscribe(bench, modest, 1, 66)
    for n in range(10):
        assert make_group(bench, maker, n, 0x1002) == 0
    assert reports._waiting_of == {silent.lid: 20, modest.lid: 10}
    sent = bench.fabric.counters()["sa.reports"]
    assert sent == 110
    # They are repeated some at a time, and forgotten.
    most = 0
    send, count = reports._send, 0

    def counted(packet: Any) -> None:
        nonlocal count
        count += 1
        send(packet)

    reports._send = counted
    bench.clock.advance(2_000_000_000)
    for _ in range(20):
        count = 0
        bench.fabric.run_timers(bench.clock.now_ns())
        most = max(most, count)
    assert most == 8
    bench.pass_time(10)
    assert not reports._waiting
    assert not reports._waiting_of
    assert reports.next_deadline() is None


def test_who_shares_no_partition_hears_nothing_of_it() -> None:
    bench = PartitionedSa()
    a, b, _, d = bench.cards
    for card in (b, d):
        subscribe(bench, card)
    assert bench.join(a, GROUP, CREATE_MASK, qkey=5, pkey=0x8001)[0] == 0
    assert offer(bench, a, 7, 0x1000) == 0
    for asker, number in ((b, 1), (d, 0)):
        found = bench.table(query(m.METHOD_GET_TABLE, sa.SERVICE_RECORD), ServiceRecord, asker)
        assert len(found) == number
    informs = bench.table(query(m.METHOD_GET_TABLE, sa.INFORM_INFO_RECORD), sa.InformInfoRecord, d)
    assert [record.subscriber_gid for record in informs] == [d.gid]  # type: ignore[attr-defined]
    for card in (b, d):
        card.inbox.clear()
    bench.fabric.link_down("hca0")
    bench.run()
    bench.fabric.link_up("hca0")
    bench.run()
    assert [notice.trap_number for notice in notices(b)] == [67, 65, 64]
    assert notices(d) == []
