"""The tools of infiniband-diags on the fabric: what they show is there, what they order happens at both ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.guest.cards import assert_no_complaint, wait_for
from vhca.lab import Guest, Lab, RackConfig
from vhca.lab.perftest import DEVICE, wait_port_active

# no M_Key: these tools look at agents and give them orders as an administrator does
pytestmark = pytest.mark.vhca(guests=2, rack=RackConfig(mkey=0))

SWITCH = "0x0002c90000fab000"
# A datagram that nobody answers is waited for so long (ms): the test would not end in time.
PATIENCE = "-t 100000"
HEARD = re.compile(rb"event_type IBV_EVENT_(\w+) ")
# What the card tells its driver, by sub type of the port change event.
TOLD = re.compile(r" port +number=1 event=(\d+)")
TOLD_AS = {1: "Down ", 4: "Active ", 5: "Initialized ", 9: "Reregister "}
# Each fall begins with both, whatever interrupts it; the last one goes on to its end.
FALLS = re.compile("(Down Initialized (Reregister (Active )?)?)*Down Initialized Reregister Active ")


def run(guest: Guest, command: str) -> str:
    """Run a tool that must succeed; none of them waits for anybody who is silent."""
    return guest.run(command.split(), timeout_s=60, check=True).stdout


def fails(guest: Guest, command: str) -> str:
    """Run a tool that must be refused at once; gives its complaint."""
    done = guest.run(command.split(), timeout_s=60)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def field(text: str, name: str) -> str:
    """The first value of a field as the tools print them."""
    found = re.search(rf"^{name}:\.*(.*)$", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


def port_state(text: str) -> tuple[str, str]:
    """State and physical state of the first port in a tool's output."""
    return field(text, "LinkState"), field(text, "PhysLinkState")


@pytest.fixture
def tools(guest_pair: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    for guest in guest_pair:
        wait_port_active(guest)
    yield guest_pair
    for guest in guest_pair:
        wait_port_active(guest)
    assert_no_complaint(*guest_pair)


class Fall:
    """A port of a guest's card that falls and comes back while the context is open, as card and programs tell."""

    def __init__(self, lab: Lab, guest: Guest) -> None:
        self._card = lab.hcas[lab.guests.index(guest)]
        self._guest = guest

    def __enter__(self) -> None:
        self._watch = self._guest.popen(["ibv_asyncwatch", "-d", DEVICE])
        assert b"async event FD" in self._watch.stdout.read(30)
        self._before = self._card.trace_tail(1)

    def __exit__(self, failure: object, *_: object) -> None:
        wait_port_active(self._guest)
        self._guest.run(["usleep", "500000"])
        self._watch.terminate()
        self._watch.wait(30)
        heard = [name.decode() for name in HEARD.findall(self._watch.stdout.read_all())]
        trace = self._card.trace_tail(100_000)
        after = trace[trace.index(self._before[0]) + 1 :] if self._before[0] in trace else trace
        told = [int(number) for number in TOLD.findall("\n".join(after))]
        if failure is None:
            # More than once if the manager's sweep, which comes every 10 s, switched the port on before the tool did;
            # then the tool may take it down again before it is active.
            assert FALLS.fullmatch("".join(TOLD_AS[event] for event in told)), told
            # The kernel updates its cache before it tells of an event, each in a work of its own, and reads more for
            # CLIENT_REREGISTER (the GIDs) than for PORT_ACTIVE: programs may hear of them the other way round.
            assert heard[0] == "PORT_ERR"
            assert {"PORT_ACTIVE", "CLIENT_REREGISTER"} <= set(heard)


def test_the_fabric_as_the_tools_see_it(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, _ = tools
    mine, other = (lab.fabric.lid(name) for name in ("h0", "h1"))
    found = run(one, f"ibnetdiscover {PATIENCE}")
    assert found.count("4xEDR") == 4
    assert all(f'"{name}"' in found for name in ("vhca switch", "h0", "h1"))
    links = run(one, f"iblinkinfo {PATIENCE}")
    assert links.count("Active/  LinkUp") == 4
    assert run(one, f"saquery {PATIENCE}").count("NodeRecord dump") == 3
    assert f"lid.....................{other}" in run(one, f"saquery {PATIENCE} NR")
    managers = run(one, f"saquery {PATIENCE} -s").split("IsSMdisabled")[0]
    assert re.findall(r"EndPortLid\.*(\d+)", managers) == ["1"], "others find the manager by this"
    assert SWITCH[2:].lstrip("0") in run(one, f"sminfo {PATIENCE}")
    assert f"0x{mine:04X}"[2:] in run(one, f"ibroute {PATIENCE} 1").upper()


def test_routes_of_every_kind_reach_the_other_card(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, _ = tools
    other = lab.fabric.lid("h1")
    by_lid = run(one, f"smpquery {PATIENCE} nodeinfo {other}")
    guid = field(by_lid, "PortGuid")
    for route in ("-c nodeinfo 1 0,2", "-D nodeinfo 0,1,2"):
        assert field(run(one, f"smpquery {PATIENCE} {route}"), "PortGuid") == guid
    assert field(run(one, f"smpquery {PATIENCE} -c portinfo 1 0,2"), "Lid") == str(other)


def test_counters_of_the_switch(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, _ = tools
    other = lab.fabric.lid("h1")
    before = int(field(run(one, f"perfquery {PATIENCE} 1 2"), "PortXmitPkts"))
    for _ in range(3):
        run(one, f"smpquery {PATIENCE} nodedesc {other}")
    assert int(field(run(one, f"perfquery {PATIENCE} 1 2"), "PortXmitPkts")) >= before + 3
    total = run(one, f"perfquery {PATIENCE} -a 1")
    assert field(total, "PortSelect") == "255"
    assert int(field(total, "PortXmitPkts")) > before
    assert int(field(run(one, f"perfquery {PATIENCE} -x 1 2"), "PortUnicastXmitPkts")) > before
    run(one, f"perfquery {PATIENCE} -R 1 2")
    assert int(field(run(one, f"perfquery {PATIENCE} 1 2"), "PortXmitPkts")) < 5
    assert run(one, f"perfquery {PATIENCE} -l 1 1-36").count("# Port counters") == 36


# Options of perfquery, and a field that each prints.
COUNTERS = {
    "": "PortXmitPkts",
    "-x": "QP1Dropped",
    "-X": "XmtDataSL15",
    "-S": "RcvDataSL0",
    "-D": "PortNeighborMTUDiscards",
    "-E": "PortVLMappingErrors",
    "-T": "SyncHeaderErrorCounter",
    "-c": "SampleStatus",
    "--oprcvcounters": "PortOpRcvPkts",
    "--flowctlcounters": "PortXmitFlowPkts",
    "--vloppackets": "PortVLOpPackets0",
    "--vlopdata": "PortVLOpData15",
    "--vlxmitflowctlerrors": "PortVLXmitFlowCtlUpdateErrors0",
}
OF_SWITCHES = ("--vloppackets", "--vlopdata")


def test_counters_of_every_kind(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, _ = tools
    other = lab.fabric.lid("h1")
    for lid, port in ((1, 2), (other, 1)):
        for option, name in COUNTERS.items():
            if lid == 1 or option not in OF_SWITCHES:
                assert field(run(one, f"perfquery {PATIENCE} {option} {lid} {port}"), name).isdigit()
    sent = int(field(run(one, f"perfquery {PATIENCE} -X 1 2"), "XmtDataSL0"))
    assert 0 < sent <= int(field(run(one, f"perfquery {PATIENCE} -x 1 2"), "PortXmitData"))
    run(one, f"perfquery {PATIENCE} -E -R 1 2")


def test_devices_tell_what_they_are(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, _ = tools
    for lid, device in ((1, "0xcb20"), (lab.fabric.lid("h1"), "0x101b")):
        shown = run(one, f"vendstat {PATIENCE} -N {lid}")
        assert re.search(rf"hw_dev_id: +{device}$", shown, re.MULTILINE)
        assert re.search(r"fw_psid: +'vhca'$", shown, re.MULTILINE)


def test_tables_of_every_kind(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, _ = tools
    other = lab.fabric.lid("h1")
    switch = run(one, f"smpquery {PATIENCE} switchinfo 1")
    assert [field(switch, name) for name in ("PartEnforceCap", "InboundPartEnf", "OutboundPartEnf")] == ["32", "1", "1"]
    assert run(one, f"smpquery {PATIENCE} pkeys 1 2").count("0xffff") == 1
    assert "128 pkeys capacity for this port" in run(one, f"smpquery {PATIENCE} pkeys {other}")
    assert "8 guids capacity for this port" in run(one, f"smpquery {PATIENCE} guidinfo {other}")
    for what in ("sl2vl", "vlarb", "portinfo", "mlnxextportinfo"):
        assert run(one, f"smpquery {PATIENCE} {what} {other} 1")
        assert run(one, f"smpquery {PATIENCE} {what} 1 2")


def test_errors_of_the_whole_fabric_are_read_without_a_time_out(tools: tuple[Guest, Guest]) -> None:
    one, _ = tools
    # Links that went down are errors to it, and the number of ports that have some is its exit code.
    one.run(f"ibqueryerrors {PATIENCE} -k -K".split(), timeout_s=60)
    report = run(one, f"ibqueryerrors {PATIENCE}")
    assert "3 nodes checked, 0 bad nodes found" in report
    assert "38 ports checked, 0 ports" in report
    assert "PMA query failures" not in report
    assert 'Data Counters for 0x2c90000fab000 "vhca switch"' in run(one, f"ibqueryerrors {PATIENCE} --counters")


@pytest.mark.parametrize("node", ["the switch", "the other card", "the own card"])
def test_what_a_node_lacks_is_refused_at_once(lab: Lab, tools: tuple[Guest, Guest], node: str) -> None:
    one, _ = tools
    lid = {"the switch": 1, "the other card": lab.fabric.lid("h1"), "the own card": lab.fabric.lid("h0")}[node]
    assert "cannot query PortRcvConCtrl" in fails(one, f"perfquery {PATIENCE} --rcvcc {lid} 1")
    assert "congestion info query failed" in fails(one, f"ibccquery {PATIENCE} CongestionInfo {lid}")
    assert "Unsupported device ID" in fails(one, f"vendstat {PATIENCE} -w {lid}")


def test_port_states_are_shown_with_the_peers(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, _ = tools
    text = run(one, f"ibportstate {PATIENCE} 1 2")
    near, far = text.split("Peer PortInfo:")
    for end in (near, far):
        assert port_state(end) == ("Active", "LinkUp")
        assert field(end, "LinkSpeedExtActive") == "25.78125 Gbps"
        assert end.count("# MLNX ext Port info") == 1
    assert field(far, "Lid") == str(lab.fabric.lid("h1"))
    for own in ("-D 0 1", f"{lab.fabric.lid('h0')} 1"):
        assert port_state(run(one, f"ibportstate {PATIENCE} {own}")) == ("Active", "LinkUp")


def test_a_switch_port_is_disabled_and_enabled(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, two = tools
    with Fall(lab, two):
        after = run(one, f"ibportstate {PATIENCE} 1 2 disable").split("After PortInfo set:")[1]
        assert port_state(after) == ("Down", "Disabled")
        wait_for(lambda: lab.fabric.lid("h1") == 0)
        assert port_state(run(one, f"ibportstate {PATIENCE} 1 2")) == ("Down", "Disabled")
        assert "State: Down" in run(two, "ibstat")
        assert "Physical state: Polling" in run(two, "ibstat")
        assert '"h1"' not in run(one, f"ibnetdiscover {PATIENCE}")
        run(one, f"ibportstate {PATIENCE} 1 2 enable")
        wait_for(lambda: lab.fabric.active("h1"))


@pytest.mark.parametrize("which", ["switch port", "other card", "own card"])
def test_a_reset_is_heard_by_programs_and_the_port_comes_back(lab: Lab, tools: tuple[Guest, Guest], which: str) -> None:
    one, two = tools
    target = {"switch port": "1 2", "other card": f"{lab.fabric.lid('h1')} 1", "own card": "-D 0 1"}[which]
    downs = lab.fabric.counters()["h1.link_downed"]
    with Fall(lab, two):
        after = run(two if which == "own card" else one, f"ibportstate {PATIENCE} {target} reset")
        assert "After PortInfo set:" in after
        wait_for(lambda: lab.fabric.counters()["h1.link_downed"] > downs)
        wait_for(lambda: lab.fabric.active("h1"))


def test_who_disables_its_own_port_is_back_after_a_reset_of_the_machine(lab: Lab, tools: tuple[Guest, Guest]) -> None:
    one, two = tools
    after = run(two, f"ibportstate {PATIENCE} -D 0 1 disable").split("After PortInfo set:")[1]
    assert port_state(after) == ("Down", "Disabled")
    wait_for(lambda: lab.fabric.lid("h1") == 0)
    assert port_state(run(one, f"ibportstate {PATIENCE} 1 2")) == ("Down", "Polling")
    assert "Physical state: Disabled" in run(two, "ibstat")
    assert '"h1"' not in run(one, f"ibnetdiscover {PATIENCE}")
    two.reset()
    wait_port_active(two, timeout_s=60)
    assert lab.fabric.active("h0", "h1")
