"""The ledger that strictness rests on: handle tables with reference counts.

Every object that a command creates lives in one :class:`Table` under its number; others that use it hold a reference.
A destroy of a referenced object is refused, a use of a destroyed one is seen at the exact command, and what is left
after an unload is a leak that :meth:`Hca.objects` names.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from firmware.model.budget import Budget
from firmware.model.graveyard import Grave
from firmware.model.history import History


@dataclass(slots=True, eq=False)
class HcaObject:
    """Anything with a number and an owner: `uid` is the user context (0: the kernel), `refs` counts users.

    `umems` are the user memory objects that it lies in: its buffer's and its doorbell record's.
    `charged`: bytes that the card's budget counts for it, given back when it leaves its table.
    """

    handle: int = 0
    uid: int = 0
    refs: int = 0
    umems: "tuple[HcaObject | None, HcaObject | None]" = (None, None)
    charged: int = 0

    def let_go(self) -> tuple[Grave, ...]:
        """Break circles of references to it, once nobody uses it any more; returns more to be freed."""
        return ()


T = TypeVar("T", bound=HcaObject)


class Table(Generic[T]):
    """Numbers `first` .. `first + capacity - 1`; freed numbers are reused last, so a stale use shows as unknown."""

    __slots__ = (
        "_free", "_items", "_next", "_reused", "budget", "capacity", "changes", "created", "first", "history", "kind",
    )  # fmt: skip

    def __init__(self, kind: str, first: int, capacity: int, budget: Budget) -> None:
        self.kind = kind
        self.budget = budget
        self.first = first
        self.capacity = capacity
        self.created = 0
        # Keeps the lives of what is in it, if somebody wants to know them.
        self.history: History | None = None
        # Objects that came and went.
        self.changes = 0
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
        self.changes += 1
        if self.history is not None:
            self.history.created(self.kind, obj)
        return handle

    def get(self, handle: int) -> T | None:
        """The object with this number."""
        return self._items.get(handle)

    def remove(self, obj: T) -> None:
        """Take `obj` out; its number may be given out again once all fresh ones are used."""
        del self._items[obj.handle]
        self.changes += 1
        self._free.append(obj.handle)
        self.budget.give(obj.charged)
        if self.history is not None:
            self.history.removed(self.kind, obj)

    def graves(self) -> tuple[Grave, ...]:
        """What the table holds, to be freed in pieces; nobody uses the table any more."""
        return (self._items,)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))
