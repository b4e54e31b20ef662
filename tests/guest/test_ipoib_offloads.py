"""IP over InfiniBand with the card's offloads: what the driver shows, what is on the cable, and what arrives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.cards import Moved, assert_no_complaint, moved
from vhca.lab import Cache, Guest, Lab, Progress
from vhca.lab.perftest import wait_port_active
from vhca.lab.tshark import Tshark, find_tshark, frame_trouble

BYTES = 8 << 20

NETWORK = """
set -e
modprobe ib_ipoib
ip link set ib0 up
ip addr replace 10.8.0.{host}/24 dev ib0
ethtool -K ib0 tx on tso on rx on gro on
i=0; while ! ip link show ib0 | grep -q LOWER_UP; do i=$((i + 1)); [ $i -lt 200 ] || exit 1; usleep 100000; done
"""
RECEIVE = """
import hashlib, socket
listener = socket.create_server(("10.8.0.1", 5001))
print("ready", flush=True)
peer, _ = listener.accept()
seen, told = 0, hashlib.sha256()
while data := peer.recv(1 << 20):
    seen += len(data)
    told.update(data)
print(seen, told.hexdigest())
"""
SEND = f"""
import hashlib, random, socket
data = random.Random(1).randbytes({BYTES})
socket.create_connection(("10.8.0.1", 5001)).sendall(data)
print(len(data), hashlib.sha256(data).hexdigest())
"""
CHECKED = ("-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE")
GOOD = "1"


@pytest.fixture
def ip_pair(guest_pair: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    for number, guest in enumerate(guest_pair, 1):
        wait_port_active(guest)
        guest.run(["sh", "-c", NETWORK.format(host=number)], timeout_s=120, check=True)
    guest_pair[1].run(["ping", "-c", "2", "10.8.0.1"], check=True)
    yield guest_pair
    assert_no_complaint(*guest_pair)


@pytest.fixture
def tshark() -> Tshark:
    return find_tshark(Cache(), Progress(quiet=True))


def features(guest: Guest) -> dict[str, str]:
    """What `ethtool -k` says."""
    lines = guest.run(["ethtool", "-k", "ib0"], check=True).stdout.splitlines()
    return {name.strip(): value.split()[0] for name, _, value in (line.partition(": ") for line in lines) if value}


def kernel_count(guest: Guest, name: str) -> int:
    """A counter of TCP's."""
    names, values = guest.run(["grep", "^Tcp:", "/proc/net/snmp"], check=True).stdout.splitlines()
    return int(dict(zip(names.split(), values.split(), strict=True))[name])


def transfer(lab: Lab, pair: tuple[Guest, Guest]) -> Moved:
    """Send over TCP from the second guest to the first; how its card's counters moved."""
    receiver, sender = pair
    server = receiver.popen(["python3", "-c", RECEIVE])
    assert next(iter(server.stdout)).strip() == "ready"
    bad = kernel_count(receiver, "InCsumErrors")
    with moved(lab.hcas[1]) as card:
        sent = sender.run(["python3", "-c", SEND], timeout_s=120, check=True).stdout
    assert server.wait(60) == 0
    assert server.stdout.read_all().decode().strip() == sent.strip()
    assert kernel_count(receiver, "InCsumErrors") == bad
    return card


def test_the_driver_shows_the_offloads(ip_pair: tuple[Guest, Guest]) -> None:
    shown = features(ip_pair[0])
    for name in ("rx-checksumming", "tx-checksumming", "tcp-segmentation-offload", "generic-receive-offload"):
        assert shown[name] == "on", name
    assert ip_pair[0].run(["cat", "/sys/class/net/ib0/mtu"], check=True).stdout.strip() == "4092"


def test_large_sends_are_cut_by_the_card(lab: Lab, ip_pair: tuple[Guest, Guest]) -> None:
    card = transfer(lab, ip_pair)
    assert card["tx_ud_packets"] >= BYTES // 4092
    # Each doorbell was for several packets, also where a busy host makes TCP send less at once.
    assert card["tx_ud_packets"] >= 2 * card["sq_doorbells"]


@pytest.mark.parametrize("side", ["sender", "receiver", "both"])
def test_without_offloads_on_either_side_the_same_arrives(lab: Lab, ip_pair: tuple[Guest, Guest], side: str) -> None:
    receiver, sender = ip_pair
    for name, guest in (("receiver", receiver), ("sender", sender)):
        if side in (name, "both"):
            guest.run(["sh", "-c", "ethtool -K ib0 tso off; ethtool -K ib0 tx off rx off"], check=True)
            assert features(guest)["tcp-segmentation-offload"] == "off"
            assert features(guest)["rx-checksumming"] == "off"
    card = transfer(lab, ip_pair)
    if side != "receiver":
        # One work request for each packet.
        assert card["cqes"] >= BYTES // 4092


def test_what_is_on_the_cable_has_right_checksums(
    lab: Lab, ip_pair: tuple[Guest, Guest], tshark: Tshark, tmp_path: Path
) -> None:
    capture = tmp_path / "tcp.pcapng"
    with lab.fabric.capture(capture):
        card = transfer(lab, ip_pair)
    # The card is slow then, and TCP sends less at once; still each request is some packets.
    assert 2 * card["sq_doorbells"] < card["tx_ud_packets"]
    checked = Tshark((*tshark.command, *CHECKED), tshark.environment)
    fields = ("_ws.malformed", "ip.checksum.status", "tcp.checksum.status", "tcp.len", "tcp.dstport")
    rows = checked.fields(capture, *fields)
    assert frame_trouble(rows) == []
    data = [row for row in rows if row["tcp.dstport"] == "5001" and row["tcp.len"] != "0"]
    assert sum(int(row["tcp.len"]) for row in data) >= BYTES
    packets = [row for row in rows if row["tcp.checksum.status"]]
    assert len(packets) > len(data) >= BYTES // 4092
    assert {(row["ip.checksum.status"], row["tcp.checksum.status"]) for row in packets} == {(GOOD, GOOD)}
