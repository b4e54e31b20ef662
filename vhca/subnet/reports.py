"""Reports: subscribers hear who came and went (13.4.11 of volume 1), until they say that they have heard it.

A report that nobody acknowledges is repeated a few times; receivers may ask the directory anyway. Nobody's silence
holds another one's reports up.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from vhca.management.fair_queue import FairQueue, Job
from vhca.subnet.counters import DirectoryCount
from vhca.subnet.registry import Subscriber, Subscribers
from vhca.wire import mad as madwire
from vhca.wire.mad import SaMad
from vhca.wire.packet import SEND, UD, Packet, Route

REPORTS_WAITING: Final = 1024
UNANSWERED: Final = 1024
"""Reports that are remembered until they are acknowledged; beyond that they are sent once."""
RETRIES: Final = 3
TIMEOUT_NS: Final = 1_000_000_000
REPORTS_PER_TURN: Final = 8
# In the queue of requests: an asker that is no LID.
_REPORTS: Final = -1


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
        issuer: Callable[[], tuple[int, bytes]],
        counters: Counter[DirectoryCount],
        random: Random,
    ) -> None:
        self._send = send
        self._now_ns = now_ns
        self._queue = queue
        self._subscribers = subscribers
        self._issuer = issuer
        self._counters = counters
        self._tid = random.getrandbits(64)
        self._waiting: dict[tuple[int, int], _Waiting] = {}  # by LID and transaction

    def tell(self, trap_number: int, about: bytes) -> None:
        """Tell subscribers of this trap about a GID."""
        if not self._subscribers():
            return
        if not self._queue.put(_REPORTS, self._job(trap_number, about), limit=REPORTS_WAITING):
            self._counters[DirectoryCount.REPORTS_LOST] += 1

    def heard(self, lid: int, tid: int) -> bool:
        """A ReportResp came from a LID; False if it is to no report."""
        return self._waiting.pop((lid, tid), None) is not None

    def forget(self) -> None:
        """Nobody is to hear anything any more."""
        self._waiting.clear()

    def next_deadline(self) -> int | None:
        """When the first report must be repeated."""
        return min((one.deadline_ns for one in self._waiting.values()), default=None)

    def run_timers(self, now_ns: int) -> None:
        """Repeat what nobody has acknowledged."""
        for key, one in list(self._waiting.items()):
            if one.deadline_ns > now_ns:
                continue
            if not one.left:
                del self._waiting[key]
                continue
            one.left -= 1
            one.deadline_ns = now_ns + TIMEOUT_NS
            self._transmit(one.packet)

    def _job(self, trap_number: int, about: bytes) -> Job:
        lid, issuer_gid = self._issuer()
        notice = madwire.Notice(
            is_generic=1,
            type=madwire.NOTICE_TYPE_INFORMATION,
            producer_type=madwire.PRODUCER_CLASS_MANAGER,
            trap_number=trap_number,
            issuer_lid=lid,
            details=(bytes(6) + about).ljust(54, b"\0"),
            issuer_gid=issuer_gid,
        )
        data = notice.to_bytes().ljust(madwire.SA_DATA_BYTES, b"\0")
        for number, subscriber in enumerate(self._subscribers().of(trap_number), 1):
            self._report(lid, subscriber, data)
            if number % REPORTS_PER_TURN == 0:
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
        if len(self._waiting) < UNANSWERED:
            self._waiting[subscriber.lid, self._tid] = _Waiting(packet, self._now_ns() + TIMEOUT_NS, RETRIES)
        self._transmit(packet)

    def _transmit(self, packet: Packet) -> None:
        # The receiver owns what it gets.
        self._send(replace(packet))
