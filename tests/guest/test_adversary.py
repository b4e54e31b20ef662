"""The adversarial device before a guest: a seed's rules over probe, traffic and removal, and a rule that is known."""

from __future__ import annotations

import pytest

from acceptance.adversary.bench import Bench
from acceptance.adversary.generator import rules
from acceptance.adversary.search import search
from vhca import DEFAULT_KERNEL
from vhca.lab import Guest

KNOWN = "command CREATE_CQ uid=1..0xffff limit=1 damage=9"


@pytest.mark.timeout(300)
def test_a_seed_is_survived_and_a_known_rule_is_not(guest: Guest) -> None:
    """`guest` decides whether guests can run at all; the bench has its own."""
    told: list[str] = []
    with Bench(DEFAULT_KERNEL) as bench:
        assert search(rules(5, 3), bench, told.append) == [], told
        assert bench.rounds == 1
        sight = bench.round((KNOWN,))
        assert any("uverbs_destroy_ufile_hw" in line for line in sight.headlines), sight.headlines
        # a machine that was spoilt begins anew
        assert bench.round(()).headlines == ()
        assert bench.resets == 1
