"""Routes of the three engines, judged by an independent checker over the tables that switches hold."""

from collections import Counter
from random import Random

import networkx
import pytest

from tests.unit.fabric.test_topologies import TopologyBench
from vhca.fabric import shapes
from vhca.fabric.topology import Builder, Cable, End, NodeSpec, Topology
from vhca.subnet.engines import ENGINES, Engine
from vhca.wire.smp import NO_PORT


def tangle(seed: int, switches: int = 12, hosts: int = 10) -> Topology:
    """A connected fabric without any order."""
    random = Random(seed)
    builder = Builder()
    free = {f"s{number}": list(range(1, 17)) for number in range(switches)}
    for name, ports in free.items():
        builder.add_node(NodeSpec(name, "switch", 16))
        random.shuffle(ports)
    names = list(free)
    pairs = [(names[number], random.choice(names[:number])) for number in range(1, switches)]
    pairs += [tuple(random.sample(names, 2)) for _ in range(switches)]  # type: ignore[misc]
    for one, other in pairs:
        builder.add_cable(Cable(End(one, free[one].pop()), End(other, free[other].pop())))
    for number in range(hosts):
        builder.add_node(NodeSpec(f"h{number}", "host", 1))
        place = random.choice(names)
        builder.add_cable(Cable(End(place, free[place].pop()), End(f"h{number}", 1)))
    return builder.topology()


TOPOLOGIES = {
    "ring": shapes.ring(7, 9),
    "torus": shapes.torus((4, 4), 20),
    "star": shapes.star(4, 8),
    "two levels": shapes.fat_tree(60, radix=12, levels=2),
    "three levels": shapes.fat_tree(54, radix=6, levels=3),
    "few of three levels": shapes.fat_tree(20, radix=6, levels=3),
    **{f"tangle {seed}": tangle(seed) for seed in range(6)},
}


class Checker:
    """Follows the tables of a fabric's switches, as packets would, and keeps which cables wait for which."""

    def __init__(self, topology: Topology, engine: Engine) -> None:
        self.topology = topology
        self.bench = TopologyBench(topology, routing=engine)
        self.bench.run()
        found = self.bench.fabric.manager.topology
        self.lids = {
            node.name: next(port.lid for port in found.nodes[node.guid].end_ports()) for node in topology.nodes.values()
        }
        self.graph = networkx.MultiGraph((cable.a.node, cable.b.node) for cable in topology.cables)
        self.waits = networkx.DiGraph()

    def way(self, source: str, target: str) -> list[End]:
        """The ports of departure from one node to another; fails if the tables lead nowhere or in a circle."""
        topology, lid = self.topology, self.lids[target]
        here = source
        ports: list[End] = []
        while here != target:
            node = topology.nodes[here]
            if node.kind == "host":
                assert here == source, f"{source} to {target}: a host in between"
                number = next(number for number, _, _ in topology.ends(node))
            else:
                number = self.bench.fabric.switches[here].lft[lid]
                assert number != NO_PORT, f"{source} to {target}: no way at {here}"
            out = End(here, number)
            peer = topology.peer(out)
            assert peer is not None, f"{source} to {target}: {out} has no cable"
            if ports:
                self.waits.add_edge(ports[-1], out)
            ports.append(out)
            assert len(ports) < 64, f"{source} to {target}: in a circle"
            here = peer.node
        return ports

    def all_from_hosts(self) -> dict[tuple[str, str], int]:
        """Hops from each host to each node."""
        names = list(self.topology.nodes)
        return {
            (host.name, target): len(self.way(host.name, target))
            for host in self.topology.hosts
            for target in names
            if target != host.name
        }

    @property
    def credit_loop(self) -> bool:
        """Can buffers of cables wait for each other in a circle?"""
        return not networkx.is_directed_acyclic_graph(self.waits)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_each_node_is_reached_and_up_and_down_has_no_credit_loop(name: str, engine: Engine) -> None:
    checker = Checker(TOPOLOGIES[name], engine)
    hops = checker.all_from_hosts()
    fewest = dict(networkx.all_pairs_shortest_path_length(checker.graph))
    if engine == "min-hop":
        assert all(count == fewest[source][target] for (source, target), count in hops.items())
    else:
        assert not checker.credit_loop
    # Beyond what is promised: switches reach each other for management.
    for one in checker.topology.switches:
        for other in checker.topology.switches:
            assert one is other or checker.way(one.name, other.name)


@pytest.mark.parametrize("name", ["ring", "torus"])
def test_the_checker_sees_the_credit_loops_of_min_hop(name: str) -> None:
    checker = Checker(TOPOLOGIES[name], "min-hop")
    checker.all_from_hosts()
    assert checker.credit_loop


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["two levels", "three levels"])
def test_trees_are_crossed_by_the_shortest_way_and_the_load_is_spread(name: str, engine: Engine) -> None:
    checker = Checker(TOPOLOGIES[name], engine)
    hops = checker.all_from_hosts()
    fewest = dict(networkx.all_pairs_shortest_path_length(checker.graph))
    hosts = {host.name for host in checker.topology.hosts}
    assert all(count == fewest[a][b] for (a, b), count in hops.items() if b in hosts)
    assert checker.bench.fabric.manager.tables.routes.engine == engine
    load: Counter[End] = Counter()
    for source in hosts:
        for target in hosts - {source}:
            load.update(end for end in checker.way(source, target) if end.node.startswith("leaf"))
    up = {
        End(leaf.name, number)
        for leaf in checker.topology.switches
        if leaf.name.startswith("leaf")
        for number, peer, _ in checker.topology.ends(leaf)
        if not peer.node.startswith("h")
    }
    busiest, idlest = max(load[end] for end in up), min(load[end] for end in up)
    assert idlest > 0
    assert busiest <= 1.5 * idlest


def test_in_a_fat_tree_all_hosts_can_send_to_others_at_once_each_by_cables_of_its_own() -> None:
    builder = Builder()
    # GUIDs in the order of the names: leaves are numbered by them, and hosts by leaves.
    for number, node in enumerate(TOPOLOGIES["three levels"].nodes.values(), 1):
        builder.add_node(NodeSpec(node.name, node.kind, node.ports, number << 8))
    for cable in TOPOLOGIES["three levels"].cables:
        builder.add_cable(cable)
    checker = Checker(builder.topology(), "fat-tree")
    hosts = [host.name for host in checker.topology.hosts]
    half = 3
    for shift in range(half, len(hosts), half):  # whole leaves: no way is the leaf's own business
        used: Counter[End] = Counter()
        for number, source in enumerate(hosts):
            used.update(checker.way(source, hosts[(number + shift) % len(hosts)]))
        assert max(used.values()) == 1, f"shift {shift}"


def test_what_is_no_fat_tree_gets_up_down() -> None:
    for name in ("ring", "tangle 0"):
        assert Checker(TOPOLOGIES[name], "fat-tree").bench.fabric.manager.tables.routes.engine == "up-down"


def test_routes_stay_for_others_when_a_host_goes() -> None:
    """Where packets for one host go does not depend on which other ones there are."""
    bench = TopologyBench(TOPOLOGIES["two levels"])
    bench.run()
    before = {name: bytes(switch.lft) for name, switch in bench.fabric.switches.items()}
    found = bench.fabric.manager.topology
    gone = bench.fabric.plant.topology.nodes["h7"]  # type: ignore[union-attr]
    lid = next(port.lid for port in found.nodes[gone.guid].end_ports())
    bench.fabric.link_down("h7/1")
    bench.pass_time(1)
    for name, switch in bench.fabric.switches.items():
        assert switch.lft[lid] == NO_PORT
        assert [one for one, (was, now) in enumerate(zip(before[name], switch.lft, strict=True)) if was != now] == [lid]
