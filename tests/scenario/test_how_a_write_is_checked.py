"""The table of docs/how-a-write-travels.md: of everything that is wrong with a WRITE, the first check decides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from firmware.transport import replies, responder
from tests.scenario.tools import FIRST, inject, large_region
from tests.scenario.world import pair
from vhca.hw.effects import Transmit
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.qpc import OptParam
from vhca.wire.packet import WRITE

PAGE = Path(__file__).parents[2] / "docs" / "how-a-write-travels.md"
NAKS = {"": 0x20 | 7, "sequence error": 0x60, "invalid request": 0x61, "remote access error": 0x62}

#: What fails each check, and a word of the reason that is then given, in the order of the table.
FAULTS: list[tuple[str, dict[str, object], str]] = [
    ("expected PSN?", {"psn": FIRST + 5}, ""),
    ("may this packet follow the one before?", {"start": False}, "continues a message that has not started"),
    ("does its payload fit its place", {"payload": bytes(1000), "end": False}, "fit the place of the packet"),
    ("WRITE enabled on this queue pair?", {"enabled": 0}, "not enabled"),
    ("with immediate data: is there a receive?", {"immediate": 1}, ""),
    ("rkey, protection domain, range, right", {"rkey": 0x999900}, "key"),
    ("RETH's length not above 2^31?", {"dma_length": (1 << 31) + 1}, "above 2\\*\\*31"),
    ("as much data as RETH said?", {"dma_length": 16}, "more or less data"),
]


def _table() -> list[tuple[str, int]]:
    """Check and NAK of each row of the page's table."""
    (rows,) = re.findall(r"^\| check \| fails as .*?\n\|[-|]*\n(.*?)\n\n", PAGE.read_text("utf-8"), re.M | re.S)
    found = []
    for row in rows.splitlines():
        check, answer, _ = row.strip("| ").split(" | ")
        found.append((check, NAKS["".join(re.findall(r'NAK "(.*?)"', answer))]))
    return found


def test_the_table_has_these_checks() -> None:
    for (check, _), (words, _, _) in zip(_table(), FAULTS, strict=True):
        assert check.startswith(words)


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault[0] for fault in FAULTS])
def test_the_first_check_that_fails_decides(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    refuse = replies.refuse

    def note(*arguments: object) -> None:
        reasons.append(str(arguments[-1]))
        refuse(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(responder, "refuse", note)
    world, _, b = pair(min_rnr_nak=7)
    address, key = large_region(b, (1 << 31) + 64)
    fields: dict[str, object] = {"op": WRITE, "psn": FIRST, "va": address, "rkey": key, "dma_length": 8}
    fields |= {"payload": bytes(8), "enabled": 1}
    for _, fault, _ in reversed(FAULTS[number:]):
        fields |= fault
    assert b.apply(Op.RTS2RTS_QP, 1 << OptParam.RWE, rwe=int(str(fields.pop("enabled")))) == 0
    b.card.effects.clear()
    inject(world, b, **fields)
    (answer,) = [effect.packet for effect in b.card.effects if isinstance(effect, Transmit)]
    assert answer.syndrome == _table()[number][1]
    wanted = FAULTS[number][2]
    assert [bool(re.search(wanted, reason)) for reason in reasons] == [True] * bool(wanted)
