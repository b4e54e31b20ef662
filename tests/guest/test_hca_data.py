"""Data between two guests: what the programs printed, and what the cards counted, must agree with what was asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firmware.native.library import loaded
from tests.guest.cards import Moved, assert_no_complaint, moved, sysfs, wait_for
from vhca.lab import Completed, Guest, Lab
from vhca.lab.perftest import (
    DEVICE,
    Exchange,
    bandwidth_figure,
    latency_figure,
    perftest,
    pingpong,
    run_exchange,
    wait_port_active,
)

MTU = 4096
PINGPONG_MTU = 1024  # what ibv_*_pingpong asks for
_ports = iter(range(19000, 20000))


@pytest.fixture(autouse=True)
def _quiet_kernels(guest_pair: tuple[Guest, Guest]) -> Iterator[None]:
    for guest in guest_pair:
        wait_port_active(guest)
        # An interface that another test left up sends to its multicast groups when it likes.
        guest.run(["modprobe", "-r", "ib_ipoib"], check=True)
    yield
    assert_no_complaint(*guest_pair)


def _exchange(lab: Lab, exchange: Exchange) -> tuple[Completed, Moved, Moved]:
    """Run it from g1 (client) to g0 (server): the client's output, what server's and client's card counted."""
    server, client = lab.guests[:2]
    before = lab.fabric.counters().get("sa.requests", 0)
    with moved(lab.hcas[0]) as at_server, moved(lab.hcas[1]) as at_client:
        ends = run_exchange(server, client, exchange, next(_ports))
    for end in ends:
        assert end.returncode == 0, end.stdout + end.stderr
    # No packet is lost in this fabric, and nothing else than these two talks now but a kernel that asks subnet
    # administration something: the other card sees neither the question nor the answer.
    for what in ("packets", "bytes"):
        assert at_client[f"tx_{what}"] == at_server[f"rx_{what}"], what
        assert at_server[f"tx_{what}"] == at_client[f"rx_{what}"], what
    asked = lab.fabric.counters().get("sa.requests", 0) - before
    for size, what in ((1, "packets"), (256, "bytes")):
        sent = at_client[f"tx_ud_{what}"] + at_server[f"tx_ud_{what}"]
        assert sent == at_client[f"rx_ud_{what}"] + at_server[f"rx_ud_{what}"], what
        beside = at_client[f"tx_ud_{what}"] - at_server[f"rx_ud_{what}"]
        assert abs(beside) <= asked * size, what
    return ends[1], at_server, at_client


def _packets(size_bytes: int, mtu: int = MTU) -> int:
    return max(1, -(-size_bytes // mtu))


@pytest.mark.parametrize(
    ("service", "size_bytes"), [("rc", 1024), ("rc", 5000), ("uc", 1024), ("uc", 5000), ("ud", 1024)]
)
def test_pingpong(service: str, size_bytes: int, lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    rounds = 60
    exchange = pingpong(service, size_bytes, rounds)
    done, at_server, at_client = _exchange(lab, exchange)
    assert f"{2 * rounds * size_bytes} bytes in" in done.stdout
    assert f"{rounds} iters in" in done.stdout
    exchange.figure(done.stdout)
    packets = rounds * _packets(size_bytes, PINGPONG_MTU)
    kind = "_ud" if service == "ud" else ""
    for sent in (at_client, at_server):
        assert sent[f"tx{kind}_bytes"] == rounds * size_bytes
        # each end completes what it sent and what it received; the driver registers its memory by two more requests
        assert 2 * rounds <= sent["cqes"] <= 2 * rounds + 4
        if service == "rc":  # and some acknowledgements
            assert packets < sent["tx_packets"] <= packets + rounds
        else:
            assert sent[f"tx{kind}_packets"] == packets


def test_a_pingpong_with_events_raises_interrupts(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    _, at_server, at_client = _exchange(lab, pingpong("rc", 64, 40, "-e"))
    assert at_server["interrupts"] >= 20
    assert at_client["interrupts"] >= 20


def test_a_pingpong_over_a_shared_receive_queue(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    done, _, at_client = _exchange(lab, pingpong("srq", 256, 40, "-q", "3", "-r", "30"))
    assert "40 iters in" in done.stdout
    assert at_client["tx_bytes"] >= 40 * 256


@pytest.mark.parametrize(
    ("program", "size_bytes", "rounds"),
    [
        ("ib_write_bw", 65536, 100),
        ("ib_write_bw", 1, 200),
        ("ib_send_bw", 65536, 100),
        ("ib_send_bw", 4097, 100),
        ("ib_read_bw", 65536, 100),
        ("ib_write_bw", 1 << 20, 10),
    ],
)
def test_bandwidth(program: str, size_bytes: int, rounds: int, lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    exchange = perftest(program, size_bytes, rounds)
    done, at_server, at_client = _exchange(lab, exchange)
    assert f"{size_bytes} " in done.stdout
    exchange.figure(done.stdout)
    source = at_server if program == "ib_read_bw" else at_client
    assert source["tx_bytes"] == rounds * size_bytes
    assert source["tx_packets"] >= rounds * _packets(size_bytes)


@pytest.mark.parametrize("program", ["ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_atomic_bw"])
def test_messages_go_by_train(program: str, lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    """The engine in C takes what it is for; where it is not there, this cannot be seen."""
    if not loaded().there:
        pytest.skip(f"no engine in C: {loaded().reason}")
    size = () if program == "ib_atomic_bw" else ("-s", "4096")
    done, _, at_client = _exchange(lab, Exchange(program, ("-d", DEVICE, "-F", "-n", "500", *size), bandwidth_figure))
    bandwidth_figure(done.stdout)
    assert 450 <= at_client["train_messages"] <= 520


@pytest.mark.parametrize("program", ["ib_write_lat", "ib_send_lat", "ib_read_lat"])
def test_latency(program: str, lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    exchange = perftest(program, 8, 100)
    done, at_server, at_client = _exchange(lab, exchange)
    exchange.figure(done.stdout)
    source = at_server if program == "ib_read_lat" else at_client
    assert source["tx_bytes"] >= 100 * 8


@pytest.mark.parametrize("program", ["ib_send_lat", "ib_read_lat", "ib_atomic_lat"])
def test_latency_with_events(program: str, lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    """perftest arms before it polls, polls once, and takes each event for one completion."""
    size = () if program == "ib_atomic_lat" else ("-s", "1024")
    exchange = Exchange(program, ("-d", DEVICE, "-F", "-e", "-n", "100", *size), latency_figure)
    done, _, at_client = _exchange(lab, exchange)
    exchange.figure(done.stdout)
    assert at_client["interrupts"] >= 50


def test_writes_are_counted_alike_everywhere(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    """The figures of docs/how-a-write-travels.md: both cards, completions, and the receiver's kernel."""
    writes = sysfs(guest_pair[0], "hw_counters/rx_write_requests")
    _, at_server, at_client = _exchange(lab, perftest("ib_write_bw", 65536, 300, "-Q", "1"))
    assert at_client["tx_packets"] == at_server["rx_packets"] == 4800
    assert at_client["tx_bytes"] == at_server["rx_bytes"] == 19660800
    # the driver may register memory by a few requests of its own
    assert 300 <= at_client["cqes"] <= 304
    assert sysfs(guest_pair[0], "hw_counters/rx_write_requests") - writes == 300


def test_the_kernels_counters_are_the_fabrics(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    server, client = guest_pair
    names = ("port_xmit_packets", "port_rcv_packets", "port_xmit_data", "port_rcv_data")
    before = {guest.name: {name: sysfs(guest, f"counters/{name}") for name in names} for guest in guest_pair}
    writes = sysfs(server, "hw_counters/rx_write_requests")
    _, _, at_client = _exchange(lab, perftest("ib_write_bw", 8192, 50))
    after = {guest.name: {name: sysfs(guest, f"counters/{name}") for name in names} for guest in guest_pair}

    def grew(guest: Guest, name: str) -> int:
        return after[guest.name][name] - before[guest.name][name]

    assert sysfs(server, "hw_counters/rx_write_requests") - writes == 50
    # management packets may add a few
    assert 100 == at_client["tx_packets"] <= grew(client, "port_xmit_packets") <= 140
    assert 100 <= grew(server, "port_rcv_packets") <= 140
    assert grew(client, "port_xmit_data") * 4 >= 50 * 8192
    assert grew(server, "port_rcv_data") * 4 >= 50 * 8192
    for index, guest in enumerate(guest_pair):
        counted = lab.fabric.counters()[f"h{index}.xmit_pkts"]
        assert abs(counted - after[guest.name]["port_xmit_packets"]) <= 40


def test_ip_and_the_connection_manager(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    """IP over InfiniBand joins its groups and finds paths; rping connects by address and checks its own data."""
    for guest in guest_pair:
        address = f"10.9.0.{guest.index + 1}/24"
        script = f"modprobe ib_ipoib && ip addr replace {address} dev ib0 && ip link set ib0 up"
        guest.run(["sh", "-c", script], check=True)
    server, client = guest_pair
    # Until group and path are known, Linux keeps the first three packets for an address and drops the others.
    client.run(["ping", "-c", "1", "-W", "10", "10.9.0.1"], check=True)
    answered = client.run(["ping", "-c", "5", "-i", "0.2", "10.9.0.1"], check=True).stdout
    assert " 0% packet loss" in answered
    listening = server.popen(["rping", "-s", "-a", "10.9.0.1", "-p", "7174", "-C", "10", "-V", "-S", "512"])
    wait_for(lambda: "LISTEN" in server.run(["rdma", "resource", "show", "cm_id"], check=True).stdout)
    with moved(lab.hcas[1]) as at_client:
        done = client.run(["rping", "-c", "-a", "10.9.0.1", "-p", "7174", "-C", "10", "-V", "-S", "512"])
    assert done.returncode == 0, done.stderr
    listening.wait(20)  # rping's server calls the client's good-bye an error; the client checked the data
    # each round the server READs the client's buffer and WRITEs it back; each end says twice where, in 16 bytes
    assert at_client["tx_bytes"] == at_client["rx_bytes"] == 10 * (512 + 2 * 16)
