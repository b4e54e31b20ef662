"""What a subnet manager knows: nodes, ports, cables, and the ways between them.

Pure data and graph walks; filled by sweeps of :mod:`vhca.subnet.manager`.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from vhca.wire import smp
from vhca.wire.mad import gid
from vhca.wire.smp import NodeInfo, PortInfo, SwitchInfo

P = TypeVar("P")
PortKey = tuple[int, int]
"""(node GUID, port number)"""
PORTS_PER_PIECE: Final = 256
"""How many ports are looked at before others have their turn, where all are."""
Pieces = Iterator[None]
"""Work on all ports in pieces, with a `yield` behind each."""


def in_pieces(ports: Iterable[P]) -> Iterator[tuple[P, bool]]:
    """Each with whether a piece ends behind it."""
    for number, port in enumerate(ports, 1):
        yield port, number % PORTS_PER_PIECE == 0


@dataclass(slots=True)
class NodePort:
    """A port as last read."""

    number: int
    guid: int
    info: PortInfo
    lid: int = 0
    lmc: int = 0
    reregistered: bool = False  # its clients were told to register with the SA again, in this sweep
    enforced: bool = False  # whether a switch checks P_Keys there
    pkeys: list[int] = field(default_factory=lambda: [0xFFFF])
    aliases: list[int] = field(default_factory=list)  # GUIDs behind its own in its table; 0 where there is none

    @property
    def lids(self) -> range:
        """All its LIDs; none before it has one."""
        return range(self.lid, self.lid + (1 << self.lmc)) if self.lid else range(0)


@dataclass(slots=True)
class Node:
    """A node as last read; `path` is the directed route from the manager (a tuple of ports of departure)."""

    guid: int
    info: NodeInfo
    path: tuple[int, ...]
    description: bytes = bytes(64)
    switch_info: SwitchInfo | None = None
    ports: dict[int, NodePort] = field(default_factory=dict)
    # Directed route to each port of a channel adapter: its ports are different ends of the fabric.
    port_paths: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_switch(self) -> bool:
        """Tell a switch from a channel adapter."""
        return self.info.node_type == smp.NODE_TYPE_SWITCH

    def end_ports(self) -> Iterator[NodePort]:
        """Ports that have a LID: port 0 of a switch, all known ports of a channel adapter."""
        if self.is_switch:
            if 0 in self.ports:
                yield self.ports[0]
        else:
            yield from self.ports.values()

    def path_to(self, port: int) -> tuple[int, ...]:
        """Directed route by which to reach this port's agent."""
        return self.port_paths.get(port, self.path)


@dataclass(slots=True)
class Topology:
    """Nodes by GUID, and cables as port to port, both ways."""

    nodes: dict[int, Node] = field(default_factory=dict)
    cables: dict[PortKey, PortKey] = field(default_factory=dict)
    _lids: dict[int, PortKey] = field(default_factory=dict)
    _guids: dict[int, PortKey] = field(default_factory=dict)
    _toward: dict[int, dict[int, int]] = field(default_factory=dict)

    def join(self, a: PortKey, b: PortKey) -> None:
        """Note a cable."""
        self.cables[a] = b
        self.cables[b] = a

    def switches(self) -> list[Node]:
        """All switches."""
        return [node for node in self.nodes.values() if node.is_switch]

    def end_ports(self) -> Iterator[tuple[Node, NodePort]]:
        """All ports that have a LID."""
        for node in self.nodes.values():
            for port in node.end_ports():
                yield node, port

    def by_lid(self, lid: int) -> tuple[Node, NodePort] | None:
        """The end port with this LID, which may be any of those that it has."""
        return self._end_port(self._lids, lid)

    def by_gid(self, wanted: bytes) -> tuple[Node, NodePort] | None:
        """The end port with this GID."""
        found = self._end_port(self._guids, int.from_bytes(wanted[8:], "big"))
        return found if found is not None and wanted[:8] == gid(found[1].info.gid_prefix, 0)[:8] else None

    def by_guid(self, guid: int) -> tuple[Node, NodePort] | None:
        """The end port with this GUID, its own or an alias."""
        return self._end_port(self._guids, guid)

    def owner(self, guid: int) -> PortKey | None:
        """The end port with this GUID, its own or an alias."""
        return self._guids.get(guid)

    def index(self) -> Pieces:
        """Make LIDs and GIDs findable, when all ports are known and have their LIDs."""
        self._toward.clear()
        lids: dict[int, PortKey] = {}
        guids: dict[int, PortKey] = {}
        for (node, port), pause in in_pieces(self.end_ports()):
            if port.lid:
                key = node.guid, port.number
                lids |= dict.fromkeys(port.lids, key)
                guids[port.guid] = key
            if pause:
                yield
        self._lids, self._guids = lids, guids

    def index_aliases(self, key: PortKey, before: Iterable[int], after: Iterable[int]) -> None:
        """A port has other aliases than before, none of which is another port's."""
        for guid in before:
            if self._guids.get(guid) == key:
                del self._guids[guid]
        self._guids |= {guid: key for guid in after if guid}

    def _end_port(self, places: dict[int, PortKey], key: int) -> tuple[Node, NodePort] | None:
        place = places.get(key)
        return (self.nodes[place[0]], self.nodes[place[0]].ports[place[1]]) if place is not None else None

    def attachment(self, node: Node, port: NodePort) -> PortKey | None:
        """(switch, port) through which an end port hangs on the fabric; port 0 for a switch itself."""
        if node.is_switch:
            return node.guid, 0
        peer = self.cables.get((node.guid, port.number))
        return peer if peer is not None and peer[0] in self.nodes and self.nodes[peer[0]].is_switch else None

    def toward(self, target: int) -> dict[int, int]:
        """For each switch: the port that leads to switch `target` on a shortest way (0 at the target itself)."""
        known = self._toward.get(target)
        if known is not None:
            return known
        ports = self._toward[target] = {target: 0}
        queue = deque([target])
        while queue:
            here = queue.popleft()
            for peer, peer_port in self._neighbours(here):
                if peer not in ports and self.nodes[peer].is_switch:
                    ports[peer] = peer_port
                    queue.append(peer)
        return ports

    def _neighbours(self, guid: int) -> Iterator[PortKey]:
        for number in sorted(self.nodes[guid].ports):
            peer = self.cables.get((guid, number))
            if peer is not None and peer[0] in self.nodes:
                yield peer

    def multicast_masks(self, receivers: Iterable[PortKey], senders: Iterable[PortKey]) -> dict[int, int]:
        """Switch -> mask of ports of a group's tree: places of receivers, and the trunks that join all switches.

        `receivers` and `senders` are places as :meth:`attachment` gives them.
        """
        masks: dict[int, int] = {}
        receivers = list(receivers)
        touched = {guid for guid, _ in receivers} | {guid for guid, _ in senders}
        if not touched:
            return {}
        for guid, port in receivers:
            masks[guid] = masks.get(guid, 0) | 1 << port
        root = min(touched)
        way = self.toward(root) if len(touched) > 1 else {}
        for guid in touched:
            here = guid
            seen: set[int] = set()
            # A node that lies about its GUID can bend the graph into a circle.
            while here != root and here in way and here not in seen:
                seen.add(here)
                out = way[here]
                peer = self.cables[(here, out)]
                masks[here] = masks.get(here, 0) | 1 << out
                masks[peer[0]] = masks.get(peer[0], 0) | 1 << peer[1]
                here = peer[0]
        return masks
