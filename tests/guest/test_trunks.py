"""Two guests on cards of two racks, and a third rack with the subnet manager: three processes, one fabric."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.guest.cards import assert_no_complaint, wait_for
from tests.support.racks import Part, ServedRacks, factory
from vhca.fabric import netdiscover, shapes
from vhca.fabric.topology import Topology
from vhca.lab import CardConfig, Guest, Lab
from vhca.lab.perftest import (
    DEVICE,
    Exchange,
    bandwidth_figure,
    perftest,
    pingpong,
    run_exchange,
    wait_port_active,
)

RING = shapes.ring(3, 6)
AT = {host.name: peer.node for host in RING.hosts for _, peer, _ in RING.ends(host)}
FIRST = {switch: next(name for name, at in AT.items() if at == switch) for switch in ("s1", "s2")}
PARTS = [Part("A", ["s1"], [FIRST["s1"]]), Part("B", ["s2"], [FIRST["s2"]]), Part("C", ["s3"], manager=True)]
TRUNK = next(cable for cable in RING.cables if {cable.a.node, cable.b.node} == {"s1", "s2"})
NEAR = str(TRUNK.a if TRUNK.a.node == "s1" else TRUNK.b)
_ports = iter(range(21000, 22000))


@pytest.fixture(scope="module")
def split_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    logs = tmp_path_factory.mktemp("trunks")
    with Lab(2, card=CardConfig(), rack_factory=factory(RING, PARTS, "--sm", "any"), log_dir=logs) as lab:
        yield lab


@pytest.fixture
def racks(split_lab: Lab) -> ServedRacks:
    assert isinstance(split_lab.rack, ServedRacks)
    return split_lab.rack


@pytest.fixture
def pair(split_lab: Lab) -> Iterator[tuple[Guest, Guest]]:
    one, two = split_lab.guests
    for guest in (one, two):
        wait_port_active(guest)
    yield one, two
    assert_no_complaint(one, two)


def frames(racks: ServedRacks, rack: str, kind: str = "xmit_frames") -> int:
    """What went over the trunk between both cards' switches."""
    return racks.counters(rack).get(f"trunk.{TRUNK.a} - {TRUNK.b}.{kind}", 0)


def found_by(guest: Guest) -> Topology:
    """The fabric that a guest's tools find; nothing that does not answer within 0.3 s."""
    return netdiscover.read(guest.run(["ibnetdiscover", "-t", "300"], timeout_s=60).stdout)


def through(racks: ServedRacks) -> int:
    """Packets and bursts that went the other way round, by the third rack."""
    return sum(
        n for name, n in racks.counters("C").items() if name.startswith("trunk.") and name.endswith("xmit_frames")
    )


def test_a_guest_finds_the_fabric_of_all_racks(pair: tuple[Guest, Guest]) -> None:
    for guest in pair:
        found = netdiscover.read(guest.run(["ibnetdiscover", "-t", "100000"], timeout_s=60, check=True).stdout)
        assert found.links() == RING.links()


@pytest.mark.parametrize(
    "exchange",
    [pingpong("rc", 65536, 100, "-c"), pingpong("ud", 2048, 100, "-c"), perftest("ib_read_bw", 65536, 200)],
    ids=str,
)
def test_they_exchange_data_that_arrives_as_it_was(
    racks: ServedRacks, pair: tuple[Guest, Guest], exchange: Exchange
) -> None:
    before = frames(racks, "A"), frames(racks, "B")
    ends = run_exchange(*pair, exchange, next(_ports))
    assert [end.returncode for end in ends] == [0, 0], ends
    assert frames(racks, "A") >= before[0] + 100
    assert frames(racks, "B") >= before[1] + 100


def test_a_trunk_falls_under_load_and_comes_back(racks: ServedRacks, pair: tuple[Guest, Guest]) -> None:
    load = Exchange("ib_write_bw", ("-d", DEVICE, "-F", "-s", "65536", "-D", "8", "-u", "16"), bandwidth_figure)
    with ThreadPoolExecutor(1) as pool:
        before = frames(racks, "A") + frames(racks, "B")
        running = pool.submit(run_exchange, *pair, load, next(_ports))
        wait_for(lambda: frames(racks, "A") + frames(racks, "B") > before + 200)
        racks.order("A", "link_down", cable=NEAR)
        around = through(racks)
        wait_for(lambda: through(racks) > around + 200)
        racks.order("A", "link_up", cable=NEAR)
        after = frames(racks, "A") + frames(racks, "B")
        wait_for(lambda: frames(racks, "A") + frames(racks, "B") > after + 200)
        ends = running.result(60)
    assert [end.returncode for end in ends] == [0, 0], ends


def manager(guest: Guest) -> int:
    """LID of the manager that a guest's port knows, which says that it is master; 0 while nobody does."""
    said = guest.run(["sminfo", "-t", "300"], timeout_s=60).stdout
    found = re.search(r"sm lid (\d+) .*SMINFO_MASTER", said)
    return int(found[1]) if found else 0


def test_opensm_in_a_guest_of_one_rack_manages_all_and_gives_back(pair: tuple[Guest, Guest]) -> None:
    one, two = pair
    ours = manager(two)
    one.run(["mkdir", "-p", "/var/cache/opensm", "/var/log"], check=True)
    opensm = one.popen(["opensm", "-p", "14", "-f", "/tmp/opensm.log"])
    wait_for(lambda: manager(two) not in (0, ours), 30)
    wait_for(lambda: manager(one) == manager(two))
    assert len(found_by(two).nodes) == len(RING.nodes)
    ends = run_exchange(one, two, pingpong("rc", 4096, 50, "-c"), next(_ports))
    assert [end.returncode for end in ends] == [0, 0], ends
    opensm.kill()
    wait_for(lambda: manager(two) == ours, 40)
    ends = run_exchange(one, two, pingpong("rc", 4096, 50, "-c"), next(_ports))
    assert [end.returncode for end in ends] == [0, 0], ends


def test_the_rack_with_the_manager_goes_and_comes_and_the_guests_go_on(
    racks: ServedRacks, pair: tuple[Guest, Guest]
) -> None:
    load = Exchange("ib_write_bw", ("-d", DEVICE, "-F", "-s", "65536", "-D", "6", "-u", "16"), bandwidth_figure)
    with ThreadPoolExecutor(1) as pool:
        before = frames(racks, "A") + frames(racks, "B")
        running = pool.submit(run_exchange, *pair, load, next(_ports))
        wait_for(lambda: frames(racks, "A") + frames(racks, "B") > before + 200)
        racks.kill("C")
        after = frames(racks, "A") + frames(racks, "B")
        wait_for(lambda: frames(racks, "A") + frames(racks, "B") > after + 200)
        ends = running.result(60)
    assert [end.returncode for end in ends] == [0, 0], ends
    racks.start_rack("C")
    wait_for(lambda: len(found_by(pair[0]).nodes) == len(RING.nodes))
    racks.wait_active(20)
    ends = run_exchange(*pair, pingpong("rc", 4096, 50, "-c"), next(_ports))
    assert [end.returncode for end in ends] == [0, 0], ends
