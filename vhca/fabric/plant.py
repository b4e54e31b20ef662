"""What a topology is built of: its switches, its cables, and a simulated node at each host's cable.

A card takes the place of a host: it gets that host's cable and identity, and the simulated node is not there.
"""

from collections.abc import Callable

from vhca.fabric.end_node import Company, EndNode
from vhca.fabric.link import CallLater, Link
from vhca.fabric.port import SwitchPort
from vhca.fabric.switch import Switch
from vhca.fabric.topology import Cable, End, Node, Topology, TopologyError
from vhca.fabric.wires import Wires
from vhca.management.fair_queue import CallSoon
from vhca.management.link_speed import LinkSpeed


class Place:
    """What a card has of a host whose place it took: its port and cable (whose end `a` is the card's)."""

    def __init__(self, host: Node, number: int, link: Link, switch_port: SwitchPort, cable: LinkSpeed) -> None:
        self.host = host
        self.number = number
        self.link = link
        self.switch_port = switch_port
        self.cable = cable


class Plant:
    """Switches by name, in the order of the topology; cables between them are plugged in from the start.

    With `local`, names of switches, only those are here, with their hosts; `trunks` has for each cable to a switch that
    is elsewhere the half that is here, whose end `a` is nobody's yet.
    """

    def __init__(
        self,
        topology: Topology,
        call_soon: CallSoon,
        call_later: CallLater,
        now_ns: Callable[[], int],
        wires: Wires,
        local: frozenset[str] | None = None,
    ) -> None:
        self.topology = topology
        self.trunks: dict[Cable, Link] = {}
        self.switches = {
            node.name: Switch(call_soon, node.guid, node.ports, node.description, now_ns, wires, node.make)
            for node in topology.switches
            if local is None or node.name in local
        }
        self.hosts: dict[str, EndNode] = {}  # simulated ones
        self.links: dict[End, Link] = {}  # by both ends
        self._company = Company(call_soon, now_ns)
        self._free = {host.name: host for host in topology.hosts if self._is_here(host)}
        self._powered = False
        for cable in topology.cables:
            # A host's end is the first one of its link, and so is one that is elsewhere.
            a, b = (cable.b, cable.a) if cable.b.node not in self.switches else (cable.a, cable.b)
            if b.node not in self.switches:
                continue
            link = Link(call_soon, call_later, str(a), str(b), wires)
            self.links[a] = self.links[b] = link
            self._plug(b, link, cable)
            if a.node in self.switches:
                port = self.switches[a.node].ports[a.port]
                port.set_speed(cable.link)
                port.plug(link.a)
            elif topology.nodes[a.node].kind == "switch":
                self.trunks[cable] = link

    def _plug(self, end: End, link: Link, cable: Cable) -> None:
        port = self.switches[end.node].ports[end.port]
        port.set_speed(cable.link)
        port.plug(link.b)

    def _cables(self, host: Node) -> list[tuple[int, End, Cable]]:
        return list(self.topology.ends(host))

    def _is_here(self, host: Node) -> bool:
        return any(peer.node in self.switches for _, peer, _ in self._cables(host))

    def power_up(self) -> None:
        """Switch on a simulated node at each host whose place no card has taken; once."""
        if self._powered:
            return
        self._powered = True
        for host in self._free.values():
            self._simulate(host)

    def _simulate(self, host: Node) -> None:
        node = self.hosts[host.name] = EndNode(host, self._company)
        for number, _, cable in self._cables(host):
            node.plug(number, self.links[End(host.name, number)].a, cable.link)

    def take(self, wanted: str | None) -> Place:
        """A host's place for a card: that of the host called `wanted`, or the first that is left.

        Cards have one port: a host with several is not taken unless it is named, and then cannot be.

        :raises TopologyError: there is no such place.
        """
        if wanted is None:
            host = next((host for host in self._free.values() if host.ports == 1), None)
            if host is None:
                raise TopologyError("more cards than hosts whose place a card can take; describe more of them")
        else:
            host = self._named(wanted)
        del self._free[host.name]
        number, peer, cable = self._cables(host)[0]
        link = self.links[End(host.name, number)]
        if self.hosts.pop(host.name, None) is not None:
            link.a.set_enabled(False)
        switch_port = self.switches[peer.node].ports[peer.port]
        return Place(host, number, link, switch_port, cable.link)

    def _named(self, name: str) -> Node:
        host = self._free.get(name)
        if host is not None and host.ports == 1:
            return host
        node = self.topology.nodes.get(name)
        if node is None:
            raise TopologyError(f"there is no host {name}; name one of the topology's")
        if node.kind == "switch":
            raise TopologyError(f"{name} is a switch; a card takes the place of a host")
        if host is not None:
            raise TopologyError(f"{name} has {host.ports} ports, and a card has one; name another host")
        if not self._cables(node):
            raise TopologyError(f"{name} has no cable; give it one, or name another host")
        raise TopologyError(f"a card has the place of {name} already; name another host")

    def left(self) -> list[Node]:
        """The hosts with cables whose place no card has taken."""
        return list(self._free.values())

    def lid(self, name: str) -> int:
        """LID of the first port of a simulated host, 0 while it has none."""
        host = self.hosts.get(name)
        return next((port.info.lid for port in host.ports.values()), 0) if host is not None else 0

    def has_free(self, name: str) -> bool:
        """Tell whether a card could take the place of a host of this name."""
        host = self._free.get(name)
        return host is not None and host.ports == 1
