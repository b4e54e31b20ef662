"""The memory budget of a card: what is charged, what happens when it is used up, and that all of it comes back."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from firmware.model.budget import OBJECT_BYTES, WORK_REQUEST_BYTES, Budget
from firmware.model.counters import Count
from firmware.model.ledger import Table
from firmware.model.lists import ReceiveList
from firmware.model.objects import Pd
from firmware.queues import parse_scatter_list
from firmware.transport import account, backlog
from tests.bench.bench_memory import Rounds
from tests.scenario.tools import stall
from tests.scenario.world import RTS, World, pair
from tests.support.account import expected
from tests.support.driver import PAGE, CommandFailed
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.wqe import DataSegment, RaddrSegment, WqeOpcode
from vhca.wire.packet import Packet, Route

MGID = bytes.fromhex("ff12401bffff000000000000ffffffff")


def test_the_limit_is_asked_for_again_when_it_is_reached() -> None:
    limits = [100, 100, 200]
    budget = Budget(lambda: limits.pop(0))
    assert budget.take(100)
    assert budget.full
    assert not budget.take(1)
    assert budget.take(100)
    budget.give(150)
    assert (budget.used, budget.most, budget.full) == (50, 200, False)


class Guest(Rounds):
    """A driver that makes one object of each kind."""

    def key(self, pages: int = 2) -> int:
        view = cmd.CreateMkeyIn()
        entry = view.memory_key_mkey_entry
        entry.pd, entry.access_mode_1_0, entry.lr = self.pd, 1, 1
        entry.len, entry.log_page_size = pages * PAGE, 12
        entry.translations_octword_size = view.translations_octword_actual_size = -(-pages // 2)
        tail = b"".join((at * 2 * PAGE).to_bytes(8, "big") for at in range(pages + pages % 2))
        return cmd.CreateMkeyOut.from_bytes(self.driver.run(Op.CREATE_MKEY, view, tail)).mkey_index

    def reserve(self, octwords: int) -> None:
        """A key whose pages come by work requests."""
        view = cmd.CreateMkeyIn()
        entry = view.memory_key_mkey_entry
        entry.pd, entry.access_mode_1_0, entry.free, entry.umr_en = self.pd, 1, 1, 1
        entry.translations_octword_size = octwords
        self.driver.run(Op.CREATE_MKEY, view)

    def pool(self) -> int:
        view = cmd.CreateRmpIn()
        view.ctx.state = view.ctx.wq.wq_type = 1
        view.ctx.wq.log_wq_sz, view.ctx.wq.log_wq_stride, view.ctx.wq.pd = 4, 5, self.pd
        return cmd.CreateRmpOut.from_bytes(self.driver.run(Op.CREATE_RMP, view, self.driver.pages(0, PAGE))).rmpn

    def domain(self) -> int:
        return cmd.AllocPdOut.from_bytes(self.driver.run(Op.ALLOC_PD)).pd

    def completion_queue(self, pages: bytes | None = None, log_size: int = 4) -> int:
        view = cmd.CreateCqIn()
        context = view.cq_context
        context.log_cq_size, context.c_eqn_or_apu_element, context.uar_page = log_size, self.eqn, self.driver.uar
        out = self.driver.run(Op.CREATE_CQ, view, self.driver.pages(0, PAGE) if pages is None else pages)
        return cmd.CreateCqOut.from_bytes(out).cqn


def scattered(count: int) -> bytes:
    return b"".join((at * 2 * PAGE).to_bytes(8, "big") for at in range(count))


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("pd", Guest.domain),
        ("cq", Guest.completion_queue),
        ("mkey", Guest.key),
        ("srq", Guest.pool),
        ("qp", lambda guest: guest.send(guest.create())),
    ],
)
def test_an_object_takes_no_more_than_it_is_charged(kind: str, make: Callable[[Guest], object]) -> None:
    guest = Guest()
    make(guest)
    rounds = 200
    before_used = guest.hca.budget.used
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(rounds):
            make(guest)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    charged = guest.hca.budget.used - before_used
    assert charged >= rounds * OBJECT_BYTES[kind]
    assert charged / 4 < taken <= charged


def test_lists_are_charged_by_their_bytes_and_by_what_is_reserved() -> None:
    guest = Guest()
    budget = guest.hca.budget
    before = budget.used
    key = guest.key(1000)
    assert budget.used == before + OBJECT_BYTES["mkey"] + 8000
    guest.driver.run(Op.DESTROY_MKEY, cmd.DestroyMkeyIn(mkey_index=key))
    assert budget.used == before
    guest.reserve(1000)
    assert budget.used == before + OBJECT_BYTES["mkey"] + 16000
    cqn = guest.completion_queue(scattered(16), log_size=10)
    assert budget.used == before + OBJECT_BYTES["mkey"] + 16000 + OBJECT_BYTES["cq"] + 128
    # A queue that is given another buffer is charged for that one.
    view = cmd.ModifyCqIn(cqn=cqn, modify_field_select_resize_field_select=7)
    view.cq_context.log_cq_size = 11
    guest.driver.run(Op.MODIFY_CQ, view, scattered(32), op_mod=1)
    assert budget.used == before + OBJECT_BYTES["mkey"] + 16000 + OBJECT_BYTES["cq"] + 256
    guest.driver.run(Op.DESTROY_CQ, cmd.DestroyCqIn(cqn=cqn))
    assert budget.used == before + OBJECT_BYTES["mkey"] + 16000
    assert budget.used == expected(guest.hca)


def limited(guest: Guest, left: int) -> None:
    """So many bytes are left."""
    budget = guest.hca.budget
    budget.limit = budget.used + left
    budget.ask = lambda: budget.limit


@pytest.mark.parametrize(
    ("make", "amount"),
    [
        (Guest.domain, OBJECT_BYTES["pd"]),
        (Guest.pool, OBJECT_BYTES["srq"]),
        (lambda guest: guest.key(100), OBJECT_BYTES["mkey"] + 800),
        (lambda guest: guest.reserve(100), OBJECT_BYTES["mkey"] + 1600),
        (lambda guest: guest.completion_queue(scattered(16), 10), OBJECT_BYTES["cq"] + 128),
    ],
)
def test_beyond_the_limit_a_command_fails_with_limit_exceeded(make: Callable[[Guest], object], amount: int) -> None:
    guest = Guest()
    limited(guest, amount - 1)
    ledger, used = guest.hca.objects(), guest.hca.budget.used
    with pytest.raises(CommandFailed) as refused:
        make(guest)
    assert refused.value.status == Status.LIM_ERR
    assert (guest.hca.objects(), guest.hca.budget.used) == (ledger, used)
    limited(guest, amount)
    make(guest)
    assert guest.hca.budget.full


def test_a_transition_that_needs_memory_for_reads_fails_too() -> None:
    guest = Guest()
    queue = guest.create()
    guest.driver.run(Op.QP_2RST, cmd.Qp2errIn(qpn=queue.qpn))
    used = guest.hca.budget.used
    view = cmd.Rst2initQpIn(qpn=queue.qpn)
    context = view.qpc
    context.primary_address_path.vhca_port_num, context.mtu, context.log_rra_max = 1, 5, 7
    guest.driver.run(Op.RST2INIT_QP, view)
    limited(guest, 100)
    with pytest.raises(CommandFailed) as refused:
        guest.driver.run(Op.INIT2RTR_QP, view)
    assert refused.value.status == Status.LIM_ERR
    limited(guest, 1 << 20)
    guest.driver.run(Op.INIT2RTR_QP, view)
    assert guest.hca.budget.used == used + 128 * 256 == expected(guest.hca)
    guest.destroy(queue)
    assert guest.hca.budget.used == expected(guest.hca)


def test_members_of_multicast_groups_are_charged() -> None:
    guest = Guest()
    view = cmd.CreateQpIn()
    context = view.qpc
    context.st, context.pd, context.uar_page, context.no_sq, context.rq_type = 2, guest.pd, guest.driver.uar, 1, 3
    qpns = [cmd.CreateQpOut.from_bytes(guest.driver.run(Op.CREATE_QP, view)).qpn for _ in range(2)]
    used = guest.hca.budget.used
    for qpn in (*qpns, qpns[0]):
        guest.driver.run(Op.ATTACH_TO_MCG, cmd.AttachToMcgIn(qpn=qpn, multicast_gid=MGID))
    assert guest.hca.budget.used == used + 1024 + 128 == expected(guest.hca)
    for qpn in qpns:
        guest.driver.run(Op.DETACH_FROM_MCG, cmd.DetachFromMcgIn(qpn=qpn, multicast_gid=MGID))
    assert guest.hca.budget.used == used


def test_a_reset_gives_everything_back_and_counters_show_it() -> None:
    guest = Guest()
    guest.key(100)
    counters = guest.driver.board.counters()
    assert counters["memory_used_bytes"] == guest.hca.budget.used > 0
    assert counters["memory_limit_bytes"] == 1 << 30
    guest.driver.board.reset("flr")
    assert guest.driver.board.counters()["memory_used_bytes"] == 0
    assert guest.driver.board.counters()["memory_most_bytes"] == counters["memory_used_bytes"]


def test_work_requests_are_charged_while_they_are_under_way() -> None:
    world, a, b = pair()
    budget = a.card.hca.budget
    before = budget.used
    world.fault = lambda packet: []
    for number in range(1, 6):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
        assert budget.used - before == number * WORK_REQUEST_BYTES
    world.fault = None
    stall(world, a)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 5
    assert budget.used == before


@pytest.mark.parametrize("mixed", [False, True])
def test_a_request_with_a_long_list_takes_no_more_than_it_is_charged(mixed: bool) -> None:
    world, a, b = pair()
    world.fault = lambda packet: []
    head = RaddrSegment(raddr=b.buffer(64), rkey=b.card.key).to_bytes()
    place = a.buffer(64)
    segment = a.sge(place, 1)
    inline = (1 << 31 | 1).to_bytes(4, "big") + bytes(12)
    body = head + (segment + inline) * 28 if mixed else head + segment * 57
    count = 32
    # What is made once, by us or by who measures coverage, is not the requests'.
    a.post(WqeOpcode.RDMA_WRITE, body)
    used = a.card.hca.budget.used
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count):
            a.post(WqeOpcode.RDMA_WRITE, body)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(a.qp.requester.pending) == count + 1
    assert a.card.hca.budget.used - used == count * WORK_REQUEST_BYTES
    assert taken <= count * WORK_REQUEST_BYTES


def test_the_entries_of_a_request_count_in_its_step() -> None:
    world, a, b = pair()
    head = RaddrSegment(raddr=b.buffer(64), rkey=b.card.key).to_bytes()
    segment = a.sge(a.buffer(64), 1)
    inline = (1 << 31 | 1).to_bytes(4, "big") + bytes(12)
    for body, entries in ((head + segment * 57, 57), (head + (segment + inline) * 28, 28)):
        before = a.card.hca.pieces
        a.post(WqeOpcode.RDMA_WRITE, body)
        world.settle()
        assert a.card.hca.pieces - before >= entries - 1
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]


def test_a_receive_with_a_long_list_is_kept_as_it_came() -> None:
    raw = (DataSegment(byte_count=64, lkey=7, addr=0x1000).to_bytes() + DataSegment(lkey=7).to_bytes()) * 100
    segments = parse_scatter_list(raw + DataSegment(lkey=0x100).to_bytes() + b"\1" * 64, 0)
    assert list(segments) == [(0x1000, 64, 7)] * 100
    assert (len(segments), segments[0], segments[99], list(segments[1:3])) == (
        100,
        (0x1000, 64, 7),
        (0x1000, 64, 7),
        [(0x1000, 64, 7)] * 2,
    )
    assert isinstance(segments, ReceiveList)
    assert len(segments.raw) == len(raw)


def test_a_card_without_memory_sends_one_message_at_a_time() -> None:
    world, a, b = pair()
    a.card.hca.budget.limit = 0
    for _ in range(8):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key, ring=False)
    most = 0
    a.ring()
    while world.deliver() or a.card.turn() or b.card.turn():
        most = max(most, len(a.qp.requester.pending))
    assert most == 1
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 8
    assert a.qp.state == RTS


def test_packets_that_wait_are_charged_and_dropped_when_there_is_no_memory() -> None:
    _, _, b = pair(world=World(1 << 20))
    hca = b.card.hca
    before = hca.budget.used
    packet = Packet(Route(1, 2), 0, 1, b.qpn, 0, bytes(3 * 256), 3, mtu=256)
    first = backlog.first_part(hca, b.qp, packet, 300)
    assert (first.count, hca.budget.used - before) == (1, 2 * 256 + 512)
    hca.budget.limit = hca.budget.used + 3 * 256 + 511
    hca.budget.ask = lambda: hca.budget.limit
    backlog.add(hca, b.qp, packet)
    assert hca.count[Count.RX_DROP_CARD_MEMORY] == 1
    hca.budget.limit += 1
    backlog.add(hca, b.qp, packet)
    assert hca.budget.full
    account.drop_packets(hca, b.qp)
    assert hca.budget.used == before


def test_freed_numbers_are_given_out_again_in_their_order_and_cost_only_their_bytes() -> None:
    table: Table[Pd] = Table("pd", 10, 5000, Budget(lambda: 1 << 30))
    objects = [Pd() for _ in range(5000)]
    assert [table.add(pd) for pd in objects] == list(range(10, 5010))
    assert table.add(Pd()) is None
    for pd in reversed(objects[:1000]):
        table.remove(pd)
    assert [table.add(Pd()) for _ in range(700)] == list(range(1009, 309, -1))
    for pd in objects[2000:2003]:
        table.remove(pd)
    assert [table.add(Pd()) for _ in range(304)] == [*range(309, 9, -1), 2010, 2011, 2012, None]


def test_a_freed_number_costs_four_bytes() -> None:
    rounds = 200_000
    table: Table[Pd] = Table("pd", 0, rounds, Budget(lambda: 1 << 30))
    pd = Pd()
    tracemalloc.start()
    try:
        for number in range(rounds):
            assert table.add(pd) == number
            table.remove(pd)
        assert tracemalloc.get_traced_memory()[0] < 5 * rounds
    finally:
        tracemalloc.stop()
