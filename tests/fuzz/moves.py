"""The moves of the fuzzer: what a driver, a subnet manager, the wire and time do, right or wrong.

A move takes the world and a source of chance of its own, so that a script of moves can be thinned out and played again.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from firmware.commands import COMMANDS
from firmware.commands.registry import name_of
from tests.fuzz import work
from tests.fuzz.book import Item
from tests.fuzz.mischief import command_mutation, spoil_entry
from tests.fuzz.world import PAGE, Host, World
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op

RC, UC, UD, XRC, QP0, QP1, REG_UMR = 0, 1, 2, 3, 7, 8, 0xC
SERVICES = (RC, RC, RC, RC, UC, UD, UD, XRC, XRC, QP0, QP1, REG_UMR)


class Turn:
    """One move under way: whose it is, and how much goes wrong."""

    def __init__(self, world: World, random: Random, bad: float) -> None:
        self.world = world
        self.random = random
        self.bad = bad
        self.host: Host = random.choice(world.hosts)

    def wrong(self) -> bool:
        return self.random.random() < self.bad

    def pick(self, kind: str, host: Host | None = None) -> Item | None:
        items = list((host or self.host).book.items[kind].values())
        return self.random.choice(items) if items else None

    def number(self, kind: str) -> int:
        """Mostly a live object's number."""
        items = self.host.book.items[kind]
        # Mostly the same domain, so that keys and queues fit together.
        item = next(iter(items.values()), None) if kind == "pd" and self.random.random() < 0.8 else self.pick(kind)
        if item is None or self.wrong():
            return self.random.choice((0, 1, 0x40, self.random.getrandbits(24)))
        return item.number

    def run(self, op: int, view: Layout | None = None, tail: bytes = b"", **more: int) -> bytes | None:
        fixed = COMMANDS[op].layout.SIZE if op in COMMANDS else 16
        mutate = command_mutation(self.random, fixed) if self.wrong() else None
        spoil = None
        if self.wrong() and self.random.random() < 0.3:
            spoil = lambda host, entry: spoil_entry(self.random, host, entry)  # noqa: E731
        out_size = more.pop("out_size", max(16, COMMANDS[op].out_size if op in COMMANDS else 16))
        out = self.host.run(op, view, tail, out_size=out_size, mutate=mutate, spoil=spoil,
                            slot=self.random.randrange(32), **more)  # fmt: skip
        self.world.note(
            f"{self.host.name}: {name_of(op)}"
            f"{' mutated' if mutate else ''}{' spoilt' if spoil else ''} -> {'refused' if out is None else 'ok'}"
        )
        return out

    def buffer(self, size: int) -> tuple[int, bytes]:
        """Fresh pages and their list; sometimes out of order, so that they are not contiguous."""
        count = -(-size // PAGE)
        addr = self.host.alloc(count * PAGE)
        pages = [addr + at * PAGE for at in range(count)]
        if count > 1 and self.random.random() < 0.4:
            self.random.shuffle(pages)
        return addr, b"".join(page.to_bytes(8, "big") for page in pages)

    def record(self) -> int:
        """A doorbell record of its own."""
        addr = self.host.alloc(64)
        self.host.memory.poke(addr, bytes(64))
        return addr


Move = Callable[[Turn], None]
MOVES: list[tuple[Move, int]] = []


def move(weight: int) -> Callable[[Move], Move]:
    def register(function: Move) -> Move:
        MOVES.append((function, weight))
        return function

    return register


# ---- objects ----


@move(2)
def plain(turn: Turn) -> None:
    op = turn.random.choice(
        (Op.ALLOC_PD, Op.ALLOC_PD, Op.ALLOC_UAR, Op.ALLOC_XRCD, Op.ALLOC_TRANSPORT_DOMAIN, Op.ALLOC_Q_COUNTER)
    )
    turn.run(op)


@move(2)
def create_eq(turn: Turn) -> None:
    if len(turn.host.book.items["eq"]) > 6:
        return
    log_size = turn.random.choice((2, 5, 6))
    _, pages = turn.buffer(64 << log_size)
    view = cmd.CreateEqIn()
    context = view.eq_context_entry
    context.log_eq_size = log_size
    context.uar_page = turn.host.uar
    context.intr = turn.random.randrange(64)
    view.event_bitmask = turn.random.choice((bytes(8), b"\xff" * 8, (1 << 0x0A).to_bytes(8, "big"))) + bytes(24)
    turn.run(Op.CREATE_EQ, view, pages)


@move(4)
def create_cq(turn: Turn) -> None:
    log_size = turn.random.choice((1, 4, 6, 6))
    context_size = turn.random.choice((0, 0, 1))
    _, pages = turn.buffer((64 << context_size << log_size) + PAGE * (turn.random.random() < 0.2))
    view = cmd.CreateCqIn()
    context = view.cq_context
    context.log_cq_size = log_size
    context.cqe_sz = context_size
    context.c_eqn_or_apu_element = turn.number("eq")
    context.uar_page = turn.host.uar
    context.dbr_addr = turn.record()
    context.oi = int(turn.random.random() < 0.2)
    if len(pages) > 8 * (-(-(64 << context_size << log_size) // PAGE)):
        context.page_offset = turn.random.randrange(64)
    turn.run(Op.CREATE_CQ, view, pages)


@move(2)
def resize_cq(turn: Turn) -> None:
    item = turn.pick("cq")
    if item is None:
        return
    log_size = turn.random.choice((1, 3, 5, 7))
    _, pages = turn.buffer(item.entry_bytes << log_size)
    view = cmd.ModifyCqIn(cqn=item.number, modify_field_select_resize_field_select=7)
    view.cq_context.log_cq_size = log_size
    view.cq_context.cqe_sz = item.entry_bytes >> 7
    turn.run(Op.MODIFY_CQ, view, pages, op_mod=turn.random.choice((1, 1, 1, 0)))


@move(6)
def create_mkey(turn: Turn) -> None:
    random = turn.random
    mode = random.choice((1, 1, 1, 1, 0, 2, 3))
    size = random.choice((1, 64, 4096, 5000, 16384))
    view = cmd.CreateMkeyIn()
    context = view.memory_key_mkey_entry
    context.access_mode_1_0 = mode
    context.pd = turn.number("pd")
    context.qpn = 0xFFFFFF
    context.mkey_7_0 = random.getrandbits(8)
    for right in ("lr", "lw", "rr", "rw", "a"):
        setattr(context, right, 1)
    if random.random() < 0.25:
        setattr(context, random.choice(("lr", "lw", "rr", "rw", "a")), 0)
    context.umr_en = context.en_rinval = int(random.random() < 0.7)
    context.free = int(random.random() < 0.15)
    context.log_page_size = 12
    tail = b""
    if mode <= 1:
        addr, pages = turn.buffer(size + PAGE)
        turn.host.memory.poke(addr, random.randbytes(16) * (len(pages) * PAGE // 128))
        context.start_addr = addr + random.choice((0, 0, 64, 4095)) if mode == 0 or random.random() < 0.7 else 0
        context.len = size
        if mode == 1 and random.random() < 0.25:
            # Large for its memory: the same pages again and again.
            pages = pages * random.choice((8, 100))
            context.len = len(pages) // 8 * PAGE - PAGE
        if mode == 1 and random.random() < 0.15:
            # Pages that are not all present.
            view.pg_access = 1
            entries = [int.from_bytes(pages[at : at + 8], "big") for at in range(0, len(pages), 8)]
            pages = b"".join((entry | random.choice((0, 3, 3))).to_bytes(8, "big") for entry in entries)
        if mode == 1:
            view.translations_octword_actual_size = (len(pages) // 8 + 1) // 2
            context.translations_octword_size = (len(pages) // 8 + 1) // 2 + random.choice((0, 4))
            tail = pages + bytes(-len(pages) % 16)
    else:
        tail, length = work.klm_list(turn.host, random, mode)
        context.len = length
        context.translations_octword_size = len(tail) // 16 + 4
        view.translations_octword_actual_size = len(tail) // 16
    turn.run(Op.CREATE_MKEY, view, tail)


@move(2)
def create_srq(turn: Turn) -> None:
    log_size = turn.random.choice((1, 4, 5))
    _, pages = turn.buffer(64 << log_size)
    if turn.random.random() < 0.5:
        rmp = cmd.CreateRmpIn()
        rmp.ctx.state = 1
        wq = rmp.ctx.wq
        wq.log_wq_sz, wq.log_wq_stride = log_size, 6
        wq.pd, wq.dbr_addr, wq.lwm = turn.number("pd"), turn.record(), turn.random.choice((0, 1))
        turn.run(Op.CREATE_RMP, rmp, pages)
        return
    xrc = cmd.CreateXrcSrqIn()
    context = xrc.xrc_srq_context_entry
    context.log_xrc_srq_size, context.log_rq_stride = log_size, 2
    context.pd, context.xrcd, context.cqn = turn.number("pd"), turn.number("xrcd"), turn.number("cq")
    record = turn.record()
    context.db_record_addr_h, context.db_record_addr_l = record >> 32, (record & 0xFFFFFFFF) >> 2
    context.user_index = turn.random.choice((0xFFFFFF, 5))
    turn.run(Op.CREATE_XRC_SRQ, xrc, pages)


@move(5)
def create_qp(turn: Turn) -> None:
    make_qp(turn, turn.random.choice(SERVICES))


def make_qp(turn: Turn, service: int) -> int | None:
    random = turn.random
    log_sq, log_rq = random.choice((2, 5, 6)), random.choice((0, 4, 5))
    rq_type = 0 if service != XRC else 3
    if service in (RC, UC, UD) and random.random() < 0.3:
        rq_type = random.choice((1, 3))
    view = cmd.CreateQpIn()
    context = view.qpc
    context.st = service
    context.pd = turn.number("pd")
    context.log_sq_size, context.log_rq_size, context.log_rq_stride = log_sq, log_rq, 2
    context.no_sq = int(random.random() < (0.5 if service == XRC else 0.05))
    context.rq_type = rq_type
    context.uar_page = turn.host.uar
    context.cqn_snd, context.cqn_rcv = turn.number("cq"), turn.number("cq")
    context.srqn_rmpn_xrqn, context.xrcd = turn.number("srq"), turn.number("xrcd")
    context.dbr_addr = turn.record()
    context.fre = context.rlky = int(random.random() < 0.75)
    context.user_index = random.choice((0xFFFFFF, 0xFFFFFF, 9))
    context.block_lb_mc = int(random.random() < 0.5)
    context.cs_res, context.cs_req = random.choice((0, 0, 1, 2)), random.choice((0, 0, 0x11, 0x22))
    context.send_dbr_mode = int(random.random() < 0.1)
    _, pages = turn.buffer((64 << log_rq) + (64 << log_sq))
    out = turn.run(Op.CREATE_QP, view, pages)
    return None if out is None else cmd.CreateQpOut.from_bytes(out).qpn


@move(2)
def user_objects(turn: Turn) -> None:
    """User contexts and their memory, with queues in it."""
    host, random = turn.host, turn.random
    user = turn.pick("uctx")
    if user is None or random.random() < 0.2:
        turn.run(Op.CREATE_UCTX, cmd.CreateUctxIn())
        return
    umem = turn.pick("umem")
    if umem is None or random.random() < 0.4:
        _, pages = turn.buffer(random.choice((4096, 16384)))
        view = cmd.CreateUmemIn()
        view.umem.num_of_mtt = len(pages) // 8
        view.umem.page_offset = random.choice((0, 0, 64, 100, 4092))
        turn.run(Op.CREATE_UMEM, view, pages, uid=user.number)
        return
    offset = random.choice((0, 0, 64, 28, 4032, 8192))
    if random.random() < 0.5:
        cq = cmd.CreateCqIn(cq_umem_valid=1, cq_umem_id=umem.number, cq_umem_offset=offset)
        cq.cq_context.log_cq_size = random.choice((2, 5))
        cq.cq_context.cqe_sz = random.choice((0, 1))
        cq.cq_context.c_eqn_or_apu_element = turn.number("eq")
        cq.cq_context.dbr_umem_valid = 1
        cq.cq_context.dbr_umem_id = umem.number
        cq.cq_context.dbr_addr = random.choice((0, 8, 4088, 4092, 16384))
        # A user's own page list must never count.
        turn.run(Op.CREATE_CQ, cq, host.queue.to_bytes(8, "big"), uid=umem.uid)
        return
    key = cmd.CreateMkeyIn(mkey_umem_valid=1, mkey_umem_id=umem.number, mkey_umem_offset=offset)
    context = key.memory_key_mkey_entry
    context.access_mode_1_0, context.pd, context.qpn = 1, turn.number("pd"), 0xFFFFFF
    context.start_addr, context.len = umem.offset + offset & 0xFFF, random.choice((1, 4096, 8192))
    context.lr = context.lw = context.rr = context.rw = 1
    turn.run(Op.CREATE_MKEY, key, uid=random.choice((0, umem.uid)))


@move(1)
def device_memory(turn: Turn) -> None:
    """A piece of device memory, a key that shows it, or the piece given back."""
    item = turn.pick("memic")
    kind = turn.random.randrange(3)
    start = turn.host.board.info.device_memory_start
    if kind == 0 or item is None:
        size = turn.random.choice((64, 4096, 100))
        turn.run(Op.ALLOC_MEMIC, cmd.AllocMemicIn(memic_size=size, range_start_addr=start, range_size=1 << 16))
    elif kind == 1:
        turn.run(Op.DEALLOC_MEMIC, cmd.DeallocMemicIn(memic_start_addr=item.number, memic_size=item.length))
    else:
        key = cmd.CreateMkeyIn()
        context = key.memory_key_mkey_entry
        context.access_mode_4_2, context.access_mode_1_0, context.qpn = 1, 1, 0xFFFFFF
        context.pd, context.start_addr, context.len = turn.number("pd"), item.number, item.length
        context.lr = context.lw = context.rr = context.rw = context.a = 1
        turn.run(Op.CREATE_MKEY, key)


@move(3)
def answer_page_fault(turn: Turn) -> None:
    faults = turn.host.board.firmware.hca.page_faults  # type: ignore[attr-defined]
    token = next(iter(faults.outstanding), 7)
    view = cmd.PageFaultResumeIn(
        error=int(turn.random.random() < 0.3), fault_token_47_32=token >> 32, fault_token_31_0=token & 0xFFFFFFFF
    )
    turn.run(Op.PAGE_FAULT_RESUME, view)


@move(6)
def destroy(turn: Turn) -> None:
    kind, op = turn.random.choice(work.DESTROYS)
    if len(turn.host.book.items[kind]) < 2 and turn.random.random() < 0.7:
        return
    view = cmd.DestroyQpIn.from_bytes(cmd.BareIn().to_bytes()[:8] + turn.number(kind).to_bytes(4, "big") + bytes(4))
    turn.run(op, view)


@move(3)
def query(turn: Turn) -> None:
    kind, op = turn.random.choice(work.QUERIES)
    number = turn.number(kind)
    if op == Op.QUERY_Q_COUNTER:
        turn.run(op, cmd.QueryQCounterIn(counter_set_id=number & 0xFF, clear=turn.random.randrange(2)))
    else:
        turn.run(op, cmd.QueryQpIn(qpn=number))


@move(2)
def any_command(turn: Turn) -> None:
    """Every opcode, known or not, with contents of no sense."""
    op = turn.random.choice(sorted(COMMANDS) if turn.random.random() < 0.8 else [int(op) for op in Op])
    if op in (Op.DISABLE_HCA, Op.TEARDOWN_HCA, Op.ENABLE_HCA) and turn.random.random() < 0.7:
        return
    size = COMMANDS[op].layout.SIZE if op in COMMANDS else 16
    body = bytearray(turn.random.randbytes(size + turn.random.choice((0, 0, 64))))
    if turn.random.random() < 0.7:
        for at in range(8, len(body)):
            if turn.random.random() < 0.8:
                body[at] = 0

    def replace(data: bytearray) -> None:
        data[8:] = body[8:]

    turn.host.run(op, None, bytes(size - 16), out_size=turn.random.choice((16, 0x110, 0x1010)), mutate=replace)
    turn.world.note(f"{turn.host.name}: {name_of(op)} with anything in it")


def furnish(turn: Turn) -> None:
    """What a driver has after its start."""
    bad, turn.bad = turn.bad, 0.0
    create_eq(turn)
    turn.run(Op.ALLOC_PD)
    turn.run(Op.ALLOC_Q_COUNTER)
    turn.run(Op.ALLOC_XRCD)
    for make in (create_cq, create_cq, create_mkey, create_mkey, create_mkey, create_mkey, create_srq, create_srq):
        make(turn)
    turn.bad = bad
