"""The objects that commands create: what each of them is.

They live in the tables of the ledger (:mod:`firmware.model.ledger`) under their numbers.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Final

from firmware.model.counters import QCount
from firmware.model.graveyard import Grave
from firmware.model.hot import ANY_USER_INDEX, CqBlock, MkeyBlock
from firmware.model.ledger import HcaObject
from firmware.model.pages import ENTRY_BYTES, Entries, page_at
from firmware.model.queue_buffer import QueueBuffer
from firmware.model.timers import Timer
from vhca.wire.connectx.cqc import CqArmState
from vhca.wire.connectx.mkey import QPN_ANY, AccessMode

# Consumer and producer indexes of completion and event queues: 24 bits on the interface, free running here.
INDEX_MASK: Final = 0xFFFFFF


@dataclass(slots=True, eq=False)
class Pd(HcaObject):
    """Protection domain."""


@dataclass(slots=True, eq=False)
class Uar(HcaObject):
    """User access region: one doorbell page of BAR0, number = page index."""


@dataclass(slots=True, eq=False)
class Xrcd(HcaObject):
    """XRC domain."""


@dataclass(slots=True, eq=False)
class TransportDomain(HcaObject):
    """Transport domain."""


@dataclass(slots=True, eq=False)
class Uctx(HcaObject):
    """User context; its number is the uid that later commands carry, `caps` what the kernel vouches for (uctx.cap)."""

    caps: int = 0


@dataclass(slots=True, eq=False)
class Umem(HcaObject):
    """User memory that a user context registered for its queues; `offset` of its first byte in the first page."""

    pages: Entries = field(kw_only=True)
    log_page_bytes: int = field(kw_only=True)
    offset: int = field(kw_only=True)

    @property
    def size_bytes(self) -> int:
        """Bytes from the first to the end of the last page."""
        return (len(self.pages) // ENTRY_BYTES << self.log_page_bytes) - self.offset

    def addr(self, offset: int) -> int:
        """Bus address of the byte at `offset`."""
        at = offset + self.offset
        return page_at(self.pages, at >> self.log_page_bytes) + (at & ((1 << self.log_page_bytes) - 1))


@dataclass(slots=True, eq=False)
class ReservedQpns(HcaObject):
    """QP numbers that no queue pair of the card will have: number times `RESERVED_QPNS` is the first of them."""


@dataclass(slots=True, eq=False)
class QCounter(HcaObject):
    """Counter set of queue pairs."""

    values: Counter[QCount] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class Eq(HcaObject):
    """Event queue: `producer` and `consumer` are free running (24 bit on the wire), `event_mask` has bit = type."""

    buffer: QueueBuffer = field(kw_only=True)
    log_size: int = field(kw_only=True)
    vector: int = field(kw_only=True)
    event_mask: int = field(kw_only=True)
    uar: int = 0
    producer: int = 0
    consumer: int = 0
    armed: bool = False
    dropped: int = 0


# Arm state of a completion queue (cqc.st).
CQ_FIRED: Final = int(CqArmState.FIRED)
CQ_ARMED_SOLICITED: Final = int(CqArmState.SOLICITED_ARMED)
CQ_ARMED: Final = int(CqArmState.ARMED)


@dataclass(slots=True, eq=False)
class Session:
    """Completions of a compressing queue that are held back to be written together; `minis` has 8 bytes for each."""

    title: bytes = b""
    minis: bytearray = field(default_factory=bytearray)
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class Cq(CqBlock):
    """Completion queue; its indices and its doorbell record are in its block."""

    eq: Eq = field(kw_only=True)
    buffer: QueueBuffer = field(kw_only=True)
    # The end of the waiting of what is `held`.
    moderation: Timer | None = None
    session: Session | None = None

    def __post_init__(self) -> None:
        self.linear = self.buffer.linear_at(0)

    def let_go(self) -> tuple[Grave, ...]:
        """See :class:`HcaObject`."""
        self.moderation = None
        self.session = None
        return ()


@dataclass(slots=True, eq=False)
class Memic(HcaObject):
    """A piece of device memory: offset in BAR0 and bytes; `operations` has a bit for each open operation address."""

    start: int = field(kw_only=True)
    size_bytes: int = field(kw_only=True)
    operations: int = 0


# mkc.access_mode
MODE_PA: Final = int(AccessMode.PA)
MODE_MTT: Final = int(AccessMode.MTT)
MODE_KLM: Final = int(AccessMode.KLMS)
MODE_KSM: Final = int(AccessMode.KSM)
MODE_MEMIC: Final = int(AccessMode.MEMIC)

# Access rights, as a mask (order of the bits in a mkc's third byte)
LOCAL_READ: Final = 1 << 0
LOCAL_WRITE: Final = 1 << 1
REMOTE_READ: Final = 1 << 2
REMOTE_WRITE: Final = 1 << 3
REMOTE_ATOMIC: Final = 1 << 4

ANY_QPN: Final = QPN_ANY

# In the key's place of the first entry of a KLM list: the entries behind it are columns that are read round and round.
# The entry then means (bytes of a round, this, rounds << 32 | columns), a column (stride << 16 | bytes, key, address).
REPEAT_BLOCK = 0x400


@dataclass(slots=True, eq=False)
class Mkey(MkeyBlock):
    """Memory key: number = index; the full key is `handle << 8 | variant`.

    The translation is kept packed as the host wrote it: `mtts` (page entries of 8 bytes, see
    :mod:`firmware.model.pages`) of MTT mode, `klms` (16 bytes: byte count, key, address) of KLM mode, `ksms` (16 bytes:
    key, address) of KSM mode. A MEMIC key shows `memic`.

    Work requests change the lists, in place or for others; whoever does calls :meth:`translation_changed`.
    """

    mtts: Entries = b""
    klms: bytes = b""
    ksms: Entries = b""
    context: bytes = b""
    memic: Memic | None = None
    # Of a KLM list: how it is walked (:mod:`firmware.entries`).
    plan: object = None

    # Counts what has changed in any key of any card: whoever keeps a copy of keys looks at it.
    changes: ClassVar[int] = 0

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        Mkey.changes += 1

    def translation_changed(self) -> None:
        """Forget what was found out about page lists, start, length and page size; of a KLM list, a new one tells."""
        self.looked_at = 0
        self.surveyed = False
        self.linear = -1


# Kinds of shared receive queues: one number space.
SRQ_RMP = 0
SRQ_XRC = 1


@dataclass(slots=True, eq=False)
class Srq(HcaObject):
    """Shared receive queue (RMP or XRC SRQ).

    A linked list of WQEs, of which `next_index` is the one to be consumed next, or, if `cyclic`, a ring. In both, the
    scatter list begins `head_bytes` into the WQE, behind the segment that holds a link in a list.
    """

    kind: int = field(kw_only=True)
    buffer: QueueBuffer = field(kw_only=True)
    log_size: int = field(kw_only=True)
    log_stride: int = field(kw_only=True)
    dbr_addr: int = field(kw_only=True)
    pd: int = field(kw_only=True)
    cq: Cq | None = None
    xrcd: int = 0
    user_index: int = ANY_USER_INDEX
    cyclic: bool = False
    head_bytes: int = 16
    next_index: int = 0
    consumed: int = 0
    limit: int = 0
    failed: bool = False
    context: bytes = b""


class WaitKind(IntEnum):
    """What waits for missing pages."""

    SEND = 0
    """A WQE of a connected queue pair; `side` is its requester, `item` the WQE."""
    SEND_AGAIN = 1
    """As SEND, and a response to it must come once more."""
    DATAGRAM = 2
    """A datagram queue; `side` is its requester, `item` control segment and blocks of the WQE at hand."""
    REQUEST = 3
    """A request that the peer will send again; `side` is the responder, `item` how to refuse it."""
    READ = 4
    """An answer to a READ; `side` is the responder, `item` first PSN, syndrome and MSN of its refusal."""
    RECEIVE = 5
    """A datagram that arrived; `side` is the responder, `item` port number, packet and receive."""


@dataclass(slots=True)
class Waiter:
    """Who waits for pages: a queue pair, with the side that it had then; `reason` is for the trace, if none come."""

    kind: WaitKind
    qp: Any
    side: Any
    item: Any
    reason: str


@dataclass(slots=True)
class PageRequest:
    """Pages that somebody waits for: `pages` from `va`, and `ahead_pages` behind them that would be welcome.

    `waiter` is None once it is over: answered, or whoever waited has gone. `shown`: the key was reached through another
    one that shows it.
    """

    key: int
    va: int
    pages: int
    ahead_pages: int
    waiter: Waiter | None
    shown: bool = False


@dataclass(slots=True)
class PageFaults:
    """The requests of one card: those that the host knows of, by token, and those that wait.

    `doubted` has, by key and address, the refusals of the host that were not believed yet: times of the first and
    of the last one in ns, and how many.
    """

    outstanding: dict[int, PageRequest] = field(default_factory=dict)
    doubted: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    waiting: deque[PageRequest] = field(default_factory=deque)
    last_token: int = 0
