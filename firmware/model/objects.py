"""The object store of the card: handle tables with reference counts, the ledger that strictness rests on.

Every object that a command creates lives in one :class:`Table` under its number; others that use it hold a reference.
A destroy of a referenced object is refused, a use of a destroyed one is seen at the exact command, and what is left
after an unload is a leak that :meth:`Hca.objects` names.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from firmware.model.budget import Budget
from firmware.model.counters import QCount
from firmware.model.graveyard import Grave
from firmware.model.pages import ENTRY_BYTES, Entries, page_at
from firmware.model.queue_buffer import QueueBuffer
from firmware.model.timers import Timer
from vhca.wire.connectx.cqc import CqArmState
from vhca.wire.connectx.mkey import QPN_ANY, AccessMode

# Consumer and producer indexes of completion and event queues: 24 bits on the interface, free running here.
INDEX_MASK: Final = 0xFFFFFF
# The user index of a queue that has none: its completions carry the number of the queue pair alone.
ANY_USER_INDEX: Final = 0xFFFFFF


@dataclass(slots=True, eq=False)
class HcaObject:
    """Anything with a number and an owner: `uid` is the user context (0: the kernel), `refs` counts users.

    `umems` are the user memory objects that it lies in: its buffer's and its doorbell record's.
    `charged`: bytes that the card's budget counts for it, given back when it leaves its table.
    """

    handle: int = 0
    uid: int = 0
    refs: int = 0
    umems: "tuple[Umem | None, Umem | None]" = (None, None)
    charged: int = 0

    def let_go(self) -> tuple[Grave, ...]:
        """Break circles of references to it, once nobody uses it any more; returns more to be freed."""
        return ()


T = TypeVar("T", bound=HcaObject)


class Table(Generic[T]):
    """Numbers `first` .. `first + capacity - 1`; freed numbers are reused last, so a stale use shows as unknown."""

    __slots__ = ("_free", "_items", "_next", "_reused", "budget", "capacity", "created", "first", "kind")

    def __init__(self, kind: str, first: int, capacity: int, budget: Budget) -> None:
        self.kind = kind
        self.budget = budget
        self.first = first
        self.capacity = capacity
        self.created = 0
        self._items: dict[int, T] = {}
        self._next = first
        # Freed numbers, oldest first, from `_reused` on: a million of them must not cost more than their bytes.
        self._free = array("I")
        self._reused = 0

    def add(self, obj: T) -> int | None:
        """Give `obj` a number and return it; None if the table is full."""
        if self._next < self.first + self.capacity:
            handle = self._next
            self._next += 1
        elif self._reused < len(self._free):
            handle = self._free[self._reused]
            self._reused += 1
            if self._reused * 2 > len(self._free):
                del self._free[: self._reused]
                self._reused = 0
        else:
            return None
        obj.handle = handle
        self._items[handle] = obj
        self.created += 1
        return handle

    def get(self, handle: int) -> T | None:
        """The object with this number."""
        return self._items.get(handle)

    def remove(self, obj: T) -> None:
        """Take `obj` out; its number may be given out again once all fresh ones are used."""
        del self._items[obj.handle]
        self._free.append(obj.handle)
        self.budget.give(obj.charged)

    def graves(self) -> tuple[Grave, ...]:
        """What the table holds, to be freed in pieces; nobody uses the table any more."""
        return (self._items,)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))


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
class Cq(HcaObject):
    """Completion queue; free running indices, `cqe_bytes` is 64 or 128, `dbr_addr` the bus address of its record.

    A completion is the second half of a 128-byte entry; the first half is written with inline data only, or, if the
    queue is `padded`, always.
    """

    eq: Eq = field(kw_only=True)
    buffer: QueueBuffer = field(kw_only=True)
    log_size: int = field(kw_only=True)
    cqe_bytes: int = field(kw_only=True)
    dbr_addr: int = field(kw_only=True)
    padded: bool = False
    overrun_ignore: bool = False
    uar: int = 0
    producer: int = 0
    consumer: int = 0
    arm_state: int = CQ_FIRED
    last_solicited: int = -1
    # The producer's index when the last event was sent: what is in front of it, the host has been told of.
    notified: int = 0
    failed: bool = False
    period_us: int = 0
    max_count: int = 0
    # Completions that an event is held back for, and the end of its waiting
    held: int = 0
    moderation: Timer | None = None

    def let_go(self) -> tuple[Grave, ...]:
        """See :class:`HcaObject`."""
        self.moderation = None
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
class Mkey(HcaObject):
    """Memory key: number = index; the full key is `handle << 8 | variant`.

    The translation is kept packed as the host wrote it: `mtts` (page entries of 8 bytes, see
    :mod:`firmware.model.pages`) of MTT mode, `klms` (16 bytes: byte count, key, address) of KLM mode, `ksms` (16 bytes:
    key, address) of KSM mode. A MEMIC key shows `memic`, from `device_offset` in BAR0 on. `length` is in bytes,
    `capacity_octwords` the size of the translation table in 16-byte units. `qpn` is ANY_QPN or the one QP that may use
    the key (memory window of type 2). If the key is `paged`, its page entries carry rights, and pages may be missing.

    Work requests change the lists, in place or for others; whoever does calls :meth:`translation_changed`.
    """

    variant: int = 0
    pd: int = 0
    rights: int = 0
    mode: int = MODE_PA
    start: int = 0
    length: int = 0
    length64: bool = False
    log_page_size: int = 12
    mtts: Entries = b""
    paged: bool = False
    klms: bytes = b""
    ksms: Entries = b""
    free: bool = False
    umr_enabled: bool = False
    remote_invalidate: bool = False
    qpn: int = ANY_QPN
    capacity_octwords: int = 0
    context: bytes = b""
    memic: Memic | None = None
    device_offset: int = 0
    # What accesses have found out about the translation. Of pages: how many have been looked at, whether there is
    # nothing more to look at, and then the bus address of the region's first byte if they are contiguous, else -1.
    looked_at: int = 0
    surveyed: bool = False
    linear: int = -1
    # Of a KLM list: how it is walked (:mod:`firmware.entries`).
    plan: object = None

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
