"""Debian's InfiniBand tools on the host, under libumad2sim, on a fabric of ours: each ends well, none waits in vain.

No guest is booted here; but packages are fetched.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx
import pytest

from vhca.chip.orders import ToolPlace
from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.cli.main import main
from vhca.fabric import netdiscover, shapes
from vhca.fabric.topology import Topology
from vhca.ibsim.counters import ToolCount
from vhca.lab import Cache, LabError, Progress
from vhca.lab.host_tools import HostTools, find_host_tools, remove_left_sysfs, whole_datagrams
from vhca.management.link_speed import LinkSpeed

TREE = shapes.fat_tree(16, radix=8, levels=2)
HOSTS, SWITCHES = len(TREE.hosts), len(TREE.switches)


@pytest.fixture(scope="module")
def tools() -> HostTools:
    try:
        return find_host_tools(Cache(), Progress(sys.stderr, quiet=True))
    except LabError as error:
        pytest.skip(f"the tools cannot be had here: {error}")


def settle(rack: Rack, node: str = "") -> ToolPlace:
    """Where tools attach, once the fabric is up."""
    deadline_s = time.monotonic() + 60
    while not ((place := rack.open_tools(node)).active and rack.loop.call(lambda: rack._subnet.manager.settled)):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return place


@dataclass
class Desk:
    """A rack whose fabric is up, the tools, and a folder for both."""

    rack: Rack
    tools: HostTools
    folder: Path
    place: ToolPlace

    def environment(self, name: str, arguments: list[str]) -> dict[str, str]:
        words = self.tools.attachment(self.place.guid, name, arguments)
        return {**os.environ, **self.tools.environment(self.place.socket_name, words, self.folder)}

    def start(self, line: str) -> subprocess.Popen[str]:
        name, *arguments = line.split()
        return subprocess.Popen(
            [self.tools.program(name), *arguments],
            env=self.environment(name, arguments),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, line: str) -> tuple[int, str]:
        process = self.start(line)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    def unanswered(self) -> int:
        tools = self.rack._tools
        assert tools is not None
        return self.rack.loop.call(lambda: tools.all_counters()[ToolCount.UNANSWERED])


@pytest.fixture(scope="module")
def desk(tools: HostTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("tools")
    with Rack([], folder, RackConfig(logs=False, topology=TREE)) as rack:
        desk = Desk(rack, tools, folder, settle(rack, "h3"))
        assert desk.run("ibnetdiscover --cache topology")[0] == 0
        yield desk


LINES = {
    "ibstat": (0, "Physical state: LinkUp"),
    "ibstat -p": (0, "0x0002c9"),
    "ibstatus": (0, "state:\t\t 4: ACTIVE"),
    "ibaddr": (0, "GID fe80::"),
    "ibnetdiscover": (0, "Switch\t8"),
    "ibnetdiscover -p": (0, "4x EDR"),
    "ibcacheedit topology edited": (0, ""),
    "iblinkinfo": (0, "Active/  LinkUp"),
    "iblinkinfo --load-cache topology -l": (0, "25.78125 Gbps"),
    "ibhosts": (0, '"h15"'),
    "ibswitches": (0, "Switch"),
    "ibnodes": (0, "Ca\t:"),
    "ibrouters": (0, ""),
    "sminfo": (0, "SMINFO_MASTER"),
    "smpquery nodeinfo 1": (0, "NodeType:........................Switch"),
    "smpquery nodedesc 1": (0, "leaf1"),
    "smpquery portinfo 1 1": (0, "Active"),
    "smpquery switchinfo 1": (0, "LinearFdbCap"),
    "smpquery pkeys 2": (0, "0xffff"),
    "smpquery guidinfo 2": (0, "0x"),
    "smpquery sl2vl 1 1": (0, "SL2VL table"),
    "smpquery vlarb 1 1": (0, "VL Arbitration"),
    "smpquery mlnxextportinfo 1 1": (0, "StateChangeEnable"),
    "smpquery -D nodeinfo 0,1": (0, "Switch"),
    "smpquery -c nodeinfo 1 0,2": (0, "NodeType"),
    "smpdump 1 0x11": (0, "0101 02"),
    "smpdump -D 0,1 0x10": (0, ""),
    "ibtracert 2 9": (0, "From ca"),
    "ibroute 1": (0, "Unicast lids"),
    "ibroute -M 1": (0, "Multicast mlids"),
    "dump_fts": (0, "Unicast lids"),
    "dump_lfts": (0, "this command has been replaced"),
    "dump_mfts": (0, "Multicast mlids"),
    "perfquery": (0, "PortXmitPkts"),
    "perfquery -a 1": (0, "port 255"),
    "perfquery -x 1 1": (0, "PortXmitData"),
    "perfquery -r 1 1": (0, "PortXmitPkts"),
    "ibqueryerrors": (0, f"{HOSTS + SWITCHES} nodes checked, 0 bad nodes found"),
    "ibqueryerrors -c --details": (0, "0 bad nodes found"),
    "ibportstate 1 1 query": (0, "PhysLinkState:...................LinkUp"),
    "ibportstate 9 1 query": (0, "LinkUp"),
    "ibidsverify -R": (0, ""),
    "ibfindnodesusing -R leaf2 1": (1, "not found"),
    "saquery -c": (0, "SA ClassPortInfo"),
    "saquery --src-to-dst 2:9": (0, "PathRecord"),
    "saquery -m": (0, "MCMemberRecord"),
    "saquery SMIR": (0, "SMInfoRecord"),
    "saquery": (0, "NodeRecord"),
    "osmtest -f c": (0, "OSMTEST"),
    # It frees nodes that it has just put into its list, and reads them afterwards: so with ibsim, too.
    "ibtracert -m 0xc000 2 9": (-signal.SIGSEGV, ""),
}
"""Exit status, and what is printed among other things."""

WITHOUT_IT = [
    *(f"perfquery {option} 1 1" for option in ("-X", "-S", "-D", "-E", "-T", "-c", "--vlxmitflowctlerr")),
    *("vendstat 1", "vendstat -N 1", "ibccquery CongestionInfo 1", "ibccquery CongestionKeyInfo 1"),
    "ibccconfig SwitchCongestionSetting 1 0 0 0 0 0 0 0 0",
]
"""About what a node may lack: then it says so by a status, which these tools make 255 of; nobody waits."""


@pytest.mark.parametrize("line", LINES)
def test_a_tool_ends_as_it_should(desk: Desk, line: str) -> None:
    before = desk.unanswered()
    status, text = LINES[line]
    assert (code_and_text := desk.run(line))[0] == status, code_and_text[1]
    assert text in code_and_text[1]
    assert desk.unanswered() == before


def test_osmtests_flows_pass(desk: Desk) -> None:
    """Inventory, services, multicast: 15 s, most of which it waits."""
    assert desk.run("osmtest -f c")[0] == 0
    before = desk.unanswered()
    status, out = desk.run("osmtest -f a")
    assert (status, 'TEST "All Validations" PASS' in out) == (0, True), out[-2000:]
    assert desk.unanswered() == before + 1, "a wrong SM_Key is ignored"


@pytest.mark.parametrize("line", WITHOUT_IT)
def test_who_asks_for_what_is_not_there_is_told_so(desk: Desk, line: str) -> None:
    before = desk.unanswered()
    assert desk.run(line)[0] in (0, 255)
    assert desk.unanswered() == before


@pytest.mark.parametrize(
    ("server", "client", "text"),
    [
        ("ibping -S", "ibping -c 3 -f {lid}", "3 packets transmitted, 3 received, 0% packet loss"),
        ("ibsysstat -S", "ibsysstat {lid} host", os.uname().nodename),
        ("ibsysstat -S", "ibsysstat {lid} ping", "sysstat ping succeeded"),
    ],
)
def test_programs_answer_others_of_their_kind(desk: Desk, server: str, client: str, text: str) -> None:
    """From another node, and from the same one."""
    far = Desk(desk.rack, desk.tools, desk.folder, settle(desk.rack, "h12"))
    lid = desk.rack.loop.call(lambda: desk.rack._subnet.tool_node("h3").port_info(0).lid)
    process = desk.start(server)
    try:
        wait_attached(desk, process)
        for each in (far, desk):
            status, out = each.run(client.format(lid=lid))
            assert (status, text in out) == (0, True), out
    finally:
        process.terminate()
        process.communicate(timeout=60)
        remove_left_sysfs(desk.folder)


def wait_attached(desk: Desk, process: subprocess.Popen[str]) -> None:
    tree = desk.folder / f"sys-{process.pid}" / "sys/class/infiniband/ibsim0/ports/1/pkeys/31"
    deadline_s = time.monotonic() + 10
    while not tree.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_tool_pulls_and_plugs_a_link(desk: Desk) -> None:
    """Of another host: its own would take the tool off the fabric."""
    lid, number = 1, 2
    for what, state in (("disable", "Disabled"), ("enable", "LinkUp"), ("reset", "LinkUp")):
        status, out = desk.run(f"ibportstate {lid} {number} {what}")
        assert status == 0, out
        deadline_s = time.monotonic() + 20
        while f"PhysLinkState:...................{state}" not in desk.run(f"ibportstate {lid} {number} query")[1]:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    settle(desk.rack)


def test_tables_are_balanced(desk: Desk) -> None:
    (desk.folder / "lfts").write_text(desk.run("dump_lfts")[1])
    status, out = desk.run("check_lft_balance -l lfts -i topology")
    assert status == 0, out


def test_long_answers_are_whole(desk: Desk) -> None:
    """Of several segments, and with the bytes that the library loses; without a compiler there is what it gives."""
    whole = whole_datagrams() is not None
    assert desk.run("saquery")[1].count("NodeRecord dump") == (HOSTS + SWITCHES if whole else 1)
    assert ("QP1Dropped" in desk.run("perfquery -x 1 1")[1]) == whole
    if whole:
        status, out = desk.run("osmtest -f c")
        assert (status, "PASS" in out) == (0, True)
        inventory = (desk.folder / "osmtest.dat").read_text()
        assert inventory.count("DEFINE_NODE") == HOSTS + SWITCHES


def test_nothing_is_left_in_the_folder(desk: Desk) -> None:
    assert not list(desk.folder.glob("sys-*"))


# ---- by the command line ----


@pytest.fixture
def tree_file(tmp_path: Path, tools: HostTools, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tree.topology"
    path.write_text(netdiscover.write(TREE))
    monkeypatch.chdir(tmp_path)
    return path


def test_exec_runs_a_tool_on_a_described_fabric(tree_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "exec", "--topology", str(tree_file), "--", "ibhosts"]) == 0
    assert len(re.findall(r"^Ca\t:", capfd.readouterr().out, re.M)) == HOSTS
    words = ["--topology", str(tree_file), "--at", "h7", "--", "smpquery", "nodeinfo", "99"]
    assert main(["fabric", "exec", *words]) == 255
    assert list(tree_file.parent.iterdir()) == [tree_file]


def test_exec_runs_a_tool_on_a_running_fabric(desk: Desk, tree_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rack = ["--rack", str(desk.rack.directory)]
    assert main(["fabric", "exec", *rack, "--at", "h9", "--", "ibnetdiscover"]) == 0
    assert netdiscover.read(capfd.readouterr().out).links() == TREE.links()
    for words, text in (
        (["--at", "nobody", "--", "ibstat"], "there is no simulated host nobody"),
        (["--", "ibnonsense"], "the packages have no ibnonsense"),
        ([], "no tool"),
        (["--topology", str(tree_file), "--", "ibstat"], "--rack names a fabric that is running"),
    ):
        assert main(["fabric", "exec", *rack, *words]) == 125
        assert text in capfd.readouterr().err


# ---- against the simulator itself ----


def graph(printed: str) -> networkx.Graph:
    """What ibnetdiscover printed: nodes are (node GUID, port), an edge is a cable with its speed."""
    found = networkx.Graph()
    for ends, speed in netdiscover.read(printed).links():
        found.add_edge(*ends, speed=str(speed))
    return found


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param(TREE, id="fat tree"),
        pytest.param(shapes.torus((3, 3), 9), id="torus"),
        pytest.param(shapes.ring(5, 7, link=LinkSpeed(4, "HDR")), id="ring"),
    ],
)
def test_the_simulator_and_we_show_a_tool_the_same_graph(topology: Topology, tools: HostTools, tmp_path: Path) -> None:
    """What ibnetdiscover prints on our fabric, and under ibsim on the same file."""
    (tmp_path / "net").write_text(netdiscover.write(topology))
    name = f"vhca-test-{os.getpid()}"
    command = [str(tools.program("ibsim")), "-s", "-n", "net"]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "IBSIM_SOCKNAME": name}) as simulator:
        try:
            wait_for_name(f"@{name}:ctl")
            environment = {**os.environ, **tools.environment(name, topology.hosts[0].description, tmp_path)}
            program = tools.program("ibnetdiscover")
            done = subprocess.run([program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        finally:
            simulator.kill()
    assert done.returncode == 0, done.stderr
    with Rack([], tmp_path, RackConfig(logs=False, topology=topology)) as rack:
        status, ours = Desk(rack, tools, tmp_path, settle(rack)).run("ibnetdiscover")
    assert status == 0, ours
    assert networkx.utils.graphs_equal(graph(ours), graph(done.stdout))
    assert graph(ours).number_of_edges() == len(topology.cables)


def wait_for_name(name: str) -> None:
    deadline_s = time.monotonic() + 20
    while name not in Path("/proc/net/unix").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# ---- OpenSM on the host as the manager ----


def test_opensm_stands_by_where_nobody_else_may_be_master(desk: Desk) -> None:
    before = desk.run("sminfo")[1].split("activity")[0]
    manager = desk.start("opensm -p 15 -f opensm.log -d 2")
    log = desk.folder / "opensm.log"
    try:
        wait_until(lambda: log.exists() and "Entering STANDBY" in log.read_text())
        assert desk.run("sminfo")[1].split("activity")[0] == before
    finally:
        manager.terminate()
        manager.communicate(timeout=60)
        remove_left_sysfs(desk.folder)
    assert "SUBNET UP" not in log.read_text()


@pytest.fixture
def open_fabric(tools: HostTools, tmp_path: Path) -> Iterator[Desk]:
    """A fabric on which others may be managers, too."""
    with Rack([], tmp_path, RackConfig(logs=False, topology=TREE, mkey=0, heirs="any")) as rack:
        yield Desk(rack, tools, tmp_path, settle(rack, "h3"))


def test_opensm_takes_over_and_gives_back(open_fabric: Desk) -> None:
    other = Desk(open_fabric.rack, open_fabric.tools, open_fabric.folder, settle(open_fabric.rack, "h9"))
    lid = open_fabric.rack.loop.call(lambda: open_fabric.rack._subnet.tool_node("h3").port_info(0).lid)
    manager = open_fabric.start("opensm -p 14 -f opensm.log -d 2")
    log = open_fabric.folder / "opensm.log"
    try:
        wait_until(lambda: log.exists() and "SUBNET UP" in log.read_text())
        wait_until(lambda: f"sm lid {lid} " in other.run("sminfo")[1])
        assert "SMINFO_MASTER" in other.run("sminfo")[1]
        if whole_datagrams() is not None:
            assert other.run("saquery")[1].count("NodeRecord dump") == HOSTS + SWITCHES
        for line in ("saquery -c", "saquery --src-to-dst 2:9", "ibtracert 2 9", "ibnetdiscover"):
            status, out = other.run(line)
            assert status == 0, out
    finally:
        manager.terminate()
        manager.communicate(timeout=60)
    wait_until(lambda: f"sm lid {lid} " not in other.run("sminfo")[1] and "MASTER" in other.run("sminfo")[1])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
