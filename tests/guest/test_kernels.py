"""The same test on several kernels: the card, and Soft-RoCE, for which older ones ask their crypto by name."""

from __future__ import annotations

import pytest

from tests.guest.cards import assert_no_complaint
from vhca.lab import Guest
from vhca.lab.perftest import wait_port_active


@pytest.mark.vhca(guests=1, kernels=("6.1", "6.19"))
def test_card_and_soft_roce_are_active(guest: Guest, vhca_kernel: str) -> None:
    assert guest.run(["uname", "-r"], check=True).stdout.startswith(f"{vhca_kernel}.")
    wait_port_active(guest)
    guest.run(["sh", "-ec", "modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"], check=True)
    wait_port_active(guest, device="rxe0")
    assert_no_complaint(guest)
