"""What the host knows about a card: its live objects and the memory that each of them stands for.

Everything is learned from the bytes of accepted commands, with no look into the firmware, so that it can be held
against the card's own ledger and against every DMA access.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.fuzz.watch import BASE, Range, WatchedMemory
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.mkey import Mkc
from vhca.wire.connectx.wqe import MkeyMask, UmrCtrlSegment, WqeOpcode

PAS_AT = 0x110
RECORD_BYTES = 8
UMR_MKEY_AT = 64
UMR_DATA_AT = 128
WRITE_RIGHTS = ("lw", "rw", "a")


@dataclass
class Item:
    """One live object; which fields have a meaning depends on its kind."""

    number: int
    uid: int = 0
    service: int = 0
    ranges: list[Range] = field(default_factory=list)
    rq_bytes: int = 0
    dbr: int = 0
    log_size: int = 0
    log_sq: int = 0
    log_stride: int = 6
    entry_bytes: int = 64
    posted: int = 0
    sq_posted: int = 0
    consumer: int = 0
    has_sq: bool = False
    has_rq: bool = False
    key: int = 0
    mode: int = 0
    start: int = 0
    length: int = 0
    pages: list[int] = field(default_factory=list)
    log_page: int = 12
    offset: int = 0
    pd: int = 0
    starts: set[int] = field(default_factory=set)
    lengths: set[int] = field(default_factory=set)
    plain: bool = False
    umr: bool = False
    gids: set[bytes] = field(default_factory=set)

    def place(self, offset: int) -> int:
        """Bus address of a byte of the object's buffer, 0 if it has no such byte."""
        for addr, size in self.ranges:
            if offset < size:
                return addr + offset
            offset -= size
        return 0


def pages_of(tail: bytes, count: int | None = None) -> list[int]:
    """A page list; all whole entries of the tail if no count is given."""
    most = len(tail) // 8
    count = most if count is None else min(count, most)
    return [int.from_bytes(tail[at * 8 : at * 8 + 8], "big") & ~0xFFF for at in range(count)]


def spans(pages: list[int], log_page: int, offset: int, size: int) -> list[Range]:
    """Where `size` bytes from `offset` of a page list lie."""
    page_bytes = 1 << log_page
    out: list[Range] = []
    while size > 0 and offset >> log_page < len(pages):
        inside = offset & (page_bytes - 1)
        part = min(page_bytes - inside, size)
        out.append((pages[offset >> log_page] + inside, part))
        offset += part
        size -= part
    return out


def first_addr(ranges: list[Range]) -> int:
    return ranges[0][0] if ranges else 0


class Book:
    """Objects by kind and number, and the grants in a card's memory that follow from them."""

    KINDS = (
        "pd", "uar", "xrcd", "transport_domain", "uctx", "umem", "memic", "q_counter", "eq", "cq", "mkey", "srq", "qp",
    )  # fmt: skip

    def __init__(self, memory: WatchedMemory) -> None:
        self.memory = memory
        self.items: dict[str, dict[int, Item]] = {}
        self.forget()

    def forget(self) -> None:
        """Everything is gone: reset, ENABLE_HCA, TEARDOWN_HCA, DISABLE_HCA."""
        self.items = {kind: {} for kind in self.KINDS}
        self.memory.revoke_all_but(lambda key: key == "commands")

    def counts(self) -> dict[str, int]:
        """What the card's ledger must say."""
        counts = {kind: len(items) for kind, items in self.items.items()}
        groups = {gid for item in self.items["qp"].values() for gid in item.gids}
        return {**counts, "multicast_group": len(groups)}

    def learn(self, op: int, data: bytes, out: bytes) -> None:
        """Take an accepted command over."""
        number = int.from_bytes(out[8:12], "big") & 0xFFFFFF
        named = int.from_bytes(data[8:12], "big") & 0xFFFFFF
        uid = int.from_bytes(data[2:4], "big")
        if op in _PLAIN_CREATES:
            kind, width = _PLAIN_CREATES[op]
            number &= (1 << width) - 1
            self.items[kind][number] = Item(number, uid=0 if kind == "uctx" else uid)
        elif op in _DESTROYS:
            kind, width = _DESTROYS[op]
            named &= (1 << width) - 1
            del self.items[kind][named]
            self.memory.revoke((kind, named))
        elif op in _CREATES:
            kind = _CREATES[op]
            item = Item(number, uid=uid)
            {
                Op.CREATE_EQ: self._eq,
                Op.CREATE_CQ: self._cq,
                Op.CREATE_MKEY: self._mkey,
                Op.CREATE_UMEM: self._umem,
                Op.CREATE_RMP: self._rmp,
                Op.CREATE_XRC_SRQ: self._xrc_srq,
                Op.CREATE_QP: self._qp,
            }[Op(op)](item, data)
            self.items[kind][item.number] = item
        elif op == Op.ALLOC_MEMIC:
            start = int.from_bytes(out[8:16], "big")
            self.items["memic"][start] = Item(start, length=cmd.AllocMemicIn.from_bytes(data).memic_size)
        elif op == Op.DEALLOC_MEMIC:
            del self.items["memic"][cmd.DeallocMemicIn.from_bytes(data).memic_start_addr]
        elif op == Op.MODIFY_CQ and data[7] == 1 and data[6] == 0:
            self._resized(self.items["cq"][named], data)
        elif op == Op.QP_2RST:
            item = self.items["qp"][named]
            item.posted = item.sq_posted = 0
        elif op == Op.ATTACH_TO_MCG:
            self.items["qp"][named].gids.add(data[16:32])
        elif op == Op.DETACH_FROM_MCG:
            self.items["qp"][named].gids.discard(data[16:32])
        elif op in (Op.ENABLE_HCA, Op.DISABLE_HCA, Op.TEARDOWN_HCA):
            self.forget()

    # ---- one per kind ----

    def _umem_ranges(self, number: int, offset: int, size: int) -> list[Range]:
        umem = self.items["umem"][number]
        return spans(umem.pages, umem.log_page, umem.offset + offset, size)

    def _eq(self, item: Item, data: bytes) -> None:
        item.number &= 0xFF
        context = cmd.CreateEqIn.from_bytes(data).eq_context_entry
        item.log_size = context.log_eq_size
        log_page = 12 + context.log_page_size
        ranges = spans(pages_of(data[PAS_AT:]), log_page, context.page_offset << log_page - 6, 64 << item.log_size)
        self.memory.grant(("eq", item.number), ranges, write=True)

    def _cq_ranges(self, view: cmd.CreateCqIn | cmd.ModifyCqIn, data: bytes) -> list[Range]:
        context = view.cq_context
        size = (64 << context.cqe_sz) << context.log_cq_size
        if view.cq_umem_valid:
            return self._umem_ranges(view.cq_umem_id, view.cq_umem_offset, size)
        log_page = 12 + context.log_page_size
        return spans(pages_of(data[PAS_AT:]), log_page, context.page_offset << log_page - 6, size)

    def _cq(self, item: Item, data: bytes) -> None:
        view = cmd.CreateCqIn.from_bytes(data)
        context = view.cq_context
        item.log_size = context.log_cq_size
        item.entry_bytes = 64 << context.cqe_sz
        item.dbr = context.dbr_addr
        if context.dbr_umem_valid:
            item.dbr = first_addr(self._umem_ranges(context.dbr_umem_id, context.dbr_addr, RECORD_BYTES))
        ranges = self._cq_ranges(view, data)
        self.memory.grant(("cq", item.number), ranges, write=True)
        self.memory.grant(("cq", item.number, "dbr"), [(item.dbr, RECORD_BYTES)], write=False)

    def _resized(self, item: Item, data: bytes) -> None:
        view = cmd.ModifyCqIn.from_bytes(data)
        item.log_size = view.cq_context.log_cq_size
        ranges = self._cq_ranges(view, data)
        self.memory.revoke(("cq", item.number))
        self.memory.grant(("cq", item.number), ranges, write=True)

    def _umem(self, item: Item, data: bytes) -> None:
        view = cmd.CreateUmemIn.from_bytes(data)
        item.log_page = 12 + view.umem.log_page_size
        item.pages = pages_of(data[view.SIZE :], view.umem.num_of_mtt)
        item.offset = view.umem.page_offset
        # Objects in it hand its memory out; it stays theirs when the registration goes.

    def _mkey(self, item: Item, data: bytes) -> None:
        view = cmd.CreateMkeyIn.from_bytes(data)
        context = view.memory_key_mkey_entry
        item.key = item.number << 8 | context.mkey_7_0
        item.mode = context.access_mode_4_2 << 2 | context.access_mode_1_0
        item.start, item.length, item.pd = context.start_addr, context.len, context.pd
        item.log_page = context.log_page_size
        ranges: list[Range] = []
        if item.mode == 0:
            ranges = [(BASE, self.memory.size)] if context.length64 else [(item.start, item.length)]
        elif item.mode == 1 and view.mkey_umem_valid:
            umem = self.items["umem"][view.mkey_umem_id]
            item.log_page = umem.log_page
            ranges = self._umem_ranges(view.mkey_umem_id, view.mkey_umem_offset, item.length)
            item.pages = umem.pages[umem.offset + view.mkey_umem_offset >> umem.log_page :]
        elif item.mode == 1:
            item.pages = pages_of(data[PAS_AT:], view.translations_octword_actual_size * 2)
            ranges = spans(item.pages, item.log_page, item.start & (1 << item.log_page) - 1, item.length)
        item.umr = bool(context.umr_en)
        item.plain = bool(
            item.mode <= 1 and not context.free and context.lr and context.lw and context.rr and context.rw
        )
        item.ranges = ranges
        self.memory.grant(("mkey", item.number), ranges, write=self._may_write(context))

    @staticmethod
    def _may_write(context: Mkc) -> bool:
        return any(getattr(context, name) for name in WRITE_RIGHTS)

    def umr_posted(self, wqe: bytes) -> None:
        """A UMR that may be executed from now on: what its key may become is handed out until the key is destroyed."""
        if len(wqe) < UMR_DATA_AT or wqe[3] != WqeOpcode.UMR:
            return
        item = self.items["mkey"].get(int.from_bytes(wqe[12:15], "big"))
        if item is None or item.mode > 1:
            return
        ctrl = UmrCtrlSegment.from_bytes(wqe, 16)
        context = Mkc.from_bytes(wqe, UMR_MKEY_AT)
        if item.mode == 0:
            # Whether this or an earlier request was carried out cannot be known: all combinations may be in force.
            item.starts |= {item.start, context.start_addr}
            item.lengths |= {item.length, context.len}
            ranges = [(start, length) for start in item.starts for length in item.lengths]
            self.memory.grant(("mkey", item.number), ranges, write=True)
            if ctrl.mkey_mask & 1 and context.length64:
                self.memory.everything = True
            return
        if ctrl.mkey_mask >> MkeyMask.PAGE_SIZE & 1 and context.log_page_size != 12:
            item.log_page = max(item.log_page, context.log_page_size)
        if ctrl.xlt_octowords:
            if ctrl.inline:
                item.pages = item.pages + pages_of(wqe[UMR_DATA_AT : UMR_DATA_AT + ctrl.xlt_octowords * 16])
            else:
                self.memory.everything = True
        self.memory.grant(("mkey", item.number), [(page, 1 << item.log_page) for page in item.pages], write=True)

    def _rmp(self, item: Item, data: bytes) -> None:
        context = cmd.CreateRmpIn.from_bytes(data).ctx
        wq = context.wq
        item.service = 0
        item.log_size, item.log_stride = wq.log_wq_sz, wq.log_wq_stride
        size = 1 << wq.log_wq_sz + wq.log_wq_stride
        if wq.wq_umem_valid:
            ranges = self._umem_ranges(wq.wq_umem_id, wq.wq_umem_offset, size)
        else:
            log_page = 12 + wq.log_wq_pg_sz
            ranges = spans(pages_of(data[PAS_AT:]), log_page, wq.page_offset << log_page - 6, size)
        item.dbr = wq.dbr_addr
        if wq.dbr_umem_valid:
            item.dbr = first_addr(self._umem_ranges(wq.dbr_umem_id, wq.dbr_addr, RECORD_BYTES))
        self._work_queue("srq", item, ranges)

    def _xrc_srq(self, item: Item, data: bytes) -> None:
        context = cmd.CreateXrcSrqIn.from_bytes(data).xrc_srq_context_entry
        item.service = 1
        item.log_size, item.log_stride = context.log_xrc_srq_size, context.log_rq_stride + 4
        log_page = 12 + context.log_page_size
        ranges = spans(
            pages_of(data[PAS_AT:]), log_page, context.page_offset << log_page - 6, 1 << item.log_size + item.log_stride
        )
        item.dbr = context.db_record_addr_h << 32 | context.db_record_addr_l << 2
        self._work_queue("srq", item, ranges)

    def _qp(self, item: Item, data: bytes) -> None:
        view = cmd.CreateQpIn.from_bytes(data)
        context = view.qpc
        item.service = context.st
        item.pd = context.pd
        item.log_size, item.log_sq = context.log_rq_size, context.log_sq_size
        item.log_stride = context.log_rq_stride + 4
        item.has_rq, item.has_sq = context.rq_type == 0, not context.no_sq
        rq_bytes = 1 << item.log_size + item.log_stride if item.has_rq else 0
        size = rq_bytes + (64 << item.log_sq if item.has_sq else 0)
        if not size:
            ranges = []
        elif view.wq_umem_valid:
            ranges = self._umem_ranges(view.wq_umem_id, view.wq_umem_offset, size)
        else:
            log_page = 12 + context.log_page_size
            ranges = spans(pages_of(data[PAS_AT:]), log_page, context.page_offset << log_page - 6, size)
        item.dbr = context.dbr_addr
        if context.dbr_umem_valid and (item.has_rq or (item.has_sq and not context.send_dbr_mode)):
            item.dbr = first_addr(self._umem_ranges(context.dbr_umem_id, context.dbr_addr, RECORD_BYTES))
        self._work_queue("qp", item, ranges)
        item.rq_bytes = rq_bytes

    def _work_queue(self, kind: str, item: Item, ranges: list[Range]) -> None:
        item.ranges = ranges
        self.memory.grant((kind, item.number), [*ranges, (item.dbr, RECORD_BYTES)], write=False)


_PLAIN_CREATES: dict[int, tuple[str, int]] = {
    Op.ALLOC_PD: ("pd", 24),
    Op.ALLOC_UAR: ("uar", 24),
    Op.ALLOC_XRCD: ("xrcd", 24),
    Op.ALLOC_TRANSPORT_DOMAIN: ("transport_domain", 24),
    Op.CREATE_UCTX: ("uctx", 16),
    Op.ALLOC_Q_COUNTER: ("q_counter", 8),
}
_CREATES: dict[int, str] = {
    Op.CREATE_EQ: "eq",
    Op.CREATE_CQ: "cq",
    Op.CREATE_MKEY: "mkey",
    Op.CREATE_UMEM: "umem",
    Op.CREATE_RMP: "srq",
    Op.CREATE_XRC_SRQ: "srq",
    Op.CREATE_QP: "qp",
}
_DESTROYS: dict[int, tuple[str, int]] = {
    Op.DEALLOC_PD: ("pd", 24),
    Op.DEALLOC_UAR: ("uar", 24),
    Op.DEALLOC_XRCD: ("xrcd", 24),
    Op.DEALLOC_TRANSPORT_DOMAIN: ("transport_domain", 24),
    Op.DESTROY_UCTX: ("uctx", 16),
    Op.DEALLOC_Q_COUNTER: ("q_counter", 8),
    Op.DESTROY_EQ: ("eq", 8),
    Op.DESTROY_CQ: ("cq", 24),
    Op.DESTROY_MKEY: ("mkey", 24),
    Op.DESTROY_UMEM: ("umem", 24),
    Op.DESTROY_RMP: ("srq", 24),
    Op.DESTROY_XRC_SRQ: ("srq", 24),
    Op.DESTROY_QP: ("qp", 24),
}
# Kinds in the order in which a driver takes them down, with the command for it.
TEARDOWN: tuple[tuple[str, int], ...] = (
    ("qp", Op.DESTROY_QP),
    ("srq", Op.DESTROY_RMP),
    ("mkey", Op.DESTROY_MKEY),
    ("cq", Op.DESTROY_CQ),
    ("eq", Op.DESTROY_EQ),
    ("umem", Op.DESTROY_UMEM),
    ("memic", Op.DEALLOC_MEMIC),
    ("q_counter", Op.DEALLOC_Q_COUNTER),
    ("xrcd", Op.DEALLOC_XRCD),
    ("pd", Op.DEALLOC_PD),
    ("transport_domain", Op.DEALLOC_TRANSPORT_DOMAIN),
    ("uctx", Op.DESTROY_UCTX),
    ("uar", Op.DEALLOC_UAR),
)
