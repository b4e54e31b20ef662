"""The translation and protection table: a memory key, checked, becomes bus addresses.

Every access of a work request or of a peer passes :func:`find_key`, which knows the key's protection domain, rights and
bounds, and :func:`translate`, which merges neighbouring pages, so that a large buffer on contiguous pages is one DMA
operation. A length of 0 needs no key (volume 1, 10.6.7.2). All failures raise :class:`AccessError`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice
from struct import unpack
from typing import TYPE_CHECKING, Final, NamedTuple

from firmware.objects import (
    ANY_QPN,
    LOCAL_READ,
    LOCAL_WRITE,
    MODE_KLM,
    MODE_MEMIC,
    MODE_MTT,
    MODE_PA,
    REPEAT_BLOCK,
    Mkey,
)
from vhca.hw.effects import DeviceWrite, DmaWrite
from vhca.hw.memory import DmaError
from vhca.wire.connectx.mkey import Ksm

if TYPE_CHECKING:
    from firmware.hca import Hca
    from firmware.queues import Sge
    from firmware.transport.qp import Qp

# Kinds of access error: they decide syndrome or NAK.
PROTECTION: Final = 0
BUS: Final = 1
TOO_SHORT: Final = 2

ANY_PD: Final = -1
MAX_DEPTH: Final = 4
# An access may be cut into this many pieces, and into one more for each so many bytes.
FEW_PIECES: Final = 1024
SMALL_PIECE_BYTES: Final = 8
_END: Final = 1 << 64
# A page entry is an address and, in its last byte, what may be done with the page: bit 0 read, bit 1 write.
PAGE_MASK: Final = ~0xFFF
PRESENT: Final = 3
PRESENCE: Final = bytes(value & PRESENT for value in range(256))
# The last byte made 1 where the access is possible.
_MAY: Final = {
    LOCAL_READ: bytes(value & 1 for value in range(256)),
    LOCAL_WRITE: bytes(value >> 1 & 1 for value in range(256)),
}
# Segments from here on are not on the bus but in the card's own memory, by offset in BAR0.
DEVICE_SPACE: Final = 1 << 64

_ksm = Ksm.unpacker("key", "va")

BusSegment = tuple[int, int]
"""Bus address (or, from `DEVICE_SPACE` on, offset in BAR0) and length in bytes."""


class AccessError(Exception):
    """An access was refused: by a key (`PROTECTION`), by the bus (`BUS`) or by a list's length (`TOO_SHORT`)."""

    def __init__(self, kind: int, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class PageFault(AccessError):
    """Pages of a region are not present, and the host may bring them in (on-demand paging).

    `key` and `va` name the first missing page in the innermost region, `length` the bytes from there to the end of what
    was wanted of this region.
    """

    def __init__(self, key: int, va: int, length: int) -> None:
        super().__init__(PROTECTION, "key: its pages are not present")
        self.key = key
        self.va = va
        self.length = length


def find_key(hca: "Hca", pd: int, qpn: int, key: int, va: int, length: int, right: int) -> Mkey:
    """The key, if it grants all of `right` on `length` > 0 bytes at `va` to queue pair `qpn` of domain `pd`.

    `pd` is ANY_PD for the card's own registration queue. Checks in the order of volume 1, 10.6.7.3.
    """
    mkey = hca.mkeys.get(key >> 8)
    if mkey is None or mkey.variant != key & 0xFF:
        raise AccessError(PROTECTION, "key: no such memory key")
    if mkey.free:
        raise AccessError(PROTECTION, "key: it is free (invalidated or not yet registered)")
    if mkey.pd != pd and pd != ANY_PD:
        raise AccessError(PROTECTION, "key: it belongs to another protection domain")
    if mkey.qpn not in (ANY_QPN, qpn):
        raise AccessError(PROTECTION, "key: it is bound to another queue pair")
    if mkey.rights & right != right:
        raise AccessError(PROTECTION, "key: it does not grant this right")
    end = va + length
    if end > _END or (not mkey.length64 and not mkey.start <= va <= end <= mkey.start + mkey.length):
        raise AccessError(PROTECTION, "key: the range is outside the region")
    return mkey


def translate(hca: "Hca", mkey: Mkey, va: int, length: int, right: int, depth: int = 0) -> list[BusSegment]:
    """Bus segments of `length` > 0 bytes at `va` of a region that was found by :func:`find_key`.

    `right` is what a nested key must grant locally (LOCAL_READ or LOCAL_WRITE).
    """
    mode = mkey.mode
    if mode == MODE_PA:
        return [(va, length)]
    if mode == MODE_MTT:
        return _translate_pages(mkey, va, length, right)
    if mode == MODE_MEMIC:
        return [(DEVICE_SPACE + mkey.pages[0] + va, length)]
    if depth >= MAX_DEPTH:
        raise AccessError(PROTECTION, "key: indirect keys are nested too deeply")
    out: list[BusSegment] = []
    most = _most_pieces(length)
    for key, inner_va, size in _walk_klms(mkey, va, length) if mode == MODE_KLM else _walk_ksms(mkey, va, length):
        inner = find_key(hca, mkey.pd, mkey.qpn, key, inner_va, size, right)
        out += translate(hca, inner, inner_va, size, right, depth + 1)
        if len(out) > most:
            raise AccessError(PROTECTION, "key: its entries are too small for this range")
    return out


def direct(mkey: Mkey, va: int) -> int:
    """Bus address of `va` if the whole region is contiguous on the bus, -1 if that needs :func:`translate`.

    The range was checked by :func:`find_key`. The answer is kept with the page list it was found from.
    """
    if mkey.mode == MODE_MTT:
        if mkey.linear_pages is not mkey.pages:
            _survey(mkey)
        linear = mkey.linear
        return linear if linear < 0 else linear + va - mkey.start
    return va if mkey.mode == MODE_PA else -1


def _survey(mkey: Mkey) -> None:
    """Look at the page list once: are all pages of the region there, and are they contiguous?"""
    page_bytes = 1 << mkey.log_page_size
    offset = mkey.start & (page_bytes - 1)
    needed = -(-(offset + mkey.length) >> mkey.log_page_size)
    mtts = mkey.mtts
    if mtts is not None:
        # A region without a length is never all there.
        mkey.partial = mkey.length64 or mtts[7 : needed << 3 : 8].translate(PRESENCE).count(PRESENT) < needed
        mkey.pages = [] if mkey.partial else _pages_of(mtts[: needed << 3])
    pages = mkey.pages
    mkey.linear_pages = pages
    mkey.linear = -1
    if (
        not mkey.length64
        and 0 < needed <= len(pages)
        and pages[:needed] == list(range(pages[0], pages[0] + (needed << mkey.log_page_size), page_bytes))
    ):
        mkey.linear = pages[0] + offset


def _pages_of(mtts: bytes | bytearray) -> list[int]:
    return [entry & PAGE_MASK for entry in unpack(f">{len(mtts) >> 3}Q", mtts)]


def _present_pages(mkey: Mkey, first: int, last: int, va: int, length: int, right: int) -> list[int]:
    """Pages `first` to `last` of a region of which some are missing; raises PageFault if one of these is."""
    assert mkey.mtts is not None
    mtts = mkey.mtts[first << 3 : (last + 1) << 3]
    absent = mtts[7::8].translate(_MAY[right]).find(0)
    if absent >= 0:
        log_page = mkey.log_page_size
        start = max(va, (first + absent + (mkey.start >> log_page)) << log_page)
        raise PageFault(mkey.handle << 8 | mkey.variant, start, va + length - start)
    return _pages_of(mtts)


def _translate_pages(mkey: Mkey, va: int, length: int, right: int) -> list[BusSegment]:
    if mkey.linear_pages is not mkey.pages:
        _survey(mkey)
    log_page = mkey.log_page_size
    base = mkey.start >> log_page
    first = (va >> log_page) - base
    last = ((va + length - 1) >> log_page) - base
    count = last + 1 - first
    if first < 0:
        raise AccessError(PROTECTION, "key: its translation has no entry for this page")
    pages = _present_pages(mkey, first, last, va, length, right) if mkey.partial else mkey.pages[first : last + 1]
    if len(pages) < count:
        raise AccessError(PROTECTION, "key: its translation has no entry for this page")
    page_bytes = 1 << log_page
    offset = va & (page_bytes - 1)
    head = pages[0]
    if count == 1:
        return [(head + offset, length)]
    # Compared in one go: contiguous pages are the common case of a large buffer.
    if pages == list(range(head, head + (count << log_page), page_bytes)):
        return [(head + offset, length)]
    out: list[BusSegment] = []
    start = head + offset
    size = page_bytes - offset
    left = length - size
    for page in pages[1:]:
        part = page_bytes if left > page_bytes else left
        if page == start + size:
            size += part
        else:
            out.append((start, size))
            start, size = page, part
        left -= part
    out.append((start, size))
    return out


class _Plan(NamedTuple):
    """A KLM list as it is walked: rounds over pieces (bytes, stride, key, address) with their ends in the round."""

    ends: list[int]
    pieces: list[tuple[int, int, int, int]]
    round_bytes: int
    rounds: int


def _plan(mkey: Mkey) -> _Plan:
    """The list of a KLM key, looked through once: a plain one is a strided one of a single round."""
    klms = mkey.klms
    plan = mkey.plan
    if isinstance(plan, _Plan) and mkey.plan_of is klms:
        return plan
    rounds = 1
    pieces = [(size, 0, key, addr) for size, key, addr in klms if size]
    if klms and klms[0][1] == REPEAT_BLOCK:
        counts = klms[0][2]
        rounds = counts >> 32
        columns = klms[1 : 1 + (counts & 0xFFFF)]
        pieces = [(size & 0xFFFF, size >> 16, key, addr) for size, key, addr in columns if size & 0xFFFF]
    ends = list(accumulate(size for size, _, _, _ in pieces))
    if klms and klms[0][1] == REPEAT_BLOCK and (not ends or ends[-1] != klms[0][0]):
        raise AccessError(PROTECTION, "key: its repeat block does not fit its columns")
    plan = _Plan(ends, pieces, ends[-1] if ends else 0, rounds)
    mkey.plan, mkey.plan_of = plan, klms
    return plan


def _most_pieces(length: int) -> int:
    """How often an access of so many bytes may be cut; more is work out of proportion to its bytes."""
    return FEW_PIECES + length // SMALL_PIECE_BYTES


def _walk_klms(mkey: Mkey, va: int, length: int) -> list[tuple[int, int, int]]:
    """Pieces (key, address, bytes) of a concatenated list, or of a strided one: a stride further on each round."""
    ends, pieces, round_bytes, rounds = _plan(mkey)
    if not ends or va < mkey.start:
        raise AccessError(PROTECTION, "key: its entries end before the range does")
    most = _most_pieces(length)
    number, offset = divmod(va - mkey.start, round_bytes)
    index = bisect_right(ends, offset)
    if index:
        offset -= ends[index - 1]
    out: list[tuple[int, int, int]] = []
    while number < rounds:
        for size, stride, key, addr in islice(pieces, index, None):
            part = min(size - offset, length)
            out.append((key, addr + stride * number + offset, part))
            length -= part
            if not length:
                return out
            if len(out) > most:
                raise AccessError(PROTECTION, "key: its entries are too small for this range")
            offset = 0
        index = 0
        number += 1
    raise AccessError(PROTECTION, "key: its entries end before the range does")


def _walk_ksms(mkey: Mkey, va: int, length: int) -> list[tuple[int, int, int]]:
    """Pieces (key, address, bytes) of a list of entries of one size, a power of two."""
    log_size = mkey.log_page_size
    entity_bytes = 1 << log_size
    index = (va >> log_size) - (mkey.start >> log_size)
    offset = va & (entity_bytes - 1)
    out: list[tuple[int, int, int]] = []
    while length:
        if not 0 <= index < len(mkey.ksms) >> 4:
            raise AccessError(PROTECTION, "key: it has no entry for this range")
        key, addr = _ksm(mkey.ksms, index << 4)
        part = min(entity_bytes - offset, length)
        out.append((key, addr + offset, part))
        length -= part
        index += 1
        offset = 0
    return out


def read_segments(hca: "Hca", segments: Sequence[BusSegment]) -> bytes:
    """The bytes behind bus segments, in order."""
    try:
        if len(segments) == 1:
            addr, size = segments[0]
            return _read(hca, addr, size)
        return b"".join([_read(hca, addr, size) for addr, size in segments])
    except DmaError as error:
        raise _bus_error(hca, error) from None


def _read(hca: "Hca", addr: int, size: int) -> bytes:
    if addr < DEVICE_SPACE:
        return hca.memory.read(addr, size)
    return hca.device_memory.read(addr - DEVICE_SPACE, size)


def _write(hca: "Hca", addr: int, data: bytes | bytearray | memoryview) -> None:
    if addr < DEVICE_SPACE:
        hca.out.append(DmaWrite(addr, data))
    else:
        hca.out.append(DeviceWrite(addr - DEVICE_SPACE, data))


def _bus_error(hca: "Hca", error: DmaError) -> AccessError:
    hca.count["dma_read_errors"] += 1
    return AccessError(BUS, str(error))


def write_segments(hca: "Hca", segments: Sequence[BusSegment], data: bytes | bytearray | memoryview) -> None:
    """Append the stores of `data` to bus segments; as many bytes as the segments hold."""
    if len(segments) == 1:
        _write(hca, segments[0][0], data)
        return
    view = memoryview(data)
    at = 0
    for addr, size in segments:
        _write(hca, addr, view[at : at + size])
        at += size


def domain_of(qp: "Qp") -> int:
    """The protection domain that a queue pair's keys must have (ANY_PD for the registration queue)."""
    return ANY_PD if qp.exempt_from_pd else qp.pd


def gather(hca: "Hca", qp: "Qp", sges: "Sequence[Sge]", offset: int, length: int) -> bytes:
    """`length` bytes from `offset` of a gather list (local read)."""
    if len(sges) == 1:
        va, size, lkey = sges[0]
        if offset + length > size:
            raise AccessError(TOO_SHORT, "gather list is shorter than the message")
        if not length:
            return b""
        va += offset
        mkey = find_key(hca, ANY_PD if qp.exempt_from_pd else qp.pd, qp.handle, lkey, va, length, LOCAL_READ)
        addr = direct(mkey, va)
        if addr >= 0:
            try:
                return hca.memory.read(addr, length)
            except DmaError as error:
                raise _bus_error(hca, error) from None
        return read_segments(hca, translate(hca, mkey, va, length, LOCAL_READ))
    segments = _resolve(hca, qp, domain_of(qp), sges, offset, length, LOCAL_READ)
    return read_segments(hca, segments) if segments else b""


def gather_pieces(hca: "Hca", qp: "Qp", pieces: "Sequence[bytes | Sge]", offset: int, length: int) -> bytes:
    """`length` bytes from `offset` of a list of inline data and gather entries."""
    parts = []
    for piece in pieces:
        if not length:
            break
        size = len(piece) if isinstance(piece, bytes) else piece[1]
        if offset >= size:
            offset -= size
            continue
        take = min(size - offset, length)
        if isinstance(piece, bytes):
            parts.append(piece[offset : offset + take])
        else:
            parts.append(gather(hca, qp, (piece,), offset, take))
        offset = 0
        length -= take
    return b"".join(parts)


def scatter(
    hca: "Hca", qp: "Qp", sges: "Sequence[Sge]", offset: int, data: bytes | memoryview, pd: int | None = None
) -> None:
    """Append the stores of `data` from `offset` of a scatter list (local write).

    `pd` overrides the queue pair's domain: buffers of a shared receive queue belong to that queue's domain.
    """
    length = len(data)
    if not length:
        return
    if pd is None:
        pd = domain_of(qp)
    if sges and offset + length <= sges[0][1]:
        # All of it goes to the first entry.
        va, _, lkey = sges[0]
        va += offset
        mkey = find_key(hca, pd, qp.handle, lkey, va, length, LOCAL_WRITE)
        addr = direct(mkey, va)
        if addr >= 0:
            hca.out.append(DmaWrite(addr, data))
            return
    segments = _resolve(hca, qp, pd, sges, offset, length, LOCAL_WRITE)
    write_segments(hca, segments, data)


def check_scatter(hca: "Hca", qp: "Qp", sges: "Sequence[Sge]", length: int, pd: int | None = None) -> None:
    """What :func:`scatter` of `length` bytes would check, for data that go elsewhere. Raises AccessError."""
    _resolve(hca, qp, domain_of(qp) if pd is None else pd, sges, 0, length, LOCAL_WRITE)


def _resolve(
    hca: "Hca", qp: "Qp", pd: int, sges: "Sequence[Sge]", offset: int, length: int, right: int
) -> list[BusSegment]:
    out: list[BusSegment] = []
    for va, size, lkey in sges:
        if not length:
            break
        if offset >= size:
            offset -= size
            continue
        part = size - offset
        if part > length:
            part = length
        mkey = find_key(hca, pd, qp.handle, lkey, va + offset, part, right)
        segments = translate(hca, mkey, va + offset, part, right)
        out = out + segments if out else segments
        length -= part
        offset = 0
    if length:
        raise AccessError(TOO_SHORT, "scatter or gather list is shorter than the message")
    return out


def remote_check(
    hca: "Hca", qp: "Qp", rkey: int, va: int, length: int, right: int, domain: int | None = None
) -> Mkey | None:
    """The key of a peer's access to `length` bytes at `va`, checked; None if there is nothing to access.

    `domain` is the protection domain that counts, if it is not that of the queue pair.
    """
    if not length:
        return None
    return find_key(hca, qp.pd if domain is None else domain, qp.handle, rkey, va, length, right)


def remote_read(hca: "Hca", mkey: Mkey, va: int, length: int) -> bytes:
    """Read for a peer; the range was checked by :func:`remote_check`."""
    return read_segments(hca, translate(hca, mkey, va, length, LOCAL_READ))


def remote_write(hca: "Hca", mkey: Mkey, va: int, data: bytes | memoryview) -> None:
    """Append the stores for a peer; the range was checked by :func:`remote_check`."""
    addr = direct(mkey, va)
    if addr >= 0:
        hca.out.append(DmaWrite(addr, data))
        return
    write_segments(hca, translate(hca, mkey, va, len(data), LOCAL_WRITE), data)
