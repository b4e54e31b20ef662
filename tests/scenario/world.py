"""Two cards, a fake link and a virtual clock: the stage on which the scenarios play.

Everything goes through the formats: work requests are written into memory as the driver writes them, completions are
read from completion queues by their ownership bit. A step is one event; its effects are carried out before the next.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from firmware.model.hca import Hca
from firmware.model.ledger import Table
from firmware.model.objects import (
    LOCAL_READ,
    LOCAL_WRITE,
    MODE_MTT,
    MODE_PA,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    SRQ_RMP,
    Cq,
    Eq,
    Mkey,
    Pd,
    QCounter,
    Srq,
)
from firmware.model.pages import packed
from firmware.model.qp import ERR, INIT, RTR, RTS, ST_QP0, ST_QP1, ST_RC, ST_REG_UMR, ST_UC, ST_UD, ST_XRC, Qp
from firmware.model.queue_buffer import QueueBuffer
from firmware.model.rings import RecvQueue, SendQueue
from firmware.queues import cq_doorbell, eq_doorbell
from firmware.transport import engine, lifecycle
from vhca.hw.effects import DeviceWrite, DmaWrite, Effect, EntryWrite, RaiseIrq, Transmit
from vhca.hw.hardware import BoardInfo, TraceSink
from vhca.hw.memory import FlatMemory, Memory
from vhca.management.performance import PortCounters
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import Cqe64, CqeOpcode, ErrCqe64
from vhca.wire.connectx.eqe import Eqe
from vhca.wire.connectx.qpc import Qpc
from vhca.wire.connectx.wqe import (
    AtomicSegment,
    CtrlSegment,
    DatagramSegment,
    DataSegment,
    NextSegment,
    RaddrSegment,
    WqeOpcode,
    XrcSegment,
)
from vhca.wire.packet import Packet
from vhca.wire.smp import PORT_ACTIVE

BASE = 0x10_0000
ALL_RIGHTS = LOCAL_READ | LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC
FOREVER_NS = 20_000_000_000
ACCESS_ERROR_EVENT = 0x11


@dataclass
class TestPort:
    """A port as the transport sees it."""

    __test__ = False

    lid: int
    lmc: int = 0
    sm_lid: int = 1
    sm_sl: int = 0
    subnet_timeout: int = 18
    capability_mask: int = 0
    logical_state: int = PORT_ACTIVE
    physical_state: int = 5
    admin_up: bool = True
    number: int = 1
    guid: int = 1
    pkeys: list[int] = field(default_factory=lambda: [0xFFFF, 0x8001, 0x0002])
    gids: list[bytes] = field(default_factory=list)
    active: bool = True
    mtu: int = 4096
    counters: PortCounters = field(default_factory=PortCounters)
    pkey_violations: int = 0
    qkey_violations: int = 0

    def pkey_violation(self) -> None:
        self.pkey_violations += 1

    def qkey_violation(self) -> None:
        self.qkey_violations += 1


@dataclass
class Board:
    """What the firmware may use."""

    memory: Memory
    device_memory: Memory
    info: BoardInfo
    trace: TraceSink | None = None
    limit_bytes: int = 64 << 20

    def memory_limit(self) -> int:
        return self.limit_bytes


@dataclass(frozen=True)
class Completion:
    """A completion as a verbs program sees it: `kind` is the CQE opcode, `syndrome` 0 if it is good."""

    kind: int
    counter: int
    syndrome: int = 0
    size: int = 0
    extra: int = 0
    qpn: int = 0
    solicited: bool = False
    slid: int = 0
    source_qpn: int = 0
    grh: int = 0
    user: int = 0

    @property
    def good(self) -> bool:
        return self.syndrome == 0


def packed_klms(*entries: tuple[int, int, int]) -> bytes:
    """A KLM list as the host writes it, of (bytes, key, address)."""
    return b"".join(struct.pack(">IIQ", *entry) for entry in entries)


class CompletionQueue:
    """A CQ in memory, read as a driver reads it."""

    def __init__(self, card: Card, log_size: int = 7, cqe_bytes: int = 64, padded: bool = False) -> None:
        self.card = card
        addr = card.alloc(cqe_bytes << log_size)
        self.dbr = card.alloc(64)
        for index in range(1 << log_size):
            card.memory.write(addr + (index + 1) * cqe_bytes - 1, b"\xf0")
        self.cq = Cq(
            eq=card.eq,
            buffer=QueueBuffer(packed([addr]), 12, 0, cqe_bytes << log_size),
            log_size=log_size,
            cqe_bytes=cqe_bytes,
            padded=padded,
            dbr_addr=self.dbr,
        )
        card.hca.cqs.add(self.cq)
        self.addr = addr
        self.consumer = 0

    def raw(self, index: int) -> bytes:
        """The whole entry at this free running index."""
        size = self.cq.cqe_bytes
        return self.card.memory.read(self.addr + (index & (1 << self.cq.log_size) - 1) * size, size)

    def poll(self) -> list[Completion]:
        """All new completions."""
        out = []
        log_size = self.cq.log_size
        while True:
            raw = self.raw(self.consumer)[-64:]
            if raw[63] >> 4 == CqeOpcode.INVALID or raw[63] & 1 != self.consumer >> log_size & 1:
                break
            out.append(_decode(raw))
            self.consumer += 1
            self.card.memory.write(self.dbr, (self.consumer & 0xFFFFFF).to_bytes(4, "big"))
        return out

    def arm(self, solicited_only: bool = False) -> None:
        """Ask for an event."""
        self.card.step(lambda: cq_doorbell(self.card.hca, self.cq, self.consumer & 0xFFFFFF, solicited_only))


def _decode(raw: bytes) -> Completion:
    kind = raw[63] >> 4
    if kind in (CqeOpcode.REQ_ERR, CqeOpcode.RESP_ERR):
        bad = ErrCqe64.from_bytes(raw)
        return Completion(kind, bad.wqe_counter, bad.syndrome, qpn=bad.qpn, user=bad.srqn_uidx)
    good = Cqe64.from_bytes(raw)
    return Completion(
        kind,
        good.wqe_counter,
        0,
        good.byte_cnt,
        good.imm_inval_pkey,
        good.qpn,
        bool(good.se),
        good.slid,
        good.rqpn,
        good.grh,
        good.srqn_uidx,
    )


class SharedQueue:
    """An SRQ in memory."""

    def __init__(self, card: Card, kind: int = SRQ_RMP, log_size: int = 4, cq: CompletionQueue | None = None) -> None:
        self.card = card
        self.dbr = card.alloc(64)
        self.addr = card.alloc(64 << log_size)
        self.posted = 0
        self.srq = Srq(
            kind=kind,
            buffer=QueueBuffer(packed([self.addr]), 12, 0, 64 << log_size),
            log_size=log_size,
            log_stride=6,
            dbr_addr=self.dbr,
            pd=card.pd.handle,
            cq=None if cq is None else cq.cq,
        )
        card.hca.srqs.add(self.srq)

    def post_recv(self, addr: int, size: int, key: int | None = None) -> None:
        slot = self.posted & (1 << self.srq.log_size) - 1
        wqe = NextSegment(next_wqe_index=slot + 1 & (1 << self.srq.log_size) - 1).to_bytes()
        wqe += data(addr, size, self.card.key if key is None else key) + data(0, 0, 0x100)
        self.card.memory.write(self.addr + slot * 64, wqe)
        self.posted += 1
        self.card.memory.write(self.dbr, (self.posted & 0xFFFF).to_bytes(4, "big"))


def data(addr: int, size: int, key: int) -> bytes:
    return DataSegment(byte_count=size, lkey=key, addr=addr).to_bytes()


class Card:
    """One HCA with its memory, one active port, one domain, one key for all of its memory."""

    def __init__(self, world: World, name: str, lid: int, memory_bytes: int = 8 << 20) -> None:
        self.world = world
        self.name = name
        self.memory = FlatMemory(memory_bytes, BASE)
        self._free = BASE
        info = BoardInfo(node_guid=lid, system_image_guid=lid, port_guids=(lid,))
        self.traces: list[tuple[str, dict[str, object]]] = []
        self.device_memory = FlatMemory(info.device_memory_bytes, info.device_memory_start)
        self.hca = Hca(
            Board(
                self.memory, self.device_memory, info, lambda what, details: self.traces.append((what, dict(details)))
            )
        )
        # Numbers differ between the cards, so that one taken for the other shows.
        self.hca.qps = Table("qp", 0x40 * lid, 1 << 10, self.hca.budget)
        gid = bytes.fromhex("fe80000000000000") + lid.to_bytes(8, "big")
        self.port = TestPort(lid, gids=[gid])
        self.hca.ports = {1: self.port}
        self.irqs: list[int] = []
        self.effects: list[Effect] = []
        self.pd = Pd()
        self.hca.pds.add(self.pd)
        self.eq_addr = self.alloc(64 * 64)
        self.eq = Eq(buffer=QueueBuffer(packed([self.eq_addr]), 12, 0, 64 * 64), log_size=6, vector=0,
                     event_mask=(1 << 64) - 1)  # fmt: skip
        for index in range(64):
            self.memory.write(self.eq_addr + index * 64 + 63, b"\1")
        self.hca.eqs.add(self.eq)
        self.eq_consumer = 0
        self.key = self.register_all()

    def alloc(self, size: int, align: int = 4096) -> int:
        """Bus address of fresh memory."""
        self._free = -(-self._free // align) * align
        addr = self._free
        self._free += size
        assert self._free <= BASE + len(self.memory.data), "the test's memory is full"
        return addr

    def register_all(self) -> int:
        """A key for all of memory, address = bus address."""
        return self._add_key(
            Mkey(variant=0x5A, pd=self.pd.handle, rights=ALL_RIGHTS, mode=MODE_PA, length64=True, length=0)
        )

    def register(
        self, addr: int, size: int, rights: int = ALL_RIGHTS, pages: list[int] | None = None, pd: int | None = None
    ) -> int:
        """A key for a region with a page list; by default address = bus address."""
        first = addr >> 12
        count = ((addr + size + 4095) >> 12) - first
        return self._add_key(
            Mkey(
                variant=0x77,
                pd=self.pd.handle if pd is None else pd,
                rights=rights,
                mode=MODE_MTT,
                start=addr,
                length=size,
                mtts=packed([(first + i) << 12 for i in range(count)] if pages is None else pages),
                umr_enabled=True,
                remote_invalidate=True,
                capacity_octwords=64,
            )
        )

    def _add_key(self, mkey: Mkey) -> int:
        self.hca.mkeys.add(mkey)
        return mkey.handle << 8 | mkey.variant

    def step(self, action: Callable[[], object]) -> None:
        """Run one step of the firmware and carry out its effects."""
        hca = self.hca
        hca.now_ns = self.world.now_ns
        out: list[Effect] = []
        hca.out = out
        action()
        for effect in out:
            self.effects.append(effect)
            if isinstance(effect, DmaWrite | EntryWrite):
                self.memory.write(effect.addr, effect.data)
            elif isinstance(effect, DeviceWrite):
                self.device_memory.write(effect.offset, effect.data)
            elif isinstance(effect, Transmit):
                self.world.wire(self, effect.packet)
            elif isinstance(effect, RaiseIrq):
                self.irqs.append(effect.vector)

    def turn(self) -> bool:
        """One piece of the work that waits on the card."""
        if not (self.hca.turns or self.hca.copies):
            return False
        self.step(lambda: engine.turn(self.hca))
        return True

    def loop(self) -> bool:
        """Deliver one packet of the card to itself."""
        if not self.hca.loopback:
            return False
        port, packet = self.hca.loopback.popleft()
        self.world.ladder.append(f"{self.name} loop {describe(packet)}")
        self.step(lambda: engine.packet_in(self.hca, port, packet))
        return True

    def events(self) -> list[tuple[int, int]]:
        """New events: type and the number at 0x38."""
        out = []
        while True:
            raw = self.memory.read(self.eq_addr + (self.eq_consumer & 63) * 64, 64)
            if raw[63] & 1 != self.eq_consumer >> 6 & 1:
                break
            event = Eqe.from_bytes(raw)
            out.append((event.event_type, int.from_bytes(raw[0x38:0x3C], "big")))
            self.eq_consumer += 1
        self.step(lambda: eq_doorbell(self.hca, self.eq, self.eq_consumer & 0xFFFFFF, True))
        return out


class End:
    """One end of a conversation: a queue pair with its queues in memory, and the verbs to use it."""

    def __init__(
        self,
        card: Card,
        service: int = ST_RC,
        log_sq: int = 6,
        log_rq: int = 6,
        srq: SharedQueue | None = None,
        has_sq: bool = True,
        has_rq: bool = True,
        cq: CompletionQueue | None = None,
    ) -> None:
        self.card = card
        self.send_cq = cq or CompletionQueue(card)
        self.recv_cq = cq or CompletionQueue(card)
        self.dbr = card.alloc(64)
        rq_bytes = 0 if srq is not None or not has_rq else 64 << log_rq
        sq_bytes = 64 << log_sq if has_sq else 0
        self.rq_addr = card.alloc(rq_bytes + sq_bytes)
        self.sq_addr = self.rq_addr + rq_bytes
        buffer = QueueBuffer(packed([self.rq_addr]), 20, 0, rq_bytes + sq_bytes)
        self.qp = Qp(
            service=service,
            context=Qpc(st=service, dbr_addr=self.dbr, fre=1),
            pd=card.pd.handle,
            send_cq=self.send_cq.cq,
            recv_cq=self.recv_cq.cq,
            srq=None if srq is None else srq.srq,
            sq=SendQueue(buffer, rq_bytes, log_sq, self.dbr) if has_sq else None,
            rq=RecvQueue(buffer, log_rq, 6, self.dbr) if rq_bytes else None,
        )
        card.hca.qps.add(self.qp)
        self.sq_posted = 0
        self.rq_posted = 0
        self.counter = QCounter()
        card.hca.q_counters.add(self.counter)

    @property
    def qpn(self) -> int:
        return self.qp.handle

    def apply(self, op: Op, mask: int = 0, **fields: int | bytes) -> int:
        """A transition command; `path_...` fields belong to the primary path."""
        qpc = Qpc.from_bytes(self.qp.context.to_bytes())
        for name, value in fields.items():
            if name.startswith("path_"):
                setattr(qpc.primary_address_path, name[5:], value)
            else:
                setattr(qpc, name, value)
        status = -1

        def run() -> None:
            nonlocal status
            status = lifecycle.apply(self.card.hca, self.qp, op, mask, qpc)

        self.card.step(run)
        return status

    def to_init(self, **fields: int | bytes) -> None:
        args: dict[str, int | bytes] = {
            "path_vhca_port_num": 1, "rre": 1, "rwe": 1, "rae": 1, "q_key": 0x1234,
            "counter_set_id": self.counter.handle, "pd": self.card.pd.handle,
        }  # fmt: skip
        assert self.apply(Op.RST2INIT_QP, 0, **{**args, **fields}) == 0, self.qp.refusal

    def to_rtr(self, peer: End | None = None, **fields: int | bytes) -> None:
        args: dict[str, int | bytes] = {"mtu": 3, "log_msg_max": 30, "next_rcv_psn": 0xFFFFF0, "log_rra_max": 2,
                                        "min_rnr_nak": 1}  # fmt: skip
        if peer is not None:
            args |= {"remote_qpn": peer.qpn, "path_rlid": peer.card.port.lid}
        assert self.apply(Op.INIT2RTR_QP, 0, **{**args, **fields}) == 0, self.qp.refusal

    def to_rts(self, **fields: int | bytes) -> None:
        args: dict[str, int | bytes] = {"next_send_psn": 0xFFFFF0, "log_sra_max": 2, "retry_count": 3,
                                        "rnr_retry": 3, "path_ack_timeout": 14}  # fmt: skip
        assert self.apply(Op.RTR2RTS_QP, 0, **{**args, **fields}) == 0, self.qp.refusal

    def connect(self, peer: End, **fields: int | bytes) -> None:
        """All the way to RTS; `fields` go to the transition that takes them."""
        rts = {"next_send_psn", "log_sra_max", "retry_count", "rnr_retry", "path_ack_timeout"}
        init = {"rre", "rwe", "rae", "q_key", "path_pkey_index"}
        self.to_init(**{k: v for k, v in fields.items() if k in init})
        self.to_rtr(peer, **{k: v for k, v in fields.items() if k not in init | rts})
        self.to_rts(**{k: v for k, v in fields.items() if k in rts})

    def post(self, opcode: int, segments: bytes = b"", imm: int = 0, ce: int = 2, fence: int = 0, se: int = 0,
             ring: int = True, **override: int) -> int:  # fmt: skip
        """Write a WQE of control segment and `segments`, and ring; returns its index."""
        segments += bytes(-len(segments) % 16)
        fields = {"wqe_index": self.sq_posted & 0xFFFF, "opcode": opcode, "qpn": self.qpn,
                  "ds": 1 + len(segments) // 16, "fm": fence, "ce": ce, "se": se, "imm": imm}  # fmt: skip
        wqe = CtrlSegment(**{**fields, **override}).to_bytes() + segments
        wqe += bytes(-len(wqe) % 64)
        return self.post_raw(wqe, ring)

    def post_raw(self, wqe: bytes, ring: int = True) -> int:
        """Write blocks into the ring as they are."""
        assert self.qp.sq is not None
        size = 1 << self.qp.sq.log_size
        index = self.sq_posted
        for at in range(0, len(wqe), 64):
            self.card.memory.write(self.sq_addr + (self.sq_posted & size - 1) * 64, wqe[at : at + 64])
            self.sq_posted += 1
        if ring:
            self.ring()
        return index & 0xFFFF

    def ring(self) -> None:
        """Doorbell record and doorbell."""
        self.card.memory.write(self.dbr + 4, (self.sq_posted & 0xFFFF).to_bytes(4, "big"))
        self.card.step(lambda: engine.doorbell(self.card.hca, self.qp))

    def sge(self, addr: int, size: int, key: int | None = None) -> bytes:
        return data(addr, size, self.card.key if key is None else key)

    def send(self, addr: int, size: int, imm: int | None = None, key: int | None = None, **more: int) -> int:
        opcode = WqeOpcode.SEND if imm is None else WqeOpcode.SEND_IMM
        return self.post(opcode, self.sge(addr, size, key) if size else b"", imm=imm or 0, **more)

    def rdma(self, opcode: int, local: int, size: int, remote: int, rkey: int, imm: int = 0, key: int | None = None,
             **more: int) -> int:  # fmt: skip
        segments = RaddrSegment(raddr=remote, rkey=rkey).to_bytes()
        return self.post(opcode, segments + (self.sge(local, size, key) if size else b""), imm=imm, **more)

    def write(self, local: int, size: int, remote: int, rkey: int, **more: int) -> int:
        return self.rdma(WqeOpcode.RDMA_WRITE, local, size, remote, rkey, **more)

    def read(self, local: int, size: int, remote: int, rkey: int, **more: int) -> int:
        return self.rdma(WqeOpcode.RDMA_READ, local, size, remote, rkey, **more)

    def atomic(
        self, opcode: int, local: int, remote: int, rkey: int, swap_add: int, compare: int = 0, **more: int
    ) -> int:
        segments = RaddrSegment(raddr=remote, rkey=rkey).to_bytes()
        segments += AtomicSegment(swap_add=swap_add, compare=compare).to_bytes()
        return self.post(opcode, segments + self.sge(local, 8), **more)

    def datagram(self, addr: int, size: int, lid: int, qpn: int, qkey: int = 0x1234, imm: int | None = None,
                 grh: bytes | None = None, **more: int) -> int:  # fmt: skip
        av = DatagramSegment(q_key=qkey, ext=1, dqpn=qpn, rlid=lid, grh=int(grh is not None), hop_limit=3,
                             rgid=grh or bytes(16)).to_bytes()  # fmt: skip
        opcode = WqeOpcode.SEND if imm is None else WqeOpcode.SEND_IMM
        return self.post(opcode, av + (self.sge(addr, size) if size else b""), imm=imm or 0, **more)

    def post_recv(
        self, addr: int = 0, size: int = 0, key: int | None = None, sges: Iterable[bytes] | None = None
    ) -> int:
        """Post a receive: the doorbell record alone tells."""
        assert self.qp.rq is not None
        slot = self.rq_posted & (1 << self.qp.rq.log_size) - 1
        wqe = b"".join(sges) if sges is not None else (self.sge(addr, size, key) if size else b"")
        wqe = (wqe + data(0, 0, 0x100))[:64]
        self.card.memory.write(self.rq_addr + slot * 64, wqe)
        self.rq_posted += 1
        self.card.memory.write(self.dbr, (self.rq_posted & 0xFFFF).to_bytes(4, "big"))
        return self.rq_posted - 1 & 0xFFFF

    def buffer(self, content: bytes | int) -> int:
        """Memory with this content (or so many zero bytes)."""
        content = bytes(content) if isinstance(content, int) else content
        addr = self.card.alloc(max(len(content), 1), 64)
        self.card.memory.write(addr, content)
        return addr

    def peek(self, addr: int, size: int) -> bytes:
        return self.card.memory.read(addr, size)


def describe(packet: Packet) -> str:
    """One line for the ladder."""
    names = ("SEND", "WRITE", "READ_REQ", "READ_RESP", "ACK", "ATOMIC_ACK", "CMP_SWAP", "FETCH_ADD", "OP8?")
    place = ("F" if packet.start else "") + ("L" if packet.end else "")
    extra = f" syn={packet.syndrome:#04x} msn={packet.msn}" if packet.op in (3, 4, 5) else ""
    ask = " ask" if packet.ack_req else ""
    return (
        f"{names[packet.op]}[{place}] psn={packet.psn:#08x}+{packet.count} {len(packet.payload)} B"
        f" to {packet.dest_qp:#x}{extra}{ask}"
    )


Fault = Callable[[Packet], "list[Packet]"]


class World:
    """Two cards `a` and `b`; packets wait on the wire until :meth:`run` delivers them in order."""

    def __init__(self, memory_bytes: int = 8 << 20) -> None:
        self.now_ns = 1_000
        self.ladder: list[str] = []
        self.queue: deque[tuple[Card, Packet]] = deque()
        self.fault: Fault | None = None
        self.a = Card(self, "a", 1, memory_bytes)
        self.b = Card(self, "b", 2, memory_bytes)

    def other(self, card: Card) -> Card:
        return self.b if card is self.a else self.a

    def wire(self, source: Card, packet: Packet) -> None:
        """A packet leaves `source`; the fault decides what arrives."""
        packets = [packet] if self.fault is None else self.fault(packet)
        arrow = "->" if source is self.a else "<-"
        self.ladder.append(f"a {arrow} b {describe(packet)}{'' if packets else '   LOST'}")
        for item in packets:
            self.queue.append((self.other(source), item))

    def deliver(self, count: int = 1) -> int:
        """Deliver up to `count` packets."""
        done = 0
        while self.queue and done < count:
            card, packet = self.queue.popleft()
            card.step(lambda card=card, packet=packet: engine.packet_in(card.hca, 1, packet))  # type: ignore[misc]
            done += 1
        return done

    def settle(self) -> None:
        """Deliver everything that is under way, without letting time pass (steps that are due now do run)."""
        for _ in range(200_000):
            if self.a.loop() or self.b.loop() or self.deliver() or self.a.turn() or self.b.turn():
                continue
            if not self._run_due(self.now_ns):
                return
        raise AssertionError("the world does not settle")

    def _run_due(self, until_ns: int) -> bool:
        deadlines = [card.hca.timers.next_deadline() for card in (self.a, self.b)]
        due = [deadline for deadline in deadlines if deadline is not None and deadline <= until_ns]
        if not due:
            return False
        self.now_ns = max(self.now_ns, min(due))
        for card in (self.a, self.b):
            deadline = card.hca.timers.next_deadline()
            if deadline is not None and deadline <= self.now_ns:
                card.step(lambda card=card: engine.run_timers(card.hca))  # type: ignore[misc]
        return True

    def pass_time(self, span_ns: int) -> None:
        """Let time pass, with everything that becomes due."""
        end = self.now_ns + span_ns
        self.settle()
        while self._run_due(end):
            self.settle()
        self.now_ns = max(self.now_ns, end)

    def show(self) -> str:
        """The ladder, for a failing test's output."""
        return "\n".join(self.ladder)


def pair(service: int = ST_RC, world: World | None = None, **fields: int | bytes) -> tuple[World, End, End]:
    """A world with a connected queue pair on each card."""
    world = world or World()
    left, right = End(world.a, service), End(world.b, service)
    left.connect(right, **fields)
    right.connect(left, **fields)
    return world, left, right


__all__ = [
    "ERR",
    "INIT",
    "RTR",
    "RTS",
    "ST_QP0",
    "ST_QP1",
    "ST_RC",
    "ST_REG_UMR",
    "ST_UC",
    "ST_UD",
    "ST_XRC",
    "Card",
    "Completion",
    "CompletionQueue",
    "End",
    "SharedQueue",
    "TestPort",
    "World",
    "XrcSegment",
    "data",
    "describe",
    "pair",
]  # fmt: skip
