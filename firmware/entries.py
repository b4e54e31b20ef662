"""The lists of indirect keys: pieces of other keys, of any size (KLM) or of one (KSM), packed as the host wrote them.

A walk gives the pieces of a range one by one, so that whoever walks decides when it has been enough.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress
from operator import itemgetter
from struct import Struct, iter_unpack
from typing import Final, NamedTuple

from firmware.model.objects import REPEAT_BLOCK, Mkey
from vhca.wire.connectx.mkey import Ksm

# The least entity of a KSM list, as a card has it that announces no log_min_mkey_entity_size.
MIN_LOG_ENTITY: Final = 12
KLM_BYTES: Final = 16
KSM_BYTES: Final = 16

_ksm = Ksm.unpacker("key", "va")
_klm = Struct(">IIQ")


class EntryError(Exception):
    """The list of an indirect key does not translate this range; the text says why."""


class _Plan(NamedTuple):
    """A KLM list as it is walked: packed entries without empty ones, where each ends in a round, bytes and rounds.

    A plain list is a strided one of a single round. Of a strided one, the first word of an entry is stride and bytes.
    """

    ends: "array[int]"
    entries: bytes
    round_bytes: int
    rounds: int
    strided: bool


def klm_sizes(klms: bytes) -> "array[int]":
    """The first word of each entry of a packed list: its bytes."""
    words = array("I", klms)
    if sys.byteorder == "little":
        words.byteswap()
    return words[::4]


def _plan(mkey: Mkey) -> _Plan:
    """The list of a KLM key, looked through once after each change."""
    plan = mkey.plan
    if isinstance(plan, _Plan):
        return plan
    klms = mkey.klms
    head = _klm.unpack_from(klms) if klms else (0, 0, 0)
    strided = head[1] == REPEAT_BLOCK
    rounds = 1
    if strided:
        rounds = head[2] >> 32
        klms = klms[KLM_BYTES : KLM_BYTES + KLM_BYTES * (head[2] & 0xFFFF)]
    sizes: Sequence[int] = klm_sizes(klms)
    if strided:
        sizes = array("I", [size & 0xFFFF for size in sizes])
    if 0 in sizes:
        klms = b"".join(compress(map(itemgetter(0), iter_unpack("16s", klms)), sizes))
        sizes = list(filter(None, sizes))
    ends = array("Q", accumulate(sizes))
    if strided and (not ends or ends[-1] != head[0]):
        raise EntryError("key: its repeat block does not fit its columns")
    plan = mkey.plan = _Plan(ends, klms, ends[-1] if ends else 0, rounds, strided)
    return plan


def walk_klms(mkey: Mkey, va: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Pieces (key, address, bytes) of a concatenated list, or of a strided one: a stride further on each round."""
    ends, entries, round_bytes, rounds, strided = _plan(mkey)
    if not ends or va < mkey.start:
        raise EntryError("key: its entries end before the range does")
    number, offset = divmod(va - mkey.start, round_bytes)
    index = bisect_right(ends, offset)
    if index:
        offset -= ends[index - 1]
    while number < rounds:
        for at in range(index * KLM_BYTES, len(entries), KLM_BYTES):
            size, key, addr = _klm.unpack_from(entries, at)
            if strided:
                addr += (size >> 16) * number
                size &= 0xFFFF
            part = min(size - offset, length)
            yield key, addr + offset, part
            length -= part
            if not length:
                return
            offset = 0
        index = 0
        number += 1
    raise EntryError("key: its entries end before the range does")


def walk_ksms(mkey: Mkey, va: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Pieces (key, address, bytes) of a list of entries of one size, a power of two, counted from the key's start."""
    log_size = mkey.log_page_size
    if log_size < MIN_LOG_ENTITY:
        raise EntryError("key: its entities are smaller than 4 KiB")
    entity_bytes = 1 << log_size
    into = va - mkey.start
    index = into >> log_size
    offset = into & (entity_bytes - 1)
    while length:
        if not 0 <= index < len(mkey.ksms) // KSM_BYTES:
            raise EntryError("key: it has no entry for this range")
        key, addr = _ksm(mkey.ksms, index << 4)
        part = min(entity_bytes - offset, length)
        yield key, addr + offset, part
        length -= part
        index += 1
        offset = 0
