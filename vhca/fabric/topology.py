"""What a fabric is made of: switches, hosts and the cables between them, as a description.

Pure data that is right by construction: names and GUIDs are unique, each end of a cable is a port that exists and has
no other cable. Files and generators make it (:mod:`vhca.fabric.topology_files`, :mod:`vhca.fabric.shapes`), and
:class:`vhca.fabric.fabric.Fabric` builds it.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from vhca.fabric.line import PLAIN, LineConfig
from vhca.management.link_speed import LinkSpeed

MAX_NODES: Final = 16_384
"""Of a topology. Each switch and each port of a host needs one of 49,151 unicast LIDs, too."""
MAX_LIDS: Final = 0xBFFF
MAX_SWITCH_PORTS: Final = 254
"""In a forwarding table 255 leads nowhere (IBTA volume 1, 14.2.5.10)."""
MAX_HOST_PORTS: Final = 16
NAME_BYTES: Final = 64
"""A name is the node's description, too, unless that is given."""

Kind = Literal["switch", "host"]

_OUI: Final = 0x0002C9
# The byte behind the OUI; those of cards that no topology names are 3.
_GUID_KINDS: Final[dict[Kind, int]] = {"switch": 0x10, "host": 0x20}
_GUID_TRIES: Final = 64


VENDOR_ID: Final = 0x0002C9
DEVICE_IDS: Final[dict[Kind, int]] = {"switch": 0xCB20, "host": 0x1017}
"""Of nodes of which nothing else is said: a switch for HDR, and an adapter as a card is one."""


class TopologyError(Exception):
    """There cannot be such a fabric; the text says what is wrong and what to do."""


@contextmanager
def at_line(place: int | str) -> Iterator[None]:
    """Say of what is wrong in here in which line of a file it is."""
    try:
        yield
    except TopologyError as error:
        raise TopologyError(f"line {place}: {error}") from error


class End(NamedTuple):
    """An end of a cable: a port, from 1 on, of the node of this name."""

    node: str
    port: int

    def __str__(self) -> str:
        return f"{self.node}/{self.port}"


class Make(NamedTuple):
    """Who made a node, and what it is, by its NodeInfo (14.2.5.3).

    :ivar vendor_id: 24 bits.
    :ivar device_id: 16 bits.
    :ivar system_guid: SystemImageGUID, which nodes in one case share.
    """

    vendor_id: int
    device_id: int
    system_guid: int


@dataclass(frozen=True, slots=True)
class Node:
    """A switch, or a host: an end node with one adapter.

    :ivar name: unique among all nodes; printable ASCII without quotes, at most 64 characters.
    :ivar ports: external ports of a switch, 1 to 254; ports of a host's adapter, 1 to 16.
    :ivar guid: node GUID, EUI-64.
    :ivar port_guids: of a host, port by port; of a switch, that of port 0.
    :ivar description: its node description.
    """

    name: str
    kind: Kind
    ports: int
    guid: int
    port_guids: tuple[int, ...]
    description: str
    make: Make


@dataclass(frozen=True, slots=True)
class Cable:
    """Joins two ports; `link` is what it runs at, `line` what it takes of time and of bits."""

    a: End
    b: End
    link: LinkSpeed = field(default_factory=LinkSpeed)
    line: LineConfig = PLAIN


class NodeSpec(NamedTuple):
    """A node as it is described: what is None is derived from its name and its kind."""

    name: str
    kind: Kind
    ports: int
    guid: int | None = None
    port_guids: tuple[int, ...] | None = None
    description: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    system_guid: int | None = None


class Topology:
    """Nodes by name, first switches, then hosts, each in the order of their description; and cables. Not to be changed.

    The subnet manager that is built into a fabric sits in the first switch.
    """

    def __init__(self, nodes: Mapping[str, Node], cables: Sequence[Cable], plugged: Mapping[End, Cable]) -> None:
        """To be made by a :class:`Builder`; `plugged` is the cable at each port that has one."""
        self.nodes = nodes
        self.cables = cables
        self.plugged = plugged

    @property
    def switches(self) -> list[Node]:
        """The switches, in order."""
        return [node for node in self.nodes.values() if node.kind == "switch"]

    @property
    def hosts(self) -> list[Node]:
        """The hosts, in order."""
        return [node for node in self.nodes.values() if node.kind == "host"]

    def peer(self, end: End) -> End | None:
        """The port at the other end of the cable at a port; None without a cable."""
        cable = self.plugged.get(end)
        if cable is None:
            return None
        return cable.b if cable.a == end else cable.a

    def ends(self, node: Node) -> Iterator[tuple[int, End, Cable]]:
        """Port, port at the other end, cable: for each port of a node that has one."""
        for number in range(1, node.ports + 1):
            here = End(node.name, number)
            cable = self.plugged.get(here)
            if cable is not None:
                yield number, cable.b if cable.a == here else cable.a, cable

    def links(self) -> frozenset[tuple[frozenset[tuple[int, int]], LinkSpeed]]:
        """The graph, whatever its nodes are called: cables as pairs of (node GUID, port), with their speeds."""
        nodes = self.nodes
        return frozenset(
            (frozenset((nodes[end.node].guid, end.port) for end in (cable.a, cable.b)), cable.link)
            for cable in self.cables
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return list(self.nodes.values()) == list(other.nodes.values()) and self.links() == other.links()

    __hash__ = None  # type: ignore[assignment]


class Builder:
    """Puts a topology together piece by piece; each piece is checked when it is added."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}  # GUID -> name of the node
        self._cables: list[Cable] = []
        self._plugged: dict[End, Cable] = {}
        self._specs: dict[str, NodeSpec] = {}
        self._lids = 0

    def add_node(self, spec: NodeSpec) -> None:
        """A node.

        :raises TopologyError: there cannot be such a node beside those that are there.
        """
        name, most = spec.name, MAX_SWITCH_PORTS if spec.kind == "switch" else MAX_HOST_PORTS
        check_text("name", name)
        if spec.description is not None:
            check_text("description", spec.description)
        if name in self._specs:
            raise TopologyError(f"there are two nodes called {name}; give each its own name")
        if not 1 <= spec.ports <= most:
            raise TopologyError(f"{name}: {spec.ports} ports; a {spec.kind} has 1 to {most}")
        for what, value, bits in (
            ("vendor_id", spec.vendor_id, 24),
            ("device_id", spec.device_id, 16),
            ("system_guid", spec.system_guid, 64),
        ):
            if value is not None and not 0 <= value < 1 << bits:
                raise TopologyError(f"{name}: {what} {value:#x}; give a number of {bits} bits")
        if len(self._specs) >= MAX_NODES:
            raise TopologyError(f"more than {MAX_NODES} nodes; describe a smaller fabric")
        self._lids += 1 if spec.kind == "switch" else spec.ports
        if self._lids > MAX_LIDS:
            raise TopologyError(f"more than {MAX_LIDS} ports need a LID; describe a smaller fabric")
        self._specs[name] = spec
        if spec.guid is not None:
            self._own(name, _guids(spec, spec.guid))

    def add_cable(self, cable: Cable) -> None:
        """A cable between two nodes that are there.

        :raises TopologyError: one of its ends is no free port, or it joins two hosts.
        """
        for end in (cable.a, cable.b):
            spec = self._specs.get(end.node)
            if spec is None:
                raise TopologyError(f"cable {cable.a} - {cable.b}: there is no node {end.node}; describe it first")
            if not 1 <= end.port <= spec.ports:
                raise TopologyError(f"cable {cable.a} - {cable.b}: {end.node} has the ports 1 to {spec.ports}")
            other = self._plugged.get(end)
            if other is not None:
                raise TopologyError(
                    f"cable {cable.a} - {cable.b}: in {end} is the cable {other.a} - {other.b}; take another port"
                )
        if cable.a == cable.b:
            raise TopologyError(f"cable {cable.a} - {cable.b}: a port is not joined to itself")
        if all(self._specs[end.node].kind == "host" for end in (cable.a, cable.b)):
            raise TopologyError(f"cable {cable.a} - {cable.b} joins two hosts; put a switch between them")
        self._cables.append(cable)
        self._plugged[cable.a] = self._plugged[cable.b] = cable

    def topology(self) -> Topology:
        """What has been put together, each node with all its GUIDs.

        :raises TopologyError: there is no switch.
        """
        if not any(spec.kind == "switch" for spec in self._specs.values()):
            raise TopologyError("there is no switch; a fabric has one at least")
        nodes = {}
        for name, spec in sorted(self._specs.items(), key=lambda item: item[1].kind != "switch"):
            guid = spec.guid if spec.guid is not None else self._derive(spec)
            guids = _guids(spec, guid)
            if spec.guid is None:
                self._own(name, guids)
            description = spec.description if spec.description is not None else name
            nodes[name] = Node(
                name,
                spec.kind,
                spec.ports,
                guid,
                tuple(guids[1:]),
                description,
                Make(
                    VENDOR_ID if spec.vendor_id is None else spec.vendor_id,
                    DEVICE_IDS[spec.kind] if spec.device_id is None else spec.device_id,
                    guid if spec.system_guid is None else spec.system_guid,
                ),
            )
        return Topology(nodes, tuple(self._cables), self._plugged)

    def _derive(self, spec: NodeSpec) -> int:
        """A GUID made of the name, the same in every run; its last hex digits count ports."""
        for number in range(_GUID_TRIES):
            digest = hashlib.sha256(f"{spec.name}#{number}".encode() if number else spec.name.encode()).digest()
            low = int.from_bytes(digest[:4], "big") & 0xFFFFFFE0
            guid = _OUI << 40 | _GUID_KINDS[spec.kind] << 32 | low
            if not self._owners.keys() & set(_guids(spec, guid)):
                return guid
        raise TopologyError(f"{spec.name}: no free GUID was found; give it one")

    def _own(self, name: str, guids: list[int]) -> None:
        for guid in guids:
            if not 0 < guid < 1 << 64:
                raise TopologyError(f"{name}: GUID {guid:#x} is no EUI-64; give one of 64 bits that is not 0")
            owner = self._owners.setdefault(guid, name)
            if owner != name:
                raise TopologyError(f"{name}: GUID {guid:#018x} is that of {owner}; give each node its own")


def check_text(what: str, text: str) -> None:
    """Refuse a name or description that tools could not show, or files not hold.

    :raises TopologyError: it is refused.
    """
    good = text.isascii() and text.isprintable() and '"' not in text and text.strip() == text
    if not good or not 0 < len(text) <= NAME_BYTES:
        raise TopologyError(
            f"{what} {text[:NAME_BYTES]!r}: give 1 to {NAME_BYTES} printable characters of ASCII, without quotes and"
            " without spaces at the ends"
        )


def usual_make(kind: Kind, guid: int) -> Make:
    """That of a node of which nothing else is said."""
    return Make(VENDOR_ID, DEVICE_IDS[kind], guid)


def _guids(spec: NodeSpec, guid: int) -> list[int]:
    """The node's own GUID, then those of its ports."""
    if spec.kind == "switch":
        return [guid, guid]
    if spec.port_guids is not None:
        if len(spec.port_guids) != spec.ports:
            raise TopologyError(
                f"{spec.name}: {len(spec.port_guids)} port GUIDs; give one for each of {spec.ports} ports"
            )
        if len(set(spec.port_guids)) != spec.ports:
            raise TopologyError(f"{spec.name}: two of its ports have one GUID; give each its own")
        return [guid, *spec.port_guids]
    return [guid, *range(guid + 1, guid + 1 + spec.ports)]
