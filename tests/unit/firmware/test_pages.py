"""Packed page lists."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware.memory import SURVEY_ENTRIES, direct, translate
from firmware.model.objects import LOCAL_WRITE, MODE_MTT, Mkey
from firmware.model.pages import PRESENT, all_present, contiguous, packed, page_at, pages_of
from firmware.model.queue_buffer import QueueBuffer
from tests.scenario.world import World

PAGE = 4096


@given(st.lists(st.integers(0, (1 << 52) - 1), max_size=40), st.integers(0, 0xFFF))
def test_a_list_says_what_was_put_in(frames: list[int], low_bits: int) -> None:
    entries = packed(frame << 12 | low_bits for frame in frames)
    assert pages_of(entries) == [frame << 12 for frame in frames]
    assert [page_at(entries, at) for at in range(len(frames))] == [frame << 12 for frame in frames]
    assert pages_of(all_present(entries)) == pages_of(entries)
    assert set(all_present(entries)[7::8]) <= {PRESENT}


@given(
    count=st.sampled_from([1, 2, 3, 511, 512, 513, 1100]),
    log_page=st.sampled_from([12, 16, 30]),
    head=st.integers(0, (1 << 30) - 1),
    wrong=st.integers(0, 1099),
    by=st.sampled_from([0, -1, 1, 1 << 51]),
)
def test_contiguous_is_what_a_look_at_each_page_says(count: int, log_page: int, head: int, wrong: int, by: int) -> None:
    pages = [(head << log_page) + (at << log_page) for at in range(count)]
    if wrong < count:
        pages[wrong] = (pages[wrong] + (by << 12)) % (1 << 64)
    # A list whose pages end behind the last address is followed page by page.
    follow = pages[0] + (count << log_page) <= 1 << 64
    follow = follow and all(pages[at + 1] - pages[at] == 1 << log_page for at in range(count - 1))
    assert contiguous(packed(pages), log_page) is follow
    # Low bits are no address, but they say what is there if that is asked.
    assert contiguous(packed(page | 3 for page in pages), log_page, present=True) is follow
    assert not contiguous(packed(page | (3 if at else 1) for at, page in enumerate(pages)), log_page, present=True)


def test_pages_at_the_end_of_the_address_space_do_not_go_on_at_its_start() -> None:
    assert contiguous(packed([(1 << 64) - 2 * PAGE, (1 << 64) - PAGE]), 12)
    assert not contiguous(packed([(1 << 64) - PAGE, 0]), 12)
    assert not contiguous(b"", 12)


def region(pages: list[int], **fields: object) -> Mkey:
    return Mkey(**{"mode": MODE_MTT, "length": len(pages) * PAGE, "mtts": packed(pages), **fields})  # type: ignore[arg-type]


def test_each_access_looks_at_a_part_of_a_long_list() -> None:
    count = 2 * SURVEY_ENTRIES
    mkey = region([0x10_0000 + at * PAGE for at in range(count)])
    looks = 0
    while not mkey.surveyed:
        before = mkey.looked_at
        assert direct(mkey, 5 * PAGE) in (-1, 0x10_0000 + 5 * PAGE)
        assert mkey.looked_at - before <= SURVEY_ENTRIES
        looks += 1
    assert looks == 3
    assert direct(mkey, 5 * PAGE) == 0x10_0000 + 5 * PAGE


def test_a_gap_between_two_looks_is_seen() -> None:
    pages = [0x10_0000 + at * PAGE for at in range(2 * SURVEY_ENTRIES)]
    pages[SURVEY_ENTRIES:] = [page + PAGE for page in pages[SURVEY_ENTRIES:]]
    mkey = region(pages)
    while not mkey.surveyed:
        direct(mkey, 0)
    assert direct(mkey, 0) == -1
    hca = World(1 << 20).a.hca
    last = SURVEY_ENTRIES * PAGE - 8
    assert translate(hca, mkey, last, 16, LOCAL_WRITE) == [(pages[SURVEY_ENTRIES - 1] + PAGE - 8, 8),
                                                           (pages[SURVEY_ENTRIES], 8)]  # fmt: skip
    assert hca.pieces == 1


def test_a_queue_keeps_no_list_of_contiguous_pages() -> None:
    assert QueueBuffer(packed(range(0, 64 * PAGE, PAGE)), 12, 0, 64 * PAGE).list_bytes == 0
    assert QueueBuffer(packed([PAGE, 0]), 12, 0, 2 * PAGE).list_bytes == 16


@pytest.mark.parametrize("scattered", [False, True])
def test_a_page_takes_eight_bytes(scattered: bool) -> None:
    count = 100_000
    raw = b"".join((at * (2 if scattered else 1) * PAGE).to_bytes(8, "big") for at in range(count))
    tracemalloc.start()
    try:
        mkey = Mkey(mode=MODE_MTT, length=count * PAGE, mtts=bytes(memoryview(raw)))
        hca = World(1 << 20).a.hca
        tracemalloc.clear_traces()
        for at in range(0, count * PAGE, 1 << 20):
            direct(mkey, at)
            translate(hca, mkey, at, PAGE, LOCAL_WRITE)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
