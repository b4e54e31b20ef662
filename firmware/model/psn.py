"""Packet sequence numbers: 24 bits on the wire, unbounded integers inside the engines.

An engine keeps its PSNs free running, so that comparisons are plain; :func:`extend` brings a number from the wire into
that form. Both directions of a half circle (2**23) are told apart as volume 1, 9.7.2 asks.
"""

from typing import Final

PSN_MASK: Final = 0xFFFFFF
HALF: Final = 1 << 23


def distance(psn: int, reference: int) -> int:
    """How far `psn` lies after `reference` on the 24-bit circle: -2**23 .. 2**23 - 1."""
    ahead = (psn - reference) & PSN_MASK
    return ahead if ahead < HALF else ahead - (PSN_MASK + 1)


def extend(psn: int, reference: int) -> int:
    """The free running number closest to `reference` that has the wire form `psn`."""
    return reference + distance(psn, reference)
