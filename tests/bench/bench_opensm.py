"""How long OpenSM takes to bring fat trees up, over our socket and over ibsim's: `python -m tests.bench.bench_opensm`.

Both on one file, one after the other, several times; the least of each counts, since somebody else's work on the host
only adds. Time is that of `opensm -o`, from the first datagram to SUBNET UP by its own log. ibsim has room for 2,048
hosts unless it is told otherwise, which it is here.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.fabric import netdiscover, shapes
from vhca.fabric.topology import Topology
from vhca.ibsim.counters import ToolCount
from vhca.lab import Cache, Progress
from vhca.lab.host_tools import HostTools, find_host_tools

_STAMP = re.compile(r"^(\w{3} \d\d \d\d:\d\d:\d\d \d{6}) .*(Entering DISCOVERING|SUBNET UP)", re.MULTILINE)


def opensm(tools: HostTools, socket_name: str, node: str, folder: Path) -> float:
    """Run OpenSM once; gives the seconds of its sweep."""
    log = folder / "opensm.log"
    command = [str(tools.program("opensm")), "-o", "-e", "-f", str(log)]
    environment = {**os.environ, **tools.environment(socket_name, node, folder)}
    subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True, timeout=600)
    stamps = {what: datetime.strptime(at, "%b %d %H:%M:%S %f") for at, what in _STAMP.findall(log.read_text())}
    return (stamps["SUBNET UP"] - stamps["Entering DISCOVERING"]).total_seconds()


def over_ibsim(tools: HostTools, topology: Topology, folder: Path) -> float:
    """OpenSM's sweep of a fabric that ibsim has just read."""
    (folder / "net").write_text(netdiscover.write(topology))
    name = f"vhca-bench-{os.getpid()}"
    ports = sum(node.ports + 1 for node in topology.nodes.values())
    room = ("-N", str(len(topology.nodes) + 1), "-S", str(len(topology.switches) + 1), "-P", str(2 * ports))
    command = [str(tools.program("ibsim")), "-s", "-n", *room, "net"]
    environment = {**os.environ, "IBSIM_SOCKNAME": name}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as simulator:
        try:
            while f"@{name}:ctl" not in Path("/proc/net/unix").read_text():
                time.sleep(0.05)
            return opensm(tools, name, topology.hosts[0].description, folder)
        finally:
            simulator.kill()


def over_ours(tools: HostTools, topology: Topology, folder: Path) -> tuple[float, int]:
    """OpenSM's sweep of a fabric of ours without another manager, and the datagrams that it sent."""
    rack = Rack([], folder, RackConfig(logs=False, topology=topology, mkey=0))
    rack._subnet.manager.start = lambda: None  # type: ignore[method-assign]
    with rack:
        place = rack.open_tools()
        took = opensm(tools, place.socket_name, tools.attachment(place.guid, "opensm", []), folder)
        assert rack._tools is not None
        return took, rack._tools.all_counters()[ToolCount.SENT]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    tools = find_host_tools(Cache(), Progress(sys.stderr))
    print("hosts  switches  datagrams  ours s  us each  ibsim s  ours takes")
    for hosts in options.hosts:
        topology = shapes.fat_tree(hosts)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            times = range(options.times)
            runs = [(*over_ours(tools, topology, folder), over_ibsim(tools, topology, folder)) for _ in times]
        ours, theirs, sent = min(run[0] for run in runs), min(run[2] for run in runs), runs[0][1]
        print(
            f"{hosts:5}  {len(topology.switches):8}  {sent:9}  {ours:6.2f}  {ours / sent * 1e6:7.1f}  {theirs:7.2f}"
            f"  {ours / theirs:9.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
