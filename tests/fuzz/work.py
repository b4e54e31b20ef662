"""Work requests as a driver writes them: every opcode with segments that mostly make sense."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.fuzz.book import TEARDOWN, Item
from tests.fuzz.mischief import WILD_SIZES, wild_address, wild_word
from tests.fuzz.world import Host
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.mkey import Mkc
from vhca.wire.connectx.wqe import (
    AtomicSegment,
    CtrlSegment,
    DatagramSegment,
    DataSegment,
    MkeyMask,
    NextSegment,
    RaddrSegment,
    UmrCtrlSegment,
    WqeOpcode,
    XrcSegment,
)

if TYPE_CHECKING:
    from tests.fuzz.moves import Turn

DESTROYS = [
    *((kind, int(op)) for kind, op in TEARDOWN if kind not in ("uar", "memic")),
    ("srq", int(Op.DESTROY_XRC_SRQ)),
]
QUERIES = [
    ("qp", int(Op.QUERY_QP)),
    ("cq", int(Op.QUERY_CQ)),
    ("eq", int(Op.QUERY_EQ)),
    ("mkey", int(Op.QUERY_MKEY)),
    ("srq", int(Op.QUERY_RMP)),
    ("srq", int(Op.QUERY_XRC_SRQ)),
    ("q_counter", int(Op.QUERY_Q_COUNTER)),
]

_UC, _UD, _QP0, _QP1, _REG_UMR, _XRC = 1, 2, 7, 8, 0xC, 3
_PLAIN = (
    WqeOpcode.SEND, WqeOpcode.SEND_IMM, WqeOpcode.SEND_INVAL, WqeOpcode.RDMA_WRITE, WqeOpcode.RDMA_WRITE,
    WqeOpcode.RDMA_WRITE_IMM, WqeOpcode.RDMA_READ, WqeOpcode.RDMA_READ, WqeOpcode.ATOMIC_CS, WqeOpcode.ATOMIC_FA,
    WqeOpcode.NOP, WqeOpcode.UMR,
)  # fmt: skip
_UNRELIABLE = tuple(opcode for opcode in _PLAIN if opcode not in (
    WqeOpcode.SEND_INVAL, WqeOpcode.RDMA_READ, WqeOpcode.ATOMIC_CS, WqeOpcode.ATOMIC_FA
))  # fmt: skip


def state_of(host: Host, number: int) -> int:
    qp = host.board.firmware.hca.qps.get(number)  # type: ignore[attr-defined]
    return -1 if qp is None else int(qp.state)


def room(host: Host, qp: Item) -> int:
    """Blocks of the send ring that are free."""
    card = host.board.firmware.hca.qps.get(qp.number)  # type: ignore[attr-defined]
    if card is None or card.sq is None:
        return 0
    return (1 << qp.log_sq) - ((qp.sq_posted - int(card.sq.consumer)) & 0xFFFF)


def pick_key(host: Host, random: Random, bad: float) -> tuple[int, int, int]:
    """Key, address and bytes of a region, mostly one that is there."""
    items = list(host.book.items["mkey"].values())
    if not items or random.random() < bad:
        return wild_word(random), wild_address(random), random.choice(WILD_SIZES)
    plain = [item for item in items if item.plain]
    item = random.choice(plain if plain and random.random() < 0.85 else items)
    size = item.length or 64
    offset = random.randrange(size) if random.random() < 0.3 else 0
    return item.key, item.start + offset & (1 << 64) - 1, size - offset


def klm_list(host: Host, random: Random, mode: int) -> tuple[bytes, int]:
    """Entries for an indirect key, and the bytes that they show."""
    entries, total = b"", 0
    for _ in range(random.choice((1, 3, 8))):
        key, addr, size = pick_key(host, random, 0.05)
        size = 4096 if mode == 3 else min(size, random.choice((1, 64, 4096))) & 0xFFFFFFFF
        total += size
        entries += (0 if mode == 3 else size).to_bytes(4, "big") + key.to_bytes(4, "big") + addr.to_bytes(8, "big")
    return entries, total


def _sges(turn: Turn, most: int = 3) -> bytes:
    out = b""
    for _ in range(turn.random.randrange(most + 1)):
        key, addr, size = pick_key(turn.host, turn.random, turn.bad)
        size = min(size, turn.random.choice((0, 8, 100, 4096, 1 << 20))) & 0x7FFFFFFF
        out += DataSegment(byte_count=size or 1, lkey=key, addr=addr).to_bytes()
    return out


def _inline(turn: Turn) -> bytes:
    data = turn.random.randbytes(turn.random.choice((1, 28, 60, 200)))
    raw = (1 << 31 | len(data)).to_bytes(4, "big") + data
    return raw + bytes(-len(raw) % 16)


def _umr(turn: Turn) -> tuple[int, bytes]:
    """Local invalidate, registration or bind of a key of this host."""
    random = turn.random
    willing = [item for item in turn.host.book.items["mkey"].values() if item.umr]
    key = random.choice(willing).key if willing and not turn.wrong() else pick_key(turn.host, random, turn.bad)[0]
    item = turn.host.book.items["mkey"].get(key >> 8)
    ctrl = UmrCtrlSegment(check_free=random.choice((0, 0, 0, 1, 2)), check_qpn=int(random.random() < 0.05))
    context = Mkc(mkey_7_0=random.getrandbits(8), qpn=random.choice((0xFFFFFF, 0xFFFFFF, 0xFFFFFF, 0x40)))
    fields = {MkeyMask.FREE, MkeyMask.KEY, MkeyMask.LEN, MkeyMask.START_ADDR, MkeyMask.LR, MkeyMask.LW, MkeyMask.RR,
              MkeyMask.RW, MkeyMask.A, MkeyMask.QPN}  # fmt: skip
    chosen = set(fields) if random.random() < 0.5 else {bit for bit in fields if random.random() < 0.4}
    if random.random() < 0.8:
        # A key's new variant is lost if the request fails.
        chosen.discard(MkeyMask.KEY)
    ctrl.mkey_mask = sum(1 << bit for bit in chosen)
    context.free = int(random.random() < 0.3)
    for right in ("lr", "lw", "rr", "rw", "a"):
        setattr(context, right, int(random.random() < 0.8))
    payload = b""
    if item is not None:
        context.start_addr = item.start if random.random() < 0.9 else 0
        context.len = random.choice((item.length, item.length, item.length, 8192, 1 << 40))
        if MkeyMask.KEY in chosen:
            item.key = item.number << 8 | context.mkey_7_0
        if item.mode == 1 and random.random() < 0.5:
            addr = turn.host.alloc(8 * 4096)
            payload = b"".join((addr + at * 4096).to_bytes(8, "big") for at in range(8))
        elif item.mode >= 2 and random.random() < 0.7:
            payload = klm_list(turn.host, random, item.mode)[0]
            payload += bytes(-len(payload) % 64)
    if payload:
        ctrl.inline = 1
        ctrl.xlt_octowords = len(payload) // 16
        if item is not None and item.mode >= 2 and random.random() < 0.3:
            # From memory, which only keys of the host itself can show.
            willing = [one for one in turn.host.book.items["mkey"].values() if one.plain and one.length >= len(payload)]
            if willing and willing[0].ranges:
                ctrl.inline = 0
                turn.host.memory.poke(willing[0].ranges[0][0], payload[: willing[0].ranges[0][1]])
                payload = DataSegment(byte_count=len(payload), lkey=willing[0].key, addr=willing[0].start).to_bytes()
        if random.random() < 0.2:
            ctrl.translation_offset_en = 1
            ctrl.xlt_offset = random.choice((0, 4, 0xFFFF))
    return key, ctrl.to_bytes() + context.to_bytes() + payload


def send_wqe(turn: Turn, qp: Item) -> bytes:
    """One WQE for this queue pair's service."""
    random = turn.random
    opcode = int(random.choice(_PLAIN))
    if qp.service in (_UD, _QP0, _QP1) and not turn.wrong():
        opcode = int(random.choice((WqeOpcode.SEND, WqeOpcode.SEND_IMM, WqeOpcode.NOP)))
    elif qp.service == _UC and not turn.wrong():
        opcode = int(random.choice(_UNRELIABLE))
    elif qp.service == _REG_UMR and not turn.wrong():
        opcode = int(WqeOpcode.UMR)
    elif turn.wrong():
        opcode = random.choice([*map(int, WqeOpcode), 0x55])
    imm = random.getrandbits(32)
    body = b""
    if qp.service == _XRC:
        srq = turn.pick("srq", turn.host.other)
        body += XrcSegment(xrc_srqn=srq.number if srq else 1).to_bytes()
    if opcode == WqeOpcode.UMR:
        imm, body = _umr(turn)
    elif opcode in (WqeOpcode.RDMA_WRITE, WqeOpcode.RDMA_WRITE_IMM, WqeOpcode.RDMA_READ):
        key, addr, size = pick_key(turn.host.other, random, turn.bad)
        body += RaddrSegment(raddr=addr, rkey=key).to_bytes()
        if random.random() < 0.2:
            body += _inline(turn) if opcode != WqeOpcode.RDMA_READ and random.random() < 0.5 else _sges(turn)
        else:
            local, at, most = pick_key(turn.host, random, turn.bad)
            size = random.choice((size, min(size, most, random.choice((8, 1000, 5000, 16384)))))
            body += DataSegment(byte_count=size & 0x7FFFFFFF, lkey=local, addr=at).to_bytes()
    elif opcode in (WqeOpcode.ATOMIC_CS, WqeOpcode.ATOMIC_FA):
        key, addr, _ = pick_key(turn.host.other, random, turn.bad)
        body += RaddrSegment(raddr=addr & ~7, rkey=key).to_bytes()
        body += AtomicSegment(swap_add=random.getrandbits(64), compare=0).to_bytes()
        local, at, _ = pick_key(turn.host, random, turn.bad)
        body += DataSegment(byte_count=8, lkey=local, addr=at).to_bytes()
    elif opcode in (WqeOpcode.SEND, WqeOpcode.SEND_IMM, WqeOpcode.SEND_INVAL):
        if qp.service in (_UD, _QP0, _QP1):
            body += _address(turn, qp)
        if opcode == WqeOpcode.SEND_INVAL:
            imm, _, _ = pick_key(turn.host.other, random, turn.bad)
        if random.random() < 0.3:
            body += _inline(turn)
        elif random.random() < 0.3:
            body += _sges(turn)
        else:
            local, at, size = pick_key(turn.host, random, turn.bad)
            size = min(size, random.choice((1, 200, 1000, 5000) if qp.service not in (_UD, _QP0, _QP1) else (200, 256)))
            body += DataSegment(byte_count=size & 0x7FFFFFFF, lkey=local, addr=at).to_bytes()
    units = 1 + len(body) // 16
    ctrl = CtrlSegment(
        wqe_index=qp.sq_posted & 0xFFFF,
        opcode=opcode,
        qpn=qp.number,
        ds=units & 0x3F,
        fm=random.choice((0, 0, 0, 2, 4)),
        ce=random.choice((0, 2, 2, 3)),
        se=random.randrange(2),
        imm=imm,
    )
    wqe = ctrl.to_bytes() + body
    return wqe + bytes(-len(wqe) % 64)


def _address(turn: Turn, qp: Item) -> bytes:
    random = turn.random
    peer = random.choice((turn.host, turn.host.other, turn.host.other))
    target = turn.pick("qp", peer)
    dqpn = target.number if target else 5
    if qp.service in (_QP0, _QP1):
        dqpn = 0 if qp.service == _QP0 else 1
    multicast = random.random() < 0.25
    return DatagramSegment(
        q_key=random.choice((0x1111, 0x1111, 0x80010000)),
        ext=int(random.random() > turn.bad),
        dqpn=0xFFFFFF if multicast else dqpn,
        rlid=0xC000 if multicast else peer.lid,
        grh=int(multicast or random.random() < 0.3),
        rgid=b"\xff\x12" + bytes(13) + bytes((random.randrange(3),)),
    ).to_bytes()


def put_wqe(host: Host, qp: Item, wqe: bytes) -> None:
    """Write blocks into the ring behind what was posted, and note what a UMR in them may hand out."""
    host.book.umr_posted(wqe)
    size = 1 << qp.log_sq
    for at in range(0, len(wqe), 64):
        slot = qp.sq_posted & size - 1
        host.memory.poke(qp.place(qp.rq_bytes + slot * 64), wqe[at : at + 64])
        qp.sq_posted += 1


def put_receive(turn: Turn, item: Item, shared: bool) -> None:
    slot = item.posted & (1 << item.log_size) - 1
    key, addr, size = pick_key(turn.host, turn.random, turn.bad)
    first = DataSegment(byte_count=size & 0x7FFFFFFF, lkey=key, addr=addr).to_bytes()
    wqe = (first if turn.random.random() < 0.8 else b"") + _sges(turn, 1) + DataSegment(lkey=0x100).to_bytes()
    if shared:
        nxt = slot + 1 & (1 << item.log_size) - 1
        wqe = NextSegment(next_wqe_index=nxt if not turn.wrong() else turn.random.getrandbits(16)).to_bytes() + wqe
    turn.host.memory.poke(item.place(slot << item.log_stride), wqe[: 1 << item.log_stride])
    item.posted += 1
