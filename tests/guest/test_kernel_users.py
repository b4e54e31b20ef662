"""Kernel upper protocols on the card: IP over InfiniBand, RDMA CM, and NVMe over Fabrics with fast registration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guest.cards import assert_no_complaint, moved
from tests.guest.upper import NVME_TARGET, address, network_up, shell
from vhca.lab import Guest, Lab

pytestmark = pytest.mark.vhca(guests=2, extra_modules=("nvme-rdma", "nvmet-rdma", "brd"))

BLOCK_BYTES = 64 << 10
BLOCKS = 16

CONNECT = """
set -e
modprobe nvme-rdma
echo "transport=rdma,traddr=10.9.0.1,trsvcid=4420,nqn=disk,nr_io_queues=1" > /dev/nvme-fabrics
i=0; while [ ! -b /dev/nvme0n1 ]; do i=$((i + 1)); [ $i -lt 200 ] || exit 1; usleep 100000; done
"""
COPY = f"""
set -e
dd if=/dev/urandom of=/tmp/written bs={BLOCK_BYTES} count={BLOCKS}
dd if=/tmp/written of=/dev/nvme0n1 bs={BLOCK_BYTES} oflag=direct
dd if=/dev/nvme0n1 of=/tmp/read bs={BLOCK_BYTES} count={BLOCKS} iflag=direct
cmp /tmp/written /tmp/read
"""


@pytest.fixture
def ip_pair(guest_pair: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    for guest in guest_pair:
        network_up(guest)
    yield guest_pair
    assert_no_complaint(*guest_pair)


def test_ip_over_infiniband(lab: Lab, ip_pair: tuple[Guest, Guest]) -> None:
    one, _ = ip_pair
    with moved(lab.hcas[0]) as card:
        printed = shell(one, "ping -c 5 -s 1500 10.9.0.2")
    assert "5 packets transmitted, 5 received" in printed
    # datagrams: 4 bytes of IPoIB header, 20 of IP, 8 of ICMP
    assert card["tx_ud_packets"] >= 5
    assert card["rx_ud_bytes"] >= 5 * 1532
    assert card["tx_packets"] == 0


def test_rdma_cm_connects_by_address(lab: Lab, ip_pair: tuple[Guest, Guest]) -> None:
    one, two = ip_pair
    server = two.popen(["rping", "-s", "-a", "10.9.0.2", "-C", "5", "-v"])
    shell(one, "usleep 1000000")
    with moved(lab.hcas[0]) as card:
        printed = shell(one, "rping -c -a 10.9.0.2 -C 5 -v")
    assert server.wait(30) == 0
    assert printed.count("ping data: rdma-ping-") == 5
    assert card["tx_packets"] > 0


def test_datagrams_of_rsockets(lab: Lab, ip_pair: tuple[Guest, Guest]) -> None:
    """A short run: the program sends anew after 1 ms, whatever is still under way (docs/limits.md)."""
    one, two = ip_pair
    server = two.popen(["udpong", "-b", "10.9.0.2"])
    shell(one, "usleep 1000000")
    with moved(lab.hcas[0]) as card, moved(lab.hcas[1]) as peer:
        printed = shell(one, "udpong -s 10.9.0.2 -S 64 -C 20 -T e")
    server.kill()
    assert server.wait(20) != 0
    assert printed.splitlines()[-1].split()[:3] == ["custom", "64", "40"]
    assert card["tx_ud_packets"] >= 20
    assert peer["tx_ud_packets"] >= 20


def test_nvme_over_fabrics_moves_data_by_fast_registration(lab: Lab, ip_pair: tuple[Guest, Guest]) -> None:
    target, initiator = ip_pair
    shell(target, NVME_TARGET.format(server=address(target)))
    shell(initiator, CONNECT)
    with moved(lab.hcas[1]) as card, moved(lab.hcas[0]) as target_card:
        shell(initiator, COPY)
    # Each request of the initiator registers its buffer by a work request; the target's SEND with invalidate takes
    # the key back, or a local invalidate does, which is a UMR too.
    requests = 2 * BLOCKS
    assert card["umrs"] >= requests
    assert card["remote_invalidates"] >= requests
    assert target_card["rx_bytes"] >= BLOCKS * BLOCK_BYTES
    assert target_card["tx_bytes"] >= BLOCKS * BLOCK_BYTES
    shell(initiator, "echo 1 > /sys/class/nvme/nvme0/delete_controller")
