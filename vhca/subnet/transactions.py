"""Asking agents by SMP: many requests at once, each with its timer and retries.

A piece of management work is a generator: it yields a list of requests and gets the list of answers (None where an
agent stayed silent). Works run one after the other, in order. A work that has much to think about yields an empty
list now and then: it goes on in a later turn of the loop.

Whoever lets all retries of one request pass is not asked for the rest of its list: a switch that is gone would take a
second for each of its ports.

An answer counts only if it has the number of a request (they start at random, 64 bits), names its attribute and its
way, and came in by the port of departure: nobody else on the fabric can answer for an agent.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import Random
from typing import Final

from vhca.management.fair_queue import CallSoon
from vhca.wire import mad as madwire
from vhca.wire.mad import Smp
from vhca.wire.packet import MANAGEMENT_VL, PERMISSIVE_LID, SEND, UD, Packet, Route

WINDOW: Final = 8
RESPONSE_TIMEOUT_NS: Final = 200_000_000
RETRIES: Final = 4

_SMP: Final = Smp.packer(
    "base_version",
    "mgmt_class",
    "class_version",
    "method",
    "hop_count",
    "tid",
    "attr_id",
    "attr_mod",
    "mkey",
    "dr_slid",
    "dr_dlid",
    "data",
    "initial_path",
)


@dataclass(slots=True)
class Request:
    """One SMP to send along a directed route (ports of departure)."""

    method: int
    attr_id: int
    attr_mod: int
    path: tuple[int, ...]
    data: bytes = b""
    mkey: int = 0
    retries: int = RETRIES


Answers = list[Smp | None]
Work = Generator[list[Request], Answers, None]


@dataclass(slots=True)
class _Pending:
    index: int
    request: Request
    tid: int
    deadline_ns: int
    left: int


class Transactions:
    """The outstanding requests of one manager."""

    def __init__(
        self, send: Callable[[Packet], None], now_ns: Callable[[], int], call_soon: CallSoon, random: Random
    ) -> None:
        self._send = send
        self._now_ns = now_ns
        self._call_soon = call_soon
        self._works: deque[tuple[Work, Callable[[], None] | None]] = deque()
        self._waiting: deque[tuple[int, Request]] = deque()
        self._pending: dict[int, _Pending] = {}
        self._answers: list[Smp | None] = []
        self._silent: set[tuple[int, ...]] = set()  # ways behind which nobody answered a request of this list
        self._busy = False
        self._resting = False  # whether the current work goes on in a later turn
        self._started = False  # whether the first work has yielded its first list
        self._tid = random.getrandbits(64)
        self.timeouts = 0
        self.asked = 0  # requests, repeated ones once

    def start(self, work: Work, done: Callable[[], None] | None = None) -> None:
        """Run `work` after those already started; then call `done`."""
        self._works.append((work, done))
        if not self._busy:
            self._run()

    def answer(self, smp: Smp, port: int) -> bool:
        """An SMP response arrived at switch port `port` (0: our own switch's agent); False if nobody waits for it."""
        pending = self._pending.get(smp.tid)
        if pending is None or not _answers(smp, pending.request, port):
            return False
        del self._pending[smp.tid]
        self._answers[pending.index] = smp
        self._pump()
        return True

    def next_deadline(self) -> int | None:
        """When the first pending request must be repeated."""
        return min((each.deadline_ns for each in self._pending.values()), default=None) if self._pending else None

    def run_timers(self, now_ns: int) -> None:
        """Repeat what was not answered; give up after the last retry."""
        for pending in [p for p in self._pending.values() if p.deadline_ns <= now_ns]:
            if pending.left > 0:
                pending.left -= 1
                pending.deadline_ns = now_ns + RESPONSE_TIMEOUT_NS
                self._transmit(pending)
            elif self._pending.pop(pending.tid, None) is not None:
                self.timeouts += 1
                self._silent.add(pending.request.path)
        self._pump()

    def _pump(self) -> None:
        """Send what the window allows; go on with the work when its list is answered."""
        while self._waiting and len(self._pending) < WINDOW:
            index, request = self._waiting.popleft()
            if request.path in self._silent:
                continue
            self._tid = self._tid + 1 & 0xFFFFFFFFFFFFFFFF
            deadline = self._now_ns() + RESPONSE_TIMEOUT_NS
            pending = _Pending(index, request, self._tid, deadline, request.retries)
            self._pending[self._tid] = pending
            self.asked += 1
            self._transmit(pending)
        if not self._busy and self._works and not self._pending and not self._waiting:
            self._run()

    def _run(self) -> None:
        """Step the current work until it waits for answers; then the next one. Never re-entered."""
        self._busy = True
        try:
            while self._works and not self._pending and not self._waiting:
                work, done = self._works[0]
                try:
                    requests = work.send(self._answers) if self._started else next(work)
                    self._started = True
                except StopIteration:
                    self._works.popleft()
                    self._started = False
                    if done is not None:
                        done()
                    continue
                self._answers = [None] * len(requests)
                self._silent.clear()
                if not requests:
                    self._resting = True
                    self._call_soon(self._go_on)
                    return
                self._waiting.extend(enumerate(requests))
                self._pump()
        finally:
            self._busy = self._resting

    def _go_on(self) -> None:
        self._resting = False
        self._run()

    def _transmit(self, pending: _Pending) -> None:
        request = pending.request
        path = request.path
        mad = _SMP(
            madwire.BASE_VERSION,
            madwire.CLASS_SUBN_DR,
            1,
            request.method,
            len(path),
            pending.tid,
            request.attr_id,
            request.attr_mod,
            request.mkey,
            PERMISSIVE_LID,
            PERMISSIVE_LID,
            request.data.ljust(64, b"\0"),
            (b"\0" + bytes(path)).ljust(64, b"\0"),
        )
        self._send(
            Packet(
                route=Route(PERMISSIVE_LID, PERMISSIVE_LID, vl=MANAGEMENT_VL),
                service=UD,
                op=SEND,
                dest_qp=0,
                psn=pending.tid & 0xFFFFFF,
                payload=mad,
                mtu=256,
            )
        )


def _answers(smp: Smp, request: Request, port: int) -> bool:
    """Tell whether a response is one to `request`, as far as it can be known."""
    path = request.path
    return (
        smp.mgmt_class == madwire.CLASS_SUBN_DR
        and (smp.attr_id, smp.attr_mod, smp.hop_count) == (request.attr_id, request.attr_mod, len(path))
        and smp.initial_path[1 : len(path) + 1] == bytes(path)
        and port == (path[0] if path else 0)
    )
