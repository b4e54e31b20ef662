"""A send work request that was fetched and is not completed."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from firmware.model.lists import Sge

# Beside the operations of the wire: executed inside the card.
LOCAL: Final = 100
# In place of a syndrome: the WQE waits for pages.
PAGING: Final = -1


class Offload(NamedTuple):
    """What a datagram's Ethernet segment asks for: checksums of IP, of TCP or UDP; of an LSO also `mss` and headers."""

    l3: bool
    l4: bool
    mss: int
    header: bytes


class SendWqe:
    """One send WQE under way.

    The first group is what the WQE says; `first` is its first PSN and `end` the one behind its last, -1 until it is
    sent; `answer` are the bytes of a response that go into the completion; `fault` is a completion syndrome that waits
    for its turn, or PAGING while the WQE waits for pages.
    """

    __slots__ = (
        "answer",
        "blocks",
        "ce",
        "compare",
        "done",
        "end",
        "fault",
        "fence",
        "first",
        "immediate",
        "index",
        "inline",
        "invalidate",
        "length",
        "offload",
        "op",
        "opcode",
        "pieces",
        "raw",
        "reason",
        "rkey",
        "sges",
        "solicited",
        "swap_add",
        "va",
        "xrc_srqn",
    )

    def __init__(self, index: int, opcode: int, blocks: int) -> None:
        self.index = index
        self.opcode = opcode
        self.blocks = blocks
        self.op = LOCAL
        self.ce = 0
        self.fence = 0
        self.solicited = False
        self.immediate: int | None = None
        self.invalidate: int | None = None
        self.sges: Sequence[Sge] = []
        self.inline: bytes | None = None
        # Inline data next to pointers, in order; None where there is only the one or the other.
        self.pieces: Iterable[bytes | Sge] | None = None
        self.length = 0
        # Of datagrams of a queue pair with offloads.
        self.offload: Offload | None = None
        self.va = 0
        self.rkey = 0
        self.swap_add = 0
        self.compare = 0
        self.xrc_srqn = 0
        self.raw = b""
        self.first = -1
        self.end = -1
        self.done = False
        self.answer = b""
        self.fault = 0
        self.reason = ""
