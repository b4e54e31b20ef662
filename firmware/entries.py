"""The lists of indirect keys: pieces of other keys, of any size (KLM) or of one (KSM), packed as the host wrote them.

A walk gives the pieces of a range one by one, so that whoever walks decides when it has been enough.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from firmware.model.objects import REPEAT_BLOCK, Mkey
from vhca.wire.connectx.mkey import Klm, Ksm

# The least entity of a KSM list, as a card has it that announces no log_min_mkey_entity_size.
MIN_LOG_ENTITY: Final = 12
KLM_BYTES: Final = 16
KSM_BYTES: Final = 16
# Entries of a KLM list between two places that a walk knows.
CHUNK: Final = 64

_ksm = Ksm.unpacker("key", "va")
_klm = Klm.unpacker("bcount", "key", "va")


class EntryError(Exception):
    """The list of an indirect key does not translate this range; the text says why."""


class _Plan(NamedTuple):
    """How a KLM list is walked: where in a round each chunk of its entries begins, and at last the round's bytes.

    `klms` is the list that this is about; its entries are at `first` .. `end` of it. A plain list is a strided one of a
    single round. Of a strided one, the first word of an entry is stride and bytes.
    """

    klms: bytes
    first: int
    end: int
    starts: "array[int]"
    rounds: int
    strided: bool
    fits: bool


def klm_sizes(klms: bytes) -> "array[int]":
    """The first word of each entry of a packed list: its bytes."""
    words = array("I", klms)
    if sys.byteorder == "little":
        words.byteswap()
    return words[::4]


def prepare(mkey: Mkey) -> None:
    """Look through the list of a KLM key. Whoever changes a list pays for this, not an access that meets many lists."""
    _plan(mkey)


def _plan(mkey: Mkey) -> _Plan:
    """How the list of a KLM key is walked, found out once for each list."""
    plan = mkey.plan
    klms = mkey.klms
    if isinstance(plan, _Plan) and plan.klms is klms:
        return plan
    head = _klm(klms) if klms else (0, 0, 0)
    strided = head[1] == REPEAT_BLOCK
    first, end, rounds = 0, len(klms), 1
    if strided:
        rounds = head[2] >> 32
        first, end = KLM_BYTES, min(end, KLM_BYTES + KLM_BYTES * (head[2] & 0xFFFF))
    sizes = klm_sizes(klms[first:end])
    if strided:
        sizes = array("I", [size & 0xFFFF for size in sizes])
    chunks = [sum(sizes[at : at + CHUNK]) for at in range(0, len(sizes), CHUNK)]
    starts = array("Q", accumulate(chunks, initial=0))
    fits = not strided or starts[-1] == head[0] > 0
    plan = mkey.plan = _Plan(klms, first, end, starts, rounds, strided, fits)
    return plan


def walk_klms(mkey: Mkey, va: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Pieces (key, address, bytes) of a concatenated list, or of a strided one: a stride further on each round.

    A piece costs a look at the entries of a chunk in front of it at most, however many of them are empty.
    """
    klms, first, end, starts, rounds, strided, fits = _plan(mkey)
    if not fits:
        raise EntryError("key: its repeat block does not fit its columns")
    round_bytes = starts[-1]
    if not round_bytes or va < mkey.start:
        raise EntryError("key: its entries end before the range does")
    number, offset = divmod(va - mkey.start, round_bytes)
    # The last chunk that begins at or before the offset is one that is not empty.
    chunk = bisect_right(starts, offset) - 1
    offset -= starts[chunk]
    while number < rounds:
        while chunk < len(starts) - 1:
            at = first + chunk * CHUNK * KLM_BYTES
            for entry in range(at, min(at + CHUNK * KLM_BYTES, end), KLM_BYTES):
                size, key, addr = _klm(klms, entry)
                if strided:
                    addr += (size >> 16) * number
                    size &= 0xFFFF
                if offset >= size:
                    offset -= size
                    continue
                part = min(size - offset, length)
                yield key, addr + offset, part
                length -= part
                if not length:
                    return
                offset = 0
            chunk = bisect_right(starts, starts[chunk + 1]) - 1
        chunk = bisect_right(starts, 0) - 1
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
