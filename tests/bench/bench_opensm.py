"""How long OpenSM takes to bring fat trees up, over our socket and over ibsim's: `python -m tests.bench.bench_opensm`.

Both on one file, in turns, several times; medians count. Time is that of `opensm -o`, from the first datagram to SUBNET
UP by its own log; behind it is the processor time of who answers, which somebody else's work on the host disturbs less.
ibsim has room for 2,048 hosts unless it is told otherwise, which it is here.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.fabric import netdiscover, shapes
from vhca.fabric.topology import Topology
from vhca.ibsim.counters import ToolCount
from vhca.lab import Cache, Progress
from vhca.lab.host_tools import HostTools, find_host_tools

_STAMP = re.compile(r"^(\w{3} \d\d \d\d:\d\d:\d\d \d{6}) .*(Entering DISCOVERING|SUBNET UP)", re.MULTILINE)


class Run(NamedTuple):
    """One sweep: seconds that passed, seconds of processor time of who answered, datagrams that OpenSM sent (ours)."""

    took: float
    busy: float
    sent: int = 0


def opensm(tools: HostTools, socket_name: str, node: str, folder: Path) -> float:
    """Run OpenSM once; gives the seconds of its sweep."""
    log = folder / "opensm.log"
    log.unlink(missing_ok=True)
    command = [str(tools.program("opensm")), "-o", "-e", "-f", str(log)]
    environment = {**os.environ, **tools.environment(socket_name, node, folder)}
    subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True, timeout=600)
    stamps = {what: datetime.strptime(at, "%b %d %H:%M:%S %f") for at, what in _STAMP.findall(log.read_text())}
    return (stamps["SUBNET UP"] - stamps["Entering DISCOVERING"]).total_seconds()


def over_ibsim(tools: HostTools, topology: Topology, folder: Path) -> Run:
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
            before = busy_of(simulator.pid)
            took = opensm(tools, name, topology.hosts[0].description, folder)
            return Run(took, busy_of(simulator.pid) - before)
        finally:
            simulator.kill()


def busy_of(process: int) -> float:
    """Seconds of processor time of another process, to a hundredth."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def over_ours(tools: HostTools, topology: Topology, folder: Path) -> Run:
    """OpenSM's sweep of a fabric of ours without another manager."""
    rack = Rack([], folder, RackConfig(logs=False, topology=topology, mkey=0))
    rack._subnet.manager.start = lambda: None  # type: ignore[method-assign]
    with rack:
        place = rack.open_tools()
        before = resource.getrusage(resource.RUSAGE_SELF)
        took = opensm(tools, place.socket_name, tools.attachment(place.guid, "opensm", []), folder)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert rack._tools is not None
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Run(took, busy, rack._tools.all_counters()[ToolCount.SENT])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    tools = find_host_tools(Cache(), Progress(sys.stderr))
    print("hosts  switches  datagrams  ours s  ibsim s  ours takes  busy: ours s  ibsim s  us each: ours  ibsim")
    for hosts in options.hosts:
        topology = shapes.fat_tree(hosts)
        ours: list[Run] = []
        theirs: list[Run] = []
        with tempfile.TemporaryDirectory() as name:
            for _ in range(options.times):
                ours.append(over_ours(tools, topology, Path(name)))
                theirs.append(over_ibsim(tools, topology, Path(name)))
        print(line(hosts, topology, ours, theirs), flush=True)


def line(hosts: int, topology: Topology, ours: list[Run], theirs: list[Run]) -> str:
    """Medians side by side."""

    def middle(runs: list[Run], what: Callable[[Run], float]) -> float:
        return median(map(what, runs))

    sent = ours[0].sent
    took = [middle(runs, lambda run: run.took) for runs in (ours, theirs)]
    busy = [middle(runs, lambda run: run.busy) for runs in (ours, theirs)]
    each = [seconds / sent * 1e6 for seconds in busy]
    return (
        f"{hosts:5}  {len(topology.switches):8}  {sent:9}  {took[0]:6.2f}  {took[1]:7.2f}  {took[0] / took[1]:9.2f}x"
        f"  {busy[0]:12.2f}  {busy[1]:7.2f}  {each[0]:13.1f}  {each[1]:5.1f}"
    )


if __name__ == "__main__":
    main()
