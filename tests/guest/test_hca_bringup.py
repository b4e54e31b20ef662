"""A guest's own driver finds the card, brings it up, and shows what the card is."""

from __future__ import annotations

import re

import pytest

from tests.guest.cards import PORT, assert_no_complaint, moved, sysfs
from vhca.lab import CardConfig, Guest, Lab, RackConfig
from vhca.lab.perftest import perftest, run_exchange, wait_port_active

KEY = 0xC0FFEE
OLDER = CardConfig(
    description="an older card",
    device_id=0x1013,
    board_id="VHCA_OLDER",
    fw_version=(12, 28, 2006),
    mtu=2048,
    capabilities={"dct": 0, "log_max_qp": 12},
)
TWO_KINDS = pytest.mark.vhca(guest_cards=[[CardConfig()], [OLDER]], rack=RackConfig(mkey=KEY))


@pytest.fixture(autouse=True)
def _quiet_kernels(lab: Lab) -> object:
    for guest in lab.guests:
        wait_port_active(guest)
    yield
    assert_no_complaint(*lab.guests)


def _field(text: str, name: str) -> str:
    match = re.search(rf"^\s*{name}:\s+(.+?)\s*$", text, re.MULTILINE)
    assert match, f"no {name} in:\n{text}"
    return match[1]


def test_the_unmodified_driver_bound_to_the_function(guest: Guest) -> None:
    pci = guest.run(["lspci", "-n", "-d", "15b3:"], check=True).stdout
    assert re.search(r"0207: 15b3:101b", pci)
    driver = guest.run(["readlink", "/sys/class/infiniband/mlx5_0/device/driver"], check=True).stdout
    assert driver.strip().endswith("/mlx5_core")


def test_devinfo_agrees_with_the_card_and_the_subnet_manager(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    lids = set()
    for guest, hca in zip(guest_pair, lab.hcas, strict=False):
        text = guest.run(["ibv_devinfo", "-v"], check=True).stdout
        assert _field(text, "hca_id") == "mlx5_0"
        assert _field(text, "state") == "PORT_ACTIVE (4)"
        assert _field(text, "link_layer") == "InfiniBand"
        assert _field(text, "vendor_part_id") == "4123"
        assert _field(text, "active_mtu") == "4096 (5)"
        assert _field(text, "sm_lid") == "1"
        assert re.fullmatch(r"\d+\.\d+\.\d+", _field(text, "fw_ver"))
        assert _field(text, "node_guid").replace(":", "") == f"{hca.node_guid:016x}"
        assert int(_field(text, "port_lid")) == lab.fabric.lid(hca.name)
        lids.add(lab.fabric.lid(hca.name))
    assert len(lids) == 2
    assert 0 not in lids


def test_the_user_interfaces_are_there(guest: Guest) -> None:
    listed = guest.run(["ls", "/dev/infiniband"], check=True).stdout.split()
    assert {"rdma_cm", "umad0", "uverbs0"} <= set(listed)


def test_management_tools_see_the_subnet(guest: Guest, lab: Lab) -> None:
    assert "State: Active" in guest.run(["ibstat"], check=True).stdout
    assert "SMINFO_MASTER" in guest.run(["sminfo"], check=True).stdout
    assert f"{lab.fabric.lid(lab.hcas[1].name)}" in guest.run(["saquery", "-N"], check=True).stdout


def test_agents_answer_nobody_without_their_key(guest: Guest, lab: Lab) -> None:
    """Neither the other guest's port nor the switch can be read, let alone be changed; the directory can."""
    for lid in (lab.fabric.lid(lab.hcas[1].name), 1):
        assert guest.run(["smpquery", "-t", "200", "nodeinfo", str(lid)]).returncode != 0
    assert guest.run(["ibportstate", "-t", "200", "1", "2", "disable"]).returncode != 0
    counters = lab.fabric.counters()
    assert counters["switch.dropped.bad_mkey"] >= 1
    assert lab.fabric.active()
    assert f"{lab.hcas[1].node_guid:#018x}" in guest.run(["saquery", "-N"], check=True).stdout


@TWO_KINDS
def test_two_guests_have_different_cards(guest_pair: tuple[Guest, Guest], lab: Lab) -> None:
    usual, older = [guest.run(["ibv_devinfo", "-v"], check=True).stdout for guest in guest_pair]
    told = ("vendor_part_id", "board_id", "fw_ver", "max_mtu", "active_mtu", "max_qp")
    assert [_field(usual, name) for name in told[:1] + told[3:]] == ["4123", "4096 (5)", "4096 (5)", str(1 << 18)]
    assert [_field(older, name) for name in told] == [
        "4115",
        "VHCA_OLDER",
        "12.28.2006",
        "2048 (4)",
        "2048 (4)",
        str(1 << 12),
    ]
    ends = run_exchange(*guest_pair, perftest("ib_write_bw", 65536, 20))
    assert [end.returncode for end in ends] == [0, 0]


@TWO_KINDS
def test_the_owner_of_the_key_reads_agents(guest_pair: tuple[Guest, Guest], lab: Lab) -> None:
    guest = guest_pair[0]
    lid = str(lab.fabric.lid(lab.hcas[1].name))
    assert "an older card" in guest.run(["smpquery", "-y", hex(KEY), "nodedesc", lid], check=True).stdout
    found = guest.run(["ibnetdiscover", "-y", hex(KEY)], check=True).stdout
    for hca in lab.hcas:
        assert f"H-{hca.node_guid:016x}" in found


def test_probing_costs_commands_and_no_malformed_one(lab: Lab) -> None:
    for hca in lab.hcas:
        counters = hca.counters()
        assert counters["commands"] > 50
        assert counters["smps_handled"] > 0
        assert counters["commands_malformed"] == 0
        assert counters.get("dma_write_errors", 0) == 0
        assert counters.get("firmware_failures", 0) == 0


def test_port_counters_move_with_the_packets_that_management_sends(guest: Guest, lab: Lab) -> None:
    before = {name: sysfs(guest, f"counters/{name}") for name in ("port_xmit_packets", "port_rcv_packets")}
    with moved(lab.hcas[0]) as counted:
        guest.run(["sminfo"], check=True)
    after = {name: sysfs(guest, f"counters/{name}") for name in before}
    assert all(after[name] > before[name] for name in before), (before, after)
    assert counted["interrupts"] > 0


def test_sysfs_shows_the_rate_and_the_firmware(guest: Guest) -> None:
    text = guest.run(["sh", "-c", f"cat {PORT}/rate {PORT}/phys_state {PORT}/link_layer"], check=True).stdout
    rate, physical, layer = text.splitlines()
    assert rate == "100 Gb/sec (4X EDR)"
    assert (physical, layer) == ("5: LinkUp", "InfiniBand")
