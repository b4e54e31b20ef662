"""Reports: subscribers hear who came and went (13.4.11 of volume 1), until they say that they have heard it.

A report that nobody acknowledges is repeated a few times; receivers may ask the directory anyway. Nobody's silence
holds another one's reports up, or takes their place: so many are remembered for each port. What a port does to groups
is told in the turns of its own requests, what the subnet does by itself in turns of its own; so nobody's groups keep
others from hearing who came and went.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Final

from vhca.management.fair_queue import FairQueue, Job
from vhca.subnet.counters import DirectoryCount
from vhca.subnet.paths import Horizon
from vhca.subnet.registry import Subscriber, Subscribers
from vhca.subnet.topology import NodePort
from vhca.wire import mad as madwire
from vhca.wire.mad import SaMad
from vhca.wire.packet import SEND, UD, Packet, Route

EVENTS_WAITING: Final = 1 << 16
"""More than ports and groups, of which all may go with one cable."""
UNANSWERED: Final = 4096
"""Reports that are remembered until they are acknowledged: each port has its share, beyond that they are sent once."""
LEAST_UNANSWERED: Final = 8
RETRIES: Final = 3
TIMEOUT_NS: Final = 1_000_000_000
REPORTS_PER_TURN: Final = 8
LOOKED_AT_PER_TURN: Final = 64
# In the queue of requests: an asker that is no LID.
_REPORTS: Final = -1


@dataclass(frozen=True, slots=True)
class Event:
    """A GID of a port came or went, or a group did; whom it does not concern does not hear of it (15.4.1.2).

    `about` is the port or the group's P_Key.
    """

    trap_number: int
    gid: bytes
    about: NodePort | int


@dataclass(slots=True)
class _Waiting:
    packet: Packet
    deadline_ns: int
    left: int


class Reports:
    """Sends reports about GIDs, as the manager with `own_lid` and `own_gid`."""

    def __init__(
        self,
        send: Callable[[Packet], None],
        now_ns: Callable[[], int],
        queue: FairQueue,
        subscribers: Callable[[], Subscribers],
        horizon: Horizon,
        issuer: Callable[[], tuple[int, bytes]],
        counters: Counter[DirectoryCount],
        random: Random,
        ports: int,
    ) -> None:
        self._send = send
        self._now_ns = now_ns
        self._queue = queue
        self._subscribers = subscribers
        self._horizon = horizon
        self.share = max(LEAST_UNANSWERED, UNANSWERED // ports)
        self._issuer = issuer
        self._counters = counters
        self._tid = random.getrandbits(64)
        self._events: deque[Event] = deque()
        # By LID and transaction, the one that is due first in front; and how many there are by LID.
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._waiting_of: Counter[int] = Counter()

    def tell(self, event: Event) -> None:
        """Tell subscribers soon of what happened by itself."""
        if not self._subscribers():
            return
        if len(self._events) >= EVENTS_WAITING:
            self._counters[DirectoryCount.REPORTS_LOST] += 1
            return
        self._events.append(event)
        if not self._queue.waiting(_REPORTS):
            self._queue.put(_REPORTS, self._tell_all())

    def heard(self, lid: int, tid: int) -> bool:
        """A ReportResp came from a LID; False if it is to no report."""
        return self._take((lid, tid)) is not None

    def forget(self) -> None:
        """Nobody is to hear anything any more."""
        self._events.clear()
        self._waiting.clear()
        self._waiting_of.clear()

    def next_deadline(self) -> int | None:
        """When the first report must be repeated."""
        return next((one.deadline_ns for one in self._waiting.values()), None)

    def run_timers(self, now_ns: int) -> None:
        """Repeat some of what nobody has acknowledged; what is left is due, too."""
        for key, one in list(islice(self._waiting.items(), REPORTS_PER_TURN)):
            if one.deadline_ns > now_ns:
                break
            self._take(key)
            if one.left:
                self._remember(key, _Waiting(one.packet, now_ns + TIMEOUT_NS, one.left - 1))
                self._transmit(one.packet)

    def _take(self, key: tuple[int, int]) -> _Waiting | None:
        one = self._waiting.pop(key, None)
        if one is not None:
            self._waiting_of[key[0]] -= 1
            if not self._waiting_of[key[0]]:
                del self._waiting_of[key[0]]
        return one

    def _remember(self, key: tuple[int, int], one: _Waiting) -> None:
        self._waiting[key] = one
        self._waiting_of[key[0]] += 1

    def _tell_all(self) -> Job:
        while self._events:
            yield from self.telling(self._events.popleft())
            yield

    def _may_hear(self, event: Event, lid: int) -> bool:
        if isinstance(event.about, NodePort):
            return self._horizon.of(lid)(event.about)
        return self._horizon.is_member(lid, event.about)

    def telling(self, event: Event) -> Job:
        """Tell subscribers of an event, in the turns of whoever runs this."""
        lid, issuer_gid = self._issuer()
        notice = madwire.Notice(
            is_generic=1,
            type=madwire.NOTICE_TYPE_INFORMATION,
            producer_type=madwire.PRODUCER_CLASS_MANAGER,
            trap_number=event.trap_number,
            issuer_lid=lid,
            details=(bytes(6) + event.gid).ljust(54, b"\0"),
            issuer_gid=issuer_gid,
        )
        data = notice.to_bytes().ljust(madwire.SA_DATA_BYTES, b"\0")
        sent = 0
        for number, subscriber in enumerate(self._subscribers().of(event.trap_number), 1):
            if self._may_hear(event, subscriber.lid):
                self._report(lid, subscriber, data)
                sent += 1
                if sent % REPORTS_PER_TURN == 0:
                    yield
            elif number % LOOKED_AT_PER_TURN == 0:
                yield

    def _report(self, own_lid: int, subscriber: Subscriber, data: bytes) -> None:
        self._tid = self._tid + 1 & 0xFFFFFFFFFFFFFFFF
        report = SaMad(
            base_version=1,
            mgmt_class=madwire.CLASS_SUBN_ADM,
            class_version=madwire.SA_CLASS_VERSION,
            method=madwire.METHOD_REPORT,
            tid=self._tid,
            attr_id=madwire.ATTR_NOTICE,
            data=data,
        )
        self._counters[DirectoryCount.REPORTS] += 1
        packet = Packet(
            route=Route(subscriber.lid, own_lid),
            service=UD,
            op=SEND,
            dest_qp=subscriber.qpn,
            psn=self._tid & 0xFFFFFF,
            payload=report.to_bytes(),
            mtu=256,
            qkey=madwire.QP1_QKEY,
            src_qp=1,
        )
        if self._waiting_of[subscriber.lid] < self.share:
            self._remember((subscriber.lid, self._tid), _Waiting(packet, self._now_ns() + TIMEOUT_NS, RETRIES))
        self._transmit(packet)

    def _transmit(self, packet: Packet) -> None:
        # The receiver owns what it gets.
        self._send(replace(packet))
