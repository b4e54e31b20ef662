"""Traps that wait for their repression: each is sent again until its manager says that it has it (13.4.9 of volume 1).

One of these belongs to each port that has a manager. Nothing of it grows with what somebody outside does: a trap of a
kind that waits already takes its place, so many kinds may wait, each is sent so many times, and all of them not more
often than PortInfo:SubnetTimeout allows (14.2.5.6).

DEVIATION: after a quiet time the first traps go out at once, however short the time between them; a manager hears of
links that change together without waiting a second for each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vhca.layout import Layout
from vhca.wire import mad as madwire
from vhca.wire.mad import Smp
from vhca.wire.notices import notice

KINDS: Final = 8
"""Traps that wait at one port, of different numbers or places; one place is left for a change of a link."""
TIMES: Final = 10
"""How often a trap is sent that nobody represses."""
AT_ONCE: Final = 8
"""Traps after a quiet time that need not keep the distance."""
_LEAST_NS: Final = 1_000_000

Key = tuple[int, int]
"""Number of the trap, and what tells several of that number apart: 0, or a port."""


def interval_ns(subnet_timeout: int) -> int:
    """Least time between two traps of a port whose PortInfo has this SubnetTimeout."""
    return max(4096 << subnet_timeout, _LEAST_NS)


@dataclass(slots=True)
class _Trap:
    tid: int
    producer: int
    details: Layout
    due_ns: int
    sent: int = 0


class Notices:
    """What a port has to tell its manager.

    :ivar watch: called when something is to be told.
    """

    __slots__ = ("_counted_ns", "_room", "_tid", "_traps", "watch")

    def __init__(self) -> None:
        self._traps: dict[Key, _Trap] = {}
        self._tid = 0
        self.watch: Callable[[], None] | None = None
        # How many traps may be sent now, and when that was counted.
        self._room, self._counted_ns = float(AT_ONCE), 0

    def __len__(self) -> int:
        """How many traps wait."""
        return len(self._traps)

    def post(self, number: int, producer: int, details: Layout, now_ns: int, place: int = 0) -> None:
        """Something happened: tell the manager soon. It replaces what waits of the same number and place."""
        key = (number, place)
        room = KINDS - (number != madwire.TRAP_LINK_STATE_CHANGE)
        if key not in self._traps and len(self._traps) >= room:
            return
        self._tid += 1
        self._traps.pop(key, None)
        self._traps[key] = _Trap(self._tid, producer, details, now_ns)
        if self.watch is not None:
            self.watch()

    def repress(self, tid: int) -> bool:
        """The manager has the trap with this number; False if none of that number waits."""
        for key, trap in self._traps.items():
            if trap.tid == tid and trap.sent:
                del self._traps[key]
                return True
        return False

    def clear(self) -> None:
        """Nobody is there to be told."""
        self._traps.clear()

    def next_deadline(self, subnet_timeout: int) -> int | None:
        """When the next trap is to be sent, None if none waits."""
        if not self._traps:
            return None
        due = min(trap.due_ns for trap in self._traps.values())
        if self._room >= 1:
            return due
        return max(due, self._counted_ns + int((1 - self._room) * interval_ns(subnet_timeout)) + 1)

    def due(self, now_ns: int, lid: int, subnet_timeout: int) -> list[bytes]:
        """The SMPs to send now from the port at `lid`; traps that were sent often enough are forgotten."""
        interval = interval_ns(subnet_timeout)
        self._room = min(AT_ONCE, self._room + max(0, now_ns - self._counted_ns) / interval)
        self._counted_ns = now_ns
        smps: list[bytes] = []
        for key, trap in sorted(self._traps.items(), key=lambda item: item[1].due_ns):
            if trap.due_ns > now_ns:
                break
            if trap.sent >= TIMES:
                del self._traps[key]
            elif self._room >= 1:
                self._room -= 1
                trap.sent += 1
                trap.due_ns = now_ns + interval
                smps.append(_smp(trap, key[0], lid))
        return smps

    # Notice as an attribute (14.2.5.1): the oldest that waits, and a way to take it away.

    def first(self, lid: int) -> bytes:
        """The notice that waits longest, with the number of all that wait; zeros if there is none."""
        for (number, _), trap in self._traps.items():
            return notice(number, trap.producer, lid, trap.details, waiting=len(self._traps))
        return bytes(64)

    def take(self, data: bytes, lid: int) -> bool:
        """Forget the notice that waits longest if it is this one, whatever is said about how many wait."""
        for key, trap in self._traps.items():
            if _same(notice(key[0], trap.producer, lid, trap.details), data):
                del self._traps[key]
                return True
            break
        return False


def _same(one: bytes, other: bytes) -> bool:
    return one[:8] == other[:8] and one[10:64] == other[10:64]


def _smp(trap: _Trap, number: int, lid: int) -> bytes:
    return Smp(
        base_version=madwire.BASE_VERSION,
        mgmt_class=madwire.CLASS_SUBN_LID,
        class_version=1,
        method=madwire.METHOD_TRAP,
        tid=trap.tid,
        attr_id=madwire.ATTR_NOTICE,
        data=notice(number, trap.producer, lid, trap.details),
    ).to_bytes()
