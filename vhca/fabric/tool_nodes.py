"""The nodes of a fabric at which programs of the host may attach, by name.

These are its simulated hosts, and one called `tools`: an adapter that is plugged into a free port of a switch when
somebody asks for it. The ports of cards are their guests', who have programs of their own.
"""

from collections.abc import Callable, Mapping
from typing import Final

from vhca.fabric.end_node import Company, EndNode, EndPort
from vhca.fabric.fabric_port import FabricPort
from vhca.fabric.link import CallLater, Endpoint, Link
from vhca.fabric.port import SwitchPort
from vhca.fabric.swift import Swift, loaded
from vhca.fabric.switch import Switch
from vhca.fabric.through import MAX_SWITCHES
from vhca.fabric.topology import Node, usual_make
from vhca.fabric.user_mads import UserMads
from vhca.fabric.wires import Wires
from vhca.management.fair_queue import CallSoon
from vhca.management.link_speed import USUAL
from vhca.wire import mad as madwire
from vhca.wire.packet import PERMISSIVE_LID

TOOLS: Final = "tools"
_GUID: Final = 0x0002C922 << 32
"""Behind it come the lower bits of the first switch's GUID."""


class ToolNodes:
    """Of one fabric: `switches` and simulated `hosts` by name; `card_key` tells the M_Key of a card's port."""

    def __init__(
        self,
        switches: Mapping[str, Switch],
        hosts: Mapping[str, EndNode],
        *,
        call_soon: CallSoon,
        call_later: CallLater,
        now_ns: Callable[[], int],
        wires: Wires,
        card_key: Callable[[FabricPort], int],
    ) -> None:
        self._switches = switches
        self._hosts = hosts
        self._call_soon = call_soon
        self._call_later = call_later
        self._now_ns = now_ns
        self._wires = wires
        self._card_key = card_key
        self._tools: EndNode | None = None
        self._places: dict[EndPort, UserMads] = {}
        native = loaded()
        self._swift = None if native is None else Swift(native, wires)

    @property
    def plugged(self) -> bool:
        """Whether the node called `tools` is there."""
        return self._tools is not None

    def find(self, name: str) -> UserMads:
        """Where programs attach at a node of this name, description or GUID (0x...); "": where nobody else is.

        :raises LookupError: there is no such node, or it is not for programs of the host; the text says so.
        """
        node = self._usual() if not name else self._named(name)
        port = next(iter(node.ports.values()), None)
        if port is None:
            raise LookupError(f"{node.node.name} has no cable; name another node")
        place = self._places.get(port)
        if place is None:
            place = self._places[port] = UserMads(
                port,
                self._call_soon,
                self._call_later,
                self._now_ns,
                lambda mad, dlid: self._key(node_at(port, mad, dlid)),
                self._swift,
            )
        return place

    def _usual(self) -> EndNode:
        """The first simulated host; without one, a node of its own."""
        return next((host for host in self._hosts.values() if host.ports), None) or self._own()

    def _named(self, name: str) -> EndNode:
        hosts = [*self._hosts.values(), *([self._tools] if self._tools is not None else [])]
        host = self._hosts.get(name) or next((host for host in hosts if _is_called(host.node, name)), None)
        if host is not None:
            return host
        if name == TOOLS:
            return self._own()
        if name in self._switches:
            raise LookupError(f"{name} is a switch; programs attach at a simulated host, or at {TOOLS}")
        raise LookupError(f"there is no simulated host {name}; name one, or {TOOLS}")

    def _own(self) -> EndNode:
        """The node for programs alone, plugged in when it is asked for first."""
        if self._tools is None:
            out = next((port for switch in self._switches.values() if (port := _free(switch)) is not None), None)
            if out is None:
                raise LookupError(f"no switch has a free port for {TOOLS}; name a simulated host")
            guid = _GUID | next(iter(self._switches.values())).node_guid & 0xFFFFFFE0
            described = Node(TOOLS, "host", 1, guid, (guid + 1,), TOOLS, usual_make("host", guid))
            node = EndNode(described, Company(self._call_soon, self._now_ns))
            link = Link(self._call_soon, self._call_later, f"{TOOLS}/1", f"switch/{out.number}", self._wires)
            out.set_speed(USUAL)
            out.plug(link.b)
            node.plug(1, link.a, USUAL)
            self._tools = node
        return self._tools

    def _key(self, there: Endpoint | None) -> int:
        if isinstance(there, SwitchPort) and isinstance(there.switch, Switch):
            return there.switch.ports[0].info.mkey
        if isinstance(there, EndPort):
            return there.info.mkey
        return self._card_key(there) if isinstance(there, FabricPort) else 0


def _is_called(node: Node, name: str) -> bool:
    guids = {f"{guid:#018x}" for guid in (node.guid, *node.port_guids)}
    return name == node.description or name.lower() in guids


def _free(switch: Switch) -> SwitchPort | None:
    return next((port for port in switch.ports[1:] if port.end is None), None)


def node_at(near: EndPort, mad: bytes, dlid: int) -> Endpoint | None:
    """The port where an SMP that a host's program sends ends: for a switch, one of its ports; None if nowhere."""
    there: Endpoint | None = near
    if dlid not in (PERMISSIVE_LID, near.info.lid):
        there = _by_lid(there, dlid)
    if mad[1] != madwire.CLASS_SUBN_DR:
        return there
    for number in mad[129 : 129 + min(mad[7], 63)]:
        there = _next_by_port(there, number)
    dr_dlid = int.from_bytes(mad[34:36], "big")
    return there if dr_dlid == PERMISSIVE_LID else _by_lid(there, dr_dlid)


def _next_by_port(there: Endpoint | None, number: int) -> Endpoint | None:
    """Behind a port of a node that is known by one of its ports."""
    if isinstance(there, SwitchPort) and isinstance(there.switch, Switch):
        ports = there.switch.ports
        return _behind(ports[number]) if 0 < number < len(ports) else None
    return _behind(there) if isinstance(there, EndPort) and there.number == number else None


def _by_lid(there: Endpoint | None, lid: int) -> Endpoint | None:
    """Where the switches' tables lead from a node."""
    if isinstance(there, EndPort):
        there = _behind(there)
    for _ in range(MAX_SWITCHES):
        if not isinstance(there, SwitchPort):
            return there
        out = there.switch.out_port(lid)
        if out is None or out.number == 0:
            return out
        there = _behind(out)
    return None


def _behind(port: SwitchPort | EndPort) -> Endpoint | None:
    return None if port.end is None else port.end.other.endpoint
