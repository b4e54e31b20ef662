"""What all cables and switches of one fabric share: whether anything is on the way, and whether anything changed.

So whoever looks at a way of many cables looks at two numbers, as long as both stay what they are.
"""

from collections.abc import Callable

from vhca.wire.packet import Packet

Tap = Callable[[Packet], None]
"""Sees each packet or burst at one end of a cable: as it is sent there, before any fault, or as it arrives there."""


class Wires:
    """Of one fabric.

    :ivar changes: counts up with each change that may matter to packets: of links, taps, faults, states and tables.
    :ivar busy: cables, by direction, that have packets on them, and packets that a fault delays.
    """

    __slots__ = ("busy", "changes")

    def __init__(self) -> None:
        self.changes = 0
        self.busy = 0


class Taps(list[Tap]):
    """Who listens at one end of a cable. The fabric notices who comes and goes."""

    __slots__ = ("_wires",)

    def __init__(self, wires: Wires) -> None:
        super().__init__()
        self._wires = wires

    def append(self, tap: Tap) -> None:
        """Listen from now on."""
        self._wires.changes += 1
        super().append(tap)

    def remove(self, tap: Tap) -> None:
        """Listen no more."""
        self._wires.changes += 1
        super().remove(tap)
