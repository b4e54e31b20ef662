"""The descriptor fetch unit: one send WQE out of the ring, copied once, checked, decoded.

Strict: whatever is not exactly a WQE of this service is refused with a reason, and becomes a completion with a local QP
operation error. Sizes are in bytes; a *unit* has 16 bytes, a basic block (BB) 64.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from firmware.model.lists import FEW_ENTRIES, LongList, Sge
from firmware.model.qp import ST_DCI, ST_QP0, ST_QP1, ST_RC, ST_REG_UMR, ST_UC, ST_UD, ST_XRC
from firmware.model.send_wqe import LOCAL, Offload, SendWqe
from vhca.layout import Layout, sub
from vhca.wire.connectx.wqe import (
    INLINE_FLAG,
    AtomicSegment,
    CtrlSegment,
    DatagramSegment,
    DataSegment,
    EthPad,
    EthSegment,
    InlineSegment,
    RaddrSegment,
    WqeOpcode,
    XrcSegment,
)
from vhca.wire.ipoib import segment_headers
from vhca.wire.packet import COMPARE_SWAP, FETCH_ADD, READ_REQUEST, SEND, WRITE

NOP: Final = int(WqeOpcode.NOP)
SEND_INVAL: Final = int(WqeOpcode.SEND_INVAL)
RDMA_WRITE_IMM: Final = int(WqeOpcode.RDMA_WRITE_IMM)
SEND_IMM: Final = int(WqeOpcode.SEND_IMM)
UMR: Final = int(WqeOpcode.UMR)
LSO: Final = int(WqeOpcode.LSO)

UNIT: Final = 16
INLINE_HEADER: Final = InlineSegment.SIZE

# opcode -> (operation, has immediate, has key to invalidate)
_OPERATIONS: Final[dict[int, tuple[int, bool, bool]]] = {
    WqeOpcode.NOP: (LOCAL, False, False),
    WqeOpcode.SEND_INVAL: (SEND, False, True),
    WqeOpcode.RDMA_WRITE: (WRITE, False, False),
    WqeOpcode.RDMA_WRITE_IMM: (WRITE, True, False),
    WqeOpcode.SEND: (SEND, False, False),
    WqeOpcode.SEND_IMM: (SEND, True, False),
    WqeOpcode.LSO: (SEND, False, False),
    WqeOpcode.RDMA_READ: (READ_REQUEST, False, False),
    WqeOpcode.ATOMIC_CS: (COMPARE_SWAP, False, False),
    WqeOpcode.ATOMIC_FA: (FETCH_ADD, False, False),
    WqeOpcode.UMR: (LOCAL, False, False),
}

_CONNECTED: Final = frozenset(_OPERATIONS) - {WqeOpcode.LSO}
_UNRELIABLE: Final = frozenset(
    (WqeOpcode.NOP, WqeOpcode.RDMA_WRITE, WqeOpcode.RDMA_WRITE_IMM, WqeOpcode.SEND, WqeOpcode.SEND_IMM, WqeOpcode.UMR)
)
_DYNAMIC: Final = _CONNECTED - {WqeOpcode.UMR}
_DATAGRAM: Final = frozenset((WqeOpcode.NOP, WqeOpcode.SEND, WqeOpcode.SEND_IMM))
SERVED: Final[dict[int, frozenset[WqeOpcode]]] = {
    ST_RC: _CONNECTED,  # type: ignore[dict-item]
    ST_XRC: _CONNECTED,  # type: ignore[dict-item]
    ST_UC: _UNRELIABLE,
    ST_DCI: _DYNAMIC,  # type: ignore[dict-item]
    ST_UD: _DATAGRAM,
    ST_QP0: _DATAGRAM,
    ST_QP1: _DATAGRAM,
    ST_REG_UMR: frozenset((WqeOpcode.NOP, WqeOpcode.UMR)),
}
"""Opcodes that a send queue of each service type takes."""

_ctrl = CtrlSegment.unpacker("wqe_index", "opcode", "qpn", "ds", "fm", "ce", "se", "imm")
_ctrl_size = CtrlSegment.unpacker("ds")
_ctrl_opcode = CtrlSegment.unpacker("opcode", "wqe_index")


class _RdmaSegments(Layout, size=32):
    """Remote address and one data segment, decoded in one go."""

    remote: RaddrSegment = sub(0, RaddrSegment)
    local: DataSegment = sub(16, DataSegment)


_rdma = _RdmaSegments.unpacker("remote.raddr", "remote.rkey", "local.byte_count", "local.lkey", "local.addr")
_raddr = RaddrSegment.unpacker("raddr", "rkey")
_data = DataSegment.unpacker("byte_count", "lkey", "addr")
_atomic = AtomicSegment.unpacker("swap_add", "compare")
_eth = EthSegment.unpacker("l3_csum", "l4_csum", "mss", "inline_hdr_sz")
# The headers of an LSO begin in the last bytes of the segment.
_HEADER_AT: Final = EthSegment.SIZE - 2
_xrc = XrcSegment.unpacker("xrc_srqn")
_MAX_BYTE_COUNT: Final = 1 << 31


class WqeError(Exception):
    """The WQE is not one that this queue can execute; the text says why."""


def blocks_of(raw: bytes, at: int = 0) -> int:
    """Basic blocks that a WQE takes by its control segment; 1 if the segment is nonsense, so that a flush goes on."""
    units: int
    (units,) = _ctrl_size(raw, at)
    return (units + 3) >> 2 or 1


def identity_of(raw: bytes, at: int = 0) -> tuple[int, int]:
    """Opcode and index that a control segment names."""
    opcode, index = _ctrl_opcode(raw, at)
    return opcode, index


def parse(raw: bytes, expected_index: int, qpn: int, service: int, start: int = 0, offloads: bool = False) -> SendWqe:
    """Decode a WQE whose control segment is at `start` of `raw`, which holds all its blocks. Raises WqeError.

    `offloads`: the queue pair's datagrams have an Ethernet segment, and may be LSOs.
    """
    index, opcode, named_qpn, units, fence, ce, solicited, imm = _ctrl(raw, start)
    if named_qpn != qpn:
        raise WqeError("ctrl.qpn names another queue pair")
    if index != expected_index & 0xFFFF:
        raise WqeError("ctrl.wqe_index is not the place of the WQE in the ring")
    if not units or start + (units << 4) > len(raw):
        raise WqeError("ctrl.ds is out of range")
    if opcode not in SERVED[service] and not (offloads and opcode == LSO):
        raise WqeError("ctrl.opcode is not offered by this service")
    wqe = SendWqe(index, opcode, (units + 3) >> 2)
    wqe.op, has_immediate, has_key = _OPERATIONS[opcode]
    wqe.fence = fence
    wqe.ce = ce
    wqe.solicited = solicited != 0
    if has_immediate:
        wqe.immediate = imm
    elif has_key:
        wqe.invalidate = imm
    at = start + UNIT
    end = start + (units << 4)
    op = wqe.op
    if units == 3 and op in (WRITE, READ_REQUEST) and service < ST_XRC:
        # The usual RDMA request: one remote address, one data pointer.
        wqe.va, wqe.rkey, size, lkey, addr = _rdma(raw, at)
        if not size & INLINE_FLAG:
            size = size or _MAX_BYTE_COUNT
            wqe.sges = [(addr, size, lkey)]
            wqe.length = size
            return wqe
    if op == LOCAL:
        if opcode == UMR:
            wqe.rkey = imm
            wqe.raw = raw[start:end]
        return wqe
    if service == ST_XRC:
        _need(at + UNIT <= end, "no XRC segment")
        (wqe.xrc_srqn,) = _xrc(raw, at)
        at += UNIT
    if service in (ST_UD, ST_QP0, ST_QP1, ST_DCI):
        _need(at + DatagramSegment.SIZE <= end, "no address vector")
        wqe.raw = raw[at : at + DatagramSegment.SIZE]
        at += DatagramSegment.SIZE
        if offloads:
            at = _parse_offload(wqe, raw, at, end)
    if op != SEND:
        _need(at + UNIT <= end, "no remote address segment")
        wqe.va, wqe.rkey = _raddr(raw, at)
        at += UNIT
        if op >= COMPARE_SWAP:
            _need(at + UNIT <= end, "no atomic segment")
            wqe.swap_add, wqe.compare = _atomic(raw, at)
            at += UNIT
    if at + UNIT == end:
        # The usual WQE: one data segment.
        size, lkey, addr = _data(raw, at)
        if not size & INLINE_FLAG:
            size = size or _MAX_BYTE_COUNT
            wqe.sges = [(addr, size, lkey)]
            wqe.length = size
            _check_atomic(wqe)
            return wqe
    if at < end:
        _parse_data(wqe, raw, at, end)
    _check_atomic(wqe)
    return wqe


def _parse_offload(wqe: SendWqe, raw: bytes, at: int, end: int) -> int:
    """The Ethernet segment; returns where what is behind it begins."""
    _need(at + EthPad.SIZE + EthSegment.SIZE <= end, "no Ethernet segment")
    at += EthPad.SIZE
    size: int
    l3, l4, mss, size = _eth(raw, at)
    if wqe.opcode != LSO:
        _need(not size, "inlined headers without LSO")
        wqe.offload = Offload(l3 != 0, l4 != 0, 0, b"")
        return at + EthSegment.SIZE
    _need(mss > 0, "mss is 0")
    start = at + _HEADER_AT
    _need(start + size <= end, "the inlined headers end behind ctrl.ds")
    header = raw[start : start + size]
    if reason := segment_headers(header):
        raise WqeError(reason)
    wqe.offload = Offload(l3 != 0, l4 != 0, mss, header)
    return (start + size - at + UNIT - 1 & -UNIT) + at


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise WqeError(reason)


def _check_atomic(wqe: SendWqe) -> None:
    if wqe.op >= COMPARE_SWAP and wqe.length != 8:
        raise WqeError("an atomic returns 8 bytes")
    if (wqe.inline is not None or wqe.pieces is not None) and wqe.op >= READ_REQUEST:
        raise WqeError("inline data in a READ or atomic")


def _parse_data(wqe: SendWqe, raw: bytes, at: int, end: int) -> None:
    """Data segments up to `end`: pointers, inline data, or a mix of them in any order."""
    pieces: Iterable[bytes | Sge] = list(_segments(raw, at, end))
    inline = [piece for piece in pieces if isinstance(piece, bytes)]
    sges: list[Sge] = [piece for piece in pieces if not isinstance(piece, bytes)]
    wqe.length = sum(map(len, inline)) + sum(size for _, size, _ in sges)
    wqe.sges = sges
    if sges and len(inline) + len(sges) > FEW_ENTRIES:
        kept = raw[at:end]
        wqe.sges, pieces = _Pointers(kept), _Pieces(kept)
    if inline:
        if sges:
            wqe.pieces = pieces
        else:
            wqe.inline = b"".join(inline)


def _segments(raw: bytes, at: int, end: int) -> Iterator[bytes | Sge]:
    """Data segments one by one: a pointer, or inline data."""
    while at + UNIT <= end:
        size, lkey, addr = _data(raw, at)
        if size & INLINE_FLAG:
            size &= ~INLINE_FLAG
            stop = at + INLINE_HEADER + size
            _need(stop <= end, "inline data end behind ctrl.ds")
            yield raw[at + INLINE_HEADER : stop]
            at += (INLINE_HEADER + size + UNIT - 1) & -UNIT
        else:
            yield addr, size or _MAX_BYTE_COUNT, lkey
            at += UNIT


class _Pointers(LongList):
    """The pointers among data segments."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Sge]:
        for piece in _segments(self.raw, 0, len(self.raw)):
            if not isinstance(piece, bytes):
                yield piece


class _Pieces:
    """Data segments, pointers and inline data in order."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __iter__(self) -> Iterator[bytes | Sge]:
        return _segments(self._raw, 0, len(self._raw))
