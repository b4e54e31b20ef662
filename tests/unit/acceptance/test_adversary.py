"""The adversarial device without a guest: its rules, the search over a stand that knows what is bad, the minimiser."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from acceptance.adversary.bench import Sight, signature
from acceptance.adversary.generator import MOST_BUDGET, PROBE, REMOVAL, TRAFFIC, rules, sweep
from acceptance.adversary.minimise import minimise
from acceptance.adversary.search import search
from vhca.chip.fault_rules import parse_rule
from vhca.wire.connectx.cmd import Op


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_gives_the_same_rules_as_many_as_the_budget_says(seed: int) -> None:
    made = rules(seed, 500)
    assert made == rules(seed, 500)
    assert made[:100] == rules(seed, 100)
    assert len(set(made)) == 500
    assert made != rules(seed + 1, 500)


def test_each_rule_parses_and_all_kinds_and_phases_come_up() -> None:
    made = [parse_rule(text) for text in rules(11, 2000)]
    assert {rule.kind for rule in made} == {
        "command", "event", "completion", "interrupt", "dma", "health", "card", "link",
    }  # fmt: skip
    actions = {(rule.kind, rule.action) for rule in made}
    for action in ("status", "late", "twice", "damage"):
        assert ("command", action) in actions
    for action in ("lost", "late", "twice", "type", "flip"):
        assert ("event", action) in actions
    # a command that never ends is waited for a minute: no round has time for that
    assert ("command", "lost") not in actions


def test_a_sweep_has_each_command() -> None:
    made = [parse_rule(text) for text in sweep()]
    assert {code for rule in made for code in rule.codes or ()} == {Op[name] for name in (*PROBE, *TRAFFIC, *REMOVAL)}
    assert {rule.action for rule in made} == {"status", "damage"}


@pytest.mark.parametrize("budget", [0, -1, MOST_BUDGET + 1])
def test_a_budget_has_bounds(budget: int) -> None:
    with pytest.raises(ValueError, match="budget"):
        rules(1, budget)


SOME = rules(3, 16)


@pytest.mark.parametrize("bad", range(len(SOME)))
def test_one_bad_rule_is_found_wherever_it_is(bad: int) -> None:
    # what it leaves out of the words counts as another rule here
    assert minimise(SOME, lambda some: SOME[bad] in some) == [SOME[bad]]


def test_two_rules_that_are_bad_together_stay_together() -> None:
    assert minimise(SOME, lambda some: SOME[2] in some and SOME[13] in some, most=200) == [SOME[2], SOME[13]]


def test_what_does_not_matter_is_left_out() -> None:
    rule = "command CREATE_CQ nth=2 status=NO_RES_ERR syndrome=0x1234"
    assert minimise([rule], lambda some: "CREATE_CQ nth=2" in some[0]) == ["command CREATE_CQ nth=2 status=NO_RES_ERR"]


def test_judgements_are_bounded() -> None:
    asked = []

    def never(some: Sequence[str]) -> bool:
        asked.append(some)
        return False

    assert minimise(SOME, never, most=5) == SOME
    assert len(asked) == 5


class Stand:
    """A kernel that complains of some rules."""

    def __init__(self, bad: dict[str, str]) -> None:
        self.bad = bad
        self.rounds: list[Sequence[str]] = []

    def round(self, some: Sequence[str]) -> Sight:
        """Note the rules, and complain."""
        self.rounds.append(some)
        return Sight(tuple(self.bad[rule] for rule in some if rule in self.bad), "the whole")


def test_a_search_tells_each_complaint_once_with_the_rule_that_brings_it() -> None:
    made = rules(3, 30)
    oops = "BUG: unable to handle page fault for address: ffffffffffffffea"
    stand = Stand({made[4]: oops, made[20]: oops.replace("ea", "f0"), made[25]: "WARNING: uverbs_destroy_ufile_hw"})
    told: list[str] = []
    found = search(made, stand, told.append)
    assert [(finding.rules, finding.headline) for finding in found] == [
        ((made[4],), oops),
        ((made[25],), "WARNING: uverbs_destroy_ufile_hw"),
    ]
    assert {rule for some in stand.rounds for rule in some} == set(made)
    assert f"  vhca adversary --fault '{made[4]}'" in "\n".join(told)


def test_signatures_have_no_numbers() -> None:
    one = "WARNING: CPU: 0 PID: 1210 at drivers/infiniband/core/rdma_core.c:932 uverbs_destroy_ufile_hw+0x1c/0x40"
    two = "WARNING: CPU: 1 PID: 77 at drivers/infiniband/core/rdma_core.c:940 uverbs_destroy_ufile_hw+0x11c/0x140"
    assert signature(one) == signature(two)
    assert "uverbs_destroy_ufile_hw" in signature(one)
    # as newer kernels say it, with the program that was running
    three, four = (
        f"WARNING: drivers/infiniband/core/rdma_core.c:946 at uverbs_destroy_ufile_hw+0xd7/0xf0 [ib_uverbs], CPU#{who}"
        for who in ("0: ibv_rc_pingpong/129", "1: ibv_xsrq_pingpo/141")
    )
    assert signature(three) == signature(four)
