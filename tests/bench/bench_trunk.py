"""What a trunk costs: two guests on one rack and on two, and a sweep of one fabric in one rack and in two.

`python -m tests.bench.bench_trunk`. Racks are processes of this host, so trunks go over its loopback; each figure
stands beside that of one rack in the same run.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.support.racks import Part, ServedRacks, factory
from vhca.chip.rack import Rack
from vhca.chip.rack_config import CardConfig, RackConfig
from vhca.fabric import shapes
from vhca.fabric.topology import Builder, Cable, End, NodeSpec, Topology
from vhca.lab import Lab
from vhca.lab.perftest import Exchange, perftest, perftest_values, run_exchange, wait_port_active
from vhca.trunk.keys import load
from vhca.trunk.rack_file import RackShare, load_rack_file

TRUNKS = 8
PAIR = shapes.torus((2,), 2)
LOADS = (
    ("ib_write_bw, 64 KiB, MB/s", perftest("ib_write_bw", 65536, 2000), "BW average", 3, 1.048576),
    ("ib_read_bw, 64 KiB, MB/s", perftest("ib_read_bw", 65536, 2000), "BW average", 3, 1.048576),
    ("ib_write_bw, 8 B, messages/s", perftest("ib_write_bw", 8, 20000), "BW average", 4, 1e6),
    ("ib_write_lat, 8 B, us", perftest("ib_write_lat", 8, 500), "t_typical", 4, 1.0),
)


def guests(parts: list[Part]) -> list[float]:
    """The figures of two guests whose cards are in these parts of the fabric."""
    found = []
    with Lab(2, card=CardConfig(), rack_factory=factory(PAIR, parts)) as lab:
        server, client = lab.guests
        for guest in (server, client):
            wait_port_active(guest)
        for number, (_, load_, heading, column, factor) in enumerate(LOADS):
            found.append(measured(lab, load_, heading, column, 21000 + number) * factor)
    return found


def measured(lab: Lab, exchange: Exchange, heading: str, column: int, port: int) -> float:
    """One figure of a program of perftest."""
    ends = run_exchange(lab.guests[0], lab.guests[1], exchange, port, timeout_s=120)
    assert [end.returncode for end in ends] == [0, 0], ends
    return float(perftest_values(ends[1].stdout, heading)[column])


def compare_guests() -> None:
    """Print each figure on one rack, on two, and their ratio."""
    one = guests([Part("A", ["s1", "s2"], ["h0", "h1"])])
    two = guests([Part("A", ["s1"], ["h0"]), Part("B", ["s2"], ["h1"])])
    print(f"{'':32}{'one rack':>12}{'two racks':>12}{'ratio':>8}")
    for (name, *_), alone, apart in zip(LOADS, one, two, strict=True):
        print(f"{name:32}{alone:12.1f}{apart:12.1f}{apart / alone:8.2f}")


def sweep(topology: Topology, local: list[str], elsewhere: list[str]) -> tuple[float, float, int]:
    """Seconds and processor seconds of the manager's rack until all is found and set up; KiB of memory that it has."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [Part("A", local)] + ([Part("B", elsewhere)] if elsewhere else [])
        racks = ServedRacks(topology, parts, Path(folder) / "racks")
        try:
            if elsewhere:
                racks.start_rack("B")
            share = RackShare(load_rack_file(racks.folder / "racks.toml"), "A", load(racks.folder / "A.keys"))
            (own := racks.folder / "A").mkdir()
            rack = Rack(0, own, RackConfig(share=share, logs=False))
            before_s, cpu_s = time.monotonic(), time.process_time()
            rack.start()
            manager = rack._subnet.manager
            while not rack.loop.call(
                lambda: manager.settled and len(manager.topology.nodes) == len(topology.nodes), 120
            ):
                time.sleep(0.1)
            took_s, cpu_s = time.monotonic() - before_s, time.process_time() - cpu_s
            rack.stop()
        finally:
            racks.stop()
    return took_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def joined(hosts: int, trunks: int) -> tuple[Topology, list[str], list[str]]:
    """Two fat trees with half of the hosts each, cables between their upper switches, and both's switches by name."""
    builder = Builder()
    names: list[list[str]] = []
    free: list[list[End]] = []
    for side in "ab":
        tree = shapes.fat_tree(hosts // 2)
        names.append([f"{side}-{node.name}" for node in tree.switches])
        for node in tree.nodes.values():
            builder.add_node(NodeSpec(f"{side}-{node.name}", node.kind, node.ports))
        for cable in tree.cables:
            ends = [End(f"{side}-{end.node}", end.port) for end in (cable.a, cable.b)]
            builder.add_cable(Cable(ends[0], ends[1]))
        free.append(
            [
                End(f"{side}-{node.name}", number)
                for node in reversed(tree.switches)
                for number in range(1, node.ports + 1)
                if End(node.name, number) not in tree.plugged
            ]
        )
    for one, other in list(zip(*free, strict=False))[:trunks]:
        builder.add_cable(Cable(one, other))
    return builder.topology(), names[0], names[1]


def compare_sweeps(hosts: int) -> None:
    """Print how long a fabric takes in one rack, and with half of it in another one."""
    topology, here, there = joined(hosts, TRUNKS)
    nodes = len(topology.nodes)
    print(f"\ntwo fat trees, {hosts} hosts, {nodes} nodes, {TRUNKS} cables between: in one rack, and a tree in each")
    print(f"{'':12}{'seconds':>10}{'processor':>12}{'ratio':>8}{'us/node':>10}{'MiB':>8}")
    alone = None
    for name, local, elsewhere in (("one rack", here + there, []), ("two racks", here, there)):
        with ProcessPoolExecutor(1) as pool:  # each in a process of its own, for its memory
            took_s, cpu_s, kib = pool.submit(sweep, topology, local, elsewhere).result()
        alone = alone or took_s
        print(
            f"{name:12}{took_s:10.2f}{cpu_s:12.2f}{took_s / alone:8.2f}{took_s / nodes * 1e6:10.0f}{kib / 1024:8.0f}",
            flush=True,
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="*", default=[5000], help="of the swept fabrics (5000)")
    parser.add_argument("--no-guests", action="store_true", help="sweeps only")
    options = parser.parse_args()
    if not options.no_guests:
        compare_guests()
    for hosts in options.hosts:
        compare_sweeps(hosts)


if __name__ == "__main__":
    main()
