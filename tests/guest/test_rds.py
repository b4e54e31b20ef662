"""Reliable datagram sockets over RDMA between two guests, and what Debian has no tools for.

`rds-tools` is not in the suite that guests are made of, so the programs are a few lines of Python.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guest.cards import assert_no_complaint, moved
from tests.guest.upper import address, ended, lossy, network_up, said, shell
from vhca.lab import Cache, Guest, Lab, PackageError, Progress
from vhca.lab.packages import PackageStore

pytestmark = pytest.mark.vhca(guests=2)

BYTES = 4 << 20
# AF_RDS is 21; RDS knows its transports by number, RDMA is 0 (linux/rds.h).
OPEN = """
import hashlib, random, socket, sys
rds = socket.socket(21, socket.SOCK_SEQPACKET)
rds.setsockopt(276, 8, (0).to_bytes(4, "little"))
rds.bind((sys.argv[1], 4000))
"""
RECEIVE = f"""{OPEN}
print("ready", flush=True)
told, seen = hashlib.sha256(), 0
while seen < {BYTES}:
    data, sender = rds.recvfrom(1 << 16)
    told.update(data)
    seen += len(data)
rds.sendto(told.digest(), sender)
print(seen, told.hexdigest())
"""
SEND = f"""{OPEN}
data = random.Random(1).randbytes({BYTES})
for at in range(0, len(data), 16000):
    rds.sendto(data[at : at + 16000], (sys.argv[2], 4000))
assert rds.recv(64) == hashlib.sha256(data).digest()
print(len(data), hashlib.sha256(data).hexdigest())
"""
# To port 0, which answers by itself.
PING = f"""{OPEN}
rds.settimeout(20)
for number in range(5):
    rds.sendto(b"", (sys.argv[2], 0))
    assert rds.recvfrom(64)[1][0] == sys.argv[2]
print("answered")
"""


@pytest.fixture
def ends(guest_pair: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    for guest in guest_pair:
        network_up(guest)
        shell(guest, "modprobe rds_rdma")
    yield guest_pair
    assert_no_complaint(*guest_pair)


def test_datagrams_arrive_in_order_over_a_lossy_cable(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    listening = server.popen(["python3", "-c", RECEIVE, address(server)])
    assert listening.stdout.read(16) == b"ready\n", said(listening)
    with lossy(lab), moved(lab.hcas[1]) as card:
        sent = shell(client, f"python3 -c '{SEND}' {address(client)} {address(server)}")
    assert ended(listening) == sent
    assert card["tx_bytes"] >= BYTES


def test_debian_has_no_tools_for_it() -> None:
    """docs/limits.md says so."""
    try:
        assert PackageStore(Cache(), Progress(quiet=True)).candidates(["rds-tools", "nvme-cli"]) == {"nvme-cli"}
    except PackageError as error:
        pytest.skip(f"the index of packages cannot be had: {error}")


def test_the_other_kernel_answers_pings(ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    assert "answered" in shell(client, f"python3 -c '{PING}' {address(client)} {address(server)}")
