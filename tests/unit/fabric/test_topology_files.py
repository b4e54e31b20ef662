"""Topologies in files and from generators: both formats tell the same, and what is wrong is said with its line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vhca.fabric import netdiscover, shapes, topology_toml
from vhca.fabric.line import LineConfig
from vhca.fabric.topology import Builder, Cable, End, NodeSpec, Topology, TopologyError, usual_make
from vhca.fabric.topology_files import MAX_FILE_BYTES, load
from vhca.management.link_speed import SPEEDS, WIDTHS, LinkSpeed, rate_of, slower
from vhca.wire.smp import PortInfo

names = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"'), min_size=1, max_size=64)
# XDR on more than four lanes is faster than any rate that has a code.
LINKS = [LinkSpeed(width, speed) for width in WIDTHS for speed in SPEEDS if speed != "XDR" or width <= 4]
links = st.sampled_from(LINKS)


@st.composite
def topologies(draw: st.DrawFn, described: bool = False) -> Topology:
    """Any fabric of some nodes and cables; with `described`, some do not say their names."""
    called = draw(st.lists(names.map(str.strip).filter(bool), min_size=2, max_size=8, unique=True))
    switches = draw(st.integers(1, len(called)))
    builder = Builder()
    free = []
    for number, name in enumerate(called):
        kind = "switch" if number < switches else "host"
        ports = draw(st.integers(1, 6))
        guid = draw(st.none() | st.integers(number << 32 | 1 << 8, (number << 32) + (1 << 31)))
        description = draw(names.map(str.strip).filter(bool)) if described and draw(st.booleans()) else None
        made = [draw(st.none() | st.integers(0, (1 << bits) - 1)) for bits in (24, 16, 64)]
        builder.add_node(NodeSpec(name, kind, ports, guid, None, description, *made))  # type: ignore[arg-type]
        free += [(End(name, port), kind) for port in range(1, ports + 1)]
    free = draw(st.permutations(free))
    while len(free) > 1 and draw(st.integers(0, 9)):
        (one, kind), (other, other_kind) = free.pop(), free.pop()
        if "switch" in (kind, other_kind):
            builder.add_cable(Cable(one, other, draw(links)))
    return builder.topology()


@given(topologies(described=True))
def test_toml_tells_all_of_a_topology(topology: Topology) -> None:
    assert topology_toml.read(topology_toml.write(topology)) == topology


@given(topologies())
def test_the_output_of_ibnetdiscover_tells_all_of_a_topology_without_descriptions(topology: Topology) -> None:
    assert netdiscover.read(netdiscover.write(topology)) == topology


@given(topologies(described=True))
def test_the_output_of_ibnetdiscover_tells_the_graph_of_any_topology(topology: Topology) -> None:
    again = netdiscover.read(netdiscover.write(topology))
    assert again.links() == topology.links()
    assert [node.description for node in again.nodes.values()] == [node.description for node in topology.nodes.values()]
    assert netdiscover.read(netdiscover.write(again)) == again


@settings(max_examples=300)
@given(st.text(max_size=400) | st.text('[]"=-# SHCawitch0123456789\n', max_size=400), st.booleans())
def test_any_text_is_a_topology_or_an_error_that_says_why(text: str, toml: bool) -> None:
    try:
        found = topology_toml.read(text) if toml else netdiscover.read(text)
    except TopologyError:
        return
    assert found.switches


TOML = """\
speed = "HDR"

[[switch]]
name = "leaf"
ports = 4

[[host]]
name = "n1"

[[cable]]
ends = ["leaf/1", "n1/1"]
"""


def test_defaults_of_toml() -> None:
    topology = topology_toml.read(TOML)
    assert [(node.name, node.kind, node.ports) for node in topology.nodes.values()] == [
        ("leaf", "switch", 4),
        ("n1", "host", 1),
    ]
    assert topology.cables == (Cable(End("leaf", 1), End("n1", 1), LinkSpeed(4, "HDR")),)
    assert topology.peer(End("leaf", 1)) == End("n1", 1)
    assert topology.peer(End("leaf", 2)) is None


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("[[host]]", "[[host", "not TOML: .*line 7"),
        ('"HDR"', '"WARP"', "speed 'WARP': there are SDR"),
        ("ports = 4", "ports = 0", r"line 3 \(switch 1\): leaf: 0 ports; a switch has 1 to 254"),
        ("ports = 4", "prots = 4", r"line 3 \(switch 1\): 'prots' means nothing here; there are name, ports"),
        ("ports = 4", 'ports = "4"', r"line 3 .*ports = '4': give a number"),
        ("ports = 4", "ports = true", r"line 3 .*ports = 'True': give a number"),
        ("ports = 4", "guid = -1", r"line 3 .*GUID -0x1 is no EUI-64"),
        ('name = "n1"', 'name = "leaf"', r"line 7 \(host 1\): there are two nodes called leaf"),
        ('name = "n1"', 'name = "a\\u0007b"', r"line 7 .*printable characters"),
        ('name = "n1"', "", r"line 7 .*a host without a name"),
        ("leaf/1", "leaf/5", r"line 10 \(cable 1\): .*leaf has the ports 1 to 4"),
        ("leaf/1", "leaf", r"line 10 .*end 'leaf': give node/port"),
        ("leaf/1", "leaf/99999999999", r"line 10 .*give node/port"),
        ("leaf/1", "loaf/1", r"line 10 .*there is no node loaf"),
        ("leaf/1", "n1/1", r"line 10 .*a port is not joined to itself"),
        ('["leaf/1", "n1/1"]', '["leaf/1"]', r"line 10 .*a cable has two ends"),
        ('"n1/1"]', '"n1/1"]\nwidth = 3', r"line 10 .*width 3: a link has 1, 2, 4, 8, 12 lanes"),
        ('"n1/1"]', '"n1/1"]\n\n[[cable]]\nends = ["leaf/2", "n1/1"]', r"line 13 \(cable 2\): .*in n1/1 is the cable"),
        ("[[switch]]", "[switch]", "switch is no array of tables"),
        ("speed", "sped", "'sped' means nothing here"),
        ("[[switch]]", "[[host]]", r"line 10 .*joins two hosts; put a switch between them"),
        ("ports = 4", "ports = 4\nvendor_id = 0x1000000", "vendor_id 0x1000000; give a number of 24 bits"),
        ("ports = 4", "ports = 4\nport_guids = [1]", "they go with the guid of a host"),
    ],
)
def test_what_is_wrong_in_toml_is_said_with_its_line(before: str, after: str, why: str) -> None:
    assert before in TOML
    with pytest.raises(TopologyError, match=why):
        topology_toml.read(TOML.replace(before, after, 1))


NET = """\
# a comment
vendid=0x8f1
switchguid=0x2c903(2c903)
Switch\t4 "S-0000000000002c90"\t\t# "leaf" base port 0 lid 3 lmc 0
[1]\t"H-0000000000000100"[1](101) \t\t# "n1" lid 4 4xHDR
[2]\t"second"[1] w=8 s=2

Switch 8 "second"
[1] "S-0000000000002c90"[2] w=8 s=2

devid=0x1011
sysimgguid=0x2c90
caguid=0x100
Ca\t1 "H-0000000000000100"\t\t# "n1"
[1](101) \t"S-0000000000002c90"[1]\t\t# lid 4 lmc 0 "leaf" lid 3 4xHDR
Hca 2 "n2"
[2] "second"[2] e=8
"""


def test_the_language_of_ibnetdiscover_and_ibsim() -> None:
    topology = netdiscover.read(NET)
    assert list(topology.nodes) == ["leaf", "second", "n1", "n2"]
    assert topology.nodes["leaf"].guid == 0x2C90
    assert topology.nodes["n1"].port_guids == (0x101,)
    assert topology.nodes["leaf"].make == (0x8F1, 0xCB20, 0x2C90)
    assert topology.nodes["n1"].make == (0x2C9, 0x1011, 0x2C90)
    assert topology.nodes["n2"].make == usual_make("host", topology.nodes["n2"].guid)
    assert [(str(cable.a), str(cable.b), str(cable.link)) for cable in topology.cables] == [
        ("leaf/1", "n1/1", "4xHDR"),
        ("leaf/2", "second/1", "12xDDR"),
        ("n2/2", "second/2", "4xNDR"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('[1]\t"H-0000000000000100"[1](101)', '[1]\t"H-0000000000000100"[2](101)', "line 5: .*n1 has the ports 1 to 1"),
        ('[1]\t"H-0000000000000100"[1](101)', '[1]\t"H-0000000000000777"[1](101)', "line 5: there is no node"),
        ("lid 3 4xHDR", "lid 3 4xEDR", "line 5: 4xHDR, but line 15 says 4xEDR"),
        ('[2]\t"second"[1]', '[1]\t"second"[1]', "line 6: port 1 has a cable already, by line 5"),
        ('Switch 8 "second"', 'Switch 8 "S-0000000000002c90"', "line 8: .*described a second time"),
        ('Switch 8 "second"', 'Switch 999 "second"', "line 8: second: 999 ports; a switch has 1 to 254"),
        ('[1](101) \t"S-', '[1](101) nothing "S-', "line 15: no port"),
        ("# a comment", "devid=10000", "line 4: leaf: device_id 0x10000; give a number of 16 bits"),
        ("# a comment", '[1] "x"[1]', "line 1: a port of no node"),
        ("# a comment", 'include "other"', "line 1: this language of ibsim's is not read"),
        ("# a comment", 'Rt 2 "router"', "line 1: there are no routers"),
        ("# a comment", "x" * 5000, "line 1: more than 1024 characters"),
        ("w=8 s=2\n\nSwitch 8", "w=64\n\nSwitch 8", "line 6: w=64"),
    ],
)
def test_what_is_wrong_in_the_output_of_ibnetdiscover_is_said_with_its_line(before: str, after: str, why: str) -> None:
    text = NET.replace(before, after, 1)
    with pytest.raises(TopologyError, match=why):
        netdiscover.read(text)


def test_files_are_read_by_their_names(tmp_path: Path) -> None:
    topology = shapes.ring(4, 6)
    toml, text = tmp_path / "ring.toml", tmp_path / "ring.topo"
    toml.write_text(topology_toml.write(topology))
    text.write_text(netdiscover.write(topology))
    assert load(toml) == load(text) == topology
    with pytest.raises(TopologyError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(TopologyError, match="Is a directory"):
        load(tmp_path)
    text.write_bytes(b"\n\n\xff\n")
    with pytest.raises(TopologyError, match=r"ring\.topo: line 3: not UTF-8"):
        load(text)
    with text.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(TopologyError, match="more than 16 MiB"):
        load(text)


@pytest.mark.parametrize("hosts", [1, 36, 37, 108, 648, 649, 1008, 5000, 11664])
def test_a_fat_tree_has_as_many_cables_up_as_down(hosts: int) -> None:
    topology = shapes.fat_tree(hosts)
    assert len(topology.hosts) == hosts
    levels = 1 if hosts <= 36 else 2 if hosts <= 648 else 3
    kinds = {node.name.rstrip("0123456789") for node in topology.switches}
    assert kinds == {1: {"leaf"}, 2: {"leaf", "spine"}, 3: {"leaf", "middle", "spine"}}[levels]
    for node in topology.switches if levels > 1 else ():
        up = [peer.node for _, peer, _ in topology.ends(node) if _level(peer.node) > _level(node.name)]
        assert len(up) == (18 if not node.name.startswith("spine") else 0)
    assert len({node.guid for node in topology.nodes.values()}) == len(topology.nodes)


def _level(name: str) -> int:
    return ["h", "leaf", "middle", "spine"].index(name.rstrip("0123456789"))


def test_rings_tori_and_stars() -> None:
    ring = shapes.ring(6, 8)
    assert all(sum(peer.node.startswith("s") for _, peer, _ in ring.ends(node)) == 2 for node in ring.switches)
    torus = shapes.torus((4, 3, 2), 24)
    degrees = [sum(peer.node.startswith("s") for _, peer, _ in torus.ends(node)) for node in torus.switches]
    assert degrees == [2 + 2 + 1] * 24
    star = shapes.star(5, 12)
    assert [len(list(star.ends(node))) for node in star.switches] == [5, 4, 4, 3, 3, 3]
    assert sorted(node.name for node in star.hosts) == sorted(f"h{n}" for n in range(12))


@pytest.mark.parametrize(
    "make",
    [
        lambda: shapes.fat_tree(0),
        lambda: shapes.fat_tree(11665),
        lambda: shapes.fat_tree(700, levels=2),
        lambda: shapes.fat_tree(10, levels=4),
        lambda: shapes.fat_tree(10, radix=5, levels=2),
        lambda: shapes.fat_tree(10, radix=1000),
        lambda: shapes.ring(2, 4),
        lambda: shapes.ring(4, 1000),
        lambda: shapes.torus((1, 4), 4),
        lambda: shapes.torus((100, 100, 100), 4),
        lambda: shapes.star(40, 4),
        lambda: shapes.ring(4, -3),
    ],
)
def test_what_no_shape_can_be_is_refused(make: object) -> None:
    with pytest.raises(TopologyError):
        make()  # type: ignore[operator]


def test_the_first_guids_that_agree_are_told_apart_and_those_that_are_given_must_differ() -> None:
    builder = Builder()
    for number in range(2000):
        builder.add_node(NodeSpec(f"node {number}", "switch", 1))
    assert len({node.guid for node in builder.topology().nodes.values()}) == 2000
    builder.add_node(NodeSpec("one", "switch", 1, 5))
    with pytest.raises(TopologyError, match="is that of one"):
        builder.add_node(NodeSpec("two", "host", 1, 4))


def test_speeds_and_rates() -> None:
    for link in LINKS:
        info = PortInfo()
        link.train(info)
        assert rate_of(PortInfo.from_bytes(info.to_bytes())) == link.rate
    assert [LinkSpeed(4, speed).rate for speed in ("QDR", "FDR10", "HDR", "NDR", "XDR")] == [7, 7, 17, 21, 23]
    assert LinkSpeed(4, "NDR").at_most(LinkSpeed(12, "EDR")) == LinkSpeed(4, "EDR")
    # 56 Gbit/s has a larger code than 100: codes are not in order.
    assert slower(LinkSpeed(4, "FDR").rate, LinkSpeed(4, "QDR").rate) == LinkSpeed(4, "QDR").rate
    assert slower(LinkSpeed(4, "EDR").rate, LinkSpeed(12, "FDR").rate) == LinkSpeed(4, "EDR").rate
    with pytest.raises(ValueError, match="width 5"):
        LinkSpeed(5)
    with pytest.raises(ValueError, match="8xXDR: there is no rate of so much"):
        LinkSpeed(8, "XDR")


def test_what_cables_take_is_read_written_and_inherited() -> None:
    text = """
rate = "100Gbps"
latency = "500ns"
[[switch]]
name = "leaf"
[[host]]
name = "n1"
[[host]]
name = "n2"
[[cable]]
ends = ["leaf/1", "n1/1"]
[[cable]]
ends = ["leaf/2", "n2/1"]
rate = "25Gbps"
bit_error_rate = 1e-12
"""
    first, second = topology_toml.read(text).cables
    assert first.line == LineConfig(100 * 10**9, 500)
    assert second.line == LineConfig(25 * 10**9, 500, 1e-12)
    again = topology_toml.read(topology_toml.write(topology_toml.read(text)))
    assert [cable.line for cable in again.cables] == [first.line, second.line]


@pytest.mark.parametrize(
    "words", ['rate = "25"', "rate = 25", 'latency = "11s"', 'bit_error_rate = "1"', "bit_error_rate = 1"]
)
def test_what_no_cable_takes_is_said_with_its_line(words: str) -> None:
    text = f'[[switch]]\nname = "a"\n[[host]]\nname = "b"\n[[cable]]\nends = ["a/1", "b/1"]\n{words}\n'
    with pytest.raises(TopologyError, match=r"^line 5 \(cable 1\): "):
        topology_toml.read(text)
