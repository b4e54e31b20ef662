"""The connection manager: its programs by IP and by InfiniBand addresses, and sockets that become RDMA."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from tests.guest.cards import assert_no_complaint, moved, wait_for
from tests.guest.upper import LONG, address, ended, gid, listeners, lossy, network_up, said, serve, sha256, shell
from vhca.lab import Guest, Lab

pytestmark = pytest.mark.vhca(guests=2, extra_packages=("ibacm",))

GROUP = "239.9.9.9"
BYTES = 8 << 20
PATIENCE = 20
PRELOAD = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"


@pytest.fixture
def ends(guest_pair: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    """Server and client."""
    for guest in guest_pair:
        network_up(guest)
    yield guest_pair
    assert_no_complaint(*guest_pair)


@pytest.mark.parametrize("family", ["ip", "gid"])
@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("ucmatose", "-c 20 -C 5 -S 4000"),
        ("udaddy", "-c 5 -C 20 -S 1000"),
        ("rstream", "-S 65536 -C 20 -T v"),
        ("riostream", "-S 65536 -C 20 -T v"),
    ],
)
def test_a_program_connects(ends: tuple[Guest, Guest], program: str, options: str, family: str) -> None:
    server, client = ends
    target = address(server) if family == "ip" else gid(server)
    common = [program, *options.split(), "-f", family]
    source = ["-b", gid(client)] if family == "gid" else []
    listening = server.popen([*common, "-b", target])
    for _ in range(PATIENCE):
        # Who is not there yet refuses at once; the kernel lists no listener by InfiniBand address to wait for.
        done = client.run([*common, "-s", target, *source])
        if done.returncode == 0:
            break
    assert done.returncode == 0, (done, said(listening))
    ended(listening)


def test_rping_checks_data_over_a_lossy_cable(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    listening = serve(server, "rping", "-s", "-a", address(server), "-C", "100", "-V", "-S", "20000")
    with lossy(lab):
        shell(client, f"rping -c -a {address(server)} -C 100 -V -S 20000")
    ended(listening)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=LONG)])
def test_many_connections_at_once(lab: Lab, ends: tuple[Guest, Guest], count: int) -> None:
    """With queue pairs, then without."""
    server, client = ends
    listening = serve(server, "cmtime", "-c", str(count), "-b", address(server))
    with moved(lab.hcas[1]) as card:
        printed = shell(client, f"cmtime -c {count} -s {address(server)}", timeout_s=240)
    ended(listening)
    assert re.findall(r"^(?:qp|cm)_conn +(\d+)$", printed, re.MULTILINE) == [str(count)] * 2
    assert card["tx_ud_packets"] >= 2 * 3 * count, "REQ, RTU and DREQ of each"


def test_multicast_by_address(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    receiver, sender = ends
    listening = receiver.popen(["mckey", "-m", GROUP, "-b", address(receiver), "-C", "10"], tty=(50, 200))
    heard = b""
    while b"joined" not in heard:
        heard += listening.stdout.read(64) or pytest.fail(f"the receiver ended: {heard!r} {said(listening)}")
    printed = shell(sender, f"mckey -s -m {GROUP} -b {address(sender)} -C 10")
    assert "joined" in printed
    ended(listening)


def test_rcopy_copies_a_file(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    listening = serve(server, "rcopy")
    shell(client, f"head -c {BYTES} /dev/urandom > /tmp/source")
    with lossy(lab):
        shell(client, f"rcopy /tmp/source {address(server)}:/tmp/target")
    assert sha256(server, "/tmp/target") == sha256(client, "/tmp/source")
    listening.kill()
    listening.wait(20)


def test_sockets_become_rdma_without_a_word_of_the_program(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    """`-T s` makes the program use TCP, which the library that is loaded before it turns into RDMA."""
    server, client = ends
    command = f"env {PRELOAD} rstream -S 65536 -C 100 -T s -T v"
    listening = serve(server, *command.split(), "-b", address(server))
    with lossy(lab), moved(lab.hcas[1]) as card:
        shell(client, f"{command} -s {address(server)}")
    ended(listening)
    assert card["tx_bytes"] >= 100 * 65536


def test_sockets_with_flags_stay_what_they_are(ends: tuple[Guest, Guest]) -> None:
    """docs/upper-protocols.md says so of Python's, which are not inherited."""
    server, _ = ends
    before = listeners(server)
    script = 'import socket, time; s = socket.create_server(("", 5001)); print("ready", flush=True); time.sleep(60)'
    process = server.popen(["env", PRELOAD, "python3", "-c", script])
    assert process.stdout.read(16) == b"ready\n", said(process)
    assert listeners(server) == before
    process.kill()
    process.wait(20)


def test_the_path_that_ibacm_finds_is_that_of_the_subnet_administrator(ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    for guest in ends:
        shell(guest, "mkdir -p /etc/rdma; cd /etc/rdma; ib_acme -A -O; ibacm")
    asked = f"ib_acme -f i -s {address(client)} -d {address(server)} -v"
    wait_for(lambda: "SA verification: success" in client.run(asked.split()).stdout)
    assert f"sgid: {ip_address(gid(client))}" in shell(client, asked)
