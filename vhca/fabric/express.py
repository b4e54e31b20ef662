"""SMPs by directed route that go there and back at once: while nothing happens to packets on their way, none is needed.

A manager sends most of its SMPs along a few thousand ways, each of them several times. A way that was found, port by
port, holds until a cable or a link changes. If nobody taps, damages or delays what is on its cables and all its links
are up, the agent at its end is given the request as it would arrive there, and its answer is what would come back; the
ports on the way have counted both. Everything else is for packets: tests/unit/fabric/test_express.py compares the two.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from vhca.fabric.end_node import EndPort
from vhca.fabric.link import LinkEnd
from vhca.fabric.port import SwitchPort
from vhca.fabric.switch import Switch
from vhca.management.directed import MAX_HOPS
from vhca.management.performance import PortCounters
from vhca.management.subnet import for_agent
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.packet import MANAGEMENT_VL
from vhca.wire.smp import PortInfo

WORDS: Final = 72
"""Of a packet with an SMP, from LRH to ICRC, as counters count them."""
MOST_WAYS: Final = 1 << 15
"""Ways that are remembered; a program may ask for any number of them."""

_PERMISSIVE: Final = b"\xff\xff\xff\xff"
_NO_KEY: Final = bytes(8)
_METHODS: Final = (madwire.METHOD_GET, madwire.METHOD_SET)


class _Way:
    """A directed route from a host's port, or from inside a switch, to an agent.

    :ivar marks: what the ports on it write into the return path, for hops 1 and up.
    """

    __slots__ = (
        "_answer", "_answers", "_key_info", "_owed", "_ports", "_requests", "_to_switch",
        "ends", "hops", "marks", "plain",
    )  # fmt: skip

    def __init__(self, near: EndPort | SwitchPort, path: bytes) -> None:
        self.hops = len(path)
        self.ends: list[LinkEnd] = []
        self.marks = b""
        self._owed = False
        self._requests = self._answers = 0
        # Counters of ports that a request leaves by and arrives at, in turns; with an answer it is the other way round.
        self._ports: list[PortCounters] = []
        there = self._walk(near, path)
        self.plain = there is not None
        # The agent, and PortInfo with the M_Key of its node.
        self._to_switch = isinstance(there, SwitchPort)
        self._answer: Callable[[bytes], bytes | None] = _nobody
        self._key_info = PortInfo()
        if isinstance(there, SwitchPort) and isinstance(there.switch, Switch):
            self._answer = partial(there.switch.answer, there)
            self._key_info = there.switch.ports[0].info
        elif isinstance(there, EndPort):
            self._answer = partial(there.node.answer_smp, there)
            self._key_info = there.info

    def _walk(self, near: EndPort | SwitchPort, path: bytes) -> EndPort | SwitchPort | None:
        """The port where the route ends, None if it is not for us."""
        there: EndPort | SwitchPort = near
        marks = bytearray()
        for hop, number in enumerate(path):
            out = _behind(there, number) if hop or isinstance(near, SwitchPort) else near
            if out is None or out.number != number:
                return None
            end = out.end
            if end is None or not (end.link.up and end.plain and end.other.plain):
                return None
            other = end.other.endpoint
            # An answer leaves where its request came in.
            if not isinstance(other, EndPort) and not (isinstance(other, SwitchPort) and _passes(other)):
                return None
            there = other
            self.ends += (end, end.other)
            self._ports += (out.counters, there.counters)
            marks.append(there.number)
        self.marks = bytes(marks)
        return there

    def ask(self, mad: bytes, key: bytes) -> bytes | None:
        """Give the agent a request with an M_Key as it arrives there; gives its answer as it comes back."""
        # A switch counts itself as a hop when it takes the request.
        pointer, back = self.hops + self._to_switch, 193 + self.hops
        arrived = b"".join((mad[:6], bytes((pointer,)), mad[7:24], key, mad[32:193], self.marks, mad[back:]))
        answer = self._answer(arrived)
        self._requests += 1
        self._answers += answer is not None
        if not self._owed:
            self._owed = True
            self.ends[0].link.wires.owe(self._settle)
        if answer is None:
            return None
        return b"".join((answer[:6], b"\0", answer[7:24], mad[24:32], answer[32:]))

    @property
    def key(self) -> int:
        """The M_Key of its target."""
        return self._key_info.mkey

    def _settle(self) -> None:
        requests, answers = self._requests, self._answers
        self._requests = self._answers = 0
        self._owed = False
        ports = self._ports
        for at in range(0, len(ports), 2):
            near, far = ports[at], ports[at + 1]
            near.sent_many(requests, WORDS * requests, 0)
            far.received_many(requests, WORDS * requests, 0, MANAGEMENT_VL)
            if answers:
                far.sent_many(answers, WORDS * answers, 0)
                near.received_many(answers, WORDS * answers, 0, MANAGEMENT_VL)


def _nobody(mad: bytes) -> None:
    """Of a way that is not for us."""


def _behind(there: EndPort | SwitchPort, number: int) -> SwitchPort | None:
    """The port of departure at a switch where a route goes on; None if it does not."""
    if not isinstance(there, SwitchPort) or not isinstance(there.switch, Switch):
        return None
    ports = there.switch.ports
    return ports[number] if 0 < number < len(ports) and _passes(ports[number]) else None


def _passes(port: SwitchPort) -> bool:
    return port.state != smpwire.PORT_DOWN


class Express:
    """What needs no packets of the SMPs of a host, or of who sits on port 0 of a switch."""

    def __init__(self, port: EndPort | SwitchPort) -> None:
        self._port = port
        self._wires = port.switch.wires if isinstance(port, SwitchPort) else port.end.link.wires
        self._seen = -1  # state of the cables when ways were found
        self._ways: dict[bytes, _Way] = {}

    def ask(self, mad: bytes) -> bytes | None:
        """The answer to a request, b"" if it arrived and deserves none, None if it has to be sent as a packet.

        A request without M_Key gets that of its target, and has none again in the answer.
        """
        way = self._way(mad)
        if way is None:
            return None
        key = mad[24:32]
        if key == _NO_KEY:
            key = way.key.to_bytes(8, "big")
        return way.ask(mad, key) or b""

    def ask_with_key(self, mad: bytes) -> bytes | None:
        """As :meth:`ask`, with the M_Key that the request has."""
        way = self._way(mad)
        return None if way is None else way.ask(mad, mad[24:32]) or b""

    def _way(self, mad: bytes) -> _Way | None:
        """The way of a request that starts here; None if it is none, or not for us."""
        wires = self._wires
        if self._seen != wires.cables:
            self._ways.clear()
            self._seen = wires.cables
        route = mad[128:192]
        way = self._ways.get(route)
        hops = mad[7]
        if way is None or way.hops != hops:
            if not 0 < hops <= MAX_HOPS:
                return None
            if len(self._ways) >= MOST_WAYS:
                self._ways.clear()
            way = self._ways[route] = _Way(self._port, mad[129 : 129 + hops])
        if (
            not way.plain
            or mad[32:36] != _PERMISSIVE
            or mad[6]
            or mad[4] & 0x80
            or mad[3] not in _METHODS
            or not for_agent(mad)
            # What a full cable would not take is lost.
            or (wires.busy and any(end.full for end in way.ends))
        ):
            return None
        return way
