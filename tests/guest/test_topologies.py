"""Two guests at two ends of a fat tree of three levels: they reach each other, and their tools see all of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, suppress
from pathlib import Path

import pytest

from tests.guest.cards import assert_no_complaint, moved, wait_for
from vhca.cli.main import main
from vhca.fabric import LineConfig, netdiscover, shapes
from vhca.lab import CardConfig, Guest, Lab, RackConfig
from vhca.lab.perftest import (
    DEVICE,
    Exchange,
    bandwidth_figure,
    perftest,
    perftest_values,
    pingpong,
    run_exchange,
    wait_port_active,
)

TREE = shapes.fat_tree(16, radix=4, levels=3)
FAR = [[CardConfig(host="h0")], [CardConfig(host="h15")]]
pytestmark = pytest.mark.vhca(
    guests=2, guest_cards=FAR, rack=RackConfig(mkey=0, topology=TREE, routing="fat-tree")
)  # fmt: skip

# A datagram that nobody answers is waited for so long (ms): the test would not end in time.
PATIENCE = "-t 100000"
_ports = iter(range(21000, 22000))


@pytest.fixture(autouse=True)
def _quiet_kernels(guest_pair: tuple[Guest, Guest]) -> Iterator[None]:
    for guest in guest_pair:
        wait_port_active(guest)
    yield
    assert_no_complaint(*guest_pair)


def tool(guest: Guest, command: str) -> str:
    return guest.run(command.split(), timeout_s=60, check=True).stdout


def test_both_guests_find_the_fabric_that_was_described(guest_pair: tuple[Guest, Guest]) -> None:
    for guest in guest_pair:
        found = netdiscover.read(tool(guest, f"ibnetdiscover {PATIENCE}"))
        assert found.links() == TREE.links()
        assert {node.description for node in found.nodes.values()} == {node.name for node in TREE.nodes.values()}


def test_tools_of_the_host_find_the_same_and_the_guests(
    lab: Lab, guest_pair: tuple[Guest, Guest], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with chdir(tmp_path):
        find_the_same_and_the_guests(lab, guest_pair[1], capfd)


def find_the_same_and_the_guests(lab: Lab, guest: Guest, capfd: pytest.CaptureFixture[str]) -> None:
    at = ["fabric", "exec", "--rack", str(lab.rack.directory), "--"]  # type: ignore[union-attr]
    assert main([*at, "ibnetdiscover"]) == 0
    assert netdiscover.read(capfd.readouterr().out).links() == TREE.links()
    server = guest.popen(["ibping", "-S"])

    def is_answered() -> bool:
        assert main([*at, "ibping", "-c", "1", str(lab.fabric.lid("h1"))]) == 0
        return "1 packets transmitted, 1 received" in capfd.readouterr().out

    try:
        wait_for(is_answered)
    finally:
        server.kill()


@pytest.mark.parametrize("exchange", [pingpong("rc", 5000, 50), perftest("ib_write_bw", 65536, 200)], ids=str)
def test_they_exchange_data_over_five_switches(lab: Lab, guest_pair: tuple[Guest, Guest], exchange: object) -> None:
    server, client = guest_pair
    with moved(lab.hcas[0]) as at_server, moved(lab.hcas[1]) as at_client:
        ends = run_exchange(server, client, exchange, next(_ports))  # type: ignore[arg-type]
    for end in ends:
        assert end.returncode == 0, end.stdout + end.stderr
    for what in ("packets", "bytes"):
        assert at_client[f"tx_{what}"] == at_server[f"rx_{what}"] > 0
        assert at_server[f"tx_{what}"] == at_client[f"rx_{what}"]


def test_the_tools_find_no_error_and_wait_for_nobody(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    one, _ = guest_pair
    one.run(f"ibqueryerrors {PATIENCE} -k -K".split(), timeout_s=60)
    report = tool(one, f"ibqueryerrors {PATIENCE}")
    assert f"{len(TREE.nodes)} nodes checked, 0 bad nodes found" in report
    assert "PMA query failures" not in report
    assert tool(one, f"saquery {PATIENCE}").count("NodeRecord dump") == len(TREE.nodes)
    far = lab.fabric.lid("h1")
    traced = tool(one, f"ibtracert {PATIENCE} {lab.fabric.lid('h0')} {far}")
    assert (
        len([line for line in traced.splitlines() if "switch port" in line]) == len(lab.fabric.route("h0", "h15")) - 1
    )


def test_a_cable_on_their_way_is_pulled_and_they_go_around(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    server, client = guest_pair
    way = lab.fabric.route("h0", "h15")
    lab.fabric.link_down(way[2])
    try:
        wait_for(lambda: lab.fabric.active() and lab.fabric.route("h0", "h15") != way)
        ends = run_exchange(server, client, pingpong("rc", 5000, 50), next(_ports))
        assert [end.returncode for end in ends] == [0, 0]
    finally:
        lab.fabric.link_up(way[2])
    wait_for(lambda: lab.fabric.route("h0", "h15") == way)


def test_a_trunk_falls_under_load_and_the_connection_goes_on(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    """Its packets are lost until the manager has led around the cable; retries of the queue pair bring them there."""
    server, client = guest_pair
    way = lab.fabric.route("h0", "h15")
    load = Exchange("ib_write_bw", ("-d", DEVICE, "-F", "-s", "65536", "-D", "4", "-u", "16"), bandwidth_figure)
    lost = 0

    def counter(name: str) -> int:
        return lab.hcas[1].counters().get(name, 0)

    before, resent = counter("tx_bytes"), counter("retransmits")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_exchange, server, client, load, next(_ports))
        wait_for(lambda: counter("tx_bytes") > before + (1 << 20))
        # On a busy host the manager may be faster than the guest sends its next packet: then once more.
        while counter("retransmits") == resent and not running.done():
            lab.fabric.link_down(way[2])
            try:
                wait_for(lambda: lab.fabric.route("h0", "h15") != way)
                lost += {cable.a: cable.errors for cable in lab.fabric.chart().cables}[way[2]]
                with suppress(AssertionError):
                    wait_for(lambda: counter("retransmits") > resent, timeout_s=1)
            finally:
                lab.fabric.link_up(way[2])
            wait_for(lambda: lab.fabric.route("h0", "h15") == way)
        ends = running.result(60)
    assert [end.returncode for end in ends] == [0, 0], ends
    assert counter("retransmits") > resent
    assert lost > 0
    wait_for(lambda: lab.fabric.route("h0", "h15") == way)


def test_a_cable_of_a_rate_makes_them_as_slow(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    server, client = guest_pair
    lab.fabric.set_line("g1/1", LineConfig(rate_bps=100_000_000, latency_ns=20_000))
    try:
        ends = run_exchange(server, client, perftest("ib_write_bw", 65536, 200), next(_ports))
    finally:
        lab.fabric.set_line("g1/1", LineConfig())
    assert [end.returncode for end in ends] == [0, 0], ends
    mbytes_s = float(perftest_values(ends[1].stdout, "BW average")[3]) * (1 << 20) / 1e6
    assert 0.85 * 12.5 < mbytes_s <= 12.5, "what is not there are headers and acknowledgements"
