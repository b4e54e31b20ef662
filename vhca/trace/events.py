"""One thing that happened, and which of them somebody wants to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

KINDS: Final = (
    "command", "doorbell", "send", "receive", "packet", "completion", "event", "interrupt", "reset", "interface",
    "link",
)  # fmt: skip
_NUMBERS: Final = ("qpn", "input_qpn", "src_qp", "qp_srq_n")
MOST_PEERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One record of a card, or one packet at one of its recorded ports.

    :ivar number: in the capture, from 1 on.
    :ivar time_ns: since 1970.
    :ivar place: the card's name; of a packet the port's, such as h0, or leaf1/3.
    :ivar kind: one of :data:`KINDS`.
    :ivar inbound: to the card (from its host, or from the cable), not from it.
    :ivar text: one line.
    :ivar fields: the same by name.
    :ivar lost: how many are missing in the capture before this one, of the same interface.
    :ivar bad: it tells of something that went wrong.
    :ivar meaning: what that means; empty if nobody knows.
    """

    number: int
    time_ns: int
    place: str
    kind: str
    inbound: bool
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)
    lost: int = 0
    bad: bool = False
    meaning: str = ""

    def number_of(self, name: str) -> int | None:
        """A field that is a number, such as qpn; None if it has none."""
        value = self.fields.get(name)
        if isinstance(value, bool):
            return None
        if isinstance(value, int):
            return value
        try:
            return int(value, 16) if isinstance(value, str) else None
        except ValueError:
            return None

    @property
    def queue_pairs(self) -> tuple[int, ...]:
        """The numbers of queue pairs that it tells of."""
        names = (*_NUMBERS, "dest_qp") if self.kind == "packet" else _NUMBERS
        return tuple(number for name in names if (number := self.number_of(name)) is not None)


Meaning = Callable[[TraceEvent], str]


@dataclass(slots=True)
class Selection:
    """Which events are wanted: all of these must hold; None, or empty: any.

    Times are in ns from the first event of the capture on.

    A packet of a connected queue pair names only the one that it is for. Whose packets they are is learnt from the work
    requests that are executed before them: `queue_pairs` has one number, or both.
    """

    queue_pairs: frozenset[int] = frozenset()
    places: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    from_ns: int = 0
    until_ns: int | None = None
    _first_ns: int | None = None
    _sending: dict[str, int] = field(default_factory=dict)
    _peers: dict[int, set[int]] = field(default_factory=dict)
    _queues: set[tuple[str, int]] = field(default_factory=set)
    _armed: set[str] = field(default_factory=set)

    def wants(self, event: TraceEvent) -> bool:
        """Tell whether it is wanted; to be asked of all events of a capture, in their order."""
        if self._first_ns is None:
            self._first_ns = event.time_ns
        self._learn(event)
        about = not self.queue_pairs or self._is_about(event)
        after_ns = event.time_ns - self._first_ns
        return (
            about
            and (not self.places or event.place in self.places)
            and (not self.kinds or event.kind in self.kinds)
            and (not self.from_ns or after_ns >= self.from_ns)
            and (self.until_ns is None or after_ns < self.until_ns)
        )

    def _learn(self, event: TraceEvent) -> None:
        """Who speaks to whom: a card's packets behind a work request are that one's."""
        if event.kind == "send" and (qpn := event.number_of("qpn")) is not None:
            if event.place in self._sending or len(self._sending) < MOST_PEERS:
                self._sending[event.place] = qpn
        elif event.kind == "packet" and not event.inbound and event.fields.get("request"):
            sender, target = self._sending.get(event.place), event.number_of("dest_qp")
            if sender is None or target is None or sender not in self.queue_pairs:
                return
            peers = self._peers.setdefault(sender, set())
            if len(peers) < MOST_PEERS:
                peers.add(target)

    def _is_about(self, event: TraceEvent) -> bool:
        wanted = self.queue_pairs
        named = event.queue_pairs
        if event.kind == "packet":
            return bool(wanted.intersection(named)) or any(
                not self._peers[qpn].isdisjoint(named) for qpn in wanted if qpn in self._peers
            )
        place = event.place
        if wanted.intersection(named):
            if event.kind == "completion" and (cqn := event.number_of("cqn")) is not None:
                if len(self._queues) >= MOST_PEERS:
                    return True
                self._queues.add((place, cqn))
            return True
        if event.kind in ("event", "doorbell") and (cqn := event.number_of("cqn")) is not None:
            known = (place, cqn) in self._queues
            if known and event.kind == "event":
                self._armed.add(place)
            return known
        if event.kind == "interrupt" and place in self._armed:
            self._armed.discard(place)
            return True
        return False
