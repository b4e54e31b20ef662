"""Scatter and gather lists. Long ones stay packed, as the host wrote them: a guest may have millions of entries wait.

An entry takes 16 bytes packed, and ten times that as Python objects.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, overload

from vhca.wire.connectx.wqe import DataSegment

Sge = tuple[int, int, int]
"""Scatter or gather entry: (bus or virtual address, length in bytes, lkey)."""

# Lists up to so many entries are Python lists.
FEW_ENTRIES: Final = 4
_data_segments = DataSegment.iterator("byte_count", "lkey", "addr")


class LongList(Sequence[Sge]):
    """A packed list that is looked through whenever it is used."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    @abstractmethod
    def __iter__(self) -> Iterator[Sge]:
        """The entries in order."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, index: int) -> Sge: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sge]: ...

    def __getitem__(self, index: int | slice) -> Sge | Sequence[Sge]:
        return next(iter(self)) if index == 0 else list(self)[index]


class ReceiveList(LongList):
    """Data segments of a receive; empty ones are none, and the highest bit of a length is not looked at."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Sge]:
        for length, lkey, addr in _data_segments(self.raw):
            if length & 0x7FFFFFFF:
                yield addr, length & 0x7FFFFFFF, lkey
