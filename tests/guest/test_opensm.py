"""OpenSM in a guest manages the subnet: it takes over, does its work, dies, and the embedded manager is back."""

from __future__ import annotations

import re

import pytest

from tests.guest.cards import assert_no_complaint, wait_for
from vhca.lab import Guest, Lab, RackConfig
from vhca.lab.perftest import perftest, run_exchange
from vhca.subnet.partition_file import read

KEY = 0x0123456789ABCDEF
BLUE = read(
    "Default=0x7fff, ipoib, mtu=5, rate=16 : ALL=full ; blue=0x8001, ipoib, mtu=5, rate=16 : h0=full, h1=full ;"
)
# With this, OpenSM 3.3.23 lets only those join groups that are limited members, too: nothing for IP.
BOTH = read("Default=0x7fff, ipoib : ALL=full ; blue=0x8001 : h0=full, h1=both ;")
# A datagram that nobody answers is waited for so long (ms): the test would not end in time.
PATIENCE = "-t 100000"
_ports = iter(range(22000, 23000))


def tool(guest: Guest, command: str) -> str:
    return guest.run(command.split(), timeout_s=60, check=True).stdout


def manager(guest: Guest, key: int = 0) -> tuple[int, str]:
    """LID and state of the manager that a guest's port knows, as it says itself, to who has the M_Key."""
    found = re.search(r"sm lid (\d+) .*state \d (\S+)", tool(guest, f"sminfo {PATIENCE} -y {key:#x}"))
    assert found is not None
    return int(found[1]), found[2]


def shell(guest: Guest, command: str) -> str:
    return guest.run(["sh", "-c", command], timeout_s=60, check=True).stdout


def pings(guest: Guest, address: str) -> bool:
    """Whether IPoIB reaches an address whose hardware address is not known yet."""
    return not guest.run(["sh", "-c", f"ip neigh flush dev ib0; ping -c 1 -W 2 {address}"], timeout_s=30).returncode


def tables(guest: Guest) -> tuple[str, set[int]]:
    """LMC and P_Keys of a guest's port."""
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    lmc, *pkeys = tool(guest, f"cat {port}/lid_mask_count {port}/pkeys/0 {port}/pkeys/1 {port}/pkeys/2").split()
    return lmc, {int(pkey, 16) for pkey in pkeys} - {0}


def write(server: Guest, client: Guest) -> None:
    """RDMA traffic between the guests."""
    ends = run_exchange(server, client, perftest("ib_write_bw", 65536, 100), next(_ports))
    assert [end.returncode for end in ends] == [0, 0], [end.stdout + end.stderr for end in ends]


@pytest.mark.vhca(guests=2, sm="opensm@g0", rack=RackConfig(partitions=BLUE, lmc=1))
def test_opensm_takes_over_and_gives_back_when_it_dies(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    one, two = guest_pair
    for number, guest in enumerate(guest_pair, 1):
        shell(guest, f"modprobe ib_ipoib && ip link set ib0 up && ip addr add 10.80.0.{number}/24 dev ib0")
    assert lab.fabric.manager_state() == "standby"
    assert lab.fabric.active("h0", "h1")
    mine = lab.fabric.lid("h0")
    assert [manager(guest) for guest in guest_pair] == [(mine, "SMINFO_MASTER")] * 2
    assert [tables(guest) for guest in guest_pair] == [("1", {0xFFFF, 0x8001})] * 2
    write(one, two)
    wait_for(lambda: pings(one, "10.80.0.2"))
    listening = two.popen(["ibv_asyncwatch", "-d", "mlx5_0"])
    assert lab.opensm is not None
    lab.opensm.kill()
    write(two, one)  # tables are still there
    wait_for(lambda: lab.fabric.manager_state() == "master", 30)
    wait_for(lambda: manager(two)[0] == 1)
    assert lab.fabric.active("h0", "h1")
    assert manager(one) == (1, "SMINFO_MASTER")
    assert [tables(guest) for guest in guest_pair] == [("1", {0xFFFF, 0x8001})] * 2
    write(one, two)
    wait_for(lambda: pings(one, "10.80.0.2"))  # groups are joined anew
    lab.start_opensm()
    assert [manager(guest) for guest in guest_pair] == [(mine, "SMINFO_MASTER")] * 2
    write(two, one)
    listening.terminate()
    listening.wait(30)
    heard = listening.stdout.read_all().decode()
    # The card tells of another manager's LID as of its own.
    assert heard.count("IBV_EVENT_LID_CHANGE") == heard.count("IBV_EVENT_CLIENT_REREGISTER") == 2, heard
    assert "PORT_" not in heard
    assert_no_complaint(*guest_pair)


@pytest.mark.vhca(guests=2, sm="opensm@g0", rack=RackConfig(mkey=KEY, partitions=BOTH))
def test_ports_keep_their_key_under_opensm_if_the_lab_has_one(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    one, two = guest_pair
    assert lab.fabric.manager_state() == "standby"
    assert [manager(guest, KEY) for guest in guest_pair] == [(lab.fabric.lid("h0"), "SMINFO_MASTER")] * 2
    assert [tables(guest) for guest in guest_pair] == [("0", {0xFFFF, 0x8001}), ("0", {0xFFFF, 0x8001, 0x0001})]
    for lid in (1, lab.fabric.lid("h0")):
        assert two.run(["smpquery", "-t", "200", "nodeinfo", str(lid)]).returncode, "who has no key gets no answer"
        tool(two, f"smpquery {PATIENCE} -y {KEY:#x} nodeinfo {lid}")
    write(one, two)
    assert lab.opensm is not None
    lab.opensm.kill()
    wait_for(lambda: lab.fabric.manager_state() == "master" and lab.fabric.sm_lid("h1") == 1, 30)
    assert two.run(["smpquery", "-t", "200", "nodeinfo", "1"]).returncode
    assert [tables(guest) for guest in guest_pair] == [("0", {0xFFFF, 0x8001}), ("0", {0xFFFF, 0x8001, 0x0001})]
    assert_no_complaint(*guest_pair)
