"""A guest asks the SA for what is another's, for more than its share, or without end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.fabric.bench import Card
from tests.unit.subnet.test_administration import CREATE, CREATE_MASK, GROUP, SaBench, query
from vhca.fabric.counters import Drop
from vhca.management.fair_queue import FairQueue, Job
from vhca.subnet.multicast import IPOIB_BROADCAST
from vhca.wire import mad as m
from vhca.wire import sa
from vhca.wire.mad import SaMad
from vhca.wire.sa import McMemberRecord, ServiceRecord

MEMBER = sa.MC_MGID | sa.MC_PORT_GID | sa.MC_JOIN_STATE


def member(card: Card, mgid: bytes = IPOIB_BROADCAST) -> McMemberRecord:
    return McMemberRecord(mgid=mgid, port_gid=card.gid, join_state=1)


def mgid(number: int) -> bytes:
    return GROUP[:8] + number.to_bytes(8, "big")


def post(bench: SaBench, card: Card, requests: list[SaMad]) -> None:
    """Send questions without waiting for answers."""
    for request in requests:
        packet = card.data(bench.fabric.manager.lid, request.to_bytes(), dest_qp=1, src_qp=1, qkey=m.QP1_QKEY)
        card.port.send(packet)


def test_nobody_leaves_or_joins_a_group_for_another_port() -> None:
    bench = SaBench()
    attacker, victim, other = bench.cards
    assert bench.join(victim, IPOIB_BROADCAST)[0] == 0
    for proxy in (0, 1):
        record = member(victim)
        record.proxy_join = proxy
        mask = MEMBER | 1 << 17
        assert bench.one(query(m.METHOD_DELETE, sa.MC_MEMBER_RECORD, record, mask), attacker).status == 0x200
        record = member(other)
        record.proxy_join = proxy
        assert bench.one(query(m.METHOD_SET, sa.MC_MEMBER_RECORD, record, mask), attacker).status == 0x200
    assert bench.heard(attacker, 0xC000) == [1]
    assert bench.fabric.counters()["sa.not_ones_own"] == 4


def test_a_request_with_the_victims_lid_never_arrives() -> None:
    bench = SaBench()
    attacker, victim, _ = bench.cards
    bench.join(victim, IPOIB_BROADCAST)
    leave = query(m.METHOD_DELETE, sa.MC_MEMBER_RECORD, member(victim), MEMBER)
    assert bench.sa(attacker, leave, slid=victim.lid) == []
    assert bench.heard(attacker, 0xC000) == [1]
    assert bench.fabric.switch.dropped()[Drop.BAD_SLID] == 1


def test_services_belong_to_their_port_and_to_who_knows_the_key() -> None:
    bench = SaBench()
    attacker, victim, _ = bench.cards
    mine = ServiceRecord(service_id=7, gid=victim.gid, pkey=0xFFFF, lease_s=100, key=b"secret".ljust(16))
    set_it, delete_it = (query(method, sa.SERVICE_RECORD, mine) for method in (m.METHOD_SET, m.METHOD_DELETE))
    assert bench.one(set_it, attacker).status == m.SA_STATUS_DENIED, "registered for somebody else"
    assert bench.one(set_it, victim).status == 0
    assert bench.one(delete_it, attacker).status == m.SA_STATUS_DENIED
    keyless = ServiceRecord.from_bytes(mine.to_bytes())
    keyless.key = bytes(16)
    for method, mask in ((m.METHOD_SET, 0), (m.METHOD_DELETE, sa.SERVICE_KEY)):
        assert bench.one(query(method, sa.SERVICE_RECORD, keyless, mask), victim).status == m.SA_STATUS_DENIED
    found = bench.table(query(m.METHOD_GET_TABLE, sa.SERVICE_RECORD), ServiceRecord, attacker)
    assert found == [keyless], "the key is for its owner"
    assert bench.one(delete_it, victim).status == 0


def test_a_subscription_is_its_senders_own() -> None:
    bench = SaBench()
    attacker, victim, _ = bench.cards
    inform = m.InformInfo(is_generic=1, subscribe=1, trap_number=0xFFFF, qpn=1)
    bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform), victim)
    inform.subscribe = 0
    assert bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform), attacker).status == m.SA_STATUS_REQ_INVALID
    assert [s.lid for s in bench.fabric.administration.subscribers.all()] == [victim.lid]


@pytest.mark.parametrize("sm_key", [2, 1 << 63])
def test_nobody_is_trusted(sm_key: int) -> None:
    bench = SaBench()
    assert bench.sa(bench.cards[0], query(m.METHOD_GET, m.ATTR_CLASS_PORT_INFO, sm_key=sm_key)) == []
    assert bench.fabric.counters()["sa.bad_sm_key"] == 1


def test_each_port_has_its_share_of_groups_services_and_subscriptions() -> None:
    bench = SaBench(2)
    greedy, modest = bench.cards
    administration = bench.fabric.administration
    share = administration.multicast.share
    assert share * 36 < 4096
    statuses = [bench.join(greedy, mgid(n), CREATE_MASK, **CREATE)[0] for n in range(share + 2)]
    assert statuses == [0] * share + [m.SA_STATUS_NO_RESOURCES] * 2
    assert bench.join(greedy, IPOIB_BROADCAST)[0] == m.SA_STATUS_NO_RESOURCES
    assert bench.join(greedy, mgid(3))[0] == 0, "it is in there already"
    assert bench.leave(greedy, mgid(3)) == 0
    assert bench.join(greedy, mgid(4000), CREATE_MASK, **CREATE)[0] == 0
    assert bench.join(modest, mgid(5000), CREATE_MASK, **CREATE)[0] == 0

    def service(card: Card, number: int) -> int:
        record = ServiceRecord(service_id=number, gid=card.gid, pkey=0xFFFF, lease_s=0xFFFFFFFF)
        return bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record), card).status

    share = administration.services.share
    assert [service(greedy, n) for n in range(share + 1)] == [0] * share + [m.SA_STATUS_NO_RESOURCES]
    assert service(greedy, 5) == 0, "renewed"
    assert service(modest, 1) == 0

    def subscribe(card: Card, qpn: int) -> int:
        inform = m.InformInfo(is_generic=1, subscribe=1, trap_number=66, qpn=qpn)
        return bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform), card).status

    share = administration.subscribers.share
    assert [subscribe(greedy, n + 1) for n in range(share + 1)] == [0] * share + [m.SA_STATUS_NO_RESOURCES]
    assert subscribe(modest, 1) == 0


def test_a_port_that_goes_gives_everything_back() -> None:
    bench = SaBench(2)
    card, _ = bench.cards
    administration = bench.fabric.administration
    record = ServiceRecord(service_id=1, gid=card.gid, pkey=0xFFFF, lease_s=0xFFFFFFFF)
    inform = m.InformInfo(is_generic=1, subscribe=1, trap_number=66, qpn=1)
    for n in range(administration.multicast.share):
        assert bench.join(card, mgid(n), CREATE_MASK, **CREATE)[0] == 0
    bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record), card)
    bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform), card)
    bench.fabric.link_down("hca0")
    bench.run()
    assert list(administration.multicast.groups) == [IPOIB_BROADCAST]
    assert administration.multicast.ports() == []
    assert list(administration.services.all(0)) == []
    assert administration.subscribers.all() == []
    assert bench.fabric.switch.mft == {}
    bench.fabric.link_up("hca0")
    bench.run()
    assert [bench.join(card, mgid(n), CREATE_MASK, **CREATE)[0] for n in range(3)] == [0, 0, 0]


def test_a_lease_that_ended_makes_room() -> None:
    bench = SaBench(1)
    card = bench.cards[0]
    services = bench.fabric.administration.services
    for n in range(services.share):
        record = ServiceRecord(service_id=n, gid=card.gid, pkey=0xFFFF, lease_s=1)
        bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record), card)
    bench.clock.advance(2_000_000_000)
    record = ServiceRecord(service_id=9999, gid=card.gid, pkey=0xFFFF, lease_s=1)
    assert bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record), card).status == 0


# Time: work is done in small pieces, and everybody gets a turn.


class Watch:
    """Counts what the SA and the manager send in one callback of the loop."""

    def __init__(self, bench: SaBench) -> None:
        self.most = 0
        self._now = 0
        switch = bench.fabric.switch
        send = switch.send_from_management

        def counted(packet: Any) -> None:
            self._now += 1
            send(packet)

        administration = bench.fabric.administration
        administration._send = administration._rmpp._send = counted
        bench.fabric.manager.transactions._send = counted
        call_soon = bench.turns.call_soon

        def watched(fn: Callable[[], None]) -> None:
            def turn() -> None:
                self._now = 0
                fn()
                self.most = max(self.most, self._now)

            call_soon(turn)

        bench.turns.call_soon = watched  # type: ignore[method-assign]
        administration._queue._call_soon = watched
        bench.fabric.manager.transactions._call_soon = watched
        switch.call_soon = watched


def fill(bench: SaBench, cards: list[Card]) -> None:
    for card in cards:
        for n in range(bench.fabric.administration.services.share):
            record = ServiceRecord(service_id=n, gid=card.gid, pkey=0xFFFF, lease_s=0xFFFFFFFF)
            bench.one(query(m.METHOD_SET, sa.SERVICE_RECORD, record), card)


def test_a_table_is_made_and_sent_in_pieces_whatever_window_is_asked_for() -> None:
    bench = SaBench(3)
    fill(bench, bench.cards)
    watch = Watch(bench)
    card = bench.cards[0]
    card.inbox.clear()
    request = query(m.METHOD_GET_TABLE, sa.SERVICE_RECORD)
    post(bench, card, [request])
    bench.run()
    assert len(card.inbox) == 1
    ack = query(m.METHOD_GET_TABLE, sa.SERVICE_RECORD, rmpp_version=1, rmpp_type=m.RMPP_ACK)
    ack.rmpp_flags, ack.segment_number, ack.payload_length = 1, 1, 0xFFFFFFFF
    post(bench, card, [ack])
    bench.run()
    assert len(card.inbox) == 1 + 64, "a window has an end"
    assert watch.most <= 4


def test_a_few_records_are_looked_at_in_a_turn() -> None:
    bench = SaBench(2)
    fill(bench, bench.cards)
    card = bench.cards[0]
    looked = 0
    most = 0
    every = bench.fabric.administration.services.all

    def counted(now_ns: int) -> Iterator[tuple[ServiceRecord, ServiceRecord, int]]:
        nonlocal looked
        for record in every(now_ns):
            looked += 1
            yield record

    bench.fabric.administration.services.all = counted  # type: ignore[method-assign]
    post(bench, card, [query(m.METHOD_GET_TABLE, sa.SERVICE_RECORD)])
    while bench.turns._queue:
        before = looked
        bench.turns._queue.popleft()()
        most = max(most, looked - before)
    assert looked == 2 * bench.fabric.administration.services.share
    assert most <= 16


def test_one_who_asks_without_end_does_not_hold_up_another() -> None:
    bench = SaBench(3)
    fill(bench, bench.cards)
    greedy, modest, _ = bench.cards
    greedy.inbox.clear()
    modest.inbox.clear()
    queue = bench.fabric.administration._queue
    post(bench, greedy, [query(m.METHOD_GET_TABLE, sa.SERVICE_RECORD, tid=n) for n in range(64)])
    while queue.waiting(greedy.lid) < 60:
        bench.turns._queue.popleft()()
    post(bench, modest, [query(m.METHOD_GET, m.ATTR_CLASS_PORT_INFO)])
    turns = 0
    while not modest.inbox:
        bench.turns._queue.popleft()()
        turns += 1
    assert turns < 30
    assert queue.waiting(greedy.lid) > 50
    bench.run()
    assert len(bench.fabric.administration._rmpp._transfers) == 4, "the others were given up for newer ones"
    post(bench, greedy, [query(m.METHOD_GET_TABLE, sa.SERVICE_RECORD, tid=n) for n in range(500)])
    bench.run()
    assert bench.fabric.counters()["sa.too_many_requests"] > 300


def test_many_joins_are_one_piece_of_work_for_the_manager() -> None:
    bench = SaBench(2)
    card = bench.cards[0]
    for n in range(60):
        bench.join(bench.cards[1], mgid(n), CREATE_MASK, **CREATE)
    sets = 0
    handle = bench.fabric.switch.agent.handle

    def counted(port: Any, mad: bytes, source: int) -> bytes | None:
        nonlocal sets
        sets += mad[3] == m.METHOD_SET
        return handle(port, mad, source)

    bench.fabric.switch.agent.handle = counted  # type: ignore[method-assign]
    watch = Watch(bench)
    card.inbox.clear()
    post(bench, card, [query(m.METHOD_SET, sa.MC_MEMBER_RECORD, member(card, mgid(n)), MEMBER) for n in range(60)])
    bench.run()
    assert [SaMad.from_bytes(p.payload).status for p in card.inbox] == [0] * 60
    assert sets < 45, "not one for each: those that came meanwhile are written together"
    assert watch.most <= 16
    assert bench.heard(bench.cards[1], 0xC001 + 59) == [0]


def test_a_thousand_reports_are_sent_in_pieces() -> None:
    bench = SaBench(36)
    share = bench.fabric.administration.subscribers.share
    for card in bench.cards[1:]:
        for qpn in range(1, share + 1):
            inform = m.InformInfo(is_generic=1, subscribe=1, trap_number=66, qpn=qpn)
            bench.one(query(m.METHOD_SET, m.ATTR_INFORM_INFO, inform), card)
    watch = Watch(bench)
    before = bench.fabric.counters().get("sa.reports", 0)
    assert bench.join(bench.cards[0], GROUP, CREATE_MASK, **CREATE)[0] == 0
    assert bench.fabric.counters()["sa.reports"] - before == 35 * share
    assert watch.most <= 8


def test_the_queue_takes_turns_and_forgets_a_job_that_fails() -> None:
    turns: list[Callable[[], None]] = []
    queue = FairQueue(turns.append, 2)
    done: list[str] = []

    def job(name: str, pieces: int) -> Job:
        for n in range(pieces):
            done.append(f"{name}{n}")
            yield

    def bad() -> Job:
        raise ValueError
        yield

    assert queue.put(1, job("a", 3))
    assert queue.put(1, bad())
    assert not queue.put(1, job("c", 1)), "two wait"
    assert queue.put(1, job("c", 1), limit=3)
    assert queue.put(2, job("b", 2))
    failures = 0
    while turns:
        try:
            turns.pop(0)()
        except ValueError:
            failures += 1
    assert done == ["a0", "b0", "a1", "b1", "a2", "c0"]
    assert failures == 1
    assert queue.waiting(1) == queue.waiting(2) == 0
