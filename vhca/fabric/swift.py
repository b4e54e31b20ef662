"""The C part of :mod:`vhca.fabric.express`: common SMPs of a program, from its socket to their agents and back.

C answers by what it finds at places of memory: PortInfo and the forwarding table are those of the nodes themselves, so
that there is one of each; what else an answer takes (P_Key tables, NodeInfo, descriptions) is copied here, and the copy
is not valid from the moment on in which the original is another one. A node that has traps to send, or whose M_Key's
lease runs, is Python's, as is all that C does not know: vhca/fabric/src/smps.c names what it does. Nothing else runs in
the meantime, so what C has changed and not told (states, counters) is told before anybody can look.
"""

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from vhca.fabric.end_node import EndPort
from vhca.fabric.port import SwitchPort
from vhca.fabric.switch import Switch
from vhca.fabric.wires import Wires
from vhca.layout import Layout
from vhca.management.directed import MAX_HOPS
from vhca.management.notices import Notices
from vhca.management.partitions import block_of
from vhca.management.program import Served
from vhca.management.subnet import ext_port_info
from vhca.native import NativeError, choice, library
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import Smp
from vhca.wire.packet import MULTICAST_LID_FIRST, PERMISSIVE_LID
from vhca.wire.smp import NodeInfo, PortInfo, SwitchInfo

MESSAGE_BYTES: Final = 288
"""Of a message with a datagram, as `libumad2sim` has it (:mod:`vhca.ibsim.proto`)."""
_ROOM: Final = 512
MOST_CHANGED: Final = 256
"""Ports of which one call can say that they were written."""
ENOUGH_TOUCHED: Final = 256
"""Ports that have not counted what passed them: with more, they count."""
WORDS: Final = 72
"""Of a packet with an SMP, from LRH to ICRC, as counters count them."""
ALL, SOME, NOT, UNREAD, FAILED = range(5)
"""Why C came back: the socket is empty; time, or room for notes, is up; a message is for Python; the program does not
read its answer; the socket is gone."""

_STRUCTS: Final = f"""
struct smp_port {{
    uint8_t *info; const uint8_t *pkeys; const uint8_t *ext; struct smp_node *node; struct smp_port *peer;
    int64_t seen; uint64_t passed; uint32_t pkey_blocks; uint32_t id; uint8_t number; uint8_t changed;
}};
struct smp_node {{
    struct smp_port *ports; const uint8_t *switch_info; uint8_t *lft;
    uint32_t lft_bytes; uint32_t count; uint8_t is_switch; uint8_t valid; uint8_t info[64]; uint8_t description[64];
}};
struct smp_fabric {{ uint32_t touched_count; uint32_t touched[{ENOUGH_TOUCHED + 2 * MAX_HOPS}]; }};
struct smp_post {{ struct smp_node *near; struct smp_fabric *fabric; int64_t cables; }};
struct smp_served {{
    uint32_t why; int32_t error; uint32_t sent; uint32_t delivered; uint32_t changes; uint32_t size;
    uint32_t changed_count; uint32_t changed[{MOST_CHANGED}]; uint8_t message[{_ROOM}];
}};
void vhca_smps_serve(const struct smp_post *post, int fd, int64_t end_ns, struct smp_served *served);
"""
_CODES: Final = {
    "MESSAGE_BYTES": MESSAGE_BYTES,
    "HEAD_BYTES": MESSAGE_BYTES - madwire.MAD_BYTES,
    "SLID_AT": 4,
    "DQP_AT": 8,
    "SQP_AT": 12,
    "STATUS_AT": 16,
    "LENGTH_AT": 24,
    "DATA_BYTES": 64,
    "MOST_HOPS": MAX_HOPS,
    "MOST_CHANGED": MOST_CHANGED,
    "ENOUGH_TOUCHED": ENOUGH_TOUCHED,
    "MOST_TOUCHED": ENOUGH_TOUCHED + 2 * MAX_HOPS,
    "METHOD_GET": madwire.METHOD_GET,
    "METHOD_SET": madwire.METHOD_SET,
    "PORT_INIT": smpwire.PORT_INIT,
    "PORT_ARMED": smpwire.PORT_ARMED,
    "PORT_ACTIVE": smpwire.PORT_ACTIVE,
    "PHYS_POLLING": smpwire.PHYS_POLLING,
    "MULTICAST_LID_FIRST": MULTICAST_LID_FIRST,
    "PERMISSIVE_LID": PERMISSIVE_LID,
    "PORT_INFO_PORT": smpwire.PORT_INFO_PORT,
    "PORT_INFO_EXTENDED_SPEEDS": smpwire.PORT_INFO_EXTENDED_SPEEDS,
    "SERVED_ALL": ALL,
    "SERVED_SOME": SOME,
    "SERVED_NOT": NOT,
    "SERVED_UNREAD": UNREAD,
    "SERVED_FAILED": FAILED,
    **{
        f"ATTRIBUTE_{name}": getattr(smpwire, name)
        for name in (
            "NODE_INFO",
            "NODE_DESCRIPTION",
            "PORT_INFO",
            "P_KEY_TABLE",
            "LINEAR_FORWARDING_TABLE",
            "MLNX_EXT_PORT_INFO",
        )
    },
}


def header() -> str:
    """`smps.h`: structures and codes, and of each field of the formats its first bit, its bits and its byte."""
    lines = ["#ifndef VHCA_SMPS_H", "#define VHCA_SMPS_H", "#include <stdint.h>", _STRUCTS]
    lines += [f"#define {name} {value:#x}" for name, value in _CODES.items()]
    formats: tuple[tuple[str, type[Layout]], ...] = (
        ("SMP", Smp),
        ("NODE_INFO", NodeInfo),
        ("PORT_INFO", PortInfo),
        ("SWITCH_INFO", SwitchInfo),
    )
    for prefix, layout in formats:
        for field in layout.fields():
            name = f"{prefix}_{field.name.upper()}"
            lines += [f"#define {name}_START {field.start}", f"#define {name}_BITS {field.width}"]
            lines.append(f"#define {name}_AT {field.start // 8}")
    return "\n".join([*lines, "#endif", ""])


class Library(NamedTuple):
    """What was loaded."""

    ffi: Any
    lib: Any


@cache
def loaded() -> Library | None:
    """The C part; None if it cannot be had, or `VHCA_ENGINE` leaves it out. NativeError if that insists on it."""
    wanted = choice()
    if wanted == "python":
        return None
    # Not above: what a fabric looks like can be told without it.
    import cffi

    try:
        path = library("smps", Path(__file__).parent / "src", {"smps.h": header()})
        ffi = cffi.FFI()
        ffi.cdef(_STRUCTS)
        return Library(ffi, ffi.dlopen(str(path)))
    except (NativeError, OSError) as error:
        if wanted == "native":
            raise NativeError(str(error)) from error
        return None


@lru_cache(maxsize=256)
def _packed(table: tuple[int, ...]) -> bytes:
    """A P_Key table as the data of its blocks."""
    blocks: list[bytes] = []
    while (block := block_of(table, len(blocks))) is not None:
        blocks.append(block)
    return b"".join(blocks)


def passes(near: SwitchPort | EndPort) -> SwitchPort | EndPort | None:
    """The port at the other end of a cable that packets just pass; None if there is none, or it is not for us."""
    end = near.end
    if end is None or not (end.link.up and end.plain and end.other.plain):
        return None
    far = end.other.endpoint
    if not isinstance(far, EndPort | SwitchPort) or not (_is_open(near) and _is_open(far)):
        return None
    return far


def _is_open(port: SwitchPort | EndPort) -> bool:
    return isinstance(port, EndPort) or (port.state != smpwire.PORT_DOWN and isinstance(port.switch, Switch))


class Node:
    """What C knows of a node, or of one port of an end node."""

    def __init__(self, native: Library, there: SwitchPort | EndPort, first_id: int) -> None:
        ffi = self._ffi = native.ffi
        self._kept: dict[int, tuple[Any, Any]] = {}  # what its pointers point to
        self.ports: list[Any]
        self._notices: Notices
        node = self.there = ffi.new("struct smp_node *")
        if isinstance(there, SwitchPort):
            switch = there.switch
            assert isinstance(switch, Switch)
            self.ports, self._notices, agent = switch.ports, switch.ports[0].notices, switch.agent
            node.is_switch = 1
            self._lft = ffi.from_buffer(switch.lft)
            node.lft, node.lft_bytes = self._lft, len(switch.lft)
            node.switch_info = self._at(agent.info)
            node.info, node.description = agent.identify(there), agent.describe(there)
        else:
            self.ports, self._notices = [there], there.notices
            node.info, node.description = there.node.agent.identify(there), there.node.agent.describe(there)
        node.count = len(self.ports)
        self.known = node.ports = ffi.new("struct smp_port[]", len(self.ports))
        self.seen = -1  # state of the cables when its own were looked at
        self._stale = set(range(len(self.ports)))
        for index, port in enumerate(self.ports):
            known = self.known[index]
            known.info, known.node, known.number = self._at(port.info), node, port.number
            known.id = first_id + index
            port.watch = self._watch(index)
        self._guard = self.ports[0].guard
        self._notices.watch = self._guard.watch = self._spoilt
        self.refresh()

    def _at(self, layout: Layout) -> Any:
        return self._ffi.cast("uint8_t *", ctypes.addressof(layout))  # type: ignore[arg-type]

    def _watch(self, number: int) -> Callable[[], None]:
        def changed() -> None:
            self._stale.add(number)
            self.there.valid = 0

        return changed

    def _spoilt(self) -> None:
        self.there.valid = 0

    def port(self, number: int) -> Any:
        """What C knows of a port."""
        return self.known[number if self.there.is_switch else 0]

    @property
    def valid(self) -> bool:
        """Whether C may answer for it."""
        return bool(self.there.valid)

    def refresh(self) -> None:
        """Copy anew what is another one; it stays Python's while traps are to be sent, or a lease runs."""
        if self.there.valid or len(self._notices) or self._guard.leased:
            return
        for number in self._stale:
            port, there = self.ports[number], self.known[number]
            pkeys = self._ffi.from_buffer(_packed(port.pkeys))
            ext = self._ffi.from_buffer(ext_port_info(port.ext_speed_enabled, port.ext_speed_active))
            self._kept[number] = pkeys, ext
            there.pkeys, there.pkey_blocks, there.ext = pkeys, len(pkeys) // 64, ext
        self._stale.clear()
        self.there.valid = 1


class Swift:
    """What C knows of a fabric: nodes that were asked, and cables that packets just pass.

    A cable is known until one of the fabric changes (:attr:`vhca.fabric.wires.Wires.cables`).
    """

    def __init__(self, native: Library, wires: Wires) -> None:
        self.native = native
        self.wires = wires
        self.fabric = native.ffi.new("struct smp_fabric *")
        self._nodes: dict[object, Node] = {}
        self._ports: list[tuple[SwitchPort | EndPort, Any]] = []  # by the number that C has for each
        self._owed = False

    def node(self, there: SwitchPort | EndPort) -> Node:
        """The node, or the port of an end node."""
        whose = there.switch if isinstance(there, SwitchPort) else there
        node = self._nodes.get(whose)
        if node is None:
            node = self._nodes[whose] = Node(self.native, there, len(self._ports))
            self._ports += zip(node.ports, node.known, strict=True)
        return node

    def look(self, there: SwitchPort | EndPort) -> None:
        """Find out which cables of a switch packets just pass, to hosts and to nodes that are known; once."""
        node = self.node(there)
        if node.seen == self.wires.cables or not isinstance(there, SwitchPort):
            return
        node.seen = self.wires.cables
        for port in node.ports[1:]:
            far = passes(port)
            if far is not None and (isinstance(far, EndPort) or far.switch in self._nodes):
                self._join(port, far)

    def _join(self, near: SwitchPort | EndPort, far: SwitchPort | EndPort) -> None:
        """Packets just pass the cable between two ports, both ways."""
        one, other = (self.node(port).port(port.number) for port in (near, far))
        one.seen = other.seen = self.wires.cables
        one.peer, other.peer = self.native.ffi.addressof(other), self.native.ffi.addressof(one)

    def follow(self, changed: list[int]) -> None:
        """C wrote PortInfo of these ports."""
        for number in changed:
            port, known = self._ports[number]
            known.changed = 0
            assert isinstance(port, SwitchPort)
            port.follow()

    def owe(self) -> None:
        """Have what passed ports counted there: later, or now if it is much."""
        if self.fabric.touched_count and not self._owed:
            self._owed = True
            self.wires.owe(self._settle, 1)
        if self.fabric.touched_count >= ENOUGH_TOUCHED:
            self.wires.settle()

    def _settle(self) -> None:
        self._owed = False
        touched = self.native.ffi.unpack(self.fabric.touched, self.fabric.touched_count)
        self.fabric.touched_count = 0
        for number in touched:
            port, known = self._ports[number]
            passed, known.passed = known.passed, 0
            # Each request that passed it one way was answered the other way.
            port.counters.managed(passed, passed, WORDS)


class Post:
    """A program's place: SMPs from one port."""

    def __init__(self, swift: Swift, near: EndPort) -> None:
        self._swift = swift
        self._served = swift.native.ffi.new("struct smp_served *")
        self._message = swift.native.ffi.buffer(self._served.message)
        self._post = swift.native.ffi.new("struct smp_post *")
        self._post.near, self._post.fabric = swift.node(near).there, swift.fabric

    def serve(self, descriptor: int, end_ns: int) -> Served:
        """Answer what comes by a socket until `end_ns` of the monotonic clock."""
        served, swift = self._served, self._swift
        self._post.cables = swift.wires.cables
        swift.native.lib.vhca_smps_serve(self._post, descriptor, end_ns, served)
        if served.changes:
            swift.wires.changes += served.changes
            swift.follow(swift.native.ffi.unpack(served.changed, served.changed_count))
        if served.sent:
            swift.owe()
        why = served.why
        return Served(
            served.sent,
            served.delivered,
            rest=self._message[0 : served.size] if why == NOT else None,
            answer=self._message[0 : served.size] if why == UNREAD else None,
            empty=why == ALL,
            gone=why == FAILED,
        )
