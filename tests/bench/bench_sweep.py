"""How long the subnet manager takes for fat trees of simulated hosts: `python -m tests.bench.bench_sweep`.

Virtual time, so that nothing waits: what is printed is work. The last columns say how it grows: time for each node, and
for each datagram that was sent.
"""

import argparse
import resource
import time
from random import Random

from tests.unit.fabric.bench import Turns
from vhca.fabric import shapes
from vhca.fabric.fabric import Fabric
from vhca.sim.clock import VirtualClock
from vhca.subnet.engines import ENGINES

MIB_KIB = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--routing", choices=ENGINES, default=ENGINES[0])
    options = parser.parse_args()
    print("hosts  switches  cables  built s  swept s  us/node  datagrams  us each  again s  MiB")
    for hosts in options.hosts:
        topology = shapes.fat_tree(hosts)
        turns = Turns()
        start = time.perf_counter()
        fabric = Fabric(turns.call_soon, VirtualClock(1), topology=topology, routing=options.routing, random=Random(1))
        built = time.perf_counter()
        turns.run(1 << 40)
        swept = time.perf_counter()
        asked = fabric.manager.transactions.asked
        fabric.manager.sweep()
        turns.run(1 << 40)
        again = time.perf_counter()
        assert fabric.manager.settled
        took = swept - built
        print(
            f"{hosts:5}  {len(topology.switches):8}  {len(topology.cables):6}  {built - start:7.2f}  {took:7.2f}"
            f"  {took / len(topology.nodes) * 1e6:7.0f}  {asked:9}  {took / asked * 1e6:7.0f}  {again - swept:7.2f}"
            f"  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // MIB_KIB:3}",
            flush=True,
        )


if __name__ == "__main__":
    main()
