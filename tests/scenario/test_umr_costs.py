"""What a registration by work request costs of a step's budget: bytes that it reads and copies, and their pieces."""

import struct
from array import array

import pytest

from firmware import entries as entries_module
from firmware.memory import PIECE_COST_BYTES
from firmware.model.hca import Hca
from firmware.model.objects import MODE_KLM, MODE_KSM, MODE_MTT, Mkey
from firmware.model.pages import packed
from firmware.model.qp import Qp
from firmware.model.segment import BYTE_BUDGET
from firmware.model.send_wqe import SendWqe
from firmware.transport import umr as umr_module
from tests.scenario.registration import entries, free_key, registration_queue, umr
from tests.scenario.world import Card, End, packed_klms, pair
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.mkey import Klm
from vhca.wire.connectx.wqe import MkeyMask, UmrCtrlSegment, UmrMkeySegment, WqeOpcode


@pytest.fixture
def queue() -> End:
    """A registration queue on a card of its own."""
    return registration_queue(pair()[1].card)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the registrations cost, in order."""
    seen: list[int] = []
    execute = umr_module.execute

    def note(hca: Hca, qp: Qp, wqe: SendWqe) -> int:
        seen.append(execute(hca, qp, wqe))
        return seen[-1]

    monkeypatch.setattr(umr_module, "execute", note)
    return seen


def table_of(mkey: Mkey) -> bytes:
    return bytes({MODE_MTT: mkey.mtts, MODE_KLM: mkey.klms, MODE_KSM: mkey.ksms}[mkey.mode])


def key_with(card: Card, mode: int, octwords: int, **fields: int) -> Mkey:
    """A key whose table of so many octowords is loaded, as a command leaves it."""
    raw = bytes(packed(0x1000 * (n + 1) for n in range(2 * octwords)))
    if mode == MODE_KLM:
        raw = packed_klms(*[(64, card.key, 0x100000)] * octwords)
    return free_key(card, mode, octwords, raw, len=octwords << 13 if mode == MODE_MTT else 0, **fields)


def test_entries_cost_their_bytes_and_a_gathered_list_its_pieces(queue: End, costs: list[int]) -> None:
    mkey, card = free_key(queue.card, octwords=16), queue.card
    umr(queue, mkey, mask=0)
    umr(queue, mkey, mask=0, payload=entries([0x1000] * 8))
    umr(queue, mkey, mask=0, payload=entries([0x1000] * 8), inline=False)
    # 16 bytes here, 16 there.
    crumbs = packed_klms(*[(16, card.key, card.alloc(4096)) for _ in range(4)])
    scattered = free_key(card, MODE_KLM, 4, crumbs, free=0, len=64)
    ctrl = UmrCtrlSegment(xlt_octowords=4)
    data = queue.sge(0, 64, scattered.handle << 8 | scattered.variant)
    queue.post(WqeOpcode.UMR, ctrl.to_bytes() + UmrMkeySegment().to_bytes() + data, imm=mkey.handle << 8)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0] * 4
    assert costs == [0, 64, 64, 64 + 4 * PIECE_COST_BYTES]


@pytest.mark.parametrize("mode", [MODE_MTT, MODE_KSM, MODE_KLM])
def test_a_part_of_a_table_costs_a_copy_of_it_once(mode: int, queue: End, costs: list[int]) -> None:
    mkey = key_with(queue.card, mode, 64)
    part = packed_klms(*[(64, queue.card.key, 0x100000)] * 4) if mode == MODE_KLM else entries([0xA000] * 8)
    for _ in range(3):
        umr(queue, mkey, mask=0, payload=part, offset=4)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0] * 3
    # A list of pages or keys becomes the key's own; an indirect list is checked before it takes the other's place.
    assert costs == [64 + 1024] * 3 if mode == MODE_KLM else [64 + 1024, 64, 64]
    whole = table_of(mkey)
    assert (len(whole), whole[64:128]) == (1024, part if mode != MODE_MTT else whole[64:128])


def test_a_pageable_list_that_is_no_array_yet_costs_a_copy(queue: End, costs: list[int]) -> None:
    mkey = key_with(queue.card, MODE_MTT, 64, pg_access=1)
    umr(queue, mkey, mask=0, payload=entries([0xA000] * 8), offset=4)
    assert costs == [64 + 1024]


def test_long_tables_are_copied_a_few_in_a_step(queue: End, costs: list[int]) -> None:
    octwords = BYTE_BUDGET // 32
    keys = [key_with(queue.card, MODE_MTT, octwords) for _ in range(6)]
    ring = queue.ring
    queue.ring = lambda: None  # type: ignore[method-assign]
    for mkey in keys:
        umr(queue, mkey, mask=0, payload=entries([0xA000] * 8), offset=4)
    ring()
    assert len(costs) == 2
    while queue.card.turn():
        pass
    assert len(costs) == 6


@pytest.mark.parametrize("mode", [MODE_MTT, MODE_KSM, MODE_KLM])
def test_a_registration_without_entries_leaves_the_table(mode: int, queue: End) -> None:
    mkey = key_with(queue.card, mode, 4)
    before = table_of(mkey)
    umr(queue, mkey, mask=1 << MkeyMask.LEN, len=7)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0]
    assert (mkey.length, table_of(mkey)) == (7, before)


@pytest.mark.parametrize("mode", [MODE_KSM, MODE_KLM, MODE_MTT])
def test_entries_go_to_the_list_of_their_key_alone(mode: int, queue: End) -> None:
    mkey = free_key(queue.card, mode)
    klm = Klm(bcount=64, key=queue.card.key, va=0x100000).to_bytes()
    umr(queue, mkey, mask=0, payload=klm * 4)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0]
    assert [bool(mkey.mtts), bool(mkey.klms), bool(mkey.ksms)] == [mode == other for other in
                                                                   (MODE_MTT, MODE_KLM, MODE_KSM)]  # fmt: skip


@pytest.mark.parametrize("octword", [0, 4, 0xFFFC, 0x10000, 0x20004])
def test_an_offset_has_48_bits(octword: int, queue: End) -> None:
    mkey = key_with(queue.card, MODE_MTT, 0x20008)
    page = 1 << 44
    umr(queue, mkey, mask=0, payload=entries([page] * 8), offset=octword)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0]
    pages = struct.unpack(f">{len(mkey.mtts) // 8}Q", mkey.mtts)
    assert [index for index, entry in enumerate(pages) if entry & ~0xFFF == page] == [
        *range(octword * 2, octword * 2 + 8)
    ]


def test_an_offset_behind_the_table_is_refused(queue: End) -> None:
    mkey = key_with(queue.card, MODE_MTT, 16)
    umr(queue, mkey, mask=0, payload=entries([0x1000] * 8), offset=0x10000)
    assert [c.syndrome for c in queue.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]


def test_who_changes_a_list_pays_for_looking_through_it(queue: End, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the access that comes later: it may meet hundreds of such lists in one step."""
    card = queue.card
    mkey = free_key(card, MODE_KLM, 4)
    looked: list[int] = []
    sizes_of = entries_module.klm_sizes

    def look(packed: bytes) -> "array[int]":
        looked.append(len(packed))
        return sizes_of(packed)

    monkeypatch.setattr(entries_module, "klm_sizes", look)
    packed_list = packed_klms(*[(64, card.key, 0x1000)] * 4)
    umr(queue, mkey, mask=0, payload=bytes(packed_list))
    assert [c.syndrome for c in queue.send_cq.poll()] == [0]
    assert looked == [64]
    assert len(list(entries_module.walk_klms(mkey, mkey.start, 200))) == 4
    assert looked == [64]
