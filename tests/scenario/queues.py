"""Queues in a card's memory, written and read as a driver does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from firmware.model.objects import Cq, Srq
from tests.scenario.card import Card
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqc import CqeSize
from vhca.wire.connectx.cqe import Cqe64, CqeOpcode, ErrCqe64
from vhca.wire.connectx.srq import RmpState, WqType
from vhca.wire.connectx.wqe import DataSegment, NextSegment

LOG_STRIDE = 6
TERMINATOR_KEY = 0x100


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


def data(addr: int, size: int, key: int) -> bytes:
    """A data segment."""
    return DataSegment(byte_count=size, lkey=key, addr=addr).to_bytes()


def packed_klms(*entries: tuple[int, int, int]) -> bytes:
    """A KLM list as the host writes it, of (bytes, key, address)."""
    return b"".join(struct.pack(">IIQ", *entry) for entry in entries)


class CompletionQueue:
    """A CQ in memory, read as a driver reads it."""

    def __init__(self, card: Card, log_size: int = 7, cqe_bytes: int = 64, padded: bool = False, **fields: int) -> None:
        self.card = card
        self.log_size = log_size
        self.cqe_bytes = cqe_bytes
        size = cqe_bytes << log_size
        self.addr = card.alloc(size)
        self.dbr = card.alloc(64)
        card.memory.write(self.addr, (bytes(cqe_bytes - 1) + b"\xf0") * (1 << log_size))
        sizes = {64: CqeSize.BYTES_64, 128: CqeSize.BYTES_128_STRIDE if padded else CqeSize.BYTES_128}
        self.cqn = card.make_cq(
            self.addr, size, log_cq_size=log_size, cqe_sz=sizes[cqe_bytes], dbr_addr=self.dbr, **fields
        )
        self.consumer = 0

    @property
    def cq(self) -> Cq:
        """The card's object, for looking."""
        cq = self.card.hca.cqs.get(self.cqn)
        assert cq is not None
        return cq

    def raw(self, index: int) -> bytes:
        """The whole entry at this free running index."""
        slot = index & (1 << self.log_size) - 1
        return self.card.memory.read(self.addr + slot * self.cqe_bytes, self.cqe_bytes)

    def poll(self) -> list[Completion]:
        """All new completions."""
        out = []
        while True:
            raw = self.raw(self.consumer)[-64:]
            if raw[63] >> 4 == CqeOpcode.INVALID or raw[63] & 1 != self.consumer >> self.log_size & 1:
                break
            out.append(decode(raw))
            self.consumer += 1
            self.card.memory.write(self.dbr, (self.consumer & 0xFFFFFF).to_bytes(4, "big"))
        return out

    def arm(self, solicited_only: bool = False) -> None:
        """Ask for an event."""
        self.card.arm_cq(self.cqn, self.consumer, solicited_only)


def decode(raw: bytes) -> Completion:
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
    """An SRQ in memory: that of a domain of XRC if `xrcd` is given, with a CQ of its own.

    Its slots are posted in `order`, round and round, beginning with 0; by default as they lie in memory.
    """

    def __init__(
        self,
        card: Card,
        xrcd: int | None = None,
        log_size: int = 4,
        cq: CompletionQueue | None = None,
        pd: int | None = None,
        order: Sequence[int] | None = None,
        **fields: int,
    ) -> None:
        self.card = card
        self.log_size = log_size
        self.order = order or range(1 << log_size)
        self.dbr = card.alloc(64)
        size = 64 << log_size
        self.addr = card.alloc(size)
        self.posted = 0
        pages = card.pages(self.addr, size)
        domain = card.pd if pd is None else pd
        if xrcd is None:
            self.number = self._create_pool(domain, pages, fields)
        else:
            assert cq is not None
            self.number = self._create_xrc(domain, xrcd, cq.cqn, pages, fields)

    def _create_pool(self, pd: int, pages: bytes, fields: dict[str, int]) -> int:
        view = cmd.CreateRmpIn()
        view.ctx.state = RmpState.RDY
        basic = {"wq_type": WqType.LINKED_LIST, "log_wq_sz": self.log_size, "log_wq_stride": LOG_STRIDE, "pd": pd,
                 "dbr_addr": self.dbr}  # fmt: skip
        for name, value in {**basic, **fields}.items():
            setattr(view.ctx.wq, name, value)
        return cmd.CreateRmpOut.from_bytes(self.card.run(Op.CREATE_RMP, view, pages)).rmpn

    def _create_xrc(self, pd: int, xrcd: int, cqn: int, pages: bytes, fields: dict[str, int]) -> int:
        view = cmd.CreateXrcSrqIn()
        basic = {"log_xrc_srq_size": self.log_size, "log_rq_stride": LOG_STRIDE - 4, "pd": pd, "xrcd": xrcd,
                 "cqn": cqn, "db_record_addr_h": self.dbr >> 32, "db_record_addr_l": (self.dbr & 0xFFFFFFFF) >> 2,
                 "user_index": 0xFFFFFF}  # fmt: skip
        for name, value in {**basic, **fields}.items():
            setattr(view.xrc_srq_context_entry, name, value)
        return cmd.CreateXrcSrqOut.from_bytes(self.card.run(Op.CREATE_XRC_SRQ, view, pages)).xrc_srqn

    @property
    def srq(self) -> Srq:
        """The card's object, for looking."""
        srq = self.card.hca.srqs.get(self.number)
        assert srq is not None
        return srq

    def post_recv(self, addr: int, size: int, key: int | None = None) -> None:
        """Link a receive behind those that are posted."""
        self.post_list(data(addr, size, self.card.key if key is None else key))

    def post_list(self, segments: bytes) -> None:
        """The same with a scatter list of up to 48 bytes."""
        mask = (1 << self.log_size) - 1
        slot, after = (self.order[number & mask] for number in (self.posted, self.posted + 1))
        wqe = NextSegment(next_wqe_index=after).to_bytes() + segments + data(0, 0, TERMINATOR_KEY)
        self.card.memory.write(self.addr + slot * 64, wqe[:64])
        self.posted += 1
        self.card.memory.write(self.dbr, (self.posted & 0xFFFF).to_bytes(4, "big"))
