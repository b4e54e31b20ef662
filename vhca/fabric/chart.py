"""What a fabric looks like at this moment, as data: nodes, cables with their states and errors, and ways between nodes.

Of a description alone there are nodes and cables without states. All of it can be sent as JSON.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from vhca.fabric.fabric import Fabric
from vhca.fabric.port import SwitchPort
from vhca.fabric.topology import End, Kind, Topology, TopologyError
from vhca.management.performance import PortCounters
from vhca.wire import smp

MAX_HOPS: Final = 64
PLANNED: Final = ""
"""The state of a cable that is only described."""

_STATES: Final = {
    smp.PORT_DOWN: "Down",
    smp.PORT_INIT: "Initialize",
    smp.PORT_ARMED: "Armed",
    smp.PORT_ACTIVE: "Active",
}
_ERRORS: Final = (
    "symbol_errors",
    "link_error_recovery",
    "link_downed",
    "rcv_errors",
    "rcv_switch_relay_errors",
    "xmit_discards",
    "vl15_dropped",
)


@dataclass(frozen=True, slots=True)
class ChartNode:
    """A node; `lid` is 0 while it has none, `card` the name of the card that has its place, "" if there is none."""

    name: str
    kind: Kind
    ports: int
    guid: int
    lid: int = 0
    card: str = ""


@dataclass(frozen=True, slots=True)
class ChartCable:
    """A cable between two ports, such as leaf1/3, that runs at `link`, such as 4xEDR.

    - `state`: the lower one of its ends: "Down", "Initialize", "Armed" or "Active"; "" if it is only described
    - `errors`: what its ends at switches counted: bad and lost packets, falls of the link
    """

    a: str
    b: str
    link: str
    state: str = PLANNED
    errors: int = 0


@dataclass(slots=True)
class Chart:
    """Nodes and cables; `more` if there are others that another page has."""

    nodes: list[ChartNode] = field(default_factory=list)
    cables: list[ChartCable] = field(default_factory=list)
    more: bool = False

    def to_json(self) -> dict[str, Any]:
        """As objects and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Chart":
        """What :meth:`to_json` gave."""
        nodes = [ChartNode(**node) for node in value["nodes"]]
        return cls(nodes, [ChartCable(**cable) for cable in value["cables"]], value["more"])


def of_topology(topology: Topology) -> Chart:
    """What is described, without states."""
    nodes = [ChartNode(node.name, node.kind, node.ports, node.guid) for node in topology.nodes.values()]
    return Chart(nodes, [ChartCable(str(cable.a), str(cable.b), str(cable.link)) for cable in topology.cables])


def of_fabric(fabric: Fabric, start: int = 0, count: int | None = None) -> Chart:
    """How it is: nodes and cables from number `start` on, at most `count` of each."""
    stop = None if count is None else start + count
    nodes = list(_nodes(fabric))
    cables = list(_cables(fabric, start, stop))
    more = stop is not None and stop < max(len(nodes), _cable_count(fabric))
    return Chart(nodes[start:stop], cables, more)


def _nodes(fabric: Fabric) -> Iterator[ChartNode]:
    plant = fabric.plant
    if plant is None:
        switch = fabric.switch
        yield ChartNode(switch.name, "switch", len(switch.ports) - 1, switch.node_guid, switch.lid)
        for name in fabric.ports:
            yield ChartNode(name, "host", 1, 0, fabric.lid(name), name)
        return
    cards = {port.host.name: name for name, port in fabric.ports.items() if port.host is not None}
    for node in plant.topology.nodes.values():
        card = cards.get(node.name, "")
        if node.kind == "switch" and node.name in fabric.switches:
            lid = fabric.switches[node.name].lid
        elif card:
            lid = fabric.lid(card)
        elif node.name in plant.hosts:
            lid = plant.lid(node.name)
        else:
            # In another rack, or without power: what our manager knows, if it is the one.
            known = fabric.manager.topology.nodes.get(node.guid)
            lid = next((port.lid for port in known.end_ports()), 0) if known is not None else 0
        yield ChartNode(node.name, node.kind, node.ports, node.guid, lid, card)


def _cable_count(fabric: Fabric) -> int:
    return len(fabric.ports) if fabric.plant is None else len(fabric.plant.topology.cables)


def _cables(fabric: Fabric, start: int, stop: int | None) -> Iterator[ChartCable]:
    if fabric.plant is None:
        for name, port in list(fabric.ports.items())[start:stop]:
            at = port.switch_port
            yield ChartCable(f"{fabric.switch.name}/{at.number}", f"{name}/1", "4xEDR", *_health([at]))
        return
    for cable in fabric.plant.topology.cables[start:stop]:
        ends = [switch.ports[end.port] for end in (cable.a, cable.b) if (switch := fabric.switches.get(end.node))]
        yield ChartCable(str(cable.a), str(cable.b), str(cable.link), *_health(ends))


def _health(ports: Sequence[SwitchPort]) -> tuple[str, int]:
    if not ports:
        return PLANNED, 0  # it is in another rack
    state = min(port.state for port in ports)
    return _STATES.get(state, "?"), sum(_errors(port.counters) for port in ports)


def _errors(counters: PortCounters) -> int:
    total: int = sum(getattr(counters, name) for name in _ERRORS)
    return total


def route(fabric: Fabric, source: str, target: str) -> list[str]:
    """The ports by which packets from one node to another leave nodes on their way, as the switches' tables say.

    :raises TopologyError: there is no such node, or the tables lead nowhere.
    """
    if fabric.plant is None:
        raise TopologyError("a fabric of one switch has no ways to choose from; give it a topology")
    topology = fabric.plant.topology
    lids = {node.name: node.lid for node in _nodes(fabric) if node.name == target}
    for name in (source, target):
        if name not in topology.nodes:
            raise TopologyError(f"there is no node {name}; name one of the topology")
    lid, here, way = lids[target], topology.nodes[source], list[str]()
    while here.name != target:
        if here.kind == "switch":
            if here.name not in fabric.switches:
                raise TopologyError(f"the way from {source} to {target} goes on in another rack, at {here.name}")
            number = fabric.switches[here.name].lft[lid] if lid else smp.NO_PORT
        else:
            number = next((number for number, _, _ in topology.ends(here)), smp.NO_PORT)
        peer = topology.peer(End(here.name, number))
        if peer is None or len(way) >= MAX_HOPS or (here.kind == "host" and way):
            raise TopologyError(f"no way from {source} to {target}: it ends at {here.name}; is the fabric up?")
        way.append(f"{here.name}/{number}")
        here = topology.nodes[peer.node]
    return way
