"""Who of several subnet managers is master: the state machine of 14.4.1 of volume 1.

Of two managers the one with the higher priority is master, of two with the same priority that with the lower GUID. A
master that finds a better one in standby hands over to it; a standby asks the master now and then whether it is alive.

Data and rules only: datagrams are sent by :mod:`vhca.subnet.manager`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from vhca.subnet.topology import PortKey
from vhca.wire import smp
from vhca.wire.mad import STATUS_INVALID_FIELD, STATUS_OK
from vhca.wire.smp import SmInfo

DEFAULT_PRIORITY: Final = 14
"""Of a manager that hands over to nobody."""
MODEST_PRIORITY: Final = 1
"""Of a manager that is to hand over: OpenSM has 0 if it is not told another, so one that is meant is given more."""
OPENSM_KEY: Final = 1
"""SM_Key that OpenSM has if it is told no other: it does not listen to managers with another one. No secret."""
POLL_NS: Final = 1_000_000_000
POLLS_LOST: Final = 5
"""So many answers in a row that do not come mean that the master is gone."""

Heirs = Callable[[int], bool]
"""Tells whether the manager at the port with this GUID may become master."""
Turn = Literal["nothing", "sweep", "take over", "follow", "stop"]
"""What an order asks of the manager: to sweep, as a new master or to find out who is, to be silent, or to poll."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another manager, where it is, and what it says of itself."""

    place: PortKey
    info: SmInfo


class Election:
    """State and rank of one manager. Without `heirs` it takes no orders, looks for nobody and is master at once.

    :raises ValueError: a priority is 0 to 15.
    """

    def __init__(self, priority: int | None = None, heirs: Heirs | None = None) -> None:
        if priority is None:
            priority = DEFAULT_PRIORITY if heirs is None else MODEST_PRIORITY
        if not 0 <= priority <= 15:
            raise ValueError(f"priority {priority}: it is 0 to 15")
        self.priority = priority
        self.guid = 0
        self.state: int = smp.SM_STATE_MASTER if heirs is None else smp.SM_STATE_DISCOVERING
        self.leader: int = 0  # GUID of the one that a standby follows
        self._heirs = heirs
        self._lost = 0

    @property
    def is_open(self) -> bool:
        """Tell whether there is anybody that it would hand over to."""
        return self._heirs is not None

    @property
    def is_master(self) -> bool:
        """Tell whether it is master."""
        return self.state == smp.SM_STATE_MASTER

    @property
    def sweeps(self) -> bool:
        """Tell whether it is its business to look at the subnet."""
        return self.state in (smp.SM_STATE_MASTER, smp.SM_STATE_DISCOVERING)

    def info(self, act_count: int) -> SmInfo:
        """SMInfo of this manager."""
        key = OPENSM_KEY  # also of one that hands over to nobody: so that an OpenSM that reaches it stands by
        return SmInfo(guid=self.guid, sm_key=key, act_count=act_count, priority=self.priority, sm_state=self.state)

    def may_lead(self, guid: int) -> bool:
        """Tell whether the manager at this port may be master instead of this one."""
        return self._heirs is not None and guid != self.guid and self._heirs(guid)

    def is_better(self, info: SmInfo) -> bool:
        """Tell whether another manager comes before this one."""
        return (info.priority, -info.guid) > (self.priority, -self.guid)

    # What a sweep found

    def discovered(self, rivals: Iterable[Rival]) -> Rival | None:
        """While it is DISCOVERING: become MASTER, or STANDBY behind the rival that is given."""
        for rival in rivals:
            present = rival.info.sm_state in (smp.SM_STATE_DISCOVERING, smp.SM_STATE_STANDBY)
            if rival.info.sm_state == smp.SM_STATE_MASTER or (present and self.is_better(rival.info)):
                self.follow(rival)
                return rival
        self.state = smp.SM_STATE_MASTER
        return None

    def heir(self, rivals: Iterable[Rival]) -> Rival | None:
        """Of the better ones that wait or are master, too, the best: to whom a MASTER hands over; None if nobody is."""
        waiting = [
            rival
            for rival in rivals
            if self.is_better(rival.info) and rival.info.sm_state in (smp.SM_STATE_STANDBY, smp.SM_STATE_MASTER)
        ]
        return max(waiting, key=lambda rival: (rival.info.priority, -rival.info.guid), default=None)

    def follow(self, rival: Rival) -> None:
        """Be STANDBY behind another manager."""
        self.state = smp.SM_STATE_STANDBY
        self.leader = rival.info.guid
        self._lost = 0

    # What a poll gave

    def polled(self, info: SmInfo | None) -> bool:
        """The leader answered, or did not; False if it is gone, which makes this manager DISCOVERING."""
        alive = info is not None and info.guid == self.leader
        if info is not None and info.sm_state != smp.SM_STATE_MASTER:
            # It waits as well: alive is only who would win.
            alive &= info.sm_state != smp.SM_STATE_NOTACTIVE and self.is_better(info)
        self._lost = 0 if alive else self._lost + 1
        if self._lost < POLLS_LOST:
            return True
        self.state = smp.SM_STATE_DISCOVERING
        return False

    # What others order

    def order(self, number: int, sender: SmInfo) -> tuple[int, Turn]:
        """Set(SMInfo) with this attribute modifier: its status, and what is to be done."""
        acknowledge = number == smp.SM_ACKNOWLEDGE
        rightful = smp.SM_STATE_STANDBY if acknowledge else smp.SM_STATE_MASTER
        if not self.may_lead(sender.guid) or sender.sm_state != rightful:
            return STATUS_INVALID_FIELD, "nothing"
        turn = _ORDERS.get((self.state, number))
        if turn is None:
            return STATUS_INVALID_FIELD, "nothing"
        if turn == "take over":
            self.state = smp.SM_STATE_MASTER
        elif turn == "follow":
            self.state, self.leader, self._lost = smp.SM_STATE_STANDBY, sender.guid, 0
        elif turn == "stop":
            self.state = smp.SM_STATE_NOTACTIVE
        elif self.state == smp.SM_STATE_STANDBY and turn == "sweep":
            self.state = smp.SM_STATE_DISCOVERING
        return STATUS_OK, turn


_ORDERS: Final[dict[tuple[int, int], Turn]] = {
    (smp.SM_STATE_DISCOVERING, smp.SM_HANDOVER): "sweep",
    (smp.SM_STATE_STANDBY, smp.SM_HANDOVER): "take over",
    (smp.SM_STATE_STANDBY, smp.SM_DISCOVER): "sweep",
    (smp.SM_STATE_STANDBY, smp.SM_DISABLE): "stop",
    (smp.SM_STATE_STANDBY, smp.SM_ACKNOWLEDGE): "nothing",
    (smp.SM_STATE_NOTACTIVE, smp.SM_STANDBY): "follow",
    (smp.SM_STATE_MASTER, smp.SM_HANDOVER): "take over",
    (smp.SM_STATE_MASTER, smp.SM_ACKNOWLEDGE): "nothing",
}
"""What each state does with each order that it takes."""
