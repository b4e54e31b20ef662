"""The M_Key: who may read and write a port's management state (14.2.4 of volume 1).

One check for every agent, of a card or of a switch. It works on the PortInfo that holds the key: that of the port at
which an SMP arrived, or of port 0 in a switch.
"""

from collections.abc import Callable
from typing import Final

from vhca.wire.mad import METHOD_GET, Smp
from vhca.wire.smp import PortInfo

PROTECT_SETS: Final = 0
"""Set and TrapRepress need the key, Get shows it; on level 1, only to those who know it."""
PROTECT_ALL: Final = 2
"""Every SMP needs the key. Level 3 is the same to an agent."""

_MAX_VIOLATIONS: Final = 0xFFFF
_NS: Final = 1_000_000_000


class MKeyGuard:
    """Checks SMPs against the key in `info`, counts violations there, and runs the lease.

    :ivar watch: called when a lease begins.
    """

    def __init__(self, info: PortInfo) -> None:
        self._info = info
        # Time of the first violation since the key was last shown, None if no lease runs.
        self._lease_started_ns: int | None = None
        self.watch: Callable[[], None] | None = None

    def allows(self, request: Smp, now_ns: int) -> bool:
        """Tell whether a Get, Set or TrapRepress may be served; one that may not deserves no answer (14.2.4.1).

        A violation starts the lease. Unless an SMP with the key ends it in time, the protection is lifted, so that
        another manager can read the key (14.2.4.2); a lease period of 0 never ends.
        """
        info = self._info
        self._expire(now_ns)
        if request.mkey == info.mkey:
            self._lease_started_ns = None
            return True
        if info.mkey == 0 or (request.method == METHOD_GET and info.mkey_protect_bits < PROTECT_ALL):
            return True
        info.mkey_violations = min(info.mkey_violations + 1, _MAX_VIOLATIONS)
        if info.mkey_lease_period and self._lease_started_ns is None:
            self._lease_started_ns = now_ns
            if self.watch is not None:
                self.watch()
        return False

    def is_plainly(self, mkey: int) -> bool:
        """Tell whether :meth:`allows` would let an SMP with `mkey` pass and change nothing here: no lease runs."""
        return self._lease_started_ns is None and mkey == self._info.mkey

    @property
    def leased(self) -> bool:
        """Tell whether a lease runs."""
        return self._lease_started_ns is not None

    def shown_to(self, mkey: int) -> int:
        """PortInfo:M_Key as a reader who presents `mkey` gets it."""
        info = self._info
        return 0 if info.mkey_protect_bits and mkey != info.mkey else info.mkey

    def _expire(self, now_ns: int) -> None:
        started, period_ns = self._lease_started_ns, self._info.mkey_lease_period * _NS
        if started is not None and period_ns and now_ns - started >= period_ns:
            self._info.mkey_protect_bits = PROTECT_SETS
            self._lease_started_ns = None
