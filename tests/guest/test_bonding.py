"""A bond of two cards in each guest: IP over InfiniBand goes on when the cable of one is pulled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guest.cards import assert_no_complaint, moved, wait_for
from tests.guest.upper import shell, wait_reached
from vhca.lab import Guest, Lab
from vhca.lab.perftest import wait_port_active

pytestmark = pytest.mark.vhca(guests=2, hcas_per_guest=2, extra_modules=("bonding",))

BOND = """
modprobe ib_ipoib
modprobe bonding max_bonds=0
ip link add bond0 type bond mode active-backup miimon 100 fail_over_mac active num_grat_arp 20
for port in ib0 ib1; do ip link set $port down; ip link set $port master bond0; done
ip link set bond0 type bond primary ib0
ip link set bond0 up
echo 2000 > /proc/sys/net/ipv4/neigh/bond0/base_reachable_time_ms
echo 1 > /proc/sys/net/ipv4/neigh/bond0/delay_first_probe_time
ip addr add 10.7.0.{host}/24 dev bond0
i=0
while ! ip link show bond0 | grep -q LOWER_UP; do i=$((i + 1)); [ $i -lt 200 ] || exit 1; usleep 100000; done
"""


@pytest.fixture
def bonded(lab: Lab, guest_pair: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    for host, guest in enumerate(guest_pair, 1):
        for device in ("mlx5_0", "mlx5_1"):
            wait_port_active(guest, device=device)
        shell(guest, BOND.format(host=host))
    yield guest_pair
    assert_no_complaint(*guest_pair)


def active(guest: Guest) -> str:
    return shell(guest, "cat /sys/class/net/bond0/bonding/active_slave").strip()


def test_a_bond_goes_on_over_its_other_card(lab: Lab, bonded: tuple[Guest, Guest]) -> None:
    one, two = bonded
    assert "2 received" in shell(two, "ping -c 2 -W 5 10.7.0.1")
    assert active(one) == "ib0"
    first = next(name for name in ("h0", "h1") if card_of(one, "ib0") == lab.hcas[int(name[1:])].node_guid)
    second = "h1" if first == "h0" else "h0"
    lab.fabric.link_down(first)
    wait_for(lambda: active(one) == "ib1")
    with moved(lab.hcas[int(second[1:])]) as card:
        wait_reached(two, "10.7.0.1")
        assert " 0% packet loss" in shell(two, "ping -c 5 -i 0.1 -W 5 10.7.0.1")
    assert card["rx_ud_packets"] >= 6
    lab.fabric.link_up(first)
    wait_port_active(one)
    wait_for(lambda: active(one) == "ib0")
    wait_reached(two, "10.7.0.1")


def card_of(guest: Guest, interface: str) -> int:
    """The node GUID of the card that an interface belongs to."""
    text = shell(guest, f"cat /sys/class/net/{interface}/device/infiniband/*/node_guid")
    return int(text.strip().replace(":", ""), 16)
