"""Loads for :mod:`tests.bench.bench_fairness`: what a guest can keep its card busy with, legitimate and hostile.

A load is a generator: up to its first `yield` it prepares, then each step makes some more work. `stage` has three
cards: `a` and `c` work, a third one is idle.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from tests.support.driver import PAGE, CommandFailed
from tests.support.remote import Q_KEY, UD, Op, RemoteDriver, RemoteQp, WqeOpcode, pair
from vhca.vfio_user import proto
from vhca.wire import mad as madwire
from vhca.wire.connectx import cmd
from vhca.wire.connectx.wqe import MkeyMask, RaddrSegment, UmrCtrlSegment
from vhca.wire.mad import SaMad

MIB = 1 << 20
KLM, KSM, MTT = 2, 3, 1
MULTICAST_QPN = 0xFFFFFF
MULTICAST_LID = 0xC000
BROADCAST = bytes.fromhex("ff12401bffff00000000000000000001")
QP1_KEY = 0x80010000


@dataclass
class Stage:
    """Two machines that work, and the LIDs of their ports; `start` makes another machine on a free card."""

    a: RemoteDriver
    c: RemoteDriver
    lids: dict[RemoteDriver, int]
    moved: Callable[[], int] = field(default=lambda: 0)


Load = Callable[[Stage], Iterator[None]]
LEGITIMATE: dict[str, Load] = {}
HOSTILE: dict[str, Load] = {}


def legitimate(name: str) -> Callable[[Load], Load]:
    """What a guest with a real program does."""
    return lambda load: LEGITIMATE.setdefault(name, load)


def hostile(name: str) -> Callable[[Load], Load]:
    """What only a guest would do that wants to stop its neighbours, or is broken."""
    return lambda load: HOSTILE.setdefault(name, load)


def keep_posted(queues: list[RemoteQp], opcode: int, segments: list[bytes]) -> Iterator[None]:
    """Keep every ring at least half full."""
    posted = [0] * len(queues)
    while True:
        for number, qp in enumerate(queues):
            size = 1 << qp.log_sq
            blocks = -(-(16 + len(segments[number])) // 64)
            room = size - (qp.posted - qp.executed() if qp.posted else 0)
            if room >= size // 2:
                count = max(1, room // blocks - 1)
                qp.post(opcode, segments[number], count)
                posted[number] += count
            yield


def stream(count: int, size: int, *, loopback: bool = False, log_sq: int = 9) -> Load:
    """`count` queue pairs that WRITE messages of `size` bytes without a pause."""

    def load(stage: Stage) -> Iterator[None]:
        a, c = stage.a, stage.a if loopback else stage.c
        source, target = a.alloc(size), c.alloc(size)
        pairs = [pair(a, c, stage.lids, log_sq=log_sq) for _ in range(count)]
        left = [one for one, _ in pairs]
        stage.moved = lambda: sum(qp.executed() for qp in left) * size
        yield
        yield from keep_posted(left, WqeOpcode.RDMA_WRITE, [qp.write(source, size, target, c.key) for qp in left])

    return load


LEGITIMATE |= {
    "1 QP, WRITE 64 KiB": stream(1, 64 << 10),
    "4 QPs, WRITE 64 KiB": stream(4, 64 << 10),
    "8 QPs, WRITE 1 MiB": stream(8, MIB),
    "16 QPs, WRITE 1 MiB": stream(16, MIB),
    "8 QPs, WRITE 64 MiB to itself": stream(8, 64 * MIB, loopback=True, log_sq=6),
    "16 QPs, WRITE 64 B": stream(16, 64, log_sq=12),
}


@legitimate("8 QPs, READ 1 MiB")
def reads(stage: Stage) -> Iterator[None]:
    a, c = stage.a, stage.c
    local, remote = a.alloc(MIB), c.alloc(MIB)
    left = [pair(a, c, stage.lids, log_sq=8)[0] for _ in range(8)]
    stage.moved = lambda: sum(qp.executed() for qp in left) * MIB
    yield
    yield from keep_posted(left, WqeOpcode.RDMA_READ, [qp.write(local, MIB, remote, c.key) for qp in left])


@legitimate("8 QPs, UD 2 KiB")
def datagrams(stage: Stage) -> Iterator[None]:
    a, c = stage.a, stage.c
    receiver = RemoteQp(c, UD, log_sq=4, log_rq=12)
    receiver.connect(0, 0)
    place = c.alloc(4096)
    senders = [RemoteQp(a, UD, log_sq=10) for _ in range(8)]
    for qp in senders:
        qp.connect(0, 0)
    source = a.alloc(4096)
    segments = [qp.address(stage.lids[c], receiver.number) + qp.sge(source, 2048) for qp in senders]
    yield
    posted = 1 << 12
    steps = keep_posted(senders, WqeOpcode.SEND, segments)
    while True:
        receiver.receives(posted, place, 4096)
        posted += 1 << 10
        next(steps)
        yield


@hostile("16 QPs, WRITE through entries of 8 bytes")
def tiny_entries(stage: Stage) -> Iterator[None]:
    a, c = stage.a, stage.c
    size = 256 << 10
    source, target = a.alloc(size), c.alloc(size)
    entries = b"".join(struct.pack(">IIQ", 8, a.key, source + 8 * at) for at in range(size // 8))
    key = a.create_key(KLM, entries, len=size)
    left = [pair(a, c, stage.lids, log_sq=8)[0] for _ in range(16)]
    yield
    yield from keep_posted(left, WqeOpcode.RDMA_WRITE, [qp.write(0, size, target, c.key, key) for qp in left])


@hostile("16 QPs, WRITE into entries of 8 bytes")
def tiny_targets(stage: Stage) -> Iterator[None]:
    a, c = stage.a, stage.c
    size = 256 << 10
    source, target = a.alloc(size), c.alloc(size)
    entries = b"".join(struct.pack(">IIQ", 8, c.key, target + 8 * at) for at in range(size // 8))
    key = c.create_key(KLM, entries, len=size)
    left = [pair(a, c, stage.lids, log_sq=8)[0] for _ in range(16)]
    yield
    yield from keep_posted(left, WqeOpcode.RDMA_WRITE, [qp.write(source, size, 0, key) for qp in left])


@hostile("READ of 256 MiB, then a bad key behind it")
def refused_read(stage: Stage) -> Iterator[None]:
    a, c = stage.a, stage.c
    size = 256 * MIB
    local, remote = a.alloc(size), c.alloc(size)
    yield
    while True:
        left, right = pair(a, c, stage.lids, log_sq=6)
        left.post(WqeOpcode.RDMA_READ, left.write(local, size, remote, c.key), 8, ring=False)
        left.post(WqeOpcode.RDMA_WRITE, left.write(local, 8, remote, 0x666600))
        for _ in range(20):
            yield
            left.executed()
        for driver, qp in ((a, left), (c, right)):
            driver.run(Op.DESTROY_QP, cmd.DestroyQpIn(qpn=qp.number))


@hostile("CREATE_MKEY with 2 Mi pages, four at once")
def huge_keys(stage: Stage) -> Iterator[None]:
    a = stage.a
    pages = 1 << 21
    view = cmd.CreateMkeyIn(translations_octword_actual_size=pages // 2)
    context = view.memory_key_mkey_entry
    context.access_mode_1_0, context.pd, context.qpn, context.log_page_size = MTT, a.pd, 0xFFFFFF, 12
    context.len, context.lr, context.translations_octword_size = pages << 12, 1, pages // 2
    data = bytearray(view.to_bytes() + bytes(8 * pages - view.SIZE))
    data[0:2] = int(Op.CREATE_MKEY).to_bytes(2, "big")
    a._in_box = a.alloc(2 * len(data) + MIB)
    a._mailboxes(a._in_box, bytes(data[16:]))
    a.post(bytes(data[:16]), 16)
    entry = bytearray(64)
    entry[0], entry[0x3C] = 7, 0x5A
    entry[4:8] = len(data).to_bytes(4, "big")
    entry[8:16] = a._in_box.to_bytes(8, "big")
    entry[16:32] = data[:16]
    entry[0x38:0x3C] = (16).to_bytes(4, "big")
    yield
    slots = [a.queue + (slot << 6) for slot in range(1, 5)]
    while True:
        if not any(a.memory.data[slot + 0x3F] & 1 for slot in slots):
            entry[0x3F] = 1
            for slot in slots:
                a.memory.write(slot, entry)
            a.bar_write(0x18, (0b11110).to_bytes(4, "big"))
        yield


@hostile("8 QPs in error, rings of 32,768 rung again")
def flushes(stage: Stage) -> Iterator[None]:
    a = stage.a
    left = [RemoteQp(a, log_sq=15) for _ in range(8)]
    for qp in left:
        qp.connect(stage.lids[stage.c], 0x99)
        qp.modify(Op.QP_2ERR)
    yield
    while True:
        for qp in left:
            qp.posted += 1 << 15
            qp.ring()
            yield


@hostile("200 doorbells for 1 MiB each in one message burst")
def doorbell_burst(stage: Stage) -> Iterator[None]:
    a, c = stage.a, stage.c
    source, target = a.alloc(MIB), c.alloc(MIB)
    left = pair(a, c, stage.lids, log_sq=9)[0]
    segments = left.write(source, MIB, target, c.key)
    yield
    while True:
        if left.posted - (left.executed() if left.posted else 0) < 256:
            messages = b""
            for _ in range(200):
                left.post(WqeOpcode.RDMA_WRITE, segments, ring=False)
                a.memory.write(left.record + 4, (left.posted & 0xFFFF).to_bytes(4, "big"))
                messages += _posted_write(a.uar * PAGE + 0x800, left.doorbell())
            a.client.sock.sendall(messages)
        yield


@hostile("doorbells of unknown queues without a pause")
def doorbell_flood(stage: Stage) -> Iterator[None]:
    a = stage.a
    flood = _posted_write(a.uar * PAGE + 0x800, bytes(4) + b"\x12\x34\x56\1") * 2000
    yield
    while True:
        a.client.sock.sendall(flood)
        yield


@hostile("register writes of the init segment without a pause")
def register_flood(stage: Stage) -> Iterator[None]:
    flood = _posted_write(0x1FC, bytes(4)) * 2000
    yield
    while True:
        stage.a.client.sock.sendall(flood)
        yield


@hostile("multicast to 240 members, 16 QPs")
def multicast(stage: Stage) -> Iterator[None]:
    a = stage.a
    place = a.alloc(4096)
    for _ in range(240):
        member = RemoteQp(a, UD, log_sq=4, log_rq=10)
        member.connect(0, 0)
        member.receives(1 << 10, place, 4096)
        a.run(Op.ATTACH_TO_MCG, cmd.AttachToMcgIn(qpn=member.number, multicast_gid=BROADCAST))
    senders = [RemoteQp(a, UD, log_sq=8) for _ in range(16)]
    for qp in senders:
        qp.connect(0, 0)
    segments = [qp.address(MULTICAST_LID, MULTICAST_QPN, BROADCAST) + qp.sge(place, 256) for qp in senders]
    yield
    yield from keep_posted(senders, WqeOpcode.SEND, segments)


@hostile("UMR without a change on a key of 1 Mi pages")
def empty_umr(stage: Stage) -> Iterator[None]:
    a, c = stage.a, stage.c
    pages = 1 << 16
    scattered = [at << 13 & (1 << 24) - 1 for at in range(pages)]
    key = a.create_key(MTT, b"".join(page.to_bytes(8, "big") for page in scattered), len=pages << 12, log_page_size=12,
                       umr_en=1)  # fmt: skip
    left = [pair(a, c, stage.lids, log_sq=8)[0] for _ in range(4)]
    target = c.alloc(4096)
    umr = UmrCtrlSegment(mkey_mask=1 << MkeyMask.FREE).to_bytes() + bytes(64)
    yield
    while True:
        for qp in left:
            if qp.posted - (qp.executed() if qp.posted else 0) < 128:
                for _ in range(16):
                    qp.post(WqeOpcode.UMR, umr, ring=False)
                    qp.post(WqeOpcode.RDMA_WRITE, qp.write(0, 8, target, c.key, key), ring=False)
                qp.ring()
            yield


@hostile("WRITE through the smallest entries of one size (KSM)")
def smallest_entries(stage: Stage) -> Iterator[None]:
    a, c = stage.a, stage.c
    for log_size in (0, 12):
        size = max(64 << 10, MIB >> 12 << log_size)
        source, target = a.alloc(size), c.alloc(size)
        entries = b"".join(struct.pack(">IIQ", 0, a.key, source + at) for at in range(0, size, 1 << log_size))
        with suppress(CommandFailed):
            key = a.create_key(KSM, entries, len=size, log_page_size=log_size)
            break
    left = [pair(a, c, stage.lids, log_sq=8)[0] for _ in range(4)]
    yield
    while True:
        for qp in left:
            qp.post(WqeOpcode.RDMA_WRITE, qp.write(0, size, target, c.key, key))
            yield
            qp.executed()


@hostile("GetTable and joins to the administration, 64 at a time")
def administration(stage: Stage) -> Iterator[None]:
    a = stage.a
    qp = RemoteQp(a, UD, log_sq=9)
    qp.connect(0, 0)
    box = a.alloc(64 * PAGE)
    for number in range(64):
        request = SaMad(base_version=1, mgmt_class=madwire.CLASS_SUBN_ADM, class_version=2, tid=number + 1,
                        method=madwire.METHOD_GET_TABLE, attr_id=0x35 if number & 1 else 0x31)  # fmt: skip
        a.memory.write(box + number * PAGE, request.to_bytes())
    yield
    while True:
        if qp.posted - (qp.executed() if qp.posted else 0) < 128:
            for number in range(64):
                qp.post(WqeOpcode.SEND, qp.address(1, 1, q_key=QP1_KEY) + qp.sge(box + number * PAGE, 256), ring=False)
            qp.ring()
        yield


@hostile("objects made and destroyed without a pause")
def objects(stage: Stage) -> Iterator[None]:
    a = stage.a
    yield
    while True:
        qp = RemoteQp.__new__(RemoteQp)
        saved = a._next
        RemoteQp.__init__(qp, a, log_sq=15)
        qp.connect(stage.lids[stage.c], 0x99)
        qp.posted = 1 << 15
        qp.ring()
        cqn = qp.context().cqn_snd
        a.run(Op.DESTROY_QP, cmd.DestroyQpIn(qpn=qp.number))
        a.run(Op.DESTROY_CQ, cmd.DestroyCqIn(cqn=cqn))
        a._next = saved
        yield


@hostile("100,000 keys, then made and destroyed")
def many_keys(stage: Stage) -> Iterator[None]:
    a = stage.a
    keys = [a.create_key(MTT, bytes(16), len=4096, log_page_size=12) for _ in range(100_000)]
    yield
    while True:
        a.run(Op.DESTROY_MKEY, cmd.DestroyMkeyIn(mkey_index=keys.pop() >> 8))
        keys.append(a.create_key(MTT, bytes(16), len=4096, log_page_size=12))
        yield


def _posted_write(offset: int, data: bytes) -> bytes:
    head = proto.REGION_ACCESS.pack(offset, 0, len(data))
    return proto.request(0, proto.Command.REGION_WRITE, head + data, no_reply=True)


__all__ = ["HOSTILE", "LEGITIMATE", "Q_KEY", "RaddrSegment", "Stage"]
