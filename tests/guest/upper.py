"""What tests of upper protocols share: guests on IP over InfiniBand, a lossy cable, scripts that must work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.guest.cards import wait_for
from vhca.fabric import Fault
from vhca.lab import Guest, GuestConfig, Lab, Process
from vhca.lab.perftest import wait_port_active

EVERYTHING = os.environ.get("VHCA_UPPER") == "all"
"""`make upper` runs what takes long, too."""
LONG = pytest.mark.skipif(not EVERYTHING, reason="takes long; `make upper` runs it")

LOSS = 0.01
"""Of the packets on the cable, both ways; management is spared, as `Fault` does it."""

NETWORK = """
set -e
modprobe ib_ipoib
ip link set {device} up
ip addr replace 10.9.0.{host}/24 dev {device}
i=0
while ! ip link show {device} | grep -q LOWER_UP; do i=$((i + 1)); [ $i -lt 200 ] || exit 1; usleep 100000; done
"""
CONFIGFS = "grep -q configfs /proc/mounts || mount -t configfs configfs /sys/kernel/config"
NVME_TARGET = f"""
modprobe -a nvmet-rdma brd
{CONFIGFS}
"""
NVME_TARGET += """
cd /sys/kernel/config/nvmet
mkdir -p subsystems/disk/namespaces/1 ports/1
echo 1 > subsystems/disk/attr_allow_any_host
echo -n /dev/ram0 > subsystems/disk/namespaces/1/device_path
echo 1 > subsystems/disk/namespaces/1/enable
echo rdma > ports/1/addr_trtype
echo ipv4 > ports/1/addr_adrfam
echo {server} > ports/1/addr_traddr
echo 4420 > ports/1/addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/disk ports/1/subsystems/disk
"""
"""A RAM disk of the guest {server}, as the subsystem `disk`."""


def shell(guest: Guest, script: str, timeout_s: float = 120.0) -> str:
    """Run a script that must succeed; what it printed."""
    return guest.run(["sh", "-ec", script], timeout_s=timeout_s, check=True).stdout


def address(guest: Guest) -> str:
    """The guest's own on IP over InfiniBand, once :func:`network_up` gave it."""
    return f"10.9.0.{guest.index + 1}"


def network_up(guest: Guest, device: str = "ib0") -> None:
    """Give the guest's card an IP address."""
    wait_port_active(guest)
    shell(guest, NETWORK.format(host=guest.index + 1, device=device))


@contextlib.contextmanager
def lossy(lab: Lab, card: str = "h1", loss: float = LOSS) -> Iterator[Fault]:
    """Lose that part of the packets on a card's cable; at least one must have been lost at the end."""
    rule = lab.fabric.add_fault(card, Fault("drop", probability=loss))
    try:
        yield rule
    finally:
        lab.fabric.clear_faults(card)
    assert rule.hits > 0, f"no packet of {rule.seen} was lost"


def wait_reached(guest: Guest, other: str) -> None:
    """Wait until an address answers."""
    shell(guest, f"i=0; until ping -c 1 -W 1 {other}; do i=$((i + 1)); [ $i -lt 60 ] || exit 1; done > /dev/null")


def sha256(guest: Guest, place: str, size_bytes: int | None = None) -> str:
    """The checksum of a file of the guest, or of the beginning of a device."""
    source = f"cat {place}" if size_bytes is None else f"head -c {size_bytes} {place}"
    return shell(guest, f"{source} | sha256sum").split()[0]


def listeners(guest: Guest) -> int:
    """How many listening identifiers the kernel's RDMA CM has; a socket on any device counts once a device."""
    return shell(guest, "rdma resource show cm_id").count("state LISTEN")


def serve(guest: Guest, *command: str) -> Process:
    """Start a server, and return once it listens at the RDMA CM."""
    before = listeners(guest)
    process = guest.popen(list(command))
    wait_for(lambda: process.poll() is not None or listeners(guest) > before)
    assert process.poll() is None, said(process)
    return process


def said(process: Process) -> str:
    """All that a process has printed."""
    return (process.stdout.read_all() + process.stderr.read_all()).decode("utf-8", "replace")


def ended(process: Process, timeout_s: float = 60.0) -> str:
    """What a process printed that must end well."""
    status = process.wait(timeout_s)
    printed = said(process)
    assert status == 0, printed
    return printed


def gid(guest: Guest) -> str:
    """The first GID of the guest's card, as programs take it for an address."""
    return shell(guest, "cat /sys/class/infiniband/mlx5_0/ports/1/gids/0").strip()


FOUR: dict[str, Any] = {
    "guests": 4,
    "guest": GuestConfig(memory_mib=512),
    "extra_packages": ("mpi",),
}
"""The lab of four that tests share."""
