"""Completion and event queues, receive queues: ownership, arming, links, limits."""

import pytest

from firmware.commands.srq import arm_limit
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.objects import CQ_FIRED, Cq, Eq, Srq
from firmware.model.pages import packed
from firmware.model.queue_buffer import QueueBuffer
from firmware.queues import (
    cq_doorbell,
    drop_held_event,
    eq_doorbell,
    parse_scatter_list,
    take_shared_receive,
    write_cqe,
)
from firmware.transport import engine
from tests.support.driver import board_info
from vhca.hw.effects import EntryWrite, RaiseIrq
from vhca.hw.memory import FlatMemory

LINEAR = 0x10000
RECORD = 0x1000


class Socket:
    def __init__(self) -> None:
        self.memory = FlatMemory(1 << 20)
        self.device_memory = FlatMemory(1 << 12)
        self.info = board_info()
        self.trace = None

    def through(self, *_: object) -> None:
        return None

    def memory_limit(self) -> int:
        return 1 << 20


@pytest.fixture
def hca() -> Hca:
    return Hca(Socket())  # type: ignore[arg-type]


def buffer(size: int, base: int = LINEAR) -> QueueBuffer:
    return QueueBuffer(packed(base + at for at in range(0, max(size, 1), 4096)), 12, 0, size)


def make_cq(hca: Hca, log_size: int = 2) -> Cq:
    eq = Eq(buffer=buffer(64 << 4, 0x40000), log_size=4, vector=3, event_mask=0, armed=True)
    hca.eqs.add(eq)
    cq = Cq(eq=eq, buffer=buffer(64 << log_size), log_size=log_size, cqe_bytes=64, dbr_addr=RECORD)
    hca.cqs.add(cq)
    return cq


def effects(hca: Hca) -> list[object]:
    out: list[object] = list(hca.out)
    hca.out.clear()
    return out


def complete(hca: Hca, cq: Cq, solicited: bool = False) -> bool:
    return write_cqe(hca, cq, bytearray(64), solicited)


def test_the_owner_bit_turns_with_each_lap(hca: Hca) -> None:
    cq = make_cq(hca)
    owners = []
    for _ in range(9):
        hca.memory.write(RECORD, (cq.producer & 0xFFFFFF).to_bytes(4, "big"))
        assert complete(hca, cq)
        entry = effects(hca)[0]
        assert isinstance(entry, EntryWrite)
        owners.append(entry.data[63] & 1)
    assert owners == [0, 0, 0, 0, 1, 1, 1, 1, 0]


def test_an_overrun_kills_the_queue_and_is_reported(hca: Hca) -> None:
    cq = make_cq(hca)
    cq.eq.event_mask = 1 << 4
    for _ in range(4):
        assert complete(hca, cq)
    effects(hca)
    assert not complete(hca, cq)
    event, irq = effects(hca)
    assert isinstance(event, EntryWrite)
    assert event.data[1] == 4
    assert event.data[0x20:0x24] == cq.handle.to_bytes(4, "big")
    assert event.data[0x2B] == 1
    assert irq == RaiseIrq(3)
    assert not complete(hca, cq)
    assert hca.count[Count.CQES_LOST] == 1


def test_an_armed_queue_fires_once_and_again_after_arming(hca: Hca) -> None:
    cq = make_cq(hca, 4)
    cq_doorbell(hca, cq, 0, False)
    assert effects(hca) == []
    complete(hca, cq)
    kinds = [type(effect) for effect in effects(hca)]
    assert kinds == [EntryWrite, EntryWrite, RaiseIrq]
    complete(hca, cq)
    assert [type(effect) for effect in effects(hca)] == [EntryWrite]
    # armed while one is unread: at once
    cq_doorbell(hca, cq, 1, False)
    assert len(effects(hca)) == 1


def test_solicited_only_waits_for_one(hca: Hca) -> None:
    cq = make_cq(hca, 4)
    cq_doorbell(hca, cq, 0, True)
    complete(hca, cq)
    assert len(effects(hca)) == 1
    complete(hca, cq, solicited=True)
    assert len(effects(hca)) == 3
    # re-armed behind the solicited one: quiet
    cq_doorbell(hca, cq, 2, True)
    assert effects(hca) == []


@pytest.mark.parametrize("behind", [1, 5, 100])
@pytest.mark.parametrize("solicited", [False, True])
def test_an_arm_with_an_index_behind_fires_at_once_for_what_is_new(hca: Hca, solicited: bool, behind: int) -> None:
    # Software that polls by itself arms with an index that never moves: a queue's length behind, and much further.
    cq = make_cq(hca)
    for producer in range(1, 40):
        hca.memory.write(RECORD, (cq.producer & 0xFFFFFF).to_bytes(4, "big"))
        assert complete(hca, cq, solicited)
        effects(hca)
        eq_doorbell(hca, cq.eq, cq.eq.producer, arm=True)
        cq_doorbell(hca, cq, max(producer - behind, 0), solicited)
        assert [type(effect) for effect in effects(hca)] == [EntryWrite, RaiseIrq]
    # The number goes round at 2**24.
    cq.producer = cq.consumer = (1 << 24) + 2
    cq.last_solicited = 1 << 24
    cq_doorbell(hca, cq, 2, solicited)
    assert effects(hca) == []
    cq.arm_state = CQ_FIRED
    cq_doorbell(hca, cq, 0xFFFFFF, solicited)
    assert effects(hca)


def test_an_arm_ahead_of_the_producer_reports_what_is_there_only(hca: Hca) -> None:
    cq = make_cq(hca)
    cq_doorbell(hca, cq, 7, False)
    assert effects(hca) == []
    complete(hca, cq)
    assert len(effects(hca)) == 3
    # No solicited one has ever come.
    cq_doorbell(hca, cq, 7, True)
    assert effects(hca) == []
    complete(hca, cq, solicited=True)
    assert len(effects(hca)) == 2


def test_an_arm_between_an_event_and_the_poll_is_quiet_but_nothing_newer_is_missed(hca: Hca) -> None:
    cq = make_cq(hca, 4)
    cq_doorbell(hca, cq, 0, False)
    complete(hca, cq)
    effects(hca)
    # the event told of it; the host arms first and polls then, as perftest does
    cq_doorbell(hca, cq, 0, False)
    assert effects(hca) == []
    complete(hca, cq)
    assert len(effects(hca)) == 2
    # one more comes before the arm: no event has told of it
    complete(hca, cq)
    effects(hca)
    cq_doorbell(hca, cq, 0, False)
    assert len(effects(hca)) == 1


def test_a_request_for_any_completion_is_not_narrowed_to_solicited_ones(hca: Hca) -> None:
    """C11-31."""
    cq = make_cq(hca, 4)
    cq_doorbell(hca, cq, 0, False)
    cq_doorbell(hca, cq, 0, True)
    complete(hca, cq)
    assert len(effects(hca)) == 3


def test_an_event_that_found_no_room_has_told_of_nothing(hca: Hca) -> None:
    cq = make_cq(hca, 4)
    cq.eq.producer = 16
    cq_doorbell(hca, cq, 0, False)
    complete(hca, cq)
    assert cq.eq.dropped == 1
    eq_doorbell(hca, cq.eq, 16, arm=True)
    effects(hca)
    cq_doorbell(hca, cq, 0, False)
    assert [type(effect) for effect in effects(hca)] == [EntryWrite, RaiseIrq]


def test_eq_doorbell_beyond_the_producer_is_ignored(hca: Hca) -> None:
    cq = make_cq(hca)
    eq_doorbell(hca, cq.eq, 5, arm=True)
    assert hca.count[Count.EQ_DOORBELL_INVALID] == 1
    assert effects(hca) == []


def test_a_full_event_queue_drops_and_counts(hca: Hca) -> None:
    cq = make_cq(hca, 6)
    for index in range(20):
        cq_doorbell(hca, cq, index, False)
        complete(hca, cq)
    assert cq.eq.dropped == 4
    assert hca.count[Count.EQ_OVERRUN] == 4


def test_queue_buffer_walks_scattered_pages() -> None:
    memory = FlatMemory(1 << 20)
    pages = [0x5000, 0x2000, 0x9000]
    scattered = QueueBuffer(packed(pages), 12, 0, 3 * 4096)
    for number, page in enumerate(pages):
        memory.write(page, bytes([number + 1]) * 4096)
    assert scattered.addr(4096 + 8) == 0x2008
    assert scattered.read(memory, 4090, 12) == b"\1" * 6 + b"\2" * 6
    assert scattered.read(memory, 3 * 4096 - 4, 8) == b"\3" * 4 + b"\1" * 4


def test_scatter_list_ends_at_its_terminator() -> None:
    first = (16).to_bytes(4, "big") + (7).to_bytes(4, "big") + (0x100).to_bytes(8, "big")
    end = bytes(4) + (0x100).to_bytes(4, "big") + bytes(8)
    assert parse_scatter_list(first + end + first, 0) == [(0x100, 16, 7)]
    assert parse_scatter_list(first + first, 0) == [(0x100, 16, 7)] * 2


def test_a_shared_queue_follows_its_links_and_reports_its_limit_once(hca: Hca) -> None:
    srq = Srq(kind=0, buffer=buffer(4 << 5), log_size=2, log_stride=5, dbr_addr=RECORD, pd=1, limit=2)
    hca.srqs.add(srq)
    eq = Eq(buffer=buffer(64 << 4, 0x40000), log_size=4, vector=0, event_mask=1 << 0x14)
    hca.eqs.add(eq)
    for index, following in enumerate((2, 3, 1, 0)):
        hca.memory.write(LINEAR + index * 32 + 2, following.to_bytes(2, "big"))
    hca.memory.write(RECORD, (4).to_bytes(4, "big"))
    taken = []
    for _ in range(4):
        wqe = take_shared_receive(hca, srq)
        assert wqe is not None
        taken.append(wqe.wqe_counter)
    assert taken == [0, 2, 1, 3]
    assert take_shared_receive(hca, srq) is None
    limits = [effect for effect in effects(hca) if isinstance(effect, EntryWrite)]
    assert len(limits) == 1
    assert limits[0].data[1] == 0x14


@pytest.mark.parametrize(("posted", "fires"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_limit_that_is_armed_too_late_fires_at_once(hca: Hca, posted: int, fires: bool) -> None:
    srq = Srq(kind=0, buffer=buffer(4 << 5), log_size=2, log_stride=5, dbr_addr=RECORD, pd=1)
    hca.srqs.add(srq)
    hca.eqs.add(Eq(buffer=buffer(64 << 4, 0x40000), log_size=4, vector=0, event_mask=1 << 0x14))
    hca.memory.write(RECORD, posted.to_bytes(4, "big"))
    arm_limit(hca, srq, 2)
    assert len(effects(hca)) == fires
    assert srq.limit == (0 if fires else 2)
    # Disarmed, and where there is no record to read.
    arm_limit(hca, srq, 0)
    srq.dbr_addr = 1 << 50
    arm_limit(hca, srq, 1)
    assert effects(hca) == []
    assert srq.limit == 1


def events_of(hca: Hca) -> int:
    return sum(type(effect) is EntryWrite and effect.data[0x3C:0x3F] == bytes(3) and effect.addr >= 0x40000
               for effect in effects(hca))  # fmt: skip


def pass_time(hca: Hca, now_ns: int) -> None:
    hca.now_ns = now_ns
    engine.run_timers(hca)


def moderated(hca: Hca, count: int, period_us: int) -> Cq:
    cq = make_cq(hca, 6)
    cq.max_count, cq.period_us = count, period_us
    cq_doorbell(hca, cq, 0, False)
    return cq


def test_moderation_waits_for_the_count(hca: Hca) -> None:
    cq = moderated(hca, 3, 100)
    for expected in (0, 0, 1, 0):
        complete(hca, cq)
        assert events_of(hca) == expected
    pass_time(hca, 1_000_000)
    assert events_of(hca) == 0


def test_moderation_waits_no_longer_than_the_period(hca: Hca) -> None:
    cq = moderated(hca, 3, 100)
    complete(hca, cq)
    assert hca.timers.next_deadline() == 100_000
    complete(hca, cq)
    pass_time(hca, 99_999)
    assert events_of(hca) == 0
    pass_time(hca, 100_000)
    assert events_of(hca) == 1
    # The next event counts anew.
    cq_doorbell(hca, cq, 2, False)
    for expected in (0, 0, 1):
        complete(hca, cq)
        assert events_of(hca) == expected


@pytest.mark.parametrize(("count", "period_us"), [(0, 100), (1, 100), (3, 0)])
def test_half_a_moderation_is_none(hca: Hca, count: int, period_us: int) -> None:
    cq = moderated(hca, count, period_us)
    complete(hca, cq)
    assert events_of(hca) == 1


def test_an_event_that_is_held_back_ends_with_its_queue_or_its_arming(hca: Hca) -> None:
    cq = moderated(hca, 3, 100)
    complete(hca, cq)
    drop_held_event(hca, cq)
    pass_time(hca, 1_000_000)
    assert events_of(hca) == 0
    # Armed again behind an unread completion: at once, and only once.
    complete(hca, cq)
    effects(hca)
    cq_doorbell(hca, cq, 0, False)
    assert events_of(hca) == 1
    pass_time(hca, 2_000_000)
    assert events_of(hca) == 0


def test_a_pool_of_basic_wqes_is_a_ring_without_links(hca: Hca) -> None:
    srq = Srq(kind=0, buffer=buffer(4 << 4), log_size=2, log_stride=4, dbr_addr=RECORD, pd=1, cyclic=True, head_bytes=0)
    hca.srqs.add(srq)
    for index in range(4):
        segment = (100 + index).to_bytes(4, "big") + (7).to_bytes(4, "big") + (0x9000 + index).to_bytes(8, "big")
        hca.memory.write(LINEAR + index * 16, segment)
    hca.memory.write(RECORD, (4).to_bytes(4, "big"))
    taken = [take_shared_receive(hca, srq) for _ in range(4)]
    assert [(wqe.wqe_counter, wqe.segments) for wqe in taken if wqe] == [
        (index, [(0x9000 + index, 100 + index, 7)]) for index in range(4)
    ]
    assert take_shared_receive(hca, srq) is None
    hca.memory.write(RECORD, (5).to_bytes(4, "big"))
    again = take_shared_receive(hca, srq)
    assert again is not None
    assert (again.wqe_counter, again.segments) == (4, [(0x9000, 100, 7)])
