"""Page lists, packed as the host wrote them: 8 bytes a page, big-endian, never a Python object for each page.

An entry is a page's bus address; its low 12 bits are not address. In the lists of pageable regions bit 0 says that the
page may be read, bit 1 that it may be written. A list may be long (a region of 8 GiB has two million pages), so that
whatever looks at more than one entry works on many at once: as one long integer or by slices with a stride.
"""

from collections.abc import Iterable
from struct import Struct, pack, unpack
from typing import Final

from vhca.wire.connectx.mkey import Mtt

ENTRY_BYTES: Final = 8
PAGE_MASK: Final = 0xFFFF_FFFF_FFFF_F000
# What may be done with a page that is there: read and write.
PRESENT: Final = int.from_bytes(Mtt(wr_en=1, rd_en=1).to_bytes(), "big")

Entries = bytes | bytearray
"""A packed page list."""

_one = Struct(">Q").unpack_from

# Long integers with one 64-bit digit for each entry of a block, the first entry in the highest digit as in the list.
_BLOCK: Final = 512
_ONES: Final = int.from_bytes((1).to_bytes(8, "big") * _BLOCK, "big")
_NUMBERS: Final = int.from_bytes(pack(f">{_BLOCK}Q", *range(_BLOCK)), "big")
_MASKS: Final = {False: _ONES * PAGE_MASK, True: _ONES * (PAGE_MASK | PRESENT)}


def packed(pages: Iterable[int]) -> bytes:
    """A list of these bus addresses."""
    numbers = list(pages)
    return pack(f">{len(numbers)}Q", *numbers)


def page_at(entries: Entries, index: int) -> int:
    """Bus address of one page."""
    return int(_one(entries, index << 3)[0]) & PAGE_MASK


def pages_of(entries: Entries) -> list[int]:
    """Bus addresses of all pages of a short list."""
    return [entry & PAGE_MASK for entry in unpack(f">{len(entries) >> 3}Q", entries)]


def contiguous(entries: Entries, log_page: int, present: bool = False) -> bool:
    """Is each page, of `1 << log_page` bytes, right behind the one before it? If `present`, also all there?"""
    count = len(entries) >> 3
    if not count:
        return False
    head = page_at(entries, 0)
    if head + (count << log_page) > 1 << 64:
        return False
    for first in range(0, count, _BLOCK):
        block = entries[first << 3 : first + _BLOCK << 3]
        unused = _BLOCK * 64 - (len(block) << 3)
        wanted = (_NUMBERS >> unused << log_page) + (_ONES >> unused) * (head + (first << log_page) + PRESENT * present)
        if int.from_bytes(block, "big") & _MASKS[present] >> unused != wanted:
            return False
    return True


def all_present(entries: Entries) -> bytearray:
    """A copy of a plain list whose entries say that every page may be read and written."""
    table = bytearray(entries)
    table[7::8] = bytes((PRESENT,)) * (len(table) >> 3)
    return table
