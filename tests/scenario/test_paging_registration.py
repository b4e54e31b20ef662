"""On-demand paging and registration by work request: pages and children come and go, and the host refuses some."""

import struct
from collections.abc import Callable

import pytest

from firmware import page_faults
from firmware.memory import PageFault, direct, find_key, translate
from firmware.model.objects import LOCAL_READ, LOCAL_WRITE, MODE_KLM, MODE_KSM, MODE_MTT
from tests.scenario.paging import ABSENT, PAGE, PRESENT, Region, answer, faults, refuse_all, serve, statuses
from tests.scenario.registration import free_key, load, registration_queue
from tests.scenario.world import ALL_RIGHTS, World, pair, rights_fields
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import MkeyMask, UmrCtrlSegment, UmrMkeySegment, WqeOpcode


def mtts(*entries: int) -> bytes:
    return struct.pack(f">{len(entries)}Q", *entries)


def test_entries_come_and_go_by_work_request() -> None:
    world, a, b = pair()
    queue = registration_queue(world.a)
    area = world.a.alloc(16 * PAGE)
    mkey = free_key(world.a, MODE_MTT, 8, b"", start_addr=area, len=16 * PAGE, **rights_fields(ALL_RIGHTS))
    key = mkey.handle << 8 | mkey.variant
    assert load(queue, mkey, bytes(64), mask=1 << MkeyMask.FREE) == 0
    assert load(queue, mkey, bytes(64), offset=4) == 0
    a.write(area + 12 * PAGE, 8, b.buffer(8), world.b.key, key=key)
    (fault,) = faults(world.a)
    assert fault.va == area + 12 * PAGE
    assert load(queue, mkey, mtts(*[(area + page * PAGE) | PRESENT for page in range(8, 16)]), offset=4) == 0
    answer(world.a, fault)
    world.settle()
    assert statuses(a) == ([0], [])
    with pytest.raises(PageFault):
        translate(world.a.hca, mkey, area + 7 * PAGE, 8, LOCAL_READ)
    assert translate(world.a.hca, mkey, area + 8 * PAGE + 5, PAGE, LOCAL_WRITE) == [(area + 8 * PAGE + 5, PAGE)]
    # All there: from now on one stretch.
    assert load(queue, mkey, mtts(*[(area + page * PAGE) | PRESENT for page in range(8)])) == 0
    assert translate(world.a.hca, mkey, area, 16 * PAGE, LOCAL_WRITE) == [(area, 16 * PAGE)]
    assert direct(mkey, area + 5) == area + 5
    # The table's end.
    assert load(queue, mkey, bytes(64), offset=8) == CqeSyndrome.MW_BIND_ERR


def test_entries_that_were_never_loaded_cannot_be_left_out() -> None:
    for mode in (MODE_MTT, MODE_KSM, MODE_KLM):
        world = World()
        mkey = free_key(world.a, mode, octwords=1 << 16)
        assert load(registration_queue(world.a), mkey, bytes(64), offset=4) == CqeSyndrome.MW_BIND_ERR


def test_a_list_of_pages_counts_in_whole_blocks() -> None:
    world = World()
    queue = registration_queue(world.a)
    for pages, next_block in ((8, 4), (9, 8), (10, 8)):
        mkey = free_key(world.a, octwords=64, entries=bytes(16 * -(-pages // 2)), pg_access=1, len=pages * PAGE)
        assert len(mkey.mtts) == 8 * pages
        assert load(queue, mkey, bytes(64), offset=next_block + 4) == CqeSyndrome.MW_BIND_ERR
        assert queue.apply(Op.QP_2RST) == 0
        queue = registration_queue(world.a)
        assert load(queue, mkey, bytes(64), offset=next_block) == 0


def test_registration_waits_for_the_pages_of_its_entries() -> None:
    world, a, _ = pair()
    region = Region(world.a, 1)
    target = free_key(world.a)
    region.write(mtts(*[0x7000 | PRESENT] * 8))
    ctrl = UmrCtrlSegment(xlt_octowords=4).to_bytes() + UmrMkeySegment(mkey_7_0=target.variant).to_bytes()
    a.post(WqeOpcode.UMR, ctrl + a.sge(region.addr, 64, region.key), imm=target.handle << 8 | target.variant)
    assert statuses(a) == ([], [])
    assert serve(world, region) == 1
    assert statuses(a) == ([0], [])
    assert bytes(target.mtts or b"") == mtts(*[0x7000 | PRESENT] * 8)


def test_a_whole_address_space_in_pieces_of_gigabytes() -> None:
    """What the driver does for an implicit region: an indirect key over empty ones, filled as faults come."""
    world, a, b = pair()
    queue = registration_queue(world.a)
    hca = world.a.hca
    pd = world.a.pd
    log_piece = 34
    # A key of one huge missing page: an access to it says where it was.
    empty_key = world.a.create_key(MODE_MTT, bytes(64), pg_access=1, length64=1, log_page_size=61)
    whole_key = world.a.create_key(MODE_KSM, length64=1, free=1, umr_en=1, translations_octword_size=8)
    whole = world.a.mkey(whole_key)
    table = b"".join(struct.pack(">4xIQ", empty_key, n << log_piece) for n in range(8))
    mask = 1 << MkeyMask.PAGE_SIZE | 1 << MkeyMask.PAGE_SIZE_5 | 1 << MkeyMask.FREE
    assert load(queue, whole, table, mask=mask, log_page_size=log_piece) == 0
    va = (3 << log_piece) + 5 * PAGE + 8
    a.write(va, 8, b.buffer(8), world.b.key, key=whole_key)
    (fault,) = faults(world.a)
    assert (fault.key, fault.va, fault.pages) == (empty_key, va & -PAGE, 1)
    page = world.a.alloc(PAGE)
    child_key = world.a.create_key(
        MODE_MTT, length64=1, free=1, umr_en=1, log_page_size=12, translations_octword_size=4, start_addr=3 << log_piece
    )
    child = world.a.mkey(child_key)
    assert load(queue, child, bytes(64), mask=1 << MkeyMask.FREE) == 0
    ksms = struct.pack(">4xIQ", child_key, 3 << log_piece)
    assert load(queue, whole, table[: 3 * 16] + ksms) == 0
    answer(world.a, fault)
    world.settle()
    (fault,) = faults(world.a)
    assert (fault.key, fault.va) == (child_key, va & -PAGE)
    assert load(queue, child, mtts(0, 0, 0, 0, 0, page | PRESENT, 0, 0)) == 0
    answer(world.a, fault)
    world.settle()
    assert statuses(a) == ([0], [])
    # Behind the entries of a key without a length there is nothing.
    mkey = find_key(hca, pd, a.qpn, child_key, (3 << log_piece) + 8 * PAGE, 1, LOCAL_READ)
    with pytest.raises(Exception, match="no entry"):
        translate(hca, mkey, (3 << log_piece) + 8 * PAGE, 1, LOCAL_READ)


def shown(world: World, *children: Region) -> tuple[int, Callable[[Region], None]]:
    """A region of the driver's implicit kind that shows one of its children; and how to make it show another."""
    queue = registration_queue(world.a)
    log_piece = 16
    whole = world.a.create_key(MODE_KSM, len=4 << log_piece, free=1, umr_en=1, translations_octword_size=4)
    mask = 1 << MkeyMask.PAGE_SIZE | 1 << MkeyMask.PAGE_SIZE_5 | 1 << MkeyMask.FREE

    def show(child: Region) -> None:
        table = struct.pack(">4xIQ", child.key, child.addr) * 4
        assert load(queue, world.a.mkey(whole), table, mask=mask, log_page_size=log_piece) == 0

    show(children[0])
    return whole, show


def test_a_child_that_its_region_still_shows_is_refused_until_the_host_has_taken_it_out() -> None:
    """The host forgets a child first and updates the region later, on a busy machine seconds later."""
    world, a, b = pair()
    old, new = Region(world.a, 1), Region(world.a, 1)
    whole, show = shown(world, old, new)
    a.write(8, 8, b.buffer(8), world.b.key, key=whole)
    end = world.now_ns + 9_000_000_000
    refusals = 0
    while world.now_ns < end:
        for fault in faults(world.a):
            assert fault.key == old.key
            answer(world.a, fault, good=False)
            refusals += 1
        world.pass_time(10_000_000)
    assert statuses(a) == ([], [])
    # some every third of a second: the host is not flooded with what it refuses
    assert 20 < refusals < 60
    new.set(PRESENT)
    show(new)
    world.pass_time(page_faults.PACE_NS[1])
    assert statuses(a) == ([0], [])


def test_a_child_that_is_refused_for_long_fails_who_waits() -> None:
    world, a, b = pair()
    whole, _ = shown(world, Region(world.a, 1))
    a.write(8, 8, b.buffer(8), world.b.key, key=whole)
    begin = world.now_ns
    refuse_all(world, world.a)
    assert statuses(a)[0] == [CqeSyndrome.LOCAL_PROT_ERR]
    assert world.now_ns - begin > page_faults.DOUBT_SHOWN_NS


def test_a_dispute_of_long_ago_is_not_continued() -> None:
    world, a, b = pair()
    region = Region(world.a, 1)
    for _ in range(2):
        a.write(region.addr, 8, b.buffer(8), world.b.key, key=region.key)
        for _ in range(page_faults.REFUSALS - 1):
            answer(world.a, faults(world.a)[0], good=False)
            world.pass_time(400_000_000)
        (last,) = faults(world.a)
        world.pass_time(page_faults.FORGOTTEN_NS)
        answer(world.a, last, good=False)
        world.pass_time(400_000_000)
        assert statuses(a) == ([], [])
        region.set(PRESENT)
        answer(world.a, faults(world.a)[0])
        world.settle()
        assert statuses(a) == ([0], [])
        region.set(ABSENT)
