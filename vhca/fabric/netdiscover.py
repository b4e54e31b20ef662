"""Topologies as ibnetdiscover prints them, and as ibsim reads them.

A node is a line with its kind, number of ports, identity in quotes and, behind #, its description; under it stands a
line for each port that has a cable. ibnetdiscover names both ends of a cable, ibsim needs one. Vendor and device stand
above the node that they are of. LIDs are left aside: a manager gives them.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from vhca.fabric.topology import Builder, Cable, End, Kind, Node, NodeSpec, Topology, TopologyError, at_line
from vhca.management.link_speed import SPEEDS, WIDTHS, LinkSpeed

MAX_LINE: Final = 1024

_NODE: Final = re.compile(r'(Switch|Ca|Hca|Rt)\s+([0-9]{1,4})\s+"([^"]*)"(.*)')
_PORT: Final = re.compile(r'\[([0-9]{1,4})\](?:\(([0-9a-fA-F]{1,16})\))?\s+"([^"]*)"(?:\[([0-9]{1,4})\])?(.*)')
_GUID: Final = re.compile(r"(?:switchguid|caguid|hcaguids|rtguid)\s*=\s*(?:0x)?([0-9a-fA-F]{1,16})\b")
_MAKE_KEYS: Final = ("vendid", "devid", "sysimgguid")
_MAKE: Final = re.compile(rf"({'|'.join(_MAKE_KEYS)})\s*=\s*(?:0x)?([0-9a-fA-F]{{1,16}})\b")
_IDENTITY: Final = re.compile(r"[SHR]-([0-9a-fA-F]{16})")
_DESCRIPTION: Final = re.compile(r'\s*#\s*"([^"]*)"')
_LINK: Final = re.compile(rf"\b({'|'.join(map(str, WIDTHS))})x({'|'.join(SPEEDS)})\b")
_HEAD: Final = re.compile(r"(width|speed)\s*=\s*([0-9]{1,4})\s*$")
_OPTION: Final = re.compile(r"\b([wse])\s*=\s*([0-9]{1,4})\b")
_NOT_READ: Final = re.compile(r"(include|module|do)\b|@")

# What ibsim's options w=, s= and e= and its lines width= and speed= say, by PortInfo's codes.
_WIDTHS_BY_CODE: Final = {code: lanes for lanes, code in WIDTHS.items()}
_SPEEDS_BY_CODE: Final = {1: "SDR", 2: "DDR", 4: "QDR"}
_EXTENDED_BY_CODE: Final = {1: "FDR", 2: "EDR", 4: "HDR", 8: "NDR"}


class _Place:
    """A port's line: where it stands, which cable it names and at what that runs."""

    __slots__ = ("end", "guid", "line", "link", "peer")

    def __init__(self, line: int, end: End, guid: int | None, peer: End, link: LinkSpeed | None) -> None:
        self.line = line
        self.end = end
        self.guid = guid
        self.peer = peer
        self.link = link


class _Found:
    """A node's lines."""

    __slots__ = ("description", "guid", "identity", "kind", "line", "make", "places", "ports")

    def __init__(
        self,
        line: int,
        kind: Kind,
        ports: int,
        identity: str,
        guid: int | None,
        description: str,
        make: dict[str, int],
    ) -> None:
        self.line = line
        self.kind = kind
        self.ports = ports
        self.identity = identity
        self.guid = guid
        self.description = description
        self.make = make
        self.places: list[_Place] = []


class _Reader:
    """Takes a text apart, line by line."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Found] = {}
        self.default = LinkSpeed()
        self._guid: int | None = None
        self._make: dict[str, int] = {}
        self._node: _Found | None = None

    def take(self, number: int, line: str) -> None:
        """One line."""
        if node := _NODE.match(line):
            self._take_node(number, node)
        elif line.startswith("["):
            self._take_port(number, line)
        elif guid := _GUID.match(line):
            self._guid = int(guid[1], 16)
        elif make := _MAKE.match(line):
            self._make[make[1]] = int(make[2], 16)
        elif head := _HEAD.match(line):
            self.default = _chosen(self.default, "w" if head[1] == "width" else "s", int(head[2]))
        elif _NOT_READ.match(line):
            raise TopologyError("this language of ibsim's is not read; write its nodes and cables out")
        elif not line.strip():
            self._node = None

    def _take_node(self, number: int, found: re.Match[str]) -> None:
        kind: Kind = "switch" if found[1] == "Switch" else "host"
        if found[1] == "Rt":
            raise TopologyError("there are no routers here; leave it out, with its cables")
        identity = found[3]
        known = _IDENTITY.fullmatch(identity)
        guid = int(known[1], 16) if known else self._guid
        described = _DESCRIPTION.match(found[4])
        self._guid = None
        if identity in self.nodes:
            raise TopologyError(f"{identity} is described a second time; give each node its own identity")
        description = described[1].strip() if described else ""
        self._node = _Found(number, kind, int(found[2]), identity, guid, description, self._make)
        self._make = {}
        self.nodes[identity] = self._node

    def _take_port(self, number: int, line: str) -> None:
        node, port = self._node, _PORT.match(line)
        if port is None:
            raise TopologyError('no port; write [1] "identity of the other node"[port there]')
        if node is None:
            raise TopologyError("a port of no node; let it follow the line of its node")
        guid = int(port[2], 16) if port[2] else None
        peer = End(port[3], int(port[4] or 1))
        options, _, comment = port[5].partition("#")
        link = None
        if runs := _LINK.search(comment):
            link = LinkSpeed(int(runs[1]), runs[2])
        for option in _OPTION.finditer(options):
            link = _chosen(link or self.default, option[1], int(option[2]))
        node.places.append(_Place(number, End(node.identity, int(port[1])), guid, peer, link))


def _chosen(link: LinkSpeed, option: str, code: int) -> LinkSpeed:
    """A link as ibsim's options choose it: codes of PortInfo, of which several mean the best."""
    if option == "w":
        lanes = [lanes for bit, lanes in _WIDTHS_BY_CODE.items() if code & bit]
        if lanes:
            return LinkSpeed(max(lanes), link.speed)
    table = _SPEEDS_BY_CODE if option == "s" else _EXTENDED_BY_CODE
    names = [name for bit, name in table.items() if code & bit] if option != "w" else []
    if names:
        return LinkSpeed(link.width, names[-1])
    if option == "e" and not code:
        return link
    raise TopologyError(
        f"{option}={code}: w is a width (1, 2, 4, 8, 16), s a speed (1, 2, 4), e a faster one (1, 2, 4, 8)"
    )


def read(text: str) -> Topology:
    """The topology in an output of ibnetdiscover.

    Nodes are called by their descriptions where no other one has the same, else by their identities.

    :raises TopologyError: it says no fabric; the error says on which line.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE:
            raise TopologyError(f"line {number}: more than {MAX_LINE} characters; this is no output of ibnetdiscover")
        with at_line(number):
            reader.take(number, line)
    names = _names(list(reader.nodes.values()))
    builder = Builder()
    for node in reader.nodes.values():
        with at_line(node.line):
            builder.add_node(_spec(node, names[node.identity]))
    for place, link in _cables(reader):
        with at_line(place.line):
            peer = names.get(place.peer.node)
            if peer is None:
                raise TopologyError(f'there is no node "{place.peer.node}"; describe it, too, or leave the cable out')
            here, there = End(names[place.end.node], place.end.port), End(peer, place.peer.port)
            builder.add_cable(Cable(here, there, link))
    return builder.topology()


def _names(nodes: Collection[_Found]) -> dict[str, str]:
    """What each identity is called."""
    count = Counter(node.description for node in nodes)
    taken = {node.identity for node in nodes}
    return {
        node.identity: node.description
        if node.description and count[node.description] == 1 and node.description not in taken
        else node.identity
        for node in nodes
    }


def _spec(node: _Found, name: str) -> NodeSpec:
    guids: tuple[int, ...] | None = None
    given = {place.end.port: place.guid for place in node.places if place.guid is not None}
    if node.kind == "host" and given and node.guid is not None and max(given) <= node.ports:
        guids = tuple(given.get(port, node.guid + port) for port in range(1, node.ports + 1))
    make = (node.make.get(key) for key in _MAKE_KEYS)
    return NodeSpec(name, node.kind, node.ports, node.guid, guids, node.description or None, *make)


def _cables(reader: _Reader) -> Iterator[tuple[_Place, LinkSpeed]]:
    """Each cable once, as the first of its ends describes it."""
    places: dict[End, _Place] = {}
    for node in reader.nodes.values():
        for place in node.places:
            if place.end in places:
                with at_line(place.line):
                    raise TopologyError(f"port {place.end.port} has a cable already, by line {places[place.end].line}")
            places[place.end] = place
    for place in places.values():
        other = places.get(place.peer)
        if other is not None and other is not place:
            with at_line(place.line):
                if other.peer != place.end:
                    raise TopologyError(f"line {other.line} leads the other end elsewhere; let both ends agree")
                if place.link and other.link and place.link != other.link:
                    raise TopologyError(f"{place.link}, but line {other.line} says {other.link}; let both ends agree")
            if other.line < place.line:
                continue
        yield place, place.link or (other.link if other is not None else None) or reader.default


def write(topology: Topology) -> str:
    """The topology as ibnetdiscover prints it, before anybody has given LIDs."""
    out = ["#", "# Topology file: written by vhca", "#", ""]
    for node in topology.nodes.values():
        switch = node.kind == "switch"
        out += [f"{key}={value:#x}" for key, value in zip(_MAKE_KEYS, node.make, strict=True)]
        if switch:
            out.append(f"switchguid={node.guid:#x}({node.guid:x})")
            out.append(f'Switch\t{node.ports} "{_identity(node)}"\t\t# "{node.description}" base port 0 lid 0 lmc 0')
        else:
            out.append(f"caguid={node.guid:#x}")
            out.append(f'Ca\t{node.ports} "{_identity(node)}"\t\t# "{node.description}"')
        for number, peer_end, cable in topology.ends(node):
            peer = topology.nodes[peer_end.node]
            there = f'"{_identity(peer)}"[{peer_end.port}]'
            if switch:
                at = f"({peer.port_guids[peer_end.port - 1]:x}) " if peer.kind == "host" else ""
                out.append(f'[{number}]\t{there}{at}\t\t# "{peer.description}" lid 0 {cable.link}')
            else:
                own = node.port_guids[number - 1]
                out.append(f'[{number}]({own:x}) \t{there}\t\t# lid 0 lmc 0 "{peer.description}" lid 0 {cable.link}')
        out.append("")
    return "\n".join(out)


def _identity(node: Node) -> str:
    return f"{'S' if node.kind == 'switch' else 'H'}-{node.guid:016x}"
