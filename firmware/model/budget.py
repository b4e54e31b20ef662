"""What a card's objects take of the host's memory, and how much that may be.

Every object that a command creates is charged with what this program keeps for it: Python objects (measured) and packed
lists. So are packets, answers and work requests while they wait. Beyond the limit commands fail with "limit exceeded",
as on a card whose own memory is full, work requests are fetched one at a time for each queue pair, and what would have
to be kept of the wire is dropped. The board says what the limit is; it depends on the memory of the machine.
"""

from collections.abc import Callable
from typing import Final

# Python objects of one kind of object, in bytes, rounded up (tests/unit/firmware/test_budget.py measures).
OBJECT_BYTES: Final[dict[str, int]] = {
    "pd": 512,
    "uar": 512,
    "xrcd": 512,
    "transport_domain": 512,
    "uctx": 512,
    "umem": 768,
    "memic": 512,
    "q_counter": 4096,
    "eq": 1024,
    "cq": 1280,
    "mkey": 1024,
    "srq": 1280,
    # Contexts, both sides' state, and the part of the send queue that was fetched ahead.
    "qp": 8192,
    "dct": 2048,
    "reserved_qpns": 512,
}
# A connection of a DC target is a queue pair without queues.
CONNECTION_BYTES: Final = 6144
MULTICAST_GROUP_BYTES: Final = 1024
MULTICAST_MEMBER_BYTES: Final = 64
# A send work request, however long, that is fetched and not completed; an executed READ or atomic that may come again;
# an answer that waits; a packet that waits, beside its payload; a request for missing pages.
WORK_REQUEST_BYTES: Final = 2048
RESOURCE_BYTES: Final = 256
ANSWER_BYTES: Final = 512
PACKET_BYTES: Final = 512
PAGE_REQUEST_BYTES: Final = 1024


class Budget:
    """The account of one card.

    :ivar used: bytes that are charged.
    :ivar limit: bytes that may be, as the board said when it was asked last.
    :ivar most: the highest `used` so far.
    """

    __slots__ = ("ask", "limit", "most", "used")

    def __init__(self, ask: Callable[[], int]) -> None:
        self.ask = ask
        self.used = 0
        self.most = 0
        self.limit = ask()

    @property
    def full(self) -> bool:
        """Is there nothing left?"""
        return self.used >= self.limit

    def take(self, amount: int) -> bool:
        """Charge so many bytes; False, and nothing is charged, if that is more than is left."""
        if self.used + amount > self.limit:
            # The machine may have more memory than when the card was reset.
            self.limit = self.ask()
            if self.used + amount > self.limit:
                return False
        self.charge(amount)
        return True

    def charge(self, amount: int) -> None:
        """Charge what is there already, whether it fits or not."""
        self.used += amount
        if self.used > self.most:
            self.most = self.used

    def give(self, amount: int) -> None:
        """Charge so many bytes less."""
        self.used -= amount

    def clear(self) -> None:
        """All is gone (reset)."""
        self.used = 0
        self.limit = self.ask()
