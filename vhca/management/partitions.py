"""Partitions: whose P_Keys go together, and the tables of ports that hold them (10.9 of volume 1).

A table is a tuple that is replaced as a whole, so that ports that nobody wrote share one.
"""

from collections.abc import Sequence
from typing import Final

from vhca.wire.packet import DEFAULT_PKEY
from vhca.wire.smp import P_KEYS_PER_BLOCK, pack_words, unpack_words

FULL_MEMBER: Final = 0x8000
"""The bit of a P_Key that a full member of its partition has."""
_PARTITION: Final = 0x7FFF


def default_table(entries: int) -> tuple[int, ...]:
    """The table of a port that no manager has written: it belongs to the default partition."""
    return (DEFAULT_PKEY, *[0] * (entries - 1))


def pkeys_match(one: int, other: int) -> bool:
    """Same partition and not both limited members (10.9.3)."""
    return (one ^ other) & _PARTITION == 0 and (one | other) & FULL_MEMBER != 0 and one & _PARTITION != 0


def own_form(table: Sequence[int], pkey: int) -> int:
    """The partition of a P_Key as a port with this table writes it, as a full member if it can.

    Who answers says what it is itself, not what the other one is: a switch may look.
    """
    return max((own for own in table if not (own ^ pkey) & _PARTITION), default=pkey)


def block_of(table: Sequence[int], block: int) -> bytes | None:
    """Block `block` of a table as attribute data; None if the table ends before it."""
    start = block * P_KEYS_PER_BLOCK
    if start >= len(table):
        return None
    return pack_words(tuple(table[start : start + P_KEYS_PER_BLOCK])).ljust(2 * P_KEYS_PER_BLOCK, b"\0")


def with_block(table: tuple[int, ...], block: int, data: bytes) -> tuple[int, ...] | None:
    """The table with another block `block`; None if it ends before that. What is behind its end is not kept."""
    start = block * P_KEYS_PER_BLOCK
    if start >= len(table):
        return None
    return (table[:start] + tuple(unpack_words(data[: 2 * P_KEYS_PER_BLOCK])) + table[start + P_KEYS_PER_BLOCK :])[
        : len(table)
    ]


def admitted_in(table: Sequence[int]) -> frozenset[int]:
    """The P_Keys of packets that a switch takes from a port with this table (18.2.4 of volume 1).

    A sender may say no more than the table does: a full member's key needs an entry of a full member.
    """
    keys = {key for key in table if key & _PARTITION}
    return frozenset(keys | {key & _PARTITION for key in keys})


def admitted_out(table: Sequence[int]) -> frozenset[int]:
    """The P_Keys of packets that a switch lets out at a port with this table: those that match an entry (10.9.3)."""
    keys = {key for key in table if key & _PARTITION}
    full = {key | FULL_MEMBER for key in keys}
    return frozenset(full | {key & _PARTITION for key in keys if key & FULL_MEMBER})
