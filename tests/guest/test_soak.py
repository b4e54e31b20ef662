"""The soak of the subnet (`make soak-subnet`), so short that it shows that it works, and what it calls lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.upper import LONG
from tests.soak.subnet import soak


@LONG
@pytest.mark.timeout(300)
def test_nothing_is_lost_while_cables_and_managers_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, found = soak(0.3, guests=2, seed=2, logs=tmp_path / "logs", reign_s=(2.0, 6.0))
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert found == []
    assert any("to OpenSM" in line for line in lines), lines
