"""What all cables and switches of one fabric share: whether anything is on the way, and whether anything changed.

So whoever looks at a way of many cables looks at two numbers, as long as both stay what they are.
"""

from collections.abc import Callable
from typing import Final

from vhca.wire.packet import Packet

MOST_OWED: Final = 1024
"""Hops of ways on which something passed that ports have not counted: whoever makes many of them pays for it."""

Tap = Callable[[Packet], None]
"""Sees each packet or burst at one end of a cable: as it is sent there, before any fault, or as it arrives there."""


class Wires:
    """Of one fabric.

    :ivar changes: counts up with each change that may matter to packets: of links, taps, faults, states and tables.
    :ivar cables: counts up with those of links, taps and faults alone, which are all that matters to SMPs by directed
        route; change it by :meth:`cable_changed`.
    :ivar busy: cables, by direction, that have packets on them, and packets that a fault delays.
    :ivar timed: cables, by direction, that take time (:mod:`vhca.fabric.line`).
    :ivar now_ns: the clock of the fabric.
    """

    __slots__ = ("_hops", "_owed", "busy", "cables", "changes", "now_ns", "timed")

    def __init__(self, now_ns: Callable[[], int] = lambda: 0) -> None:
        self.changes = 0
        self.cables = 0
        self.busy = 0
        self.timed = 0
        self.now_ns = now_ns
        self._owed: list[Callable[[], None]] = []
        self._hops = 0

    def cable_changed(self) -> None:
        """A link, or who listens or damages on a cable, is not as before."""
        self.cables += 1
        self.changes += 1

    def owe(self, count: Callable[[], None], hops: int) -> None:
        """Have something counted at the ports of so many hops before anybody reads counters, or when much is owed."""
        self._owed.append(count)
        self._hops += hops
        if self._hops >= MOST_OWED:
            self.settle()

    def settle(self) -> None:
        """Count what is owed; to be called before counters of ports are read."""
        owed, self._owed = self._owed, []
        self._hops = 0
        for count in owed:
            count()


class Taps(list[Tap]):
    """Who listens at one end of a cable. The fabric notices who comes and goes."""

    __slots__ = ("_wires",)

    def __init__(self, wires: Wires) -> None:
        super().__init__()
        self._wires = wires

    def append(self, tap: Tap) -> None:
        """Listen from now on."""
        self._wires.cable_changed()
        super().append(tap)

    def remove(self, tap: Tap) -> None:
        """Listen no more."""
        self._wires.cable_changed()
        super().remove(tap)
