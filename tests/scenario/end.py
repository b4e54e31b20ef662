"""One end of a conversation, and the verbs to use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from firmware.model.objects import QCounter
from firmware.model.qp import Qp
from tests.scenario.card import Card
from tests.scenario.queues import LOG_STRIDE, TERMINATOR_KEY, CompletionQueue, SharedQueue, data
from tests.support.commands import fill
from vhca.wire.connectx.cmd import AttachToMcgIn, Op
from vhca.wire.connectx.qpc import Qpc, RqType, ServiceType
from vhca.wire.connectx.wqe import AtomicSegment, CtrlSegment, DatagramSegment, RaddrSegment, WqeOpcode


class End:
    """One end of a conversation: a queue pair with its queues in memory, and the verbs to use it.

    The card is told of `pages` instead of the right ones, if they are given. `fields` are more of what CREATE_QP takes.
    """

    def __init__(
        self,
        card: Card,
        service: int = ServiceType.RC,
        log_sq: int = 6,
        log_rq: int = 6,
        srq: SharedQueue | None = None,
        has_sq: bool = True,
        has_rq: bool = True,
        cq: CompletionQueue | None = None,
        pages: Sequence[int] | None = None,
        counter_set: int | None = None,
        **fields: int,
    ) -> None:
        self.card = card
        self.srq = srq
        self.send_cq = cq or CompletionQueue(card)
        self.recv_cq = cq or CompletionQueue(card)
        self.dbr = card.alloc(64)
        self.log_sq, self.log_rq = log_sq, log_rq
        rq_bytes = 0 if srq is not None or not has_rq else 64 << log_rq
        sq_bytes = 64 << log_sq if has_sq else 0
        self.rq_addr = card.alloc(rq_bytes + sq_bytes)
        self.sq_addr = self.rq_addr + rq_bytes
        kind = RqType.SRQ_RMP_XRC_SRQ if srq is not None else RqType.REGULAR if rq_bytes else RqType.ZERO_SIZE
        basic = {
            "dbr_addr": self.dbr, "fre": 1, "cqn_snd": self.send_cq.cqn, "cqn_rcv": self.recv_cq.cqn,
            "no_sq": int(not has_sq), "log_sq_size": log_sq if has_sq else 0, "rq_type": kind,
            "log_rq_size": log_rq if rq_bytes else 0, "log_rq_stride": LOG_STRIDE - 4,
            "srqn_rmpn_xrqn": 0 if srq is None else srq.number,
        }  # fmt: skip
        if service == ServiceType.XRC and "xrcd" not in fields:
            fields["xrcd"] = card.alloc_xrcd()
        # What the driver knows of the queue pair: each transition adds to it.
        self.context = card.qp_context(service, **{**basic, **fields})
        right = card.pages(self.rq_addr, rq_bytes + sq_bytes)
        shown = right if pages is None else b"".join(page.to_bytes(8, "big") for page in pages)
        self.qpn = card.make_qp(self.context, shown)
        self.sq_posted = 0
        self.rq_posted = 0
        # The first 8 bytes of the last control segment.
        self.last = (self.qpn << 8).to_bytes(8, "big")
        self.counter_set = card.alloc_q_counter() if counter_set is None else counter_set

    @property
    def qp(self) -> Qp:
        """The card's object, for looking."""
        qp = self.card.hca.qps.get(self.qpn)
        assert qp is not None
        return qp

    @property
    def counter(self) -> QCounter:
        """The card's counters of the queue pair, for looking."""
        counter = self.card.hca.q_counters.get(self.counter_set)
        assert counter is not None
        return counter

    def apply(self, op: Op, mask: int = 0, **fields: int | bytes) -> int:
        """A transition command; `path_...` fields belong to the primary path. Returns its status."""
        context = Qpc.from_bytes(self.context.to_bytes())
        fill(context, **fields)
        status = self.card.modify_qp(op, self.qpn, mask, context)[0]
        if not status:
            self.context = context
        return status

    def to_init(self, **fields: int | bytes) -> None:
        args: dict[str, int | bytes] = {
            "path_vhca_port_num": 1, "rre": 1, "rwe": 1, "rae": 1, "q_key": 0x1234,
            "counter_set_id": self.counter_set, "pd": self.card.pd,
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

    def join(self, gid: bytes) -> None:
        """Become a member of a multicast group."""
        self.card.run(Op.ATTACH_TO_MCG, AttachToMcgIn(qpn=self.qpn, multicast_gid=gid))

    def destroy(self) -> None:
        """End the queue pair."""
        self.card.destroy(Op.DESTROY_QP, self.qpn)

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
        size = 1 << self.log_sq
        index = self.sq_posted
        self.last = wqe[:8]
        for at in range(0, len(wqe), 64):
            self.card.memory.write(self.sq_addr + (self.sq_posted & size - 1) * 64, wqe[at : at + 64])
            self.sq_posted += 1
        if ring:
            self.ring()
        return index & 0xFFFF

    def write_record(self) -> None:
        """Doorbell record of the send queue."""
        self.card.memory.write(self.dbr + 4, (self.sq_posted & 0xFFFF).to_bytes(4, "big"))

    def ring(self) -> None:
        """Doorbell record and doorbell, and the turns that the card has until its own."""
        self.write_record()
        self.card.ring_send_queue(self.last)
        # As many as stand in line: those of others may be in front.
        for _ in range(len(self.card.hca.turns.line)):
            self.card.turn()

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
                 grh: bytes | None = None, key: int | None = None, inline: bytes | None = None,
                 **more: int) -> int:  # fmt: skip
        av = DatagramSegment(q_key=qkey, ext=1, dqpn=qpn, rlid=lid, grh=int(grh is not None), hop_limit=3,
                             rgid=grh or bytes(16)).to_bytes()  # fmt: skip
        opcode = WqeOpcode.SEND if imm is None else WqeOpcode.SEND_IMM
        data = inline if inline is not None else self.sge(addr, size, key) if size else b""
        return self.post(opcode, av + data, imm=imm or 0, **more)

    def post_recv(
        self, addr: int = 0, size: int = 0, key: int | None = None, sges: Iterable[bytes] | None = None
    ) -> int:
        """Post a receive: the doorbell record alone tells."""
        slot = self.rq_posted & (1 << self.log_rq) - 1
        wqe = b"".join(sges) if sges is not None else (self.sge(addr, size, key) if size else b"")
        wqe = (wqe + data(0, 0, TERMINATOR_KEY))[:64]
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
