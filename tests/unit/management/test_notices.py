"""Traps are repeated until they are repressed, not more often than a port may, and never without end."""

from hypothesis import given
from hypothesis import strategies as st

from vhca.management.notices import AT_ONCE, KINDS, TIMES, Notices, interval_ns
from vhca.wire import mad
from vhca.wire.mad import Notice, Smp
from vhca.wire.notices import LinkStateDetails, PortErrorDetails

TIMEOUT = 18
INTERVAL = interval_ns(TIMEOUT)
LID = 7


def link_state(notices: Notices, now_ns: int = 0) -> None:
    notices.post(mad.TRAP_LINK_STATE_CHANGE, mad.PRODUCER_SWITCH, LinkStateDetails(lid=LID), now_ns)


def unsteady(notices: Notices, port: int, now_ns: int = 0) -> None:
    details = PortErrorDetails(lid=LID, port=port)
    notices.post(mad.TRAP_LINK_INTEGRITY, mad.PRODUCER_SWITCH, details, now_ns, place=port)


def sent(notices: Notices, now_ns: int) -> list[tuple[int, int]]:
    """(trap number, transaction) of what leaves now."""
    smps = [Smp.from_bytes(smp) for smp in notices.due(now_ns, LID, TIMEOUT)]
    assert all((smp.mgmt_class, smp.method, smp.attr_id) == (1, mad.METHOD_TRAP, mad.ATTR_NOTICE) for smp in smps)
    return [(Notice.from_bytes(smp.data + bytes(16)).trap_number, smp.tid) for smp in smps]


def test_the_distance_is_the_subnets_time_out() -> None:
    assert interval_ns(18) == 4096 << 18
    assert interval_ns(0) == 1_000_000


def test_a_trap_comes_again_with_its_number_until_it_is_repressed() -> None:
    notices = Notices()
    link_state(notices)
    ((number, tid),) = sent(notices, 0)
    assert number == 128
    assert notices.next_deadline(TIMEOUT) == INTERVAL
    assert sent(notices, INTERVAL - 1) == []
    assert sent(notices, INTERVAL) == [(128, tid)]
    assert not notices.repress(tid + 1)
    assert sent(notices, 2 * INTERVAL) == [(128, tid)]
    assert notices.repress(tid)
    assert not notices.repress(tid)
    assert (len(notices), notices.next_deadline(TIMEOUT), sent(notices, 9 * INTERVAL)) == (0, None, [])


def test_nobody_can_repress_what_was_not_sent() -> None:
    notices = Notices()
    link_state(notices)
    assert not any(notices.repress(tid) for tid in range(100))
    assert len(sent(notices, 0)) == 1


def test_a_trap_that_nobody_represses_ends() -> None:
    notices = Notices()
    link_state(notices)
    times = 0
    while (deadline := notices.next_deadline(TIMEOUT)) is not None:
        times += len(sent(notices, deadline))
    assert times == TIMES
    assert len(notices) == 0


def test_what_happens_again_while_its_trap_waits_has_a_number_of_its_own() -> None:
    notices = Notices()
    link_state(notices)
    ((_, first),) = sent(notices, 0)
    link_state(notices, 5)
    assert not notices.repress(first), "the manager has heard of the first change only"
    ((_, second),) = sent(notices, 5)
    assert second != first
    assert notices.repress(second)


def test_so_many_kinds_wait_and_so_many_leave_at_once() -> None:
    notices = Notices()
    for port in range(1, 255):
        unsteady(notices, port)
    assert len(notices) == KINDS - 1
    link_state(notices)
    assert len(notices) == KINDS, "a change of a link has its place, whatever waits"
    assert len(sent(notices, 0)) == AT_ONCE
    for _ in range(1000):
        link_state(notices, 1)
        unsteady(notices, 1, 1)
        assert sent(notices, 1) == []
    deadline = notices.next_deadline(TIMEOUT)
    assert deadline is not None
    assert INTERVAL <= deadline <= INTERVAL + 2
    assert len(sent(notices, deadline)) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * INTERVAL)), max_size=60))
def test_no_order_of_events_makes_more_traps_than_time_allows(events: list[tuple[int, int]]) -> None:
    notices = Notices()
    now, left = 0, 0
    for kind, wait in events:
        now += wait
        if kind == 3:
            left += len(sent(notices, now))
        else:
            unsteady(notices, kind, now)
        assert len(notices) <= KINDS
        assert left <= AT_ONCE + now // INTERVAL + 1
        deadline = notices.next_deadline(TIMEOUT)
        assert (deadline is None) == (len(notices) == 0)


def test_the_attribute_shows_the_oldest_and_takes_it_away() -> None:
    notices = Notices()
    assert notices.first(LID) == bytes(64)
    assert not notices.take(bytes(64), LID)
    unsteady(notices, 3)
    unsteady(notices, 4)
    shown = Notice.from_bytes(notices.first(LID) + bytes(16))
    assert (shown.trap_number, shown.toggle_count, shown.issuer_lid) == (129, 2, LID)
    assert PortErrorDetails.from_bytes(notices.first(LID)).port == 3
    assert not notices.take(bytes(64), LID)
    assert notices.take(notices.first(LID), LID)
    assert PortErrorDetails.from_bytes(notices.first(LID)).port == 4
    assert len(notices) == 1
