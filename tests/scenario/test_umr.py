"""Registration by work request: fast registration, invalidation, windows, and the registration queue."""

import struct

import pytest

from firmware.memory import AccessError, direct, translate
from firmware.model.objects import LOCAL_READ, LOCAL_WRITE, MODE_KLM, REPEAT_BLOCK, Mkey
from firmware.model.pages import packed
from tests.scenario.registration import (
    LENGTH,
    PAGES,
    REGISTER,
    START,
    entries,
    free_key,
    register,
    registration_queue,
    umr,
    used_key,
)
from tests.scenario.world import ERR, ST_RC, ST_REG_UMR, End, World, packed_klms, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.mkey import Klm
from vhca.wire.connectx.wqe import MkeyMask, WqeOpcode


def loaded(mkey: Mkey) -> list[int]:
    """The pages of a key's entries."""
    return [entry & ~0xFFF for (entry,) in struct.iter_unpack(">Q", mkey.mtts)]


@pytest.mark.parametrize("inline", [True, False])
def test_fast_registration_translates_scattered_pages(inline: bool) -> None:
    world, a, b = pair()
    mkey = free_key(world.b)
    area = world.b.alloc(LENGTH)
    order = [2, 0, 3, 1]
    register(b, mkey, [area + 4096 * page for page in order], inline=inline)
    assert [c.syndrome for c in b.send_cq.poll()] == [0]
    content = some_bytes(LENGTH - 200)
    a.write(a.buffer(content), len(content), START + 100, mkey.handle << 8 | 0x11)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    seen = b"".join(b.peek(area + 4096 * page, 4096) for page in order)
    assert seen[100:-100] == content


def test_local_invalidate_ends_the_use_of_a_key() -> None:
    world, a, b = pair()
    mkey = free_key(world.b)
    register(b, mkey, [world.b.alloc(4096) for _ in range(PAGES)])
    rkey = mkey.handle << 8 | 0x11
    a.write(a.buffer(8), 8, START, rkey)
    world.settle()
    umr(b, mkey, mask=1 << MkeyMask.FREE, free=1)
    assert mkey.free
    assert mkey.variant == 0x11
    a.write(a.buffer(8), 8, START, rkey)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.REMOTE_ACCESS_ERR]


@pytest.mark.parametrize(
    ("mistake", "syndrome"),
    [
        ("not_enabled", CqeSyndrome.MW_BIND_ERR),
        ("in_use", CqeSyndrome.MW_BIND_ERR),
        ("domain", CqeSyndrome.MW_BIND_ERR),
        ("capacity", CqeSyndrome.MW_BIND_ERR),
        ("page_size", CqeSyndrome.MW_BIND_ERR),
        ("move", CqeSyndrome.MW_BIND_ERR),
        ("offset", CqeSyndrome.MW_BIND_ERR),
    ],
)
def test_refused_registration_changes_nothing(mistake: str, syndrome: int) -> None:
    world, _, b = pair()
    pages = [world.b.alloc(4096) for _ in range(PAGES)]
    more: dict[str, object] = {}
    if mistake == "not_enabled":
        mkey = free_key(world.b, umr_en=0)
    elif mistake == "domain":
        mkey = free_key(world.b, pd=world.b.alloc_pd())
    else:
        mkey = used_key(world.b) if mistake == "in_use" else free_key(world.b)
    if mistake == "capacity":
        pages = pages * 3
    elif mistake == "page_size":
        more["log_page_size"] = 11
    elif mistake == "move":
        more |= {"mask": REGISTER | 1 << MkeyMask.PD, "pd": 99}
    elif mistake == "offset":
        more["offset"] = 2
    before = (mkey.free, mkey.variant, mkey.rights, bytes(mkey.mtts), mkey.pd)
    register(b, mkey, pages, **more)
    assert [c.syndrome for c in b.send_cq.poll()] == [syndrome]
    assert (mkey.free, mkey.variant, mkey.rights, bytes(mkey.mtts), mkey.pd) == before
    assert b.qp.state == ERR


def test_unknown_key_and_cut_wqe() -> None:
    for payload, syndrome in ((b"", CqeSyndrome.MW_BIND_ERR), (None, CqeSyndrome.LOCAL_QP_OP_ERR)):
        _, a, _ = pair()
        if payload is None:
            a.post(WqeOpcode.UMR, bytes(48))
        else:
            umr(a, 0x7777, mask=0)
        assert [c.syndrome for c in a.send_cq.poll()] == [syndrome]


def test_registration_queue_works_across_domains_and_keeps_count_of_them() -> None:
    world = World()
    queue = End(world.a, ST_REG_UMR, has_rq=False, pd=0)
    queue.connect(queue)
    own, other = (world.a.hca.pds.get(number) for number in (world.a.pd, world.a.alloc_pd()))
    assert own is not None
    assert other is not None
    mkey = free_key(world.a, pd=other.handle)
    assert other.refs == 1
    pages = [world.a.alloc(4096) for _ in range(PAGES)]
    register(queue, mkey, pages, inline=False)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0]
    assert (mkey.free, loaded(mkey)[:PAGES]) == (False, pages)
    # Revoke: back to the registration queue's domain, and free.
    refs = own.refs
    umr(queue, mkey, mask=1 << MkeyMask.FREE | 1 << MkeyMask.PD, free=1, pd=world.a.pd)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0]
    assert (mkey.free, mkey.pd, other.refs, own.refs) == (True, world.a.pd, 0, refs + 1)


def test_registration_queue_refuses_everything_else() -> None:
    world = World()
    queue = registration_queue(world.a)
    queue.send(queue.buffer(8), 8)
    assert [c.syndrome for c in queue.send_cq.poll()] == [CqeSyndrome.LOCAL_QP_OP_ERR]


def test_translation_offset_changes_a_part_of_the_table() -> None:
    world = World()
    queue = registration_queue(world.a)
    mkey = free_key(world.a, octwords=16, entries=packed(0x1000 * (n + 1) for n in range(32)), len=32 << 12)
    umr(queue, mkey, mask=0, payload=entries([0xA000] * 8), offset=4, inline=False)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0]
    assert loaded(mkey) == [0x1000 * (n + 1) for n in range(8)] + [0xA000] * 8 + [
        0x1000 * (n + 1) for n in range(16, 32)
    ]


WINDOW = 1 << MkeyMask.FREE | 1 << MkeyMask.KEY | 1 << MkeyMask.LEN | 1 << MkeyMask.START_ADDR
WINDOW |= 1 << MkeyMask.RR | 1 << MkeyMask.RW | 1 << MkeyMask.QPN


def bind(end: End, window: Mkey, region_key: int, addr: int, size: int, **more: int) -> int:
    entry = Klm(bcount=size, key=region_key, va=addr).to_bytes() + bytes(48)
    args = {"mask": WINDOW, "start_addr": addr, "len": size, "rr": 1, "rw": 1, "qpn": 0xFFFFFF, **more}
    return umr(end, window, payload=entry, **args)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [1, 2])
def test_window_shows_a_part_of_a_region_to_its_peer(kind: int) -> None:
    world, a, b = pair()
    region = b.buffer(8192)
    window = free_key(world.b, MODE_KLM)
    bind(b, window, b.card.register(region, 8192), region + 1000, 500, qpn=b.qpn if kind == 2 else 0xFFFFFF)
    assert [c.syndrome for c in b.send_cq.poll()] == [0]
    rkey = window.handle << 8 | 0x11
    a.write(a.buffer(b"w" * 500), 500, region + 1000, rkey)
    world.settle()
    assert b.peek(region + 999, 502) == b"\0" + b"w" * 500 + b"\0"
    a.write(a.buffer(2), 2, region + 1499, rkey)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, CqeSyndrome.REMOTE_ACCESS_ERR]


def test_window_of_type_2_is_for_its_queue_pair_alone() -> None:
    world, _, b = pair()
    left, right = End(world.a, ST_RC), End(world.b, ST_RC)
    left.connect(right)
    right.connect(left)
    region = b.buffer(4096)
    window = free_key(world.b, MODE_KLM)
    bind(b, window, b.card.register(region, 4096), region, 100, qpn=b.qpn)
    left.write(left.buffer(8), 8, region, window.handle << 8 | 0x11)
    world.settle()
    assert [c.syndrome for c in left.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]


@pytest.mark.parametrize("mistake", ["read_only", "range", "key"])
def test_window_beyond_its_region_is_a_bind_error(mistake: str) -> None:
    world, _, b = pair()
    region = b.buffer(4096)
    key = world.b.register(region, 4096, LOCAL_READ if mistake == "read_only" else LOCAL_READ | LOCAL_WRITE)
    window = free_key(world.b, MODE_KLM)
    bind(b, window, key + 0x100 if mistake == "key" else key, region + (4000 if mistake == "range" else 0), 200)
    assert [c.syndrome for c in b.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]
    assert window.free


def test_unbind_is_for_the_queue_pair_that_the_window_is_bound_to() -> None:
    world, _, b = pair()
    left, right = End(world.a, ST_RC), End(world.b, ST_RC)
    left.connect(right)
    right.connect(left)
    region = b.buffer(4096)
    window = free_key(world.b, MODE_KLM)
    bind(b, window, b.card.register(region, 4096), region, 100, qpn=b.qpn)
    umr(right, window, mask=1 << MkeyMask.FREE, free=1, check_qpn=1)
    assert [c.syndrome for c in right.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]
    assert not window.free
    umr(b, window, mask=1 << MkeyMask.FREE, free=1, check_qpn=1)
    assert [c.syndrome for c in b.send_cq.poll()] == [0, 0]
    assert window.free


def strided(columns: list[tuple[int, int, int, int]], rounds: int) -> bytes:
    """A repeat block and its columns (bytes, stride, key, address)."""
    total = sum(size for size, _, _, _ in columns)
    raw = struct.pack(">IIIHH", total, REPEAT_BLOCK, rounds, 0, len(columns))
    raw += b"".join(struct.pack(">HHIQ", stride, size, key, addr) for size, stride, key, addr in columns)
    return raw + bytes(-len(raw) % 64)


def configure(end: End, mkey: Mkey, payload: bytes, length: int) -> int:
    """What user space posts to lay an indirect key of its own out: no start address, rights of a local key."""
    mask = sum(1 << bit for bit in (MkeyMask.LEN, MkeyMask.KEY, MkeyMask.LW, MkeyMask.RW, MkeyMask.FREE))
    return umr(end, mkey, mask=mask, payload=payload, variant=0x10, len=length, lw=1, rw=1, qpn=0xFFFFFF)


def test_a_strided_layout_is_read_round_and_round() -> None:
    world, a, b = pair()
    mkey = free_key(world.b, MODE_KLM, octwords=4)
    first, second = b.buffer(b"." * 64), b.buffer(b"." * 64)
    configure(b, mkey, strided([(8, 10, world.b.key, first), (4, 6, world.b.key, second)], 3), 36)
    assert [c.syndrome for c in b.send_cq.poll()] == [0]
    content = bytes(range(65, 65 + 36))
    a.write(a.buffer(content), 30, 6, mkey.handle << 8 | 0x10)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert b.peek(first, 28) == b"......AB" + b".." + content[6:14] + b".." + content[18:26]
    assert b.peek(second, 16) == content[2:6] + b".." + content[14:18] + b".." + content[26:30]
    a.read(a.buffer(64), 37, 0, mkey.handle << 8 | 0x10)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]


@pytest.mark.parametrize(
    ("columns", "rounds", "change"),
    [
        ([(8, 8, 0, 0)], 0, None),
        ([(0, 8, 0, 0)], 1, None),
        ([], 1, None),
        ([(8, 8, 0, 0)], 1, (0, 9)),
        ([(8, 8, 0, 0)], 1, (12, 9)),
        ([(8, 8, 0, 0xFFFFFFFFFFFFFFFF)], 2, None),
    ],
)
def test_strided_layouts_that_make_no_sense(
    columns: list[tuple[int, int, int, int]], rounds: int, change: tuple[int, int] | None
) -> None:
    world, _, b = pair()
    mkey = free_key(world.b, MODE_KLM, octwords=8)
    region = world.b.register(b.buffer(4096), 4096)
    payload = bytearray(strided([(size, stride, region, addr) for size, stride, _, addr in columns], rounds))
    if change is not None:
        payload[change[0] : change[0] + 4] = change[1].to_bytes(4, "big")
    configure(b, mkey, bytes(payload), 8)
    assert [c.syndrome for c in b.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]
    assert mkey.free


def test_a_stale_repeat_block_ends_an_access_and_not_the_card() -> None:
    """Made by a command, not by a checked request: rounds of nothing must not be walked."""
    world, a, _ = pair()
    for klms in (
        [(0, REPEAT_BLOCK, 0xFFFFFFFF << 32 | 1), (8 << 16, world.b.key, 0)],
        [(8, REPEAT_BLOCK, 0xFFFFFFFF << 32 | 1), (8 << 16, world.b.key, 0)],
        [(8, REPEAT_BLOCK, 0 << 32 | 1), (8 << 16 | 8, world.b.key, 0)],
    ):
        key = world.b.create_key(MODE_KLM, packed_klms(*klms), len=1 << 20)
        with pytest.raises(AccessError):
            translate(world.b.hca, world.b.mkey(key), 0, 64, LOCAL_WRITE)
    a.write(a.buffer(8), 8, 0, key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]


def test_local_invalidate_of_a_key_that_no_queue_pair_owns() -> None:
    """User space invalidates its indirect keys with a check of the owner; such a key has none."""
    world, _, b = pair()
    mkey = free_key(world.b, MODE_KLM)
    configure(b, mkey, struct.pack(">IIQ", 64, world.b.key, b.buffer(64)) + bytes(48), 64)
    umr(b, mkey, mask=1 << MkeyMask.FREE | 1 << MkeyMask.QPN, free=1, check_qpn=1, qpn=0xFFFFFF,
        variant=mkey.variant)  # fmt: skip
    assert [c.syndrome for c in b.send_cq.poll()] == [0, 0]
    assert mkey.free


def test_a_registration_that_moves_nothing_keeps_what_is_known_of_the_pages() -> None:
    world = World()
    queue = registration_queue(world.a)
    mkey = free_key(world.a, octwords=16)
    register(queue, mkey, [0x10000 + 0x1000 * page for page in range(PAGES)])
    assert direct(mkey, START + 5) == 0x10005
    for mask, fields in ((0, {}), (1 << MkeyMask.FREE, {"free": 1}), (1 << MkeyMask.LR, {}),
                         (1 << MkeyMask.START_ADDR, {"start_addr": START})):  # fmt: skip
        umr(queue, mkey, mask=mask, **fields)  # type: ignore[arg-type]
        assert mkey.surveyed, "the pages were looked at in vain"
    for mask, fields in ((1 << MkeyMask.START_ADDR, {"start_addr": START + 0x1000}), (1 << MkeyMask.LEN, {"len": 5})):
        umr(queue, mkey, mask=mask, **fields)  # type: ignore[arg-type]
        assert not mkey.surveyed
        assert direct(mkey, START + 0x1000) == 0x10000
    umr(queue, mkey, mask=0, payload=entries([0x50000] * PAGES))
    assert direct(mkey, START + 0x1001) == 0x50001


@pytest.mark.parametrize("mask", [1 << MkeyMask.FREE, 1 << MkeyMask.FREE | 1 << MkeyMask.KEY])
def test_a_key_is_taken_back_by_its_present_name_only(mask: int) -> None:
    world, _, b = pair()
    mkey = free_key(world.b)
    register(b, mkey, [world.b.alloc(4096) for _ in range(PAGES)])
    register(b, mkey, [world.b.alloc(4096) for _ in range(PAGES)], variant=0x12, check_free=0)
    # The name of the registration before that.
    umr(b, mkey, mask=mask, free=1, variant=0x11)
    assert [c.syndrome for c in b.send_cq.poll()] == [0, 0, CqeSyndrome.MW_BIND_ERR]
    assert (mkey.free, mkey.variant) == (False, 0x12)
