"""Cards of several kinds, all in one guest, and what the driver of 6.19 makes of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from vhca.chip.card_profiles import built_in
from vhca.lab import CardConfig, Guest, card_profile
from vhca.lab.perftest import wait_port_active
from vhca.management.link_speed import gbps

PROFILES = list(built_in().values())
WITHOUT = {"pg": "odp", "dct": "dc", "atomic": "atomics", "device_memory": "device memory"}
LESS = [CardConfig(capabilities={name: 0}) for name in WITHOUT]
# The driver takes no card without XRC; it stands last, so that the others keep their names.
REFUSED = replace(card_profile("cx5").card, capabilities={"xrc": 0})
ALL = pytest.mark.vhca(guest_cards=[[*(profile.card for profile in PROFILES), *LESS, REFUSED]])


def _attributes(guest: Guest, index: int) -> str:
    return guest.run(["ibv_devinfo", "-v", "-d", f"mlx5_{index}"], check=True).stdout


def _number(text: str, name: str) -> int:
    match = re.search(rf"^\s*{name}:\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


def _reaction(text: str) -> dict[str, bool]:
    """What the verbs say of the features that a card may lack."""
    return {
        "pg": "ODP_SUPPORT" in text,
        "atomic": "ATOMIC_HCA" in text,
        "device_memory": _number(text, "maximum available device memory") > 0,
    }


@ALL
def test_each_kind_is_taken_for_what_it_is(guest: Guest) -> None:
    for index, profile in enumerate(PROFILES):
        device = f"mlx5_{index}"
        wait_port_active(guest, device=device)
        text = _attributes(guest, index)
        card = profile.card
        major, minor, subminor = card.fw_version
        assert _number(text, "vendor_part_id") == card.device_id
        assert re.search(rf"fw_ver:\s+{major}\.{minor}\.{subminor:04}\s", text), profile.name
        assert re.search(rf"board_id:\s+{card.board_id}\s", text), profile.name
        rate = guest.run(["cat", f"/sys/class/infiniband/{device}/ports/1/rate"], check=True).stdout
        # The cable of one switch is as fast as its card.
        assert rate.strip() == f"{gbps(card.link.rate):g} Gb/sec ({card.link.width}X {card.link.speed})", profile.name


@ALL
def test_the_driver_s_reaction_to_a_missing_capability(guest: Guest) -> None:
    usual = _reaction(_attributes(guest, 2))
    assert all(usual.values())
    for offset, name in enumerate(WITHOUT):
        seen = _reaction(_attributes(guest, len(PROFILES) + offset))
        assert seen == {**usual, **({name: False} if name in usual else {})}, WITHOUT[name]


@ALL
def test_a_card_without_xrc_is_not_taken(guest: Guest) -> None:
    names = guest.run(["ls", "/sys/class/infiniband"], check=True).stdout.split()
    assert len(names) == len(PROFILES) + len(LESS)
    log = guest.run(["dmesg"], check=True).stdout
    assert f"mlx5_core.rdma.{len(names)}: probe with driver mlx5_ib.rdma failed with error -12" in log
