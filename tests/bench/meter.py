"""A meter in a running rack: what its loop does when, while messages go through.

It is put around a few methods of a rack of this process for as long as it is used; a rack without it is as it always
is. Each stamp costs what it measures about 0.5 us; :mod:`tests.bench.bench_breakdown` prints what all of it costs.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

from firmware.native.library import loaded
from vhca.chip.card import Card
from vhca.chip.rack import Rack
from vhca.hw.events import Event, SqDoorbell

now_ns = time.monotonic_ns


class Stamp(IntEnum):
    """What happened."""

    ASLEEP = 0
    """The loop asks its sockets, and waits if there is nothing."""
    AWAKE = 1
    """It goes on; something was there."""
    DOORBELL = 2
    """A message turned out to be a send doorbell."""
    TURN = 3
    """A card's turn begins."""
    TRAIN = 4
    """The engine in C begins."""
    PLACED = 5
    """A payload is where it belongs (the engine in Python), or the engine in C is done."""


class Part(IntEnum):
    """What the time between two stamps is spent on."""

    WAITING = 0
    """Nothing to do: the loop asks the kernel for messages, and sleeps."""
    MESSAGE = 1
    """From awake to a doorbell: the socket is read, a message is taken apart, its register is found."""
    QUEUEING = 2
    """From the doorbell to the card's turn, if it needs one: the queue pair stands in line, the card asks for it."""
    ENGINE = 3
    """From a card's turn, or a doorbell that needs none, to the payload in its place, without the time in C."""
    COMPILED = 4
    """The engine in C."""
    AFTER = 5
    """From the payload to the next thing: completions, events, counters, timers, the way back to the sockets."""


_BEHIND: Final = {
    Stamp.ASLEEP: Part.WAITING,
    Stamp.AWAKE: Part.MESSAGE,
    Stamp.DOORBELL: Part.QUEUEING,
    Stamp.TURN: Part.ENGINE,
    Stamp.TRAIN: Part.COMPILED,
    Stamp.PLACED: Part.AFTER,
}


@dataclass(frozen=True, slots=True)
class Hop:
    """One message of a ping-pong: from the moment in which the loop woke for it to the same of the next one.

    :ivar parts: ns of each part; what comes before the payload is in place is on the message's way.
    :ivar whole: their sum.
    """

    parts: dict[Part, int]

    @property
    def whole(self) -> int:
        """All of it."""
        return sum(self.parts.values())


class _Epoll:
    """Stamps around the waits of the loop."""

    def __init__(self, epoll: Any, note: Callable[[Stamp, int], None]) -> None:
        self._epoll = epoll
        self._note = note

    def poll(self, timeout: float) -> Any:
        self._note(Stamp.ASLEEP, 0)
        ready = self._epoll.poll(timeout)
        if ready:
            self._note(Stamp.AWAKE, len(ready))
        return ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


class _Trains:
    """Stamps around each train of the engine in C."""

    def __init__(self, lib: Any, note: Callable[[Stamp, int], None]) -> None:
        self._lib = lib
        self._note = note

    def vhca_run_train(self, *arguments: Any) -> Any:
        self._note(Stamp.TRAIN, 0)
        result = self._lib.vhca_run_train(*arguments)
        self._note(Stamp.PLACED, 0)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)


class Meter:
    """What happened in a rack while it was measured.

    :ivar payload: size in bytes of the payloads that are looked for; no other write of a card may have it.
    :ivar stamps: (time in ns, what, detail): the card's place in the rack for DOORBELL and TURN.
    """

    def __init__(self, rack: Rack, payload: int) -> None:
        self.rack = rack
        self.payload = payload
        self.stamps: list[tuple[int, Stamp, int]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measure meanwhile. What was measured before is forgotten."""
        self.stamps = []
        undo: list[Callable[[], None]] = []
        self.rack.loop.call(lambda: self._attach(undo))
        try:
            yield
        finally:
            self.rack.loop.call(lambda: [step() for step in undo])

    def _note(self, what: Stamp, detail: int) -> None:
        self.stamps.append((now_ns(), what, detail))

    def _attach(self, undo: list[Callable[[], None]]) -> None:
        def put(owner: object, name: str, value: object) -> None:
            old = getattr(owner, name)
            setattr(owner, name, value)
            undo.append(lambda: setattr(owner, name, old))

        put(self.rack.loop, "_epoll", _Epoll(self.rack.loop._epoll, self._note))
        if loaded().there:
            put(loaded(), "lib", _Trains(loaded().lib, self._note))
        for index, card in enumerate(self.rack.hcas):
            board = card.board
            put(board.bar0, "_emit", self._doorbells(index, board.bar0._emit))
            put(board, "turn", self._turns(index, board.turn))
            put(card._gate, "write", self._payloads(card, card._gate.write))

    def _doorbells(self, index: int, emit: Callable[[Event], None]) -> Callable[[Event], None]:
        def stamped(event: Event) -> None:
            if type(event) is SqDoorbell:
                self._note(Stamp.DOORBELL, index)
            emit(event)

        return stamped

    def _turns(self, index: int, turn: Callable[[], None]) -> Callable[[], None]:
        def stamped() -> None:
            self._note(Stamp.TURN, index)
            turn()

        return stamped

    def _payloads(self, card: Card, write: Callable[..., None]) -> Callable[..., None]:
        def stamped(addr: int, data: bytes | bytearray | memoryview) -> None:
            write(addr, data)
            if len(data) == self.payload:
                self._note(Stamp.PLACED, 0)

        return stamped

    def stream(self) -> tuple[int, Counter[Part]]:
        """Of a stream of messages without its beginning and end: how many doorbells, and the ns of each part."""
        at = [number for number, stamp in enumerate(self.stamps) if stamp[1] == Stamp.DOORBELL]
        at = at[len(at) // 10 : len(at) - len(at) // 10]
        return len(at) - 1, _parts(self.stamps[at[0] : at[-1] + 1]) if at else Counter()

    def hops(self) -> list[Hop]:
        """The messages that were one of a ping-pong: one doorbell in a wake, the other card's in the next."""
        wakes = [number for number, stamp in enumerate(self.stamps) if stamp[1] == Stamp.AWAKE]
        found = []
        last_card = -1
        for begin, end in pairwise(wakes):
            cards = [card for _, what, card in self.stamps[begin:end] if what == Stamp.DOORBELL]
            if len(cards) == 1 and cards[0] != last_card and last_card >= 0:
                parts = _parts(self.stamps[begin : end + 1])
                found.append(Hop({part: parts[part] for part in Part}))
            last_card = cards[0] if len(cards) == 1 else -1
        return found


def _parts(stamps: list[tuple[int, Stamp, int]]) -> Counter[Part]:
    """The time between each two of them, by what it is spent on."""
    spent: Counter[Part] = Counter()
    placed = False
    for (begin, what, _), (end, then, _) in pairwise(stamps):
        part = _BEHIND[what]
        if what == Stamp.DOORBELL:
            placed = False
            if then == Stamp.DOORBELL:
                part = Part.MESSAGE
            elif then == Stamp.TRAIN:
                # In the doorbell's own step, without a turn.
                part = Part.ENGINE
        elif what == Stamp.PLACED:
            placed = True
        elif placed and part == Part.ENGINE:
            # Turns behind the payload are for acknowledgements and completions.
            part = Part.AFTER
        spent[part] += end - begin
    return spent


@contextlib.contextmanager
def without_c(rack: Rack) -> Iterator[None]:
    """Take the engine in C away from all cards of a running rack meanwhile."""
    kept: list[tuple[Any, Any]] = []

    def take() -> None:
        for card in rack.hcas:
            firmware: Any = card.board.firmware
            kept.append((firmware.hca, firmware.hca.native))
            firmware.hca.native = None

    def give() -> None:
        for hca, native in kept:
            hca.native = native

    rack.loop.call(take)
    try:
        yield
    finally:
        rack.loop.call(give)
