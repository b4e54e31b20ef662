"""IP over InfiniBand among four guests: both modes, groups, and neighbours that change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guest.cards import assert_no_complaint, moved
from tests.guest.upper import FOUR, address, ended, lossy, network_up, said, shell, wait_reached
from vhca.lab import Guest, Lab

pytestmark = pytest.mark.vhca(**FOUR)

GROUPS = {"IPv4": "239.9.8.7", "IPv6": "ff15::9:8:7"}
LISTEN = """
import socket, struct, sys
group, number = sys.argv[1], socket.if_nametoindex("ib0")
if ":" in group:
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    wanted = socket.inet_pton(socket.AF_INET6, group) + struct.pack("@I", number)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, wanted)
else:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + struct.pack("@Ii", 0, number))
s.bind(("", 5002))
s.settimeout(60)
print("ready", flush=True)
print(s.recv(2048).decode())
"""
TELL = """
import socket, sys, time
group, number = sys.argv[1], socket.if_nametoindex("ib0")
s = socket.socket(socket.AF_INET6 if ":" in group else socket.AF_INET, socket.SOCK_DGRAM)
if ":" in group:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, number)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 2)
else:
    s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, bytes(8) + number.to_bytes(4, "little"))
s.sendto(b"to the group " + group.encode(), (group, 5002))
"""


@pytest.fixture
def four(lab: Lab) -> Iterator[list[Guest]]:
    for guest in lab.guests:
        network_up(guest)
    yield lab.guests
    assert_no_complaint(*lab.guests)


def mode(guests: list[Guest], name: str, mtu: int) -> None:
    for guest in guests:
        shell(guest, f"echo {name} > /sys/class/net/ib0/mode; ip link set ib0 mtu {mtu}; ip link set ib0 up")
        network_up(guest)
        assert shell(guest, "cat /sys/class/net/ib0/mode").strip() == name


def ping_all(guests: list[Guest], size: int, options: str = "") -> None:
    """Each pings each other one. The first datagram asks for the way; of a large one, it drops pieces meanwhile."""
    for guest in guests:
        for other in guests:
            if other is not guest:
                shell(guest, f"ping -c 1 -W 20 {address(other)}")
                printed = shell(guest, f"ping -c 3 -i 0.05 -W 5 {options} -s {size} {address(other)}")
                assert " 0% packet loss" in printed, f"{guest.name} to {other.name}: {printed}"


def test_all_reach_all_by_datagrams(lab: Lab, four: list[Guest]) -> None:
    with moved(lab.hcas[2]) as card:
        ping_all(four, 20000)
    # Pieces of a datagram: 6 guests' pings with 3 rounds to and from the third guest, 20,008 bytes in pieces of 4072.
    assert card["tx_ud_packets"] >= 6 * 3 * 5


def test_all_reach_all_by_connections(lab: Lab, four: list[Guest]) -> None:
    mode(four, "connected", 65520)
    try:
        with moved(lab.hcas[2]) as card:
            ping_all(four, 60000, "-M do")
        assert card["tx_bytes"] >= 6 * 3 * 60000
    finally:
        mode(four, "datagram", 4092)


@pytest.mark.parametrize("family", GROUPS)
def test_what_is_sent_to_a_group_comes_to_all_of_it(four: list[Guest], family: str) -> None:
    group = GROUPS[family]
    listening = [guest.popen(["python3", "-c", LISTEN, group]) for guest in four[1:]]
    for process in listening:
        assert process.stdout.read(16) == b"ready\n", said(process)
    # The first guest joins to send, and who listens joins in its own time: it tells them until they have it.
    for _ in range(20):
        shell(four[0], f"python3 -c '{TELL}' {group}")
        if all(process.poll() is not None for process in listening):
            break
    assert [ended(process).strip() for process in listening] == [f"to the group {group}"] * 3


def test_an_address_that_moves_is_found_again(four: list[Guest]) -> None:
    one, two, three, _ = four
    moving = "10.9.0.77"
    for holder, other in ((two, three), (three, two)):
        shell(other, f"ip addr del {moving}/24 dev ib0 2> /dev/null || true")
        shell(holder, f"ip addr add {moving}/24 dev ib0")
        shell(one, f"ip neigh flush dev ib0; ping -c 2 -W 5 {moving}")
        shown = shell(one, f"ip neigh show {moving}")
        wanted = shell(holder, "cat /sys/class/net/ib0/address").strip()
        assert wanted in shown
    shell(three, f"ip addr del {moving}/24 dev ib0")


def test_a_neighbour_whose_driver_was_loaded_anew_is_found_again(four: list[Guest]) -> None:
    """Its queue pair, and with it its hardware address, is another one; nobody flushes anything.

    The kernel believes in a neighbour for half a minute or so, here for two seconds.
    """
    one, two, *_ = four
    shell(one, "cd /proc/sys/net/ipv4/neigh/ib0; echo 2000 > base_reachable_time_ms; echo 1 > delay_first_probe_time")
    shell(one, f"ping -c 2 -W 5 {address(two)}")
    shell(two, "rmmod ib_ipoib")
    network_up(two)
    wait_reached(one, address(two))
    assert " 0% packet loss" in shell(one, f"ping -c 3 -W 5 {address(two)}")


def test_traffic_survives_a_lossy_cable(lab: Lab, four: list[Guest]) -> None:
    one, two, *_ = four
    with lossy(lab, loss=0.05):
        printed = shell(one, f"ping -c 200 -i 0.01 -W 2 -s 3000 {address(two)} || true")
    received = int(printed.split(" received")[0].split()[-1])
    assert 100 < received < 200, printed
