"""What a card finds of a driver and a program in a real guest: nothing, and a key that is used too late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.cards import load, unload
from vhca.hw.findings import FindingKind
from vhca.lab import Guest, Lab

PROGRAM = Path(__file__).parents[2] / "guest-tests" / "findings" / "late_key.py"
PLACE = "/tmp/late_key.py"


@pytest.mark.vhca(guests=1)
@pytest.mark.vhca_findings(level="normal", allow=["key-after-invalidation"])
def test_a_program_that_uses_a_key_too_late_and_a_driver_that_comes_and_goes(lab: Lab, guest: Guest) -> None:
    unload(guest)
    load(guest)
    assert lab.findings() == ()
    guest.copy_in(PROGRAM, PLACE)
    printed = guest.run(["python3", PLACE], timeout_s=60, check=True).stdout
    said = dict(line.split(" ", 1) for line in printed.splitlines())
    assert (said["before"], said["remote"], said["local"]) == ("0", "10", "4")
    key, remote, local = (int(word, 16) for word in said["key"].split())
    found = [(each.kind, each.object_kind, each.number) for each in lab.findings()]
    assert found == [(FindingKind.KEY_AFTER_INVALIDATION, "mkey", key >> 8)] * 2
    texts = [finding.text for finding in lab.findings()]
    assert f"by the peer of QP {remote:#x}" in texts[0]
    assert f"by QP {local:#x}" in texts[1]
    for finding in lab.findings():
        assert finding.life is not None
        assert any(word in finding.text for word in ("DESTROY_MKEY", "UMR of QP"))
    unload(guest)
    load(guest)
    assert len(lab.findings()) == 2
