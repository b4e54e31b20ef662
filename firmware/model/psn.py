"""Packet sequence numbers: 24 bits on the wire, and unbounded integers where they have an order.

One rule. What a requester keeps (`Requester`, `SendWqe`) is free running, since it compares the numbers of many
requests with each other: :func:`extend` brings a number from the wire into that form, :data:`PSN_MASK` takes it back
when a packet or a context is filled. What a responder keeps (`Responder`, `Resource`, `ReadJob`; also MSNs, the
message sequence numbers) is as on the wire, since it compares an arriving number with the one that it expects.

Both directions of a half circle (2**23) are told apart as volume 1, 9.7.2 asks.
"""

from typing import Final

from vhca.wire.packet import PSN_MASK as PSN_MASK

PSN_HALF: Final = 1 << 23


def distance(psn: int, reference: int) -> int:
    """How far `psn` lies after `reference` on the 24-bit circle: -2**23 .. 2**23 - 1."""
    ahead = (psn - reference) & PSN_MASK
    return ahead if ahead < PSN_HALF else ahead - (PSN_MASK + 1)


def extend(psn: int, reference: int) -> int:
    """The free running number closest to `reference` that has the wire form `psn`."""
    return reference + distance(psn, reference)
