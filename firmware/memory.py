"""The translation and protection table: a memory key, checked, becomes bus addresses.

Every access of a work request or of a peer passes :func:`find_key`, which knows the key's protection domain, rights and
bounds, and :func:`translate`, which merges neighbouring pages, so that a large buffer on contiguous pages is one DMA
operation. A length of 0 needs no key (volume 1, 10.6.7.2). All failures raise :class:`AccessError`.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from firmware.entries import EntryError, walk_klms, walk_ksms
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.lists import Sge
from firmware.model.objects import (
    ANY_QPN,
    LOCAL_READ,
    LOCAL_WRITE,
    MODE_KLM,
    MODE_KSM,
    MODE_MEMIC,
    MODE_MTT,
    MODE_PA,
    Mkey,
)
from firmware.model.pages import contiguous, page_at, pages_of
from firmware.model.qp import Qp
from vhca.hw.effects import DeviceWrite, DmaWrite
from vhca.hw.memory import DmaError

# Kinds of access error: they decide syndrome or NAK.
PROTECTION: Final = 0
BUS: Final = 1
TOO_SHORT: Final = 2

ANY_PD: Final = -1
MAX_DEPTH: Final = 4
# An access may be cut into this many pieces, and into one more for each so many bytes.
FEW_PIECES: Final = 1024
SMALL_PIECE_BYTES: Final = 8
# How many pieces the engines take in one step where they can take less than a whole message, and what each of them
# counts in a step's budget of bytes: looking a key up and reading a few bytes takes longer than copying a page.
STEP_PIECES: Final = 256
PIECE_COST_BYTES: Final = 4096
UNLIMITED: Final = 1 << 30
# Entries of a page list that one access looks at, on its way, to find out whether the whole region is contiguous.
SURVEY_ENTRIES: Final = 1024
_END: Final = 1 << 64
# The last byte of a page entry made 1 where the access is possible (bit 0 read, bit 1 write).
_MAY: Final = {
    LOCAL_READ: bytes(value & 1 for value in range(256)),
    LOCAL_WRITE: bytes(value >> 1 & 1 for value in range(256)),
}
# Segments from here on are not on the bus but in the card's own memory, by offset in BAR0.
DEVICE_SPACE: Final = 1 << 64

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
    was wanted of this region. `shown`: that region was reached through an indirect key.
    """

    shown = False

    def __init__(self, key: int, va: int, length: int) -> None:
        super().__init__(PROTECTION, "key: its pages are not present")
        self.key = key
        self.va = va
        self.length = length


class Crowded(AccessError):
    """An access takes more pieces than the step may; the pieces that it may take hold `covered` bytes of it."""

    def __init__(self, covered: int) -> None:
        super().__init__(PROTECTION, "key: its entries are too small for one step")
        self.covered = covered


def find_key(hca: Hca, pd: int, qpn: int, key: int, va: int, length: int, right: int) -> Mkey:
    """The key, if it grants all of `right` on `length` > 0 bytes at `va` to queue pair `qpn` of domain `pd`.

    `pd` is ANY_PD for the card's own registration queue. Checks in the order of volume 1, 10.6.7.3.
    """
    mkey = hca.mkeys.get(key >> 8)
    if mkey is None or mkey.variant != key & 0xFF:
        _tell_of_key(hca, qpn, key, mkey, right)
        raise AccessError(PROTECTION, "key: no such memory key")
    if mkey.free:
        _tell_of_key(hca, qpn, key, mkey, right)
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


def _tell_of_key(hca: Hca, qpn: int, key: int, mkey: Mkey | None, right: int) -> None:
    """Tell whoever keeps the lives of keys that one is used which is not valid."""
    if hca.history is not None:
        peer = "the peer of " * bool(right & ~(LOCAL_READ | LOCAL_WRITE))
        hca.history.refused_key(hca.now_ns, key, mkey, f"{peer}QP {qpn:#x}")


def translate(hca: Hca, mkey: Mkey, va: int, length: int, right: int, most: int = UNLIMITED) -> list[BusSegment]:
    """Bus segments of `length` > 0 bytes at `va` of a region that was found by :func:`find_key`.

    `right` is what a nested key must grant locally (LOCAL_READ or LOCAL_WRITE). Entries of indirect keys are walked
    until they have made `most` segments: then Crowded says how far they reach. What was made is added to `hca.pieces`.
    """
    mode = mkey.mode
    if mode in (MODE_KLM, MODE_KSM):
        out: list[BusSegment] = []
        walk = _Walk(hca, right, min(_most_pieces(length), most), out)
        try:
            walk.follow(mkey, va, length, 0)
        except Crowded:
            if most > walk.most or most == UNLIMITED:
                raise _too_small() from None
            raise
        finally:
            hca.pieces += len(out) + walk.lists
        return out
    out = _plain(mkey, va, length, right)
    hca.pieces += len(out) - 1
    return out


def _plain(mkey: Mkey, va: int, length: int, right: int) -> list[BusSegment]:
    """The same for a key that names no others."""
    mode = mkey.mode
    if mode == MODE_PA:
        return [(va, length)]
    if mode == MODE_MEMIC:
        return [(DEVICE_SPACE + mkey.device_offset + va, length)]
    return _translate_pages(mkey, va, length, right)


class _Walk:
    """A walk through an indirect key, and through those that it shows, that appends segments to `out`.

    :ivar most: segments and lists together after which Crowded is raised: a list that is met costs what a segment does.
    :ivar lists: how many lists below the first have been met.
    """

    __slots__ = ("_hca", "_out", "_right", "lists", "most")

    def __init__(self, hca: Hca, right: int, most: int, out: list[BusSegment]) -> None:
        self._hca = hca
        self._right = right
        self._out = out
        self.most = most
        self.lists = 0

    def follow(self, mkey: Mkey, va: int, length: int, depth: int) -> None:
        """Append the segments of a range."""
        if depth >= MAX_DEPTH:
            raise AccessError(PROTECTION, "key: indirect keys are nested too deeply")
        walk = walk_klms if mkey.mode == MODE_KLM else walk_ksms
        hca, right, out, most = self._hca, self._right, self._out, self.most
        try:
            for key, inner_va, size in walk(mkey, va, length):
                inner = find_key(hca, mkey.pd, mkey.qpn, key, inner_va, size, right)
                if inner.mode in (MODE_KLM, MODE_KSM):
                    self.lists += 1
                    self.follow(inner, inner_va, size, depth + 1)
                else:
                    out += _plain(inner, inner_va, size, right)
                if len(out) + self.lists > most:
                    raise Crowded(sum(size for _, size in islice(out, max(most - self.lists, 0))))
        except PageFault as fault:
            fault.shown = True
            raise
        except EntryError as error:
            raise AccessError(PROTECTION, str(error)) from None


def _too_small() -> AccessError:
    return AccessError(PROTECTION, "key: its entries are too small for this range")


def direct(mkey: Mkey, va: int) -> int:
    """Bus address of `va` if the whole region is contiguous on the bus, -1 if that needs :func:`translate`.

    The range was checked by :func:`find_key`. The answer is kept with the key.
    """
    if mkey.mode == MODE_MTT:
        if not mkey.surveyed:
            _survey(mkey)
        linear = mkey.linear
        return linear if linear < 0 else linear + va - mkey.start
    return va if mkey.mode == MODE_PA else -1


def _survey(mkey: Mkey) -> None:
    """Look at some more of the page list: are all pages of the region there, and are they contiguous?

    Each access of a large region looks at a part only: no single one pays for a list of millions of pages.
    """
    log_page = mkey.log_page_size
    offset = mkey.start & ((1 << log_page) - 1)
    needed = -(-(offset + mkey.length) >> log_page)
    # A region without a length is never all there.
    if mkey.length64 or not 0 < needed <= len(mkey.mtts) >> 3:
        mkey.surveyed = True
        return
    # The last entry of the part before is looked at again: the first of this part must follow it.
    first = max(0, mkey.looked_at - 1)
    end = min(first + SURVEY_ENTRIES, needed)
    mkey.looked_at = end
    if not contiguous(mkey.mtts[first << 3 : end << 3], log_page, mkey.paged):
        mkey.surveyed = True
    elif end == needed:
        mkey.surveyed = True
        linear = page_at(mkey.mtts, 0) + offset
        # The key's block has 63 bits for it: what lies higher is found page by page.
        mkey.linear = linear if linear + mkey.length <= 1 << 63 else -1


def _translate_pages(mkey: Mkey, va: int, length: int, right: int) -> list[BusSegment]:
    log_page = mkey.log_page_size
    base = mkey.start >> log_page
    first = (va >> log_page) - base
    last = ((va + length - 1) >> log_page) - base
    count = last + 1 - first
    if first < 0:
        raise AccessError(PROTECTION, "key: its translation has no entry for this page")
    entries = mkey.mtts[first << 3 : (last + 1) << 3]
    if mkey.paged:
        absent = entries[7::8].translate(_MAY[right]).find(0)
        if absent >= 0:
            start = max(va, (first + absent + base) << log_page)
            raise PageFault(mkey.handle << 8 | mkey.variant, start, va + length - start)
    if len(entries) < count << 3:
        raise AccessError(PROTECTION, "key: its translation has no entry for this page")
    page_bytes = 1 << log_page
    offset = va & (page_bytes - 1)
    head = page_at(entries, 0)
    # Compared in one go: contiguous pages are the common case of a large buffer.
    if count == 1 or contiguous(entries, log_page):
        return [(head + offset, length)]
    out: list[BusSegment] = []
    start = head + offset
    size = page_bytes - offset
    left = length - size
    for page in islice(pages_of(entries), 1, None):
        part = page_bytes if left > page_bytes else left
        if page == start + size:
            size += part
        else:
            out.append((start, size))
            start, size = page, part
        left -= part
    out.append((start, size))
    return out


def _most_pieces(length: int) -> int:
    """How often an access of so many bytes may be cut; more is work out of proportion to its bytes."""
    return FEW_PIECES + length // SMALL_PIECE_BYTES


def read_segments(hca: Hca, segments: Sequence[BusSegment]) -> bytes:
    """The bytes behind bus segments, in order."""
    try:
        if len(segments) == 1:
            addr, size = segments[0]
            return _read(hca, addr, size)
        return b"".join([_read(hca, addr, size) for addr, size in segments])
    except DmaError as error:
        raise _bus_error(hca, error) from None


def _read(hca: Hca, addr: int, size: int) -> bytes:
    if addr < DEVICE_SPACE:
        return hca.memory.read(addr, size)
    return hca.chip.memory.read(addr - DEVICE_SPACE, size)


def _write(hca: Hca, addr: int, data: bytes | bytearray | memoryview) -> None:
    if addr < DEVICE_SPACE:
        hca.out.append(DmaWrite(addr, data))
    else:
        hca.out.append(DeviceWrite(addr - DEVICE_SPACE, data))


def _bus_error(hca: Hca, error: DmaError) -> AccessError:
    hca.count[Count.DMA_READ_ERRORS] += 1
    return AccessError(BUS, str(error))


def write_segments(hca: Hca, segments: Sequence[BusSegment], data: bytes | bytearray | memoryview) -> None:
    """Append the stores of `data` to bus segments; as many bytes as the segments hold."""
    if len(segments) == 1:
        _write(hca, segments[0][0], data)
        return
    view = memoryview(data)
    at = 0
    for addr, size in segments:
        _write(hca, addr, view[at : at + size])
        at += size


def domain_of(qp: Qp) -> int:
    """The protection domain that a queue pair's keys must have (ANY_PD for the registration queue)."""
    return ANY_PD if qp.exempt_from_pd else qp.pd


def gather(hca: Hca, qp: Qp, sges: "Sequence[Sge]", offset: int, length: int, most: int = UNLIMITED) -> bytes:
    """`length` bytes from `offset` of a gather list (local read), in `most` pieces; Crowded if that is too few."""
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
        return read_segments(hca, translate(hca, mkey, va, length, LOCAL_READ, most))
    segments = _resolve(hca, qp, domain_of(qp), sges, offset, length, LOCAL_READ, most)
    return read_segments(hca, segments) if segments else b""


def gather_pieces(
    hca: Hca, qp: Qp, pieces: "Iterable[bytes | Sge]", offset: int, length: int, most: int = UNLIMITED
) -> bytes:
    """`length` bytes from `offset` of a list of inline data and gather entries, in `most` pieces as :func:`gather`."""
    parts = []
    done = 0
    limit = _most_pieces(length)
    end = hca.pieces + min(most, limit)
    for piece in pieces:
        if done == length:
            break
        size = len(piece) if isinstance(piece, bytes) else piece[1]
        if offset >= size:
            offset -= size
            continue
        take = min(size - offset, length - done)
        if isinstance(piece, bytes):
            parts.append(piece[offset : offset + take])
        else:
            try:
                parts.append(gather(hca, qp, (piece,), offset, take, end - hca.pieces))
                hca.pieces += 1
            except Crowded as crowded:
                if most > limit:
                    raise _too_small() from None
                raise Crowded(done + crowded.covered) from None
        offset = 0
        done += take
    return b"".join(parts)


def scatter(
    hca: Hca,
    qp: Qp,
    sges: "Sequence[Sge]",
    offset: int,
    data: bytes | memoryview,
    pd: int | None = None,
    most: int = UNLIMITED,
) -> None:
    """Append the stores of `data` from `offset` of a scatter list (local write); Crowded if they are above `most`.

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
    segments = _resolve(hca, qp, pd, sges, offset, length, LOCAL_WRITE, most)
    write_segments(hca, segments, data)


def check_scatter(hca: Hca, qp: Qp, sges: "Sequence[Sge]", length: int, pd: int | None = None) -> None:
    """What :func:`scatter` of `length` bytes would check, for data that go elsewhere. Raises AccessError."""
    _resolve(hca, qp, domain_of(qp) if pd is None else pd, sges, 0, length, LOCAL_WRITE, UNLIMITED)


def _resolve(
    hca: Hca, qp: Qp, pd: int, sges: "Sequence[Sge]", offset: int, length: int, right: int, most: int
) -> list[BusSegment]:
    out: list[BusSegment] = []
    done = 0
    limit = _most_pieces(length)
    end = hca.pieces + limit
    for va, size, lkey in sges:
        if done == length:
            break
        if offset >= size:
            offset -= size
            continue
        part = size - offset
        if part > length - done:
            part = length - done
        mkey = find_key(hca, pd, qp.handle, lkey, va + offset, part, right)
        try:
            segments = translate(hca, mkey, va + offset, part, right, min(most - len(out), end - hca.pieces))
        except Crowded as crowded:
            if most > limit:
                raise _too_small() from None
            raise Crowded(done + crowded.covered) from None
        if out:
            # Each entry has a key to look up.
            hca.pieces += 1
            out += segments
        else:
            out = segments
        done += part
        offset = 0
    if done < length:
        raise AccessError(TOO_SHORT, "scatter or gather list is shorter than the message")
    return out


def remote_check(
    hca: Hca, qp: Qp, rkey: int, va: int, length: int, right: int, domain: int | None = None
) -> Mkey | None:
    """The key of a peer's access to `length` bytes at `va`, checked; None if there is nothing to access.

    `domain` is the protection domain that counts, if it is not that of the queue pair.
    """
    if not length:
        return None
    return find_key(hca, qp.pd if domain is None else domain, qp.handle, rkey, va, length, right)


def remote_read(hca: Hca, mkey: Mkey, va: int, length: int, most: int = UNLIMITED) -> bytes:
    """Read for a peer; the range was checked by :func:`remote_check`. Crowded if that takes more than `most` pieces."""
    addr = direct(mkey, va)
    if addr >= 0:
        try:
            return hca.memory.read(addr, length)
        except DmaError as error:
            raise _bus_error(hca, error) from None
    return read_segments(hca, translate(hca, mkey, va, length, LOCAL_READ, most))


def remote_write(hca: Hca, mkey: Mkey, va: int, data: bytes | memoryview, most: int = UNLIMITED) -> None:
    """Append the stores for a peer; the range was checked by :func:`remote_check`. Crowded as :func:`remote_read`."""
    addr = direct(mkey, va)
    if addr >= 0:
        hca.out.append(DmaWrite(addr, data))
        return
    write_segments(hca, translate(hca, mkey, va, len(data), LOCAL_WRITE, most), data)
