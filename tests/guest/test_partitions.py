"""Partitions from a file: child interfaces of IPoIB work in them, and nothing gets across."""

from __future__ import annotations

import pytest

from tests.guest.cards import assert_no_complaint, wait_for
from vhca.lab import Guest, Lab, RackConfig
from vhca.lab.perftest import wait_port_active
from vhca.subnet.partition_file import read

# g0 and g1 are blue, g2 is not; all are limited members of the default partition: none speaks to another one there.
BLUE = read(
    """
    Default=0x7fff, ipoib, mtu=5, rate=16 : ALL, SELF=full ;
    blue=0x8001, ipoib, mtu=5, rate=16 : h0=full, h1=full ;
    red=0x8002, ipoib, mtu=5, rate=16 : h2=full ;
    """
)
pytestmark = pytest.mark.vhca(guests=3, rack=RackConfig(partitions=BLUE))

PKEYS = "/sys/class/infiniband/mlx5_0/ports/1/pkeys"


def shell(guest: Guest, command: str) -> str:
    return guest.run(["sh", "-c", command], timeout_s=60, check=True).stdout


def pings(guest: Guest, address: str, interface: str) -> bool:
    return not guest.run(["ping", "-c", "1", "-W", "2", "-I", interface, address], timeout_s=30).returncode


def test_children_of_ipoib_speak_in_their_partition_and_not_across(lab: Lab) -> None:
    for guest in lab.guests:
        wait_port_active(guest)
        shell(guest, "modprobe ib_ipoib && ip link set ib0 up")
    tables = [shell(guest, f"cat {PKEYS}/0 {PKEYS}/1 {PKEYS}/2").split() for guest in lab.guests]
    assert tables == [["0x7fff", "0x8001", "0x0000"]] * 2 + [["0x7fff", "0x8002", "0x0000"]]
    for number, guest in enumerate(lab.guests):
        # g2 takes an interface in a partition in which it is not.
        shell(guest, "echo 0x8001 > /sys/class/net/ib0/create_child")
        shell(guest, f"ip link set ib0.8001 up && ip addr add 10.81.0.{number + 1}/24 dev ib0.8001")
        shell(guest, f"ip addr add 10.80.0.{number + 1}/24 dev ib0")
    one, two, other = lab.guests
    wait_for(lambda: pings(one, "10.81.0.2", "ib0.8001"))
    wait_for(lambda: pings(two, "10.81.0.1", "ib0.8001"))
    assert not pings(other, "10.81.0.1", "ib0.8001")
    assert not pings(one, "10.81.0.3", "ib0.8001")
    assert not pings(one, "10.80.0.2", "ib0"), "limited members of the default partition, both"
    # The directory tells a guest of those only with whom it shares a partition, and of the switch.
    seen = {guest.name: shell(guest, "saquery -t 100000 NR").count("NodeRecord dump") for guest in lab.guests}
    assert seen == {"g0": 3, "g1": 3, "g2": 2}
    assert_no_complaint(*lab.guests)
