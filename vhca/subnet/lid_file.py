"""LIDs by port GUID as lines of text, which a subnet is to have again the next time; as in OpenSM's guid2lid."""

from collections.abc import Mapping
from typing import Final

from vhca.wire.packet import MULTICAST_LID_FIRST

MAX_BYTES: Final = 4 << 20


class LidFileError(Exception):
    """What is wrong with such a text, and in which line."""


def read(text: str) -> dict[int, int]:
    """The first LID of each GUID.

    :raises LidFileError: a line is none, or two have the same GUID or share a LID.
    """
    found: dict[int, int] = {}
    taken: set[int] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            guid, first, last = (int(word, 0) for word in words)
        except ValueError:
            raise LidFileError(f"line {number}: it takes a GUID, a first and a last LID") from None
        if not (0 < guid < 1 << 64 and 0 < first <= last < MULTICAST_LID_FIRST and last - first < 128):
            raise LidFileError(f"line {number}: there is no such GUID, or there are no such LIDs")
        lids = range(first, last + 1)
        if guid in found or not taken.isdisjoint(lids):
            raise LidFileError(f"line {number}: another line has this GUID, or one of these LIDs")
        found[guid] = first
        taken.update(lids)
    return found


def write(lids: Mapping[int, range]) -> str:
    """The text for the LIDs of each GUID."""
    return "".join(f"{guid:#018x} {own.start:#06x} {own.stop - 1:#06x}\n" for guid, own in sorted(lids.items()))
