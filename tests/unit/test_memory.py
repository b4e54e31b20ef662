"""Translation and protection, without queue pairs' engines around."""

import itertools
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware import entries
from firmware.memory import (
    BUS,
    PROTECTION,
    TOO_SHORT,
    AccessError,
    Crowded,
    find_key,
    gather,
    gather_pieces,
    scatter,
    translate,
)
from firmware.model.objects import LOCAL_READ, LOCAL_WRITE, MODE_KLM, MODE_KSM, MODE_MTT, MODE_PA, REPEAT_BLOCK, Mkey
from firmware.model.pages import packed
from tests.scenario.world import ALL_RIGHTS, End, World
from tests.scenario.world import packed_klms as klms
from vhca.hw.effects import DmaWrite, Effect

WORLD = World(1 << 20)
END = End(WORLD.a)
HCA = WORLD.a.hca
PD = WORLD.a.pd


def key(mode: int = MODE_MTT, **fields: object) -> int:
    mkey = Mkey(**{"variant": 1, "pd": PD, "rights": ALL_RIGHTS, "mode": mode, **fields})  # type: ignore[arg-type]
    HCA.mkeys.add(mkey)
    return mkey.handle << 8 | 1


def resolve(lkey: int, va: int, size: int, right: int = LOCAL_READ) -> list[tuple[int, int]]:
    return translate(HCA, find_key(HCA, PD, END.qpn, lkey, va, size, right), va, size, right)


@pytest.mark.parametrize(
    ("pages", "va", "size", "segments"),
    [
        ([0x1000, 0x2000, 0x3000], 0x10, 0x2FF0, [(0x1010, 0x2FF0)]),
        ([0x1000, 0x2000, 0x3000], 0, 1, [(0x1000, 1)]),
        ([0x3000, 0x2000, 0x1000], 0xFF0, 0x20, [(0x3FF0, 0x10), (0x2000, 0x10)]),
        ([0x5000, 0x6000, 0x1000], 0x800, 0x2000, [(0x5800, 0x1800), (0x1000, 0x800)]),
        ([0x9000, 0x1000, 0x2000], 0xFFF, 0x1001, [(0x9FFF, 1), (0x1000, 0x1000)]),
    ],
)
def test_pages_are_merged_where_they_touch(
    pages: list[int], va: int, size: int, segments: list[tuple[int, int]]
) -> None:
    assert resolve(key(mtts=packed(pages), length=0x3000), va, size) == segments


def test_first_page_may_begin_anywhere() -> None:
    lkey = key(start=0x7000_0F00, length=0x300, mtts=packed([0xA000, 0xC000]))
    assert resolve(lkey, 0x7000_0F80, 0x100) == [(0xAF80, 0x80), (0xC000, 0x80)]


def test_large_page_size() -> None:
    lkey = key(start=1 << 40, length=4 << 20, mtts=packed([2 << 21, 9 << 21]), log_page_size=21)
    assert resolve(lkey, (1 << 40) + (1 << 21) - 1, 2) == [((3 << 21) - 1, 1), (9 << 21, 1)]


@given(
    st.lists(st.integers(1, 40), min_size=4, max_size=4, unique=True), st.integers(0, 0x3FFF), st.integers(1, 0x4000)
)
def test_translation_is_that_of_each_byte(frames: list[int], va: int, size: int) -> None:
    size = min(size, 0x4000 - va)
    pages = [frame << 12 for frame in frames]
    segments = resolve(key(mtts=packed(pages), length=0x4000), va, size)
    flat = [addr + i for addr, length in segments for i in range(length)]
    assert flat == [pages[byte >> 12] + (byte & 0xFFF) for byte in range(va, va + size)]
    assert all(a + n != b for (a, n), (b, _) in itertools.pairwise(segments))


@pytest.mark.parametrize(
    ("fields", "va", "size", "right"),
    [
        ({"free": True}, 0, 1, LOCAL_READ),
        ({"pd": PD + 1}, 0, 1, LOCAL_READ),
        ({"qpn": 0x999}, 0, 1, LOCAL_READ),
        ({"rights": LOCAL_READ}, 0, 1, LOCAL_WRITE),
        ({}, 0x1000, 1, LOCAL_READ),
        ({}, 0xFFF, 2, LOCAL_READ),
        ({"start": 0x100}, 0xFF, 1, LOCAL_READ),
        ({"length": 1 << 64, "start": 0}, (1 << 64) - 1, 2, LOCAL_READ),
        ({"length": 0x3000}, 0x2000, 1, LOCAL_READ),
    ],
)
def test_refusals(fields: dict[str, object], va: int, size: int, right: int) -> None:
    lkey = key(**{"mtts": packed([0x1000]), "length": 0x1000, **fields})  # type: ignore[arg-type]
    with pytest.raises(AccessError) as caught:
        resolve(lkey, va, size, right)
    assert caught.value.kind == PROTECTION


def test_whole_space_ends_at_64_bits() -> None:
    lkey = key(MODE_PA, length64=True)
    assert resolve(lkey, (1 << 64) - 8, 8) == [((1 << 64) - 8, 8)]
    with pytest.raises(AccessError):
        resolve(lkey, (1 << 64) - 8, 9)


def ksms(*entries: tuple[int, int]) -> bytearray:
    return bytearray(b"".join(struct.pack(">4xIQ", *entry) for entry in entries))


def test_indirect_keys_walk_their_entries() -> None:
    inner = key(MODE_PA, length64=True)
    klm = key(MODE_KLM, start=100, length=60, klms=klms((10, inner, 0x5000), (0, 0, 0), (50, inner, 0x9000)))
    assert resolve(klm, 105, 20) == [(0x5005, 5), (0x9000, 15)]
    outer = key(MODE_KLM, length=20, klms=klms((20, klm, 105)))
    assert resolve(outer, 0, 20) == [(0x5005, 5), (0x9000, 15)]
    ksm = key(MODE_KSM, length=0x3000, ksms=ksms((inner, 0x8000), (inner, 0x4000), (inner, 0x5000)))
    assert resolve(ksm, 0xFFF, 0x1002) == [(0x8FFF, 1), (0x4000, 0x1000), (0x5000, 1)]


def test_indirect_key_that_names_itself_ends() -> None:
    lkey = key(MODE_KLM, length=8)
    mkey = HCA.mkeys.get(lkey >> 8)
    assert mkey is not None
    mkey.klms = klms((8, lkey, 0))
    with pytest.raises(AccessError, match="deeply"):
        resolve(lkey, 0, 8)


@pytest.mark.parametrize("entries", [[], [(4, 0, 0)], [(8, 0x12345600, 0)]])
def test_indirect_key_with_holes(entries: list[tuple[int, int, int]]) -> None:
    for mode in (MODE_KLM, MODE_KSM):
        with pytest.raises(AccessError):
            resolve(key(mode, length=8, klms=klms(*entries)), 0, 8)


def test_inner_key_must_grant_the_right_and_share_the_domain() -> None:
    for fields in ({"rights": LOCAL_READ}, {"pd": PD + 1}):
        inner = key(MODE_PA, length64=True, **fields)
        with pytest.raises(AccessError):
            resolve(key(MODE_KLM, length=8, klms=klms((8, inner, 0))), 0, 8, LOCAL_WRITE)


def test_gather_from_an_offset_and_scatter_across_entries() -> None:
    addr = END.buffer(bytes(range(100)))
    whole = END.card.key
    assert gather(HCA, END.qp, [(addr, 10, whole), (addr + 50, 10, whole)], 5, 10) == bytes(
        [*range(5, 10), *range(50, 55)]
    )
    assert gather(HCA, END.qp, [], 0, 0) == b""
    out: list[Effect] = []
    HCA.out = out
    scatter(HCA, END.qp, [(addr, 4, whole), (addr + 50, 10, whole)], 2, b"abcdef")
    assert [(e.addr, bytes(e.data)) for e in out if isinstance(e, DmaWrite)] == [
        (addr + 2, b"ab"),
        (addr + 50, b"cdef"),
    ]


def test_lists_that_are_too_short_and_memory_that_is_not_there() -> None:
    addr = END.buffer(10)
    whole = END.card.key
    for sges in ([(addr, 4, whole)], [(addr, 4, whole), (addr, 2, whole)]):
        with pytest.raises(AccessError) as caught:
            gather(HCA, END.qp, sges, 0, 8)
        assert caught.value.kind == TOO_SHORT
    with pytest.raises(AccessError) as caught:
        gather(HCA, END.qp, [(1 << 50, 8, whole)], 0, 8)
    assert caught.value.kind == BUS


def test_entities_count_from_the_start_of_their_key() -> None:
    """As UCX makes its keys: the start has any place in a page, and the entries are those places' addresses."""
    inner = key(MODE_PA, length64=True)
    lkey = key(
        MODE_KSM,
        start=0x7F3C_0000_0728,
        length=0x2498_D000,
        log_page_size=31,
        ksms=ksms((inner, 0x7F3C_0000_0000)),
    )
    assert resolve(lkey, 0x7F3C_2497_D728, 0x1_0000) == [(0x7F3C_2497_D000, 0x1_0000)]
    lkey = key(MODE_KSM, start=0x1800, length=0x3000, ksms=ksms((inner, 0xA000), (inner, 0xC010), (inner, 0xE000)))
    assert resolve(lkey, 0x1800, 0x2000) == [(0xA000, 0x1000), (0xC010, 0x1000)]
    assert resolve(lkey, 0x2900, 0x1000) == [(0xC110, 0xF00), (0xE000, 0x100)]
    whole = key(MODE_KSM, start=0x1800, length64=True, ksms=ksms((inner, 0)))
    for va in (0, 0x17FF, 0x2800):
        with pytest.raises(AccessError, match="no entry"):
            resolve(whole, va, 1)


def test_entities_of_less_than_a_page_are_refused() -> None:
    inner = key(MODE_PA, length64=True)
    lkey = key(MODE_KSM, length=1 << 18, log_page_size=0, ksms=ksms(*[(inner, at) for at in range(64)]))
    with pytest.raises(AccessError, match="4 KiB"):
        resolve(lkey, 0, 8)


def test_a_walk_ends_at_the_number_of_pieces_that_the_step_may_take() -> None:
    inner = key(MODE_PA, length64=True)
    crumbs = key(MODE_KLM, length=8 * 1024, klms=klms(*[(8, inner, at * 16) for at in range(1024)]))
    outer = key(MODE_KLM, length=8 * 1024, klms=klms((100, crumbs, 0), (8 * 1024 - 100, crumbs, 100)))
    # A list that is met on the way costs what a piece does.
    for lkey, lists in ((crumbs, 0), (outer, 2)):
        mkey = find_key(HCA, PD, END.qpn, lkey, 0, 4096, LOCAL_READ)
        before = HCA.pieces
        with pytest.raises(Crowded) as caught:
            translate(HCA, mkey, 0, 4096, LOCAL_READ, 100)
        assert HCA.pieces - before == 101
        fits = caught.value.covered
        # The border of the outer list cuts one piece in two.
        assert fits == (800 if lkey == crumbs else 776)
        assert len(translate(HCA, mkey, 0, fits, LOCAL_READ, 100)) == 100 - lists
        with pytest.raises(Crowded) as caught:
            gather(HCA, END.qp, [(0, 4, inner), (0, 4096, lkey)], 0, 4100, 100)
        assert caught.value.covered == fits - 8 + 4


def test_an_access_in_too_many_pieces_is_refused_while_it_is_walked() -> None:
    inner = key(MODE_PA, length64=True)
    crumbs = key(MODE_KLM, length=1 << 16, klms=klms(*[(1, inner, at * 2) for at in range(1 << 16)]))
    before = HCA.pieces
    with pytest.raises(AccessError, match="for this range") as caught:
        resolve(crumbs, 0, 1 << 13)
    assert not isinstance(caught.value, Crowded)
    assert HCA.pieces - before == 1024 + (1 << 10) + 1


def test_lists_and_entries_of_one_access_are_bounded_together() -> None:
    inner, place = key(MODE_PA, length64=True), WORLD.a.alloc(8192)
    crumbs = key(MODE_KLM, length=4096, klms=klms(*[(1, inner, place + 2 * at) for at in range(4096)]))
    for _ in range(2):
        crumbs = key(MODE_KLM, length=4096, klms=klms(*[(1, crumbs, at) for at in range(4096)]))
    short = [(64 * at, 64, crumbs) for at in range(64)]
    before = HCA.pieces
    with pytest.raises(AccessError, match="for this range") as caught:
        gather(HCA, END.qp, short, 0, 4096)
    assert not isinstance(caught.value, Crowded)
    with pytest.raises(AccessError, match="for this range") as caught:
        gather_pieces(HCA, END.qp, [b"", *short], 0, 4096)
    assert not isinstance(caught.value, Crowded)
    assert HCA.pieces - before < 2 * (1024 + 512 + 64)
    assert len(gather(HCA, END.qp, short[:4], 0, 256)) == 256


def test_an_access_does_not_look_through_the_lists_that_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    sizes_of = entries.klm_sizes

    def look(packed: bytes) -> "array[int]":
        looked.append(len(packed))
        return sizes_of(packed)

    monkeypatch.setattr(entries, "klm_sizes", look)
    mkey = Mkey(mode=MODE_KLM, klms=klms(*[(8, 0x100, 0)] * 1000, *[(0, 0, 0)] * 10_000, (8, 0x200, 0)))
    entries.prepare(mkey)
    assert looked == [16 * 11_001]
    assert list(entries.walk_klms(mkey, 7996, 8)) == [(0x100, 4, 4), (0x200, 0, 4)]
    # Another place is no other list.
    mkey.start = 8
    mkey.translation_changed()
    assert list(entries.walk_klms(mkey, 8, 1)) == [(0x100, 0, 1)]
    assert len(looked) == 1
    mkey.klms = klms((8, 0x300, 0))
    assert list(entries.walk_klms(mkey, 8, 1)) == [(0x300, 0, 1)]


@given(
    sizes=st.lists(st.integers(0, 20) | st.just(0), min_size=1, max_size=200),
    columns=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=4),
    strided=st.booleans(),
    start=st.integers(0, 1 << 40),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    most=st.integers(0, 40),
)
def test_lists_of_any_size_translate_byte_by_byte(
    sizes: list[int],
    columns: list[tuple[int, int]],
    strided: bool,
    start: int,
    cut: tuple[float, float],
    most: int,
) -> None:
    inner = key(MODE_PA, length64=True)
    if strided:
        rounds = len(sizes)
        size_of_round = sum(size for size, _ in columns)
        rows = [(size_of_round, REPEAT_BLOCK, rounds << 32 | len(columns))]
        rows += [(gap << 16 | size, inner, 0x10_0000 * number) for number, (size, gap) in enumerate(columns)]
        flat = [
            0x10_0000 * number + at * gap + byte
            for at in range(rounds)
            for number, (size, gap) in enumerate(columns)
            for byte in range(size)
        ]
    else:
        rows = [(size, inner, 0x1000 * number) for number, size in enumerate(sizes)]
        flat = [0x1000 * number + byte for number, size in enumerate(sizes) for byte in range(size)]
    mkey = HCA.mkeys.get(key(MODE_KLM, start=start, length=len(flat), klms=klms(*rows)) >> 8)
    assert mkey is not None
    first, last = sorted(int(part * len(flat)) for part in cut)
    if first < last:
        whole = translate(HCA, mkey, start + first, last - first, LOCAL_READ)
        assert [addr + byte for addr, size in whole for byte in range(size)] == flat[first:last]
        if len(whole) > most:
            with pytest.raises(Crowded) as caught:
                translate(HCA, mkey, start + first, last - first, LOCAL_READ, most)
            assert caught.value.covered == sum(size for _, size in whole[:most])
        else:
            assert translate(HCA, mkey, start + first, last - first, LOCAL_READ, most) == whole
    with pytest.raises(AccessError, match="end before"):
        translate(HCA, mkey, start + len(flat) - bool(flat), 2, LOCAL_READ)
    HCA.mkeys.remove(mkey)
