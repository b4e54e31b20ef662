"""Fabrics of many switches: what they are built of, how they are swept, and that cards on them are as on one switch."""

from dataclasses import replace
from random import Random

import pytest

from tests.unit.fabric.bench import Bench, Card, Turns
from vhca.fabric import shapes, topology_toml
from vhca.fabric.chart import route
from vhca.fabric.fabric import Fabric
from vhca.fabric.faults import Fault
from vhca.fabric.line import BACKLOG_BYTES, LineConfig
from vhca.fabric.link import BAD_PACKETS, FULL_BYTES
from vhca.fabric.port import SwitchPort
from vhca.fabric.topology import Builder, Cable, End, NodeSpec, Topology, TopologyError
from vhca.fabric.wires import MOST_OWED
from vhca.management.link_speed import LinkSpeed
from vhca.management.performance import PortCounters, data_words
from vhca.sim.clock import VirtualClock
from vhca.subnet.manager import LIGHT_SWEEP_NS, REST_NS
from vhca.subnet.topology import Topology as Found
from vhca.wire import mad as madwire
from vhca.wire import perf, sa, smp
from vhca.wire.ib import wire_size_bytes
from vhca.wire.mad import PerfMad, SaMad
from vhca.wire.packet import RC, SEND, Packet, Route

OTHERS = """
[[switch]]
name = "s1"
vendor_id = 0x8f1
device_id = 0x1234
system_guid = 0x77
[[host]]
name = "h1"
device_id = 0x1003
system_guid = 0x77
[[host]]
name = "h2"
[[host]]
name = "h3"
[[cable]]
ends = ["s1/1", "h1/1"]
[[cable]]
ends = ["s1/2", "h2/1"]
[[cable]]
ends = ["s1/3", "h3/1"]
"""
SHAPES = {
    "star": shapes.star(3, 7),
    "of another make": topology_toml.read(OTHERS),
    "ring": shapes.ring(5, 7),
    "torus": shapes.torus((3, 2, 2), 14),
    "two levels": shapes.fat_tree(40, radix=12, levels=2),
    "three levels": shapes.fat_tree(16, radix=4, levels=3, link=LinkSpeed(4, "HDR")),
}


class TopologyBench(Bench):
    """A fabric of a topology, with cards in the places of some of its hosts."""

    def __init__(self, topology: Topology, hosts: tuple[str, ...] = (), **options: object) -> None:
        self.turns = Turns()
        self.clock = VirtualClock(1)
        self.fabric = Fabric(
            self.turns.call_soon, self.clock, topology=topology, random=Random(1), **options  # type: ignore[arg-type]
        )  # fmt: skip
        self.cards = [self.card(f"hca{number}", host) for number, host in enumerate(hosts)]

    def card(self, name: str, host: str | None = None) -> Card:
        return Card(self.fabric, name, 0x1000 + len(self.fabric.ports), self.clock.now_ns, host=host)

    def run(self) -> None:
        self.turns.run(10_000_000)

    def counters_at(self, end: str) -> tuple[PortCounters, PortCounters]:
        """Of both ports of a trunk, first the one that is named."""
        here = self.fabric.cables.end(end)
        ports = here.endpoint, here.other.endpoint
        assert isinstance(ports[0], SwitchPort)
        assert isinstance(ports[1], SwitchPort)
        return replace(ports[0].counters), replace(ports[1].counters)


def found_links(found: Found) -> set[frozenset[tuple[int, int]]]:
    """The cables that the subnet manager found."""
    return {frozenset((here, there)) for here, there in found.cables.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_manager_finds_what_the_topology_describes_and_brings_it_up(shape: str) -> None:
    topology = SHAPES[shape]
    bench = TopologyBench(topology)
    bench.run()
    found = bench.fabric.manager.topology
    assert found_links(found) == {link for link, _ in topology.links()}
    assert {node.guid for node in topology.nodes.values()} == found.nodes.keys()
    for node in topology.nodes.values():
        there = found.nodes[node.guid]
        assert there.description.rstrip(b"\0").decode() == node.description
        assert there.is_switch == (node.kind == "switch")
        assert there.info.num_ports == node.ports
        assert (there.info.vendor_id, there.info.device_id, there.info.system_image_guid) == node.make
        for number, _, cable in topology.ends(node):
            info = there.ports[number].info
            assert info.port_state == smp.PORT_ACTIVE
            wanted = smp.PortInfo()
            cable.link.train(wanted)
            active = ("link_width_active", "link_speed_active", "link_speed_ext_active")
            assert [getattr(info, name) for name in active] == [getattr(wanted, name) for name in active]
    counters = bench.fabric.counters()
    assert (counters["sm.heavy_sweeps"], counters["sm.timeouts"]) == (1, 0)
    assert "sm.refused_sets" not in counters
    # It stays like that: nothing differs in what a light sweep reads back.
    bench.pass_time(25)
    counters = bench.fabric.counters()
    assert counters["sm.light_sweeps"] >= 2
    assert counters["sm.heavy_sweeps"] == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_data_gets_from_each_card_to_each_other_over_many_switches(shape: str) -> None:
    topology = SHAPES[shape]
    hosts = [host.name for host in topology.hosts]
    bench = TopologyBench(topology, (hosts[0], hosts[len(hosts) // 2], hosts[-1]))
    bench.run()
    for source in bench.cards:
        for target in bench.cards:
            if source is not target:
                target.inbox.clear()
                source.port.send(source.data(target.lid, b"over the hills"))
                bench.run()
                assert [packet.payload for packet in target.inbox] == [b"over the hills"]
    assert bench.fabric.active(*bench.fabric.ports)
    assert [bench.fabric.lid(card.port.name) for card in bench.cards] == [card.lid for card in bench.cards]


def test_a_card_has_the_place_of_the_host_with_its_name_or_of_one_that_is_named() -> None:
    topology = shapes.star(2, 4)
    bench = TopologyBench(topology)
    named, same, rest = bench.card("x", "h3"), bench.card("h1"), bench.card("y")
    assert [card.port.host.name for card in (named, same, rest) if card.port.host] == ["h3", "h1", "h0"]
    assert [host.name for host in bench.fabric.simulated()] == ["h2"]
    for wanted, why in (
        ("h1", "a card has the place of h1 already"),
        ("s1", "s1 is a switch"),
        ("h9", "there is no host h9"),
    ):
        with pytest.raises(TopologyError, match=why):
            bench.card("z", wanted)
    bench.card("z")
    with pytest.raises(TopologyError, match="more cards than hosts"):
        bench.card("one too many")
    with pytest.raises(TopologyError, match="without a topology"):
        Bench(0).fabric.add_port("h0", "node1")


def test_a_card_that_comes_later_takes_over_from_the_simulated_node() -> None:
    bench = TopologyBench(shapes.star(2, 4))
    bench.run()
    guid = bench.fabric.plant.topology.nodes["h2"].guid  # type: ignore[union-attr]
    assert guid in bench.fabric.manager.topology.nodes
    card = bench.card("late", "h2")
    bench.pass_time(2)
    assert guid not in bench.fabric.manager.topology.nodes
    assert (card.state, bench.fabric.lid("late")) == (smp.PORT_ACTIVE, card.lid)


def test_hosts_of_several_ports_hang_on_several_switches() -> None:
    builder = Builder()
    for name in ("s1", "s2"):
        builder.add_node(NodeSpec(name, "switch", 8))
    builder.add_node(NodeSpec("two", "host", 2))
    builder.add_node(NodeSpec("one", "host", 1))
    for a, b in (
        (End("s1", 1), End("s2", 1)),
        (End("s1", 2), End("two", 1)),
        (End("s2", 2), End("two", 2)),
        (End("s2", 3), End("one", 1)),
    ):
        builder.add_cable(Cable(a, b))
    topology = builder.topology()
    bench = TopologyBench(topology)
    bench.run()
    node = bench.fabric.manager.topology.nodes[topology.nodes["two"].guid]
    assert [port.guid for port in node.ports.values()] == list(topology.nodes["two"].port_guids)
    assert all(port.info.port_state == smp.PORT_ACTIVE for port in node.ports.values())
    assert len({port.lid for port in node.ports.values()}) == 2
    with pytest.raises(TopologyError, match="two has 2 ports"):
        bench.card("x", "two")


def test_a_cable_between_switches_that_is_pulled_is_gone_around_and_comes_back() -> None:
    bench = TopologyBench(shapes.ring(5, 5), ("h0", "h1"))
    bench.run()
    one, two = bench.cards

    def passes() -> bool:
        two.inbox.clear()
        one.port.send(one.data(two.lid))
        bench.run()
        return len(two.inbox) == 1

    assert passes()
    lids = one.lid, two.lid
    bench.fabric.link_down("s1/1")
    assert not passes()
    bench.pass_time(1)
    assert passes(), "the other way round the ring"
    found = bench.fabric.manager.topology
    assert len(found_links(found)) == len(bench.fabric.plant.topology.cables) - 1  # type: ignore[union-attr]
    bench.fabric.link_up("s1/1")
    bench.pass_time(1)
    assert passes()
    assert lids == (one.lid, two.lid)
    for name in ("s1/30", "s9/1", "nobody", "s1/x", "s1/12345"):
        with pytest.raises(KeyError):
            bench.fabric.link_down(name)


def test_any_cable_is_named_by_either_end_by_its_card_or_by_its_host() -> None:
    bench = TopologyBench(shapes.ring(5, 7), ("h3",))
    bench.run()
    cables = bench.fabric.cables
    trunk = cables.end("s1/1")
    assert cables.end(trunk.other.name) is trunk.other
    assert {trunk.name, trunk.other.name} == set(trunk.link.name.split(" - "))
    card = cables.end("hca0")
    assert card is cables.end("h3/1") is cables.end("h3") is bench.cards[0].port.end
    assert cables.end(card.other.name) is card.other
    assert bench.fabric.plant is not None
    assert cables.end("h1").endpoint is bench.fabric.plant.hosts["h1"].ports[1]


def test_rules_on_a_trunk_are_seen_from_the_end_that_is_named() -> None:
    bench = TopologyBench(shapes.torus((2,), 2), ("h0", "h1"))
    bench.run()
    one, two = bench.cards
    (out,) = {hop for hop in route(bench.fabric, "h0", "h1") if hop.startswith("s")} - {two.port.end.other.name}
    lost = Fault("drop")
    bench.fabric.add_fault(out, lost, "to")
    assert passes(bench, one, two)
    assert not passes(bench, two, one)
    assert (lost.seen, lost.hits) == (1, 1)
    assert [status.name for status in bench.fabric.cable_status()] == bench.fabric.cables.faulty()
    with pytest.raises(ValueError, match="no card's cable"):
        bench.fabric.add_fault(out, Fault("drop"), "to_card")
    bench.fabric.clear_faults(bench.fabric.cables.end(out).other.name)
    assert passes(bench, two, one)
    assert bench.fabric.cable_status() == []


def passes(bench: TopologyBench, one: Card, two: Card) -> bool:
    """Does a packet get from one card to another?"""
    two.inbox.clear()
    one.port.send(one.data(two.lid))
    bench.run()
    return bool(two.inbox)


def test_a_trunk_flaps_and_packets_go_around_while_it_is_down() -> None:
    bench = TopologyBench(shapes.ring(5, 7), ("h1", "h2"))
    bench.run()
    one, two = bench.cards
    second = 10**9
    bench.fabric.cables.flap("s1/1", 3, second, 2 * second)
    ups = []
    for _ in range(10):
        bench.pass_time(0.5)
        ups.append(bench.fabric.cables.end("s1/1").link.up)
        assert passes(bench, one, two)
        bench.pass_time(0.5)
    assert ups == [False, True, True] * 3 + [True]
    assert bench.fabric.switches["s1"].ports[1].counters.link_downed == 3
    bench.fabric.cables.flap("s1/1", 3, second, second)
    bench.fabric.link_up("s1/1")
    bench.pass_time(2)
    assert bench.fabric.cables.end("s1/1").link.up, "another order ends it"


def test_a_port_that_is_disabled_by_order_stays_so_whatever_the_manager_writes() -> None:
    bench = TopologyBench(shapes.ring(5, 7), ("h1", "h2"))
    bench.run()
    bench.fabric.cables.set_disabled("s1/1", True)
    port = bench.fabric.switches["s1"].ports[1]
    bench.pass_time(30)
    assert (port.info.port_physical_state, port.info.port_state) == (smp.PHYS_DISABLED, smp.PORT_DOWN)
    assert passes(bench, *bench.cards)
    assert [status.disabled for status in bench.fabric.cable_status()] == [True]
    bench.fabric.cables.set_disabled("s1/1", False)
    bench.pass_time(12)
    assert port.state == smp.PORT_ACTIVE


def test_a_trunk_that_damages_bits_shows_it_at_the_port_of_arrival() -> None:
    bench = TopologyBench(shapes.torus((2,), 2), ("h0", "h1"))
    bench.run()
    one, two = bench.cards
    out = next(hop for hop in route(bench.fabric, "h0", "h1") if hop.startswith("s"))
    bench.fabric.set_line(out, LineConfig(bit_error_rate=1e-4))
    before = bench.counters_at(out)
    got = sum(passes(bench, one, two) for _ in range(400))
    here, there = bench.counters_at(out)
    assert 0 < got < 400
    assert there.symbol_errors >= there.rcv_errors == 400 - got
    assert (there.link_error_recovery, there.local_link_integrity_errors) == (0, 0)
    assert here.symbol_errors == before[0].symbol_errors == 0
    bench.fabric.set_line(out, LineConfig(bit_error_rate=0.01))
    for _ in range(BAD_PACKETS + 1):
        one.port.send(one.data(two.lid, bytes(200)))
    bench.run()
    there = bench.counters_at(out)[1]
    assert (there.link_error_recovery, there.local_link_integrity_errors) == (1, 1)


def test_data_over_two_switches_takes_the_time_of_each_cable_and_comes_in_order() -> None:
    """By hand: three cables of 8 Gbit/s (a byte each ns) and 1000 ns, each passed on when its last bit is there."""
    cables = [replace(cable, line=LineConfig(8 * 10**9, 1_000)) for cable in shapes.torus((2,), 2).cables]
    topology = Topology(
        shapes.torus((2,), 2).nodes, cables, {end: cable for cable in cables for end in (cable.a, cable.b)}
    )
    bench = TopologyBench(topology, ("h0", "h1"))
    bench.pass_time(2)
    one, two = bench.cards
    assert one.lid
    came: list[tuple[int, int]] = []
    two.port.attach(lambda packet: came.append((bench.clock.now_ns(), packet.psn)))
    began = bench.clock.now_ns()
    for psn in range(3):
        one.port.send(one.data(two.lid, bytes(200), psn=psn))
    size = wire_size_bytes(one.data(two.lid, bytes(200)))
    bench.pass_time(0.001)
    first = began + 3 * (size + 1_000)
    assert came == [(first + psn * size, psn) for psn in range(3)]


def test_a_slow_trunk_pushes_back_to_the_sender_and_loses_nothing() -> None:
    bench = TopologyBench(shapes.torus((2,), 2), ("h0", "h1"))
    bench.run()
    one, two = bench.cards
    out = next(hop for hop in route(bench.fabric, "h0", "h1") if hop.startswith("s"))
    bench.fabric.set_line(out, LineConfig(10**9))
    packet = Packet(Route(two.lid, one.lid), RC, SEND, 0x100, 0, bytes(4096), mtu=4096)
    sent = 0
    began = bench.clock.now_ns()
    while sent < 2_000:
        while not one.port.full and sent < 2_000:
            one.port.send(replace(packet, psn=sent))
            sent += 1
        bench.pass_time(0.000_01)
    assert one.port.switch_port.dropped == {}
    bench.pass_time(1)
    assert [p.psn for p in two.inbox] == list(range(2_000))
    size_ns = wire_size_bytes(packet) * 8
    took_ns = bench.clock.now_ns() - 10**9 - began
    # When the last was sent, what is left on both cables was not there yet.
    assert 2_000 * size_ns - took_ns < (FULL_BYTES + 2 * BACKLOG_BYTES) * 8


def test_a_way_over_many_switches_is_counted_at_each_as_packets_are() -> None:
    topology = SHAPES["three levels"]
    bench = TopologyBench(topology, ("h0", "h15"))
    bench.run()
    a, b = bench.cards
    found = a.port.through(Route(b.lid, a.lid), Route(a.lid, b.lid))
    assert found is not None
    way, far = found
    assert far is b.port
    assert way.is_open(4096)
    assert way.is_open(4096, empty=True)

    def counted() -> dict[tuple[str, int], tuple[int, ...]]:
        bench.fabric.wires.settle()
        return {
            (name, port.number): (c.xmit_pkts, c.xmit_data, c.rcv_pkts, c.rcv_data)
            for name, switch in bench.fabric.switches.items()
            for port in switch.ports
            for c in [port.counters]
        }

    def moved(before: dict[tuple[str, int], tuple[int, ...]]) -> dict[tuple[str, int], tuple[int, ...]]:
        now = counted()
        return {
            place: tuple(x - y for x, y in zip(now[place], before[place], strict=True))
            for place in now
            if now[place] != before[place]
        }

    packet = Packet(Route(b.lid, a.lid), RC, SEND, 5, 0, bytes(1000), mtu=4096)
    words = data_words(packet)
    before = counted()
    a.port.send(packet)
    b.port.send(Packet(Route(a.lid, b.lid), RC, SEND, 5, 0, bytes(1000), mtu=4096))
    bench.run()
    by_packets, before = moved(before), counted()
    way.passed(1, words, 1, words)
    assert moved(before) == by_packets
    assert len(by_packets) >= 2 * 5, "leaf, middle, spine, middle, leaf"
    # What passed before a way was led elsewhere is counted where it passed.
    before = counted()
    way.passed(1, words, 1, words)
    bench.fabric.switches["leaf1"].set_linear(b.lid, bytes([7]))
    assert not way.is_open(4096)
    assert moved(before) == by_packets
    # However many ways there are, little is owed.
    before = counted()
    for _ in range(1000):
        found = a.port.through(Route(b.lid, a.lid), Route(a.lid, b.lid)) or found
        found[0].passed(0, 0, 1, 1)
    assert len(bench.fabric.wires._owed) < MOST_OWED


def test_a_way_over_many_switches_closes_with_anything_on_any_of_its_cables() -> None:
    topology = SHAPES["three levels"]
    bench = TopologyBench(topology, ("h0", "h15"))
    bench.run()
    a, b = bench.cards
    route, back = Route(b.lid, a.lid), Route(a.lid, b.lid)
    found = a.port.through(route, back)
    assert found is not None
    way = found[0]
    from vhca.fabric.through import walk

    hops, there = walk(a.port, route)
    assert there is b.port
    assert len(hops) == 5
    cables = [hops[0][0].end, *(out.end for _, out in hops)]
    for end in cables:
        assert end is not None
        assert way.is_open(4096)
        end.arrival_taps.append(print)
        assert not way.is_open(4096)
        end.arrival_taps.remove(print)
        assert way.is_open(4096)
        end.link.set_plugged(False)
        assert not way.is_open(4096)
        end.link.set_plugged(True)
        bench.pass_time(2)
        fresh = a.port.through(route, back)
        assert fresh is not None
        way = fresh[0]
    for arrival, out in hops:
        mtu = out.info.neighbor_mtu
        out.set_mtu(3)
        assert [way.is_open(size) for size in (1024, 2048)] == [True, False] or not _uses(a, route, out)
        out.set_mtu(mtu)
        arrival.set_source(99, 0)
        assert not way.is_open(256)
        arrival.set_source(0 if arrival is not hops[0][0] else a.lid, 0)
    bench.fabric.add_fault("hca1", Fault("drop"))
    assert not way.is_open(256)
    bench.fabric.clear_faults("hca1")
    assert way.is_open(256)
    middle = hops[2][0].end
    assert middle is not None
    middle.other.send(Packet(Route(0x999, 0), RC, SEND, 5, 0, b"", mtu=256))
    assert way.is_open(256)
    assert not way.is_open(256, empty=True), "something is on one of its cables"
    bench.run()
    assert way.is_open(256, empty=True)


def _uses(card: Card, route: Route, out: object) -> bool:
    from vhca.fabric.through import walk

    return any(departure is out for _, departure in walk(card.port, route)[0])


def test_simulated_nodes_answer_for_their_counters_and_refuse_the_rest() -> None:
    bench = TopologyBench(shapes.star(2, 4), ("h0",))
    bench.run()
    (card,) = bench.cards
    target = bench.fabric.plant.topology.nodes["h3"]  # type: ignore[union-attr]
    lid = next(port.lid for port in bench.fabric.manager.topology.nodes[target.guid].end_ports())

    def ask(mad: bytes) -> list[bytes]:
        card.inbox.clear()
        card.port.send(card.data(lid, mad, dest_qp=1, src_qp=1, qkey=madwire.QP1_QKEY))
        bench.run()
        return [packet.payload for packet in card.inbox]

    def counters(attribute: int, port: int = 1) -> PerfMad:
        data = perf.PortCounters(port_select=port).to_bytes().ljust(192, b"\0")
        request = PerfMad(
            base_version=1, mgmt_class=madwire.CLASS_PERF, class_version=1, method=1, attr_id=attribute, data=data
        )
        (answer,) = ask(request.to_bytes())
        return PerfMad.from_bytes(answer)

    first = perf.PortCounters.from_bytes(counters(perf.PORT_COUNTERS).data)
    second = perf.PortCounters.from_bytes(counters(perf.PORT_COUNTERS).data)
    assert (second.xmit_pkts - first.xmit_pkts, second.rcv_pkts - first.rcv_pkts) == (1, 1)
    wide = perf.PortCountersExtended.from_bytes(counters(perf.PORT_COUNTERS_EXTENDED).data)
    assert wide.rcv_pkts == second.rcv_pkts + 1
    assert counters(perf.PORT_COUNTERS, 7).status == madwire.STATUS_INVALID_FIELD
    assert counters(0x77).status == madwire.STATUS_UNSUPPORTED_ATTRIBUTE
    # A class that it lacks is refused, garbage is not answered.
    vendor = bytes((1, 0x0A, 1, 1)).ljust(256, b"\0")
    assert [answer[3] for answer in ask(vendor)] == [0x81]
    assert ask(b"short") == []
    assert ask(bytes((1, madwire.CLASS_SUBN_ADM, 2, 0x81)).ljust(256, b"\0")) == []


def test_the_directory_knows_hosts_that_are_simulated_and_the_rate_of_ways_to_them() -> None:
    builder = Builder()
    builder.add_node(NodeSpec("s1", "switch", 8))
    builder.add_node(NodeSpec("s2", "switch", 8))
    builder.add_cable(Cable(End("s1", 8), End("s2", 8), LinkSpeed(1, "FDR")))
    links = {"h0": LinkSpeed(2, "HDR"), "slow": LinkSpeed(1, "SDR"), "fast": LinkSpeed(4, "NDR")}
    for port, (name, link) in enumerate([*links.items(), ("behind", LinkSpeed(4, "NDR"))], 1):
        builder.add_node(NodeSpec(name, "host", 1))
        builder.add_cable(Cable(End("s2" if name == "behind" else "s1", port), End(name, 1), link))
    topology = builder.topology()
    bench = TopologyBench(topology, ("h0",))
    bench.run()
    (card,) = bench.cards
    rates = {}
    for name in ("slow", "fast", "behind"):
        port_gid = madwire.gid(smp.DEFAULT_GID_PREFIX, topology.nodes[name].port_guids[0])
        record = sa.PathRecord(sgid=card.gid, dgid=port_gid, numb_path=1)
        request = SaMad(
            base_version=1,
            mgmt_class=madwire.CLASS_SUBN_ADM,
            class_version=2,
            method=madwire.METHOD_GET,
            attr_id=sa.PATH_RECORD,
            component_mask=sa.PATH_SGID | sa.PATH_DGID,
            data=record.to_bytes().ljust(madwire.SA_DATA_BYTES, b"\0"),
        )
        (answer,) = bench.sa(card, request)
        rates[name] = sa.PathRecord.from_bytes(answer.data).rate
    wanted = {"slow": LinkSpeed(1, "SDR"), "fast": LinkSpeed(2, "EDR"), "behind": LinkSpeed(1, "FDR")}
    assert rates == {name: link.rate for name, link in wanted.items()}
    # A card and the port at its switch agree: 2 lanes of the cable, EDR of the card.
    for info in (card.sma.port(1).info, card.port.switch_port.info):
        agreed = smp.PortInfo()
        LinkSpeed(2, "EDR").train(agreed)
        assert info.link_width_active == agreed.link_width_active == smp.WIDTH_2X
        assert info.link_speed_ext_active == agreed.link_speed_ext_active == smp.SPEED_EXT_EDR


def test_behind_a_light_sweep_is_a_pause_for_each_question_of_it() -> None:
    bench = TopologyBench(SHAPES["two levels"])
    bench.run()
    manager = bench.fabric.manager
    times: list[int] = []
    asked = [0]
    while len(times) < 3:
        deadline = bench.fabric.next_deadline()
        assert deadline is not None
        before, swept = manager.transactions.asked, bench.fabric.counters().get("sm.light_sweeps", 0)
        bench.clock.advance(max(0, deadline - bench.clock.now_ns()))
        bench.fabric.run_timers(bench.clock.now_ns())
        bench.run()
        if bench.fabric.counters().get("sm.light_sweeps", 0) > swept:
            times.append(bench.clock.now_ns())
            asked.append(manager.transactions.asked - before)
    assert asked[1] == asked[2] > 300
    assert times[2] - times[1] == LIGHT_SWEEP_NS + asked[1] * REST_NS
