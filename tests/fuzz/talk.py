"""A move that talks well: connections whose queues, keys and numbers fit, so that engines have good traffic among bad.

The other moves break them as they break everything; then there are new ones, a few times in an episode.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.fuzz import work
from tests.fuzz.book import Item
from tests.fuzz.mischief import spoil_bytes
from tests.fuzz.moves import Turn, move
from tests.fuzz.traffic import transition_of
from tests.fuzz.world import PAGE, Host
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.wqe import AtomicSegment, CtrlSegment, DataSegment, NextSegment, RaddrSegment, WqeOpcode

RC, UC = 0, 1
RTS = 3
# New connections in an episode: they take memory, which ends it.
MOST = 8
REGION = 4 * PAGE
LOG_RING = 5
_RELIABLE = (
    *(WqeOpcode.RDMA_WRITE, WqeOpcode.RDMA_WRITE_IMM, WqeOpcode.SEND, WqeOpcode.SEND_IMM, WqeOpcode.RDMA_READ),
    *(WqeOpcode.ATOMIC_FA, WqeOpcode.NOP),
)
_UNRELIABLE = (*_RELIABLE[:4], WqeOpcode.NOP)
_ATOMIC = WqeOpcode.ATOMIC_FA
_SENDS = (WqeOpcode.SEND, WqeOpcode.SEND_IMM)


@dataclass
class Talker:
    """One end: what the book of `host` says of its objects, and where the region of its key is.

    Receives are of `srq`, or of the queue pair's own queue.
    """

    host: Host
    qp: Item
    cq: Item
    srq: Item | None
    key: int
    addr: int
    pd: int

    @property
    def is_alive(self) -> bool:
        """Whether all of it is still there, and connected."""
        items = self.host.book.items
        there = items["qp"].get(self.qp.number) is self.qp and items["cq"].get(self.cq.number) is self.cq
        return (
            there
            and (self.srq is None or items["srq"].get(self.srq.number) is self.srq)
            and work.state_of(self.host, self.qp.number) == RTS
        )

    @property
    def receives(self) -> Item:
        """Where its receives are posted."""
        return self.qp if self.srq is None else self.srq

    def poll(self) -> None:
        """Take all completions: tell the card so."""
        cq = self.host.board.firmware.hca.cqs.get(self.cq.number)  # type: ignore[attr-defined]
        self.host.memory.poke(self.cq.dbr, (cq.producer & 0xFFFFFF).to_bytes(4, "big"))

    def taken(self) -> int:
        """How many receives the card has taken."""
        hca = self.host.board.firmware.hca  # type: ignore[attr-defined]
        if self.srq is not None:
            return int(hca.srqs.get(self.srq.number).consumed)
        return int(hca.qps.get(self.qp.number).rq.consumer)


@move(25)
def talk(turn: Turn) -> None:
    """Messages between two ends that fit, mostly without a mistake."""
    world = turn.world
    for host in world.hosts:
        _lead_up(turn, host)
    # Who waits for an answer, or for the cable, has it now; and where there was no way, it is looked for again.
    world.settle()
    world.pass_time(2_000_000, 20)
    alive = [pair for pair in world.talkers if all(end.is_alive for end in pair)]
    if (not alive or turn.random.random() < 0.05) and len(world.talkers) < MOST:
        made = _introduce(turn)
        if made is None:
            return
        world.talkers.append(made)
        alive.append(made)
    if not alive:
        return
    near, far = turn.random.choice(alive)
    if turn.random.random() < 0.3:
        near, far = far, near
    for end in (near, far):
        end.poll()
    _listen(turn, far)
    _speak(turn, near, far)


def _lead_up(turn: Turn, host: Host) -> None:
    """What a subnet manager does for a port that has lost its link, or its state."""
    hca = host.board.firmware.hca  # type: ignore[attr-defined]
    if turn.random.random() < 0.7 and not (host.link and hca.ports[1].active):
        host.set_link(True)
        turn.world.settle()
        if hca.initialized:
            host.link_up()


def _introduce(turn: Turn) -> tuple[Talker, Talker] | None:
    """Two ends, joined."""
    random = turn.random
    service = random.choice((RC, RC, UC))
    before, bad, turn.bad = turn.host, turn.bad, 0.0
    try:
        ends = []
        for host in turn.world.hosts:
            turn.host = host
            end = _end(turn, service)
            if end is None:
                return None
            ends.append(end)
        for end, peer in (ends, ends[::-1]):
            turn.host = end.host
            for op in (Op.RST2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP):
                view = transition_of(turn, end.qp.number, peer.qp.number, peer.host.lid)
                view.qpc.mtu, view.qpc.log_msg_max = 3, 30
                view.qpc.pd = end.pd
                view.qpc.retry_count = view.qpc.rnr_retry = 7
                turn.run(op, view)
        return ends[0], ends[1]
    finally:
        turn.host, turn.bad = before, bad


def _end(turn: Turn, service: int) -> Talker | None:
    """Domain, completion queue, key and queue pair of one end; None if the card has no more of them."""
    random = turn.random
    domain = turn.run(Op.ALLOC_PD)
    eq = turn.pick("eq")
    if domain is None or eq is None:
        return None
    pd = cmd.AllocPdOut.from_bytes(domain).pd
    _, pages = turn.buffer(64 << 6)
    cq = cmd.CreateCqIn()
    cq.cq_context.log_cq_size, cq.cq_context.c_eqn_or_apu_element = 6, eq.number
    cq.cq_context.uar_page, cq.cq_context.dbr_addr = turn.host.uar, turn.record()
    made_cq = turn.run(Op.CREATE_CQ, cq, pages)
    addr, pages = turn.buffer(REGION)
    key = cmd.CreateMkeyIn(translations_octword_actual_size=len(pages) // 16)
    context = key.memory_key_mkey_entry
    context.access_mode_1_0, context.pd, context.qpn, context.log_page_size = 1, pd, 0xFFFFFF, 12
    context.lr = context.lw = context.rr = context.rw = context.a = context.umr_en = context.en_rinval = 1
    context.start_addr, context.len, context.translations_octword_size = addr, REGION, len(pages) // 16
    made_key = turn.run(Op.CREATE_MKEY, key, pages)
    if made_cq is None or made_key is None:
        return None
    cqn = cmd.CreateCqOut.from_bytes(made_cq).cqn
    srqn = _shared_queue(turn, pd) if random.random() < 0.4 else 0
    _, pages = turn.buffer(2 * (64 << LOG_RING))
    view = cmd.CreateQpIn()
    qpc = view.qpc
    qpc.st, qpc.pd, qpc.uar_page = service, pd, turn.host.uar
    qpc.log_sq_size, qpc.log_rq_size, qpc.log_rq_stride = LOG_RING, 0 if srqn else LOG_RING, 2
    qpc.rq_type, qpc.srqn_rmpn_xrqn = 1 if srqn else 0, srqn
    qpc.cqn_snd = qpc.cqn_rcv = cqn
    qpc.dbr_addr, qpc.fre, qpc.user_index = turn.record(), 1, 0xFFFFFF
    made = turn.run(Op.CREATE_QP, view, pages)
    if made is None:
        return None
    index = cmd.CreateMkeyOut.from_bytes(made_key).mkey_index
    items = turn.host.book.items
    qp = items["qp"][cmd.CreateQpOut.from_bytes(made).qpn]
    return Talker(turn.host, qp, items["cq"][cqn], items["srq"].get(srqn), index << 8, addr, pd)


def _shared_queue(turn: Turn, pd: int) -> int:
    _, pages = turn.buffer(64 << LOG_RING)
    view = cmd.CreateRmpIn()
    view.ctx.state = 1
    wq = view.ctx.wq
    wq.log_wq_sz, wq.log_wq_stride, wq.pd, wq.dbr_addr = LOG_RING, 6, pd, turn.record()
    wq.lwm = turn.random.choice((0, 4))
    made = turn.run(Op.CREATE_RMP, view, pages)
    return 0 if made is None else cmd.CreateRmpOut.from_bytes(made).rmpn


def _listen(turn: Turn, end: Talker) -> None:
    """Post what is missing of receives."""
    item = end.receives
    for _ in range((1 << LOG_RING) - 1 - (item.posted - end.taken() & 0xFFFF)):
        slot = item.posted & (1 << LOG_RING) - 1
        wqe = DataSegment(byte_count=REGION // 2, lkey=end.key, addr=end.addr).to_bytes()
        wqe += DataSegment(lkey=0x100).to_bytes()
        if end.srq is not None:
            wqe = NextSegment(next_wqe_index=slot + 1 & (1 << LOG_RING) - 1).to_bytes() + wqe
        end.host.memory.poke(item.place(slot << 6), wqe)
        item.posted += 1
    end.host.memory.poke(item.dbr, (item.posted & 0xFFFF).to_bytes(4, "big"))


def _speak(turn: Turn, near: Talker, far: Talker) -> None:
    random, qp = turn.random, near.qp
    for _ in range(random.choice((1, 4, 12))):
        wqe = _message(turn, near, far, qp)
        if len(wqe) // 64 > work.room(near.host, qp):
            break
        if random.random() < turn.bad / 4:
            wqe = spoil_bytes(random, wqe)
        work.put_wqe(near.host, qp, wqe)
    near.host.memory.poke(qp.dbr + 4, (qp.sq_posted & 0xFFFF).to_bytes(4, "big"))
    near.host.doorbell(0x800, 0, qp.number << 8)
    turn.world.note(f"{near.host.name}: talked to {far.qp.number:#x} on {qp.number:#x} (service {qp.service})")


def _message(turn: Turn, near: Talker, far: Talker, qp: Item) -> bytes:
    random = turn.random
    opcode = random.choice(_RELIABLE if qp.service == RC else _UNRELIABLE)
    size = 8 if opcode == _ATOMIC else random.choice((8, 64, 1000, 5000))
    body = b""
    if opcode not in (*_SENDS, WqeOpcode.NOP):
        body += RaddrSegment(raddr=far.addr + random.randrange(0, REGION // 2, 8), rkey=far.key).to_bytes()
    if opcode == _ATOMIC:
        body += AtomicSegment(swap_add=1).to_bytes()
    if opcode != WqeOpcode.NOP:
        body += DataSegment(byte_count=size, lkey=near.key, addr=near.addr + random.randrange(REGION // 2)).to_bytes()
    ctrl = CtrlSegment(
        wqe_index=qp.sq_posted & 0xFFFF, opcode=opcode, qpn=qp.number, ds=1 + len(body) // 16,
        ce=random.choice((0, 2, 2, 3)), se=random.randrange(2), imm=random.getrandbits(32),
    )  # fmt: skip
    wqe = ctrl.to_bytes() + body
    return wqe + bytes(-len(wqe) % 64)
