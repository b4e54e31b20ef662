"""SMPs by directed route that go there and back at once: while nothing happens to packets on their way, none is needed.

A manager sends most of its SMPs along a few thousand ways, each of them several times. A way that was found, port by
port, holds until a cable or a link changes. If nobody taps, damages or delays what is on its cables and all its links
are up, the agent at its end is given the request as it would arrive there, and its answer is what would come back; the
ports on the way have counted both. Everything else is for packets: tests/unit/fabric/test_express.py compares the two.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, Final

from vhca.fabric.end_node import EndPort
from vhca.fabric.link import LinkEnd
from vhca.fabric.port import SwitchPort
from vhca.fabric.swift import WORDS, Post, Swift, passes
from vhca.fabric.swift import Node as SwiftNode
from vhca.fabric.switch import Switch
from vhca.fabric.wires import Wires
from vhca.management.agent import SubnetAgent
from vhca.management.directed import MAX_HOPS
from vhca.management.performance import PortCounters
from vhca.management.port_state import PortState
from vhca.management.program import Served
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.smp import PortInfo

MOST_WAYS: Final = 1 << 15
"""Ways that are remembered; a program may ask for any number of them."""

_PERMISSIVE: Final = b"\xff\xff\xff\xff"
_NO_KEY: Final = bytes(8)
_VERSIONS: Final = bytes((madwire.BASE_VERSION, madwire.CLASS_SUBN_DR, 1))
_ATTRIBUTE: Final = Struct(">HxxI").unpack_from
_HEAD: Final = Struct(">BHB").pack
_SM_INFO: Final = smpwire.SM_INFO.to_bytes(2, "big")
_METHODS: Final = (madwire.METHOD_GET, madwire.METHOD_SET)


class _Way:
    """A directed route from a host's port, or from inside a switch, to an agent.

    :ivar marks: what the ports on it write into the return path, for hops 1 and up.
    :ivar plain: packets would just pass it.
    """

    __slots__ = (
        "_agent", "_answer", "_answers", "_guard", "_node", "_notices", "_owed", "_port", "_ports", "_requests",
        "_tell", "_to_switch", "_wires", "ends", "hops", "key_info", "marks", "plain",
    )  # fmt: skip

    def __init__(self, near: EndPort | SwitchPort, path: bytes, wires: Wires) -> None:
        self.hops = len(path)
        self.ends: list[LinkEnd] = []
        self.marks = b""
        self._wires = wires
        self._owed = False
        self._requests = self._answers = 0
        # Counters of ports that a request leaves by and arrives at; with an answer it is the other way round.
        self._ports: list[tuple[PortCounters, PortCounters]] = []
        there = self._walk(near, path)
        self._to_switch = isinstance(there, SwitchPort)
        # The agent, the port where it is asked, what answers to a whole SMP, and PortInfo with the M_Key of the node.
        self._agent: SubnetAgent[Any] | None = None
        self._port: Any = there
        self._answer: Callable[[bytes], bytes | None] = _nobody
        self.key_info = PortInfo()
        if isinstance(there, SwitchPort) and isinstance(there.switch, Switch):
            self._to(there.switch.agent, there, there.switch.ports[0])
            self._answer = partial(there.switch.answer, there)
            self._tell = there.switch.tell
        elif isinstance(there, EndPort):
            self._to(there.node.agent, there, there)
            self._answer = partial(there.node.answer_smp, there)
            self._tell = partial(there.node.tell, there)
        self.plain = self._agent is not None
        self._node: SwiftNode | None = None  # what C knows of it

    def _to(self, agent: SubnetAgent[Any], port: PortState, speaker: PortState) -> None:
        self._agent, self._guard, self._notices, self.key_info = agent, port.guard, speaker.notices, speaker.info

    def tell(self, swift: Swift) -> None:
        """Have C answer what it can of what goes by the cables of this way."""
        self._node = swift.node(self._port)
        for end in self.ends[1::2]:
            swift.look(end.endpoint)  # type: ignore[arg-type]

    def _walk(self, near: EndPort | SwitchPort, path: bytes) -> EndPort | SwitchPort | None:
        """The port where the route ends, None if it is not for us."""
        there: EndPort | SwitchPort = near
        marks = bytearray()
        for hop, number in enumerate(path):
            out = _behind(there, number) if hop or isinstance(near, SwitchPort) else near
            if out is None or out.number != number:
                return None
            # An answer leaves where its request came in.
            far = passes(out)
            if far is None or out.end is None:
                return None
            there = far
            self.ends += (out.end, out.end.other)
            self._ports.append((out.counters, there.counters))
            marks.append(there.number)
        self.marks = bytes(marks)
        return there

    def ask(self, mad: bytes, mkey: int) -> bytes | None:
        """Give the agent a request with an M_Key as it arrives there; gives its answer as it comes back."""
        agent = self._agent
        if agent is None or mad[:3] != _VERSIONS or not self._guard.is_plainly(mkey):
            return self._ask_whole(mad, mkey)
        attribute, modifier = _ATTRIBUTE(mad, 16)
        status, data = agent.execute(self._port, mad[3], attribute, modifier, mkey, mad[64:128])
        if len(self._notices):
            self._tell()
        self._requests += 1
        self._answers += 1
        if not self._owed:
            self.owe()
        if self._node is not None and not self._node.valid:
            self._node.refresh()
        head = _HEAD(madwire.METHOD_GET_RESP, madwire.STATUS_DIRECTION | status, 0)
        return b"".join((_VERSIONS, head, mad[7:64], data, mad[128:193], self.marks, mad[193 + self.hops :]))

    def _ask_whole(self, mad: bytes, mkey: int) -> bytes | None:
        """The same for what an agent has to look at as a whole."""
        # A switch counts itself as a hop when it takes the request.
        pointer, back = self.hops + self._to_switch, 193 + self.hops
        key = mkey.to_bytes(8, "big")
        arrived = b"".join((mad[:6], bytes((pointer,)), mad[7:24], key, mad[32:193], self.marks, mad[back:]))
        answer = self._answer(arrived)
        self._requests += 1
        self._answers += answer is not None
        if not self._owed:
            self.owe()
        if answer is None:
            return None
        return b"".join((answer[:6], b"\0", answer[7:24], mad[24:32], answer[32:]))

    def owe(self) -> None:
        """Something passed that the ports have not counted."""
        if not self._owed:
            self._owed = True
            self._wires.owe(self._settle, self.hops)

    def _settle(self) -> None:
        requests, answers = self._requests, self._answers
        self._requests = self._answers = 0
        self._owed = False
        for near, far in self._ports:
            near.managed(requests, answers, WORDS)
            far.managed(answers, requests, WORDS)


def _nobody(mad: bytes) -> None:
    """Of a way that is not for us."""


def _behind(there: EndPort | SwitchPort, number: int) -> SwitchPort | None:
    """The port of departure at a switch where a route goes on; None if it does not."""
    if not isinstance(there, SwitchPort) or not isinstance(there.switch, Switch):
        return None
    ports = there.switch.ports
    return ports[number] if 0 < number < len(ports) else None


class Express:
    """What needs no packets of the SMPs of a host, or of who sits on port 0 of a switch."""

    def __init__(self, port: EndPort | SwitchPort, swift: Swift | None = None) -> None:
        self._port = port
        self._swift = swift
        self._post = None if swift is None or not isinstance(port, EndPort) else Post(swift, port)
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
        return way.ask(mad, way.key_info.mkey if key == _NO_KEY else int.from_bytes(key, "big")) or b""

    def serve(self, descriptor: int, end_ns: int) -> Served | None:
        """Answer what a program sends by its socket until `end_ns`; None, and nothing done, if not now."""
        if self._post is None or self._wires.busy:
            return None
        return self._post.serve(descriptor, end_ns)

    def ask_with_key(self, mad: bytes) -> bytes | None:
        """As :meth:`ask`, with the M_Key that the request has."""
        way = self._way(mad)
        return None if way is None else way.ask(mad, int.from_bytes(mad[24:32], "big")) or b""

    def _way(self, mad: bytes) -> _Way | None:
        """The way of a request that starts here; None if it is none, or not for us."""
        # Of hop pointer and direction only those of a request that starts; nothing but Get and Set, and by port alone.
        if mad[6] or mad[4] & 0x80 or mad[3] not in _METHODS or mad[32:36] != _PERMISSIVE or mad[16:18] == _SM_INFO:
            return None
        wires = self._wires
        if self._seen != wires.cables:
            self._ways.clear()
            self._seen = wires.cables
        route, hops = mad[128:192], mad[7]
        way = self._ways.get(route)
        if way is None or way.hops != hops:
            if not 0 < hops <= MAX_HOPS:
                return None
            if len(self._ways) >= MOST_WAYS:
                self._ways.clear()
            way = self._ways[route] = _Way(self._port, mad[129 : 129 + hops], wires)
            if self._swift is not None and way.plain:
                way.tell(self._swift)
        # What a full cable would not take is lost.
        if not way.plain or (wires.busy and any(end.full for end in way.ends)):
            return None
        return way
