"""One end of a trunk: a cable whose other half is a cable of another rack, and what the two say to each other.

Knows no sockets: frames come in by :meth:`TrunkEnd.frame_in` and go out by the pipe that it was given; time and turns
come from the fabric. Both halves are up while both are plugged, both switches' ports are enabled, and both racks hear
each other; so a trunk that lost its connection looks like a cable that was pulled. Packets are handed over in order.

A sender has so much room at the other end, and gets it back when that has put packets on its half of the cable, which
it does while that has room itself: back pressure goes on through. Management (VL 15) needs none, and is lost beyond a
bound.

The other rack has the right key, and is not trusted any further: whatever it sends is bounded, checked and counted, and
one that sends much that is wrong is not listened to for a while.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from vhca.fabric.link import CallLater, Link
from vhca.management.fair_queue import CallSoon
from vhca.trunk.counters import TrunkCount
from vhca.wire.packet import MANAGEMENT_VL, Packet
from vhca.wire.trunk import (
    Frame,
    FrameKind,
    MalformedFrame,
    TrunkCredit,
    TrunkHello,
    TrunkState,
    decode_credit,
    decode_frame,
    decode_hello,
    decode_packet,
    decode_state,
    encode_frame,
    encode_packet,
)

log = logging.getLogger(__name__)

BEAT_NS: Final = 500_000_000
"""So often each says that it is there."""
SILENCE_NS: Final = 2_000_000_000
"""Whom nobody has heard for so long is gone."""
WINDOW_FRAMES: Final = 256
WINDOW_BYTES: Final = 4 << 20
"""The room of one end: with so much under way the other one waits (one burst more may be begun)."""
URGENT_FRAMES: Final = 4 * WINDOW_FRAMES
"""With so many under way, management is lost."""
MOST_WAITING_FRAMES: Final = URGENT_FRAMES + WINDOW_FRAMES
MOST_WAITING_BYTES: Final = 2 * WINDOW_BYTES
"""More than an honest rack can have sent."""
PER_TURN: Final = 64
AGAIN_NS: Final = 50_000
MOST_OFFENCES: Final = 16
"""Wrong frames, after which nothing is heard for a while; one is forgotten with each beat."""
DEAF_NS: Final = 1_000_000_000
HELLO_NS: Final = 200_000_000
"""A new session is begun so often at most, however often the other one asks."""


class Pipe(Protocol):
    """Where frames go."""

    def send(self, frame: bytes) -> bool:
        """Send a frame; False if that is not possible now."""
        ...

    def adopt(self) -> None:
        """Whoever sent the frame that is being looked at is the other rack from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an end needs of its fabric."""

    call_soon: CallSoon
    call_later: CallLater
    now_ns: Callable[[], int]
    random: Random


class TrunkEnd:
    """The end `a` of a link, whose end `b` is in a port of a switch here.

    `name` and `digest` must be the same at both racks. One of them `calls`, the other waits for that.
    """

    def __init__(self, link: Link, name: str, digest: bytes, calls: bool, pipe: Pipe, around: Surroundings) -> None:
        self.link = link
        self.name = name
        self.counters: Counter[TrunkCount] = Counter()
        self._hello = TrunkHello(digest=digest, name=name.encode().ljust(160, b"\0")).to_bytes()
        self._digest = digest
        self._calls = calls
        self._pipe = pipe
        self._around = around
        self._session = self._new_session()
        self._peer = 0
        self._established = False
        self._heard_ns = 0
        self._offences = 0
        self._deaf_until_ns = 0
        self._next_hello_ns = 0
        self._closed = False
        self._told: bool | None = None
        self._sent = self._sent_bytes = self._taken_there = self._bytes_there = 0
        self._waiting: deque[Packet] = deque()
        self._waiting_bytes = 0
        self._received = self._taken = self._taken_bytes = 0
        self._delivering = False
        link.a.attach(self, enabled=False)
        link.watch = self._tell_state
        link.wires.timed += 1  # whoever waits for us need not ask in each turn

    def start(self) -> None:
        """Look for the other rack."""
        self._beat()

    def close(self) -> None:
        """Tell the other rack, and do no more."""
        if self._established:
            self._send(FrameKind.BYE)
            self._lose()
        self._closed = True

    @property
    def connected(self) -> bool:
        """Whether both racks hear each other."""
        return self._established

    # ---- the cable (see vhca.fabric.link.Endpoint) ----

    def link_changed(self, up: bool) -> None:
        """What makes the link is told when it changes, not when both ends agree."""

    def blocked(self, packet: Packet) -> bool:
        """True while the other rack has no room for more data; then the cable waits until it has."""
        if not self._established or packet.route.vl == MANAGEMENT_VL or self._has_room:
            return False
        self.counters[TrunkCount.WAITS] += 1
        self.link.a.parked = True
        return True

    @property
    def _has_room(self) -> bool:
        return self._sent - self._taken_there < WINDOW_FRAMES and self._sent_bytes - self._bytes_there < WINDOW_BYTES

    def receive(self, packet: Packet) -> None:
        """A packet or burst of this rack is for the other one."""
        if not self._established:
            self.counters[TrunkCount.LOST_DOWN] += packet.count
            return
        if packet.route.vl == MANAGEMENT_VL and self._sent - self._taken_there >= URGENT_FRAMES:
            self.counters[TrunkCount.LOST_VL15] += packet.count
            return
        try:
            body = encode_packet(packet)
        except ValueError:  # a card sent what no cable could carry
            self.counters[TrunkCount.UNSENDABLE] += packet.count
            return
        if self._send(FrameKind.BURST, body, self._sent & 0xFFFFFFFF):
            self._sent += 1
            self._sent_bytes += len(packet.payload)
            self.counters[TrunkCount.XMIT_FRAMES] += 1
            self.counters[TrunkCount.XMIT_BYTES] += len(packet.payload)
        else:
            self.counters[TrunkCount.LOST_SESSIONS] += 1
            self._lose()

    # ---- frames ----

    def frame_in(self, raw: bytes | memoryview) -> None:
        """A frame came from whoever has the right key. Never raises for what it says."""
        if self._closed or self.deaf:
            self.counters[TrunkCount.IGNORED] += 1
            return
        try:
            frame = decode_frame(raw)
            if frame.kind == FrameKind.HELLO:
                self._on_hello(frame)
            elif frame.session != self._peer or frame.peer != self._session or not self._peer:
                self.counters[TrunkCount.STALE] += 1
            else:
                self._heard_ns = self._around.now_ns()
                if not self._established:
                    self._establish()
                self._handle(frame)
        except MalformedFrame as error:
            self._offend(TrunkCount.MALFORMED, str(error))

    @property
    def deaf(self) -> bool:
        """Whether nothing that comes is looked at for now."""
        return self._around.now_ns() < self._deaf_until_ns

    def _handle(self, frame: Frame) -> None:
        if frame.kind == FrameKind.BURST:
            self._on_burst(frame)
        elif frame.kind == FrameKind.CREDIT:
            frames, size = decode_credit(frame.body)
            if not (self._taken_there <= frames <= self._sent and self._bytes_there <= size <= self._sent_bytes):
                raise MalformedFrame("credit for what was not sent")
            self._taken_there, self._bytes_there = frames, size
            if self._has_room:
                self.link.a.resume()
        elif frame.kind == FrameKind.STATE:
            self._set_enabled(decode_state(frame.body))
        elif frame.body:
            raise MalformedFrame("a bye with a body")
        else:
            self._lose()

    def _set_enabled(self, enabled: bool) -> None:
        if enabled != self.link.a.enabled:
            self.link.a.set_enabled(enabled)

    def _on_burst(self, frame: Frame) -> None:
        if frame.number != self._received & 0xFFFFFFFF:
            raise MalformedFrame("packets are missing, or come twice")
        packet = decode_packet(frame.body)
        self._received += 1
        if len(self._waiting) >= MOST_WAITING_FRAMES or self._waiting_bytes > MOST_WAITING_BYTES:
            self._offend(TrunkCount.OVERRUN, "it sends more than it was granted")
            return
        self.counters[TrunkCount.RCV_FRAMES] += 1
        self.counters[TrunkCount.RCV_BYTES] += len(packet.payload)
        self._waiting.append(packet)
        self._waiting_bytes += len(packet.payload)
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._delivering:
            self._delivering = True
            self._around.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Put what came on this half of the cable, as far as that has room; some of it in each turn."""
        self._delivering = False
        end, waiting = self.link.a, self._waiting
        taken = self._taken
        for _ in range(min(PER_TURN, len(waiting))):
            if end.full and waiting[0].route.vl != MANAGEMENT_VL:
                break
            packet = waiting.popleft()
            self._waiting_bytes -= len(packet.payload)
            self._taken += 1
            self._taken_bytes += len(packet.payload)
            end.send(packet)
        if self._taken != taken and self._established:
            body = TrunkCredit(frames=self._taken, bytes=self._taken_bytes).to_bytes()
            self._send(FrameKind.CREDIT, body)
        if waiting:
            self._delivering = True
            if self._taken != taken:
                self._around.call_soon(self._deliver)
            else:
                self._around.call_later(AGAIN_NS, self._deliver)

    # ---- sessions ----

    def _on_hello(self, frame: Frame) -> None:
        digest, name = decode_hello(frame.body)
        if digest != self._digest or name != self.name.encode():
            self.counters[TrunkCount.STRANGERS] += 1
            if self.counters[TrunkCount.STRANGERS] == 1:
                log.error(
                    "trunk %s: the other rack is built from another rack file, or is not at this cable", self.name
                )
            return
        if not frame.session:
            raise MalformedFrame("session 0")
        if self._calls:
            if frame.peer == self._session and not self._established:
                self._peer = frame.session
                self._heard_ns = self._around.now_ns()
                self._establish()
        elif frame.session != self._peer:
            now = self._around.now_ns()
            if now < self._next_hello_ns:
                self.counters[TrunkCount.STALE] += 1
                return
            self._next_hello_ns = now + HELLO_NS
            self._lose()
            self._peer = frame.session
            self._pipe.adopt()
            self._send(FrameKind.HELLO, self._hello)
        elif not self._established:
            self._send(FrameKind.HELLO, self._hello)  # ours was lost

    def _establish(self) -> None:
        self._established = True
        self.counters[TrunkCount.SESSIONS] += 1
        log.info("trunk %s: connected", self.name)
        self._told = None
        self._tell_state()

    def _tell_state(self) -> None:
        """Say whether our half is enabled, if that has changed or was not said yet."""
        if self._established and self.link.offered != self._told:
            self._told = self.link.offered
            self._send(FrameKind.STATE, TrunkState(enabled=self._told).to_bytes())

    def _lose(self) -> None:
        """This session is over: the link falls, and what is under way is lost."""
        if self._established:
            log.info("trunk %s: disconnected", self.name)
        self._established = False
        self._peer = 0
        self._session = self._new_session()
        self._sent = self._sent_bytes = self._taken_there = self._bytes_there = 0
        self._received = self._taken = self._taken_bytes = self._waiting_bytes = 0
        self.counters[TrunkCount.LOST_DOWN] += sum(packet.count for packet in self._waiting)
        self._waiting.clear()
        self._set_enabled(False)
        self.link.a.resume()

    def _beat(self) -> None:
        if self._closed:
            return
        self._offences = max(0, self._offences - 1)
        if not self._established:
            if self._calls:
                self._send(FrameKind.HELLO, self._hello)
        elif self._around.now_ns() - self._heard_ns > SILENCE_NS:
            self.counters[TrunkCount.LOST_SESSIONS] += 1
            self._lose()
        else:
            self._told = self.link.offered
            self._send(FrameKind.STATE, TrunkState(enabled=self._told).to_bytes())
        self._around.call_later(BEAT_NS, self._beat)

    def _offend(self, what: TrunkCount, why: str) -> None:
        self.counters[what] += 1
        self._offences += 1
        if self._offences < MOST_OFFENCES:
            return
        self._offences = 0
        log.error(
            "trunk %s: the other rack sends what is wrong (%s); it is not listened to for a while", self.name, why
        )
        self._deaf_until_ns = self._around.now_ns() + DEAF_NS
        self._lose()

    def _new_session(self) -> int:
        return self._around.random.getrandbits(32) or 1

    def _send(self, kind: FrameKind, body: bytes = b"", number: int = 0) -> bool:
        return self._pipe.send(encode_frame(kind, self._session, self._peer, number, body))
