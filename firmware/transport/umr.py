"""Registration by work request (UMR): a WQE that changes a memory key in its turn of the send queue.

Fast registration, local invalidate, memory window bind and the driver's own registration queue are this one WQE. The
key is found by its index: a WQE that gives it out may carry its new variant. Everything is checked before anything is
changed.
"""

from typing import Final

from firmware.entries import KLM_BYTES, klm_sizes, prepare
from firmware.memory import PIECE_COST_BYTES, STEP_PIECES, AccessError, PageFault, find_key, gather
from firmware.model.capabilities import MAX_LOG_PAGE
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.objects import (
    ANY_QPN,
    LOCAL_READ,
    LOCAL_WRITE,
    MODE_KLM,
    MODE_KSM,
    MODE_MTT,
    MODE_PA,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    REPEAT_BLOCK,
    Mkey,
)
from firmware.model.pages import Entries, all_present
from firmware.model.qp import Qp
from firmware.model.send_wqe import SendWqe
from firmware.transport.completion import BIND, LOCAL_PROTECTION, LOCAL_QP_OPERATION
from vhca.wire.connectx.mkey import Klm
from vhca.wire.connectx.wqe import DataSegment, MkeyMask, UmrCheckFree, UmrCtrlSegment, UmrMkeySegment

OCTWORD: Final = 16
BLOCK_OCTWORDS: Final = 4
CTRL_AT: Final = 16
MKEY_AT: Final = CTRL_AT + UmrCtrlSegment.SIZE
PAYLOAD_AT: Final = MKEY_AT + UmrMkeySegment.SIZE
MIN_LOG_PAGE: Final = 12
# A window shows one region or a few, which are looked at when it is bound; a longer list only where it is used.
CHECKED_ENTRIES: Final = 64
INDIRECT: Final = (MODE_KLM, MODE_KSM)
_RIGHTS: Final = (
    (MkeyMask.LR, "lr", LOCAL_READ),
    (MkeyMask.LW, "lw", LOCAL_WRITE),
    (MkeyMask.RR, "rr", REMOTE_READ),
    (MkeyMask.RW, "rw", REMOTE_WRITE),
    (MkeyMask.A, "a", REMOTE_ATOMIC),
)
_data = DataSegment.unpacker("byte_count", "lkey", "addr")
_klm = Klm.unpacker("bcount", "key", "va")
_entries = Klm.iterator("bcount", "key", "va")


class UmrError(Exception):
    """The request is refused; `syndrome` is that of its completion."""

    def __init__(self, syndrome: int, reason: str) -> None:
        super().__init__(reason)
        self.syndrome = syndrome


def execute(hca: Hca, qp: Qp, wqe: SendWqe) -> int:
    """Carry out the UMR of `wqe`, whole or not at all; returns its cost in bytes. Raises UmrError."""
    raw = wqe.raw
    if len(raw) < PAYLOAD_AT:
        raise UmrError(LOCAL_QP_OPERATION, "a UMR has a control and a memory key segment")
    ctrl = UmrCtrlSegment.from_bytes(raw, CTRL_AT)
    segment = UmrMkeySegment.from_bytes(raw, MKEY_AT)
    mkey = hca.mkeys.get(wqe.rkey >> 8)
    if mkey is None:
        _tell_of_key(hca, qp, wqe.rkey, None)
        raise UmrError(BIND, "umr: no such memory key")
    _check(hca, qp, mkey, ctrl, segment, wqe.rkey)
    pieces = hca.pieces
    payload = _payload(hca, qp, ctrl, raw)
    pieces = hca.pieces - pieces
    changed = _changed(mkey, ctrl.mkey_mask, segment)
    _check_place(mkey, ctrl, payload)
    copied = 0
    if mkey.mode == MODE_KLM and payload:
        table, copied = _load(mkey.klms, ctrl, payload)
        changed.klms = bytes(table)
        if not changed.free:
            _check_window(hca, qp, changed)
    if hca.history is None:
        _commit(hca, mkey, changed)
    else:
        variant, was_free = mkey.variant, mkey.free
        _commit(hca, mkey, changed)
        called = "LOCAL_INV" if mkey.free and not was_free and not qp.exempt_from_pd else "UMR"
        hca.history.key_changed(hca.now_ns, mkey, variant, was_free, f"{called} of QP {qp.handle:#x}")
    if mkey.mode == MODE_KLM:
        prepare(mkey)
    if mkey.mode == MODE_MTT and payload:
        if ctrl.translation_offset_en and not mkey.paged:
            # The pages of a plain list are all there.
            mkey.mtts = all_present(mkey.mtts)
            copied = len(mkey.mtts)
        mkey.mtts, more = _load(mkey.mtts, ctrl, payload)
        copied += more
        mkey.paged = True
    elif mkey.mode == MODE_KSM and payload:
        mkey.ksms, copied = _load(mkey.ksms, ctrl, payload)
    if payload:
        mkey.translation_changed()
    hca.count[Count.UMRS] += 1
    return len(payload) + copied + pieces * PIECE_COST_BYTES


def _tell_of_key(hca: Hca, qp: Qp, key: int, mkey: Mkey | None) -> None:
    """Tell whoever keeps the lives of keys that one is named which is not valid."""
    if hca.history is not None:
        hca.history.refused_key(hca.now_ns, key, mkey, f"a UMR of QP {qp.handle:#x}")


def _check(hca: Hca, qp: Qp, mkey: Mkey, ctrl: UmrCtrlSegment, segment: UmrMkeySegment, key: int) -> None:
    """May this queue pair change this key, and is the key in the state that the WQE expects?"""
    mask = ctrl.mkey_mask
    if not mkey.umr_enabled:
        raise UmrError(BIND, "umr: the key was not created for UMR")
    trusted = qp.exempt_from_pd or qp.context.fre or mkey.mode in INDIRECT
    # Bus addresses are the kernel's business: a program may invalidate such a key, and no more.
    if not trusted and (mask & ~(1 << MkeyMask.FREE) or not segment.free or ctrl.xlt_octowords):
        raise UmrError(BIND, "umr: fast registration is not enabled for this queue pair")
    if not qp.exempt_from_pd:
        if mkey.pd != qp.pd:
            raise UmrError(BIND, "umr: the key belongs to another protection domain")
        if mask >> MkeyMask.PD & 1 and segment.pd != qp.pd:
            raise UmrError(BIND, "umr: only the registration queue moves keys between domains")
    elif mask >> MkeyMask.PD & 1 and hca.pds.get(segment.pd) is None:
        raise UmrError(BIND, "umr: no such protection domain")
    if not qp.exempt_from_pd and mask >> MkeyMask.FREE & 1 and segment.free and key & 0xFF != mkey.variant:
        # A key that is taken back is named as it is; one that is given out, by what it will be.
        _tell_of_key(hca, qp, key, mkey)
        raise UmrError(BIND, "umr: the key to invalidate has another variant by now")
    if ctrl.check_free == UmrCheckFree.FAIL_IF_NOT_FREE and not mkey.free:
        raise UmrError(BIND, "umr: the key is in use")
    if ctrl.check_free == UmrCheckFree.FAIL_IF_FREE and mkey.free:
        _tell_of_key(hca, qp, key, mkey)
        raise UmrError(BIND, "umr: the key is free")
    if ctrl.check_qpn and mkey.qpn not in (ANY_QPN, qp.handle):
        raise UmrError(BIND, "umr: the key is bound to another queue pair")
    if mask >> MkeyMask.QPN & 1 and segment.qpn not in (ANY_QPN, qp.handle):
        raise UmrError(BIND, "umr: a window is bound to the queue pair that binds it, or to none")
    if mask >> MkeyMask.BSF_EN & 1 and segment.bsf_en:
        raise UmrError(BIND, "umr: signature offload is not offered")
    hca.note("umr", qpn=qp.handle, key=f"{key:#010x}", mask=f"{mask:#x}", octowords=ctrl.xlt_octowords)


def _payload(hca: Hca, qp: Qp, ctrl: UmrCtrlSegment, raw: bytes) -> bytes:
    """The translation entries, from the WQE itself or from memory."""
    size = ctrl.xlt_octowords * OCTWORD
    if not size:
        return b""
    if ctrl.inline:
        if PAYLOAD_AT + size > len(raw):
            raise UmrError(LOCAL_QP_OPERATION, "umr: inline translation ends behind the WQE")
        return raw[PAYLOAD_AT : PAYLOAD_AT + size]
    if len(raw) < PAYLOAD_AT + DataSegment.SIZE:
        raise UmrError(LOCAL_QP_OPERATION, "umr: translation without a data segment")
    length, lkey, addr = _data(raw, PAYLOAD_AT)
    try:
        return gather(hca, qp, [(addr, length, lkey)], 0, size, STEP_PIECES)
    except PageFault:
        raise
    except AccessError as error:
        raise UmrError(LOCAL_PROTECTION, str(error)) from None


def _changed(mkey: Mkey, mask: int, segment: UmrMkeySegment) -> Mkey:
    """A copy of the key with the masked fields taken from the segment; translation lists are shared still."""
    changed = Mkey(
        variant=segment.mkey_7_0 if mask >> MkeyMask.KEY & 1 else mkey.variant,
        pd=segment.pd if mask >> MkeyMask.PD & 1 else mkey.pd,
        mode=mkey.mode,
        start=segment.start_addr if mask >> MkeyMask.START_ADDR & 1 else mkey.start,
        length=segment.len if mask >> MkeyMask.LEN & 1 else mkey.length,
        length64=bool(segment.length64) if mask >> MkeyMask.LEN & 1 else mkey.length64,
        log_page_size=mkey.log_page_size,
        klms=mkey.klms,
        free=bool(segment.free) if mask >> MkeyMask.FREE & 1 else mkey.free,
        remote_invalidate=bool(segment.en_rinval) if mask >> MkeyMask.EN_RINVAL & 1 else mkey.remote_invalidate,
        qpn=segment.qpn if mask >> MkeyMask.QPN & 1 else mkey.qpn,
    )
    rights = mkey.rights
    for bit, name, right in _RIGHTS:
        if mask >> bit & 1:
            rights = rights | right if getattr(segment, name) else rights & ~right
    changed.rights = rights
    if mask >> MkeyMask.PAGE_SIZE & 1:
        high = segment.log_page_size & 0x20 if mask >> MkeyMask.PAGE_SIZE_5 & 1 else 0
        changed.log_page_size = high | segment.log_page_size & 0x1F
        if mkey.mode in (MODE_MTT, MODE_KSM) and not MIN_LOG_PAGE <= changed.log_page_size <= MAX_LOG_PAGE:
            raise UmrError(BIND, "umr: 12 is the smallest log_page_size")
    return changed


def _place(ctrl: UmrCtrlSegment) -> int:
    """Where in the table the entries go, in octowords."""
    return ctrl.xlt_offset_47_16 << 16 | ctrl.xlt_offset if ctrl.translation_offset_en else 0


def _check_place(mkey: Mkey, ctrl: UmrCtrlSegment, payload: bytes) -> None:
    """Entries go to the start of the table, or to an offset in it: over or right behind what is there already."""
    if not payload:
        return
    if mkey.mode == MODE_PA:
        raise UmrError(BIND, "umr: this key has no translation table")
    offset = _place(ctrl)
    # Entries come in blocks of 64 bytes, so a table's size counts in whole blocks too.
    if offset + ctrl.xlt_octowords > -(-mkey.capacity_octwords // BLOCK_OCTWORDS) * BLOCK_OCTWORDS:
        raise UmrError(BIND, "umr: more translation than the key was created for")
    if mkey.mode == MODE_MTT:
        loaded = (len(mkey.mtts) + 8) // OCTWORD
    else:
        loaded = len(mkey.klms if mkey.mode == MODE_KLM else mkey.ksms) // OCTWORD
    if offset > -(-loaded // BLOCK_OCTWORDS) * BLOCK_OCTWORDS:
        raise UmrError(BIND, "umr: the entries before this offset were never loaded")


def _load(old: Entries, ctrl: UmrCtrlSegment, payload: bytes) -> tuple[bytearray, int]:
    """A list with entries taken over as they are, and how many bytes of it had to be copied.

    A part goes into place: a table may be long, and faults change single pages. Only a list that is not the key's own
    yet, or that must not change before its new content is checked, is copied.
    """
    if not ctrl.translation_offset_en:
        return bytearray(payload), 0
    at = _place(ctrl) * OCTWORD
    table = old if isinstance(old, bytearray) else bytearray(old)
    copied = 0 if table is old else len(table)
    # At most the rest of a block is missing (see _check_place).
    table += bytes(max(0, at - len(table)))
    table[at : at + len(payload)] = payload
    return table, copied


def _check_window(hca: Hca, qp: Qp, changed: Mkey) -> None:
    """What a window shows must lie inside regions of its domain that may be written if the window may (10.6.7.2.2)."""
    right = LOCAL_WRITE if changed.rights & (REMOTE_WRITE | REMOTE_ATOMIC) else 0
    for size, key, addr in _shown(changed.klms):
        if not size:
            continue
        try:
            find_key(hca, changed.pd, qp.handle, key, addr, size, right)
        except AccessError as error:
            raise UmrError(BIND, str(error)) from None


def _shown(klms: bytes) -> list[tuple[int, int, int]]:
    """The regions that a short list of entries shows: of a strided one, from the first to the last repetition."""
    if not klms:
        return []
    round_bytes, mark, counts = _klm(klms)
    if mark != REPEAT_BLOCK:
        return list(_entries(klms)) if len(klms) <= CHECKED_ENTRIES * KLM_BYTES else []
    repeat, count = counts >> 32, counts & 0xFFFF
    columns = klms[KLM_BYTES : KLM_BYTES * (1 + count)]
    sizes = [size & 0xFFFF for size in klm_sizes(columns)]
    if not repeat or not count or len(sizes) < count or 0 in sizes or sum(sizes) != round_bytes:
        raise UmrError(BIND, "umr: the repeat block does not fit its entries")
    if count > CHECKED_ENTRIES:
        return []
    return [((size >> 16) * (repeat - 1) + (size & 0xFFFF), key, addr) for size, key, addr in _entries(columns)]


def _commit(hca: Hca, mkey: Mkey, changed: Mkey) -> None:
    if changed.pd != mkey.pd:
        old, new = hca.pds.get(mkey.pd), hca.pds.get(changed.pd)
        if old is not None:
            old.refs -= 1
        if new is not None:
            new.refs += 1
    moved = (mkey.start, mkey.length, mkey.length64, mkey.log_page_size)
    mkey.variant = changed.variant
    mkey.pd = changed.pd
    mkey.rights = changed.rights
    mkey.start = changed.start
    mkey.length = changed.length
    mkey.length64 = changed.length64
    mkey.log_page_size = changed.log_page_size
    mkey.klms = changed.klms
    mkey.free = changed.free
    mkey.remote_invalidate = changed.remote_invalidate
    mkey.qpn = changed.qpn
    if moved != (mkey.start, mkey.length, mkey.length64, mkey.log_page_size):
        mkey.translation_changed()
