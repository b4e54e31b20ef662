"""The interrupt lines of a card: one eventfd per vector, handed over by the virtual machine monitor.

The client passes an eventfd for each vector that a guest driver has armed; writing 1 to it is the
interrupt. An interrupt that finds no eventfd, or a masked vector, stays pending and is delivered when
the eventfd comes or the mask goes, as a real card's pending bits do. Only the thread of the server's
loop may use the table: a replaced descriptor is closed at once.

No I/O here: descriptors are plain ints, `signal` and `close` are handed in.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from vhca.vfio_user.proto import IrqIndex, IrqSet, ProtocolError, SetIrqsRequest


class IrqTable:
    """Eventfds, masks and pending bits of every interrupt index of one device.

    The table owns the descriptors that it was given by :meth:`set_irqs`.

    :ivar raised: interrupts asked for.  :ivar signalled: eventfds written.
    :ivar latched: interrupts that found no eventfd or a mask and were not pending yet.
    """

    def __init__(self, counts: Sequence[int], signal: Callable[[int], None], close: Callable[[int], None]) -> None:
        self.counts = tuple(counts)
        self.raised = self.signalled = self.latched = 0
        self._signal = signal
        self._close = close
        self._fds = [[-1] * count for count in self.counts]
        self._masked: list[set[int]] = [set() for _ in self.counts]
        self._pending: list[set[int]] = [set() for _ in self.counts]

    def raise_irq(self, vector: int, index: int = IrqIndex.MSIX) -> None:
        """Signal `vector` of `index`, or keep it pending until it can be delivered.

        :raises IndexError: the device has no such vector.
        """
        if vector < 0:
            raise IndexError(f"interrupt vector {vector}")
        fd = self._fds[index][vector]
        self.raised += 1
        if fd >= 0 and vector not in self._masked[index]:
            self.signalled += 1
            self._signal(fd)
            return
        if vector not in self._pending[index]:
            self.latched += 1
            self._pending[index].add(vector)

    def armed(self, vector: int, index: int = IrqIndex.MSIX) -> bool:
        """Tell whether the vector has an eventfd."""
        return self._fds[index][vector] >= 0

    def pending(self, index: int = IrqIndex.MSIX) -> frozenset[int]:
        """Return the vectors whose interrupt waits for an eventfd or an unmask."""
        return frozenset(self._pending[index])

    def clear_pending(self) -> None:
        """Forget waiting interrupts: what a device does when it is reset."""
        for pending in self._pending:
            pending.clear()

    def close(self) -> None:
        """Close every eventfd and forget masks and pending interrupts: the client is gone."""
        for index in range(len(self.counts)):
            self._disable(index)

    def set_irqs(self, request: SetIrqsRequest, fds: Sequence[int]) -> None:
        """Carry out SET_IRQS. On success the table owns `fds`; after an error the caller still does.

        :raises ProtocolError: EINVAL for an index or vector range that the device does not have, for
            masking an index that cannot be masked, or for descriptors that do not fit; ENOENT for a
            trigger of a vector without an eventfd. Nothing has changed then.
        """
        flags, index, start = request.flags, request.index, request.start
        count, bools = request.count, request.bools
        self._check_range(index, start, count)
        if fds and (not flags & IrqSet.DATA_EVENTFD or len(fds) != count):
            raise ProtocolError(errno.EINVAL, f"SET_IRQS: {len(fds)} descriptors for {count} vectors")
        if flags & IrqSet.DATA_EVENTFD:
            if not flags & IrqSet.ACTION_TRIGGER:
                raise ProtocolError(errno.EINVAL, "SET_IRQS: masking by eventfd is not supported")
            self._assign(index, start, fds or [-1] * count)
            return
        if count == 0:
            self._disable(index)
            return
        vectors = [start + i for i in range(count) if not bools or bools[i]]
        if flags & IrqSet.ACTION_TRIGGER:
            self._trigger(index, vectors)
            return
        if index not in (IrqIndex.INTX, IrqIndex.MSI, IrqIndex.MSIX):
            raise ProtocolError(errno.EINVAL, f"SET_IRQS: index {index} cannot be masked")
        if flags & IrqSet.ACTION_MASK:
            self._masked[index].update(vectors)
        else:
            self._masked[index].difference_update(vectors)
            self._deliver(index, vectors)

    def _check_range(self, index: int, start: int, count: int) -> None:
        if index >= len(self.counts):
            raise ProtocolError(errno.EINVAL, f"SET_IRQS: no index {index}")
        limit = self.counts[index]
        if count and (start >= limit or start + count > limit):
            raise ProtocolError(errno.EINVAL, f"SET_IRQS: vectors {start}+{count} of {limit}")

    def _assign(self, index: int, start: int, fds: Sequence[int]) -> None:
        table = self._fds[index]
        for vector, fd in enumerate(fds, start):
            old, table[vector] = table[vector], fd
            if old >= 0:
                self._close(old)
        self._deliver(index, range(start, start + len(fds)))

    def _deliver(self, index: int, vectors: Sequence[int]) -> None:
        pending, masked, table = self._pending[index], self._masked[index], self._fds[index]
        for vector in vectors:
            if vector in pending and vector not in masked and table[vector] >= 0:
                pending.discard(vector)
                self.signalled += 1
                self._signal(table[vector])

    def _trigger(self, index: int, vectors: Sequence[int]) -> None:
        missing = [vector for vector in vectors if self._fds[index][vector] < 0]
        if missing:
            raise ProtocolError(errno.ENOENT, f"SET_IRQS: vector {missing[0]} has no eventfd")
        for vector in vectors:
            self.raise_irq(vector, index)

    def _disable(self, index: int) -> None:
        for vector, fd in enumerate(self._fds[index]):
            if fd >= 0:
                self._fds[index][vector] = -1
                self._close(fd)
        self._masked[index].clear()
        self._pending[index].clear()
