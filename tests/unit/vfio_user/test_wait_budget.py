"""The account of waiting for DMA by message."""

import pytest

from vhca.vfio_user.wait_budget import ACCOUNT_S, FREE_S, MOMENT_S, REFILL, REST, ROUND_S, WaitBudget


@pytest.fixture
def wait_budget() -> WaitBudget:
    wait_budget = WaitBudget()
    wait_budget.limit(100.0)
    return wait_budget


def test_the_messages_of_a_round_share_its_time(wait_budget: WaitBudget) -> None:
    assert wait_budget.limit(100.0) == ROUND_S
    assert not wait_budget.spend(100.0, 100.0 + ROUND_S / 2)
    assert wait_budget.limit(100.0 + ROUND_S / 2) == pytest.approx(ROUND_S / 2)
    assert not wait_budget.spend(101.0, 101.0 + ROUND_S)
    assert wait_budget.limit(102.0) == 0
    wait_budget.new_round()
    assert wait_budget.limit(102.0) == ROUND_S


def test_quick_answers_cost_nothing(wait_budget: WaitBudget) -> None:
    for _ in range(100_000):
        assert not wait_budget.spend(100.0, 100.0 + FREE_S)
        wait_budget.new_round()
    assert wait_budget.limit(100.0) == ROUND_S


def test_slow_answers_empty_the_account(wait_budget: WaitBudget) -> None:
    slow = 5 * FREE_S
    answers = 0
    while not wait_budget.spend(100.0, 100.0 + slow):
        answers += 1
        wait_budget.new_round()
    assert answers == pytest.approx(ACCOUNT_S / (slow - FREE_S), abs=1)
    # what a quick answer may take is still left
    wait_budget.new_round()
    assert wait_budget.limit(100.0) == pytest.approx(FREE_S, abs=slow)


def test_the_account_fills_up_again_and_no_further(wait_budget: WaitBudget) -> None:
    wait_budget.spend(100.0, 100.0 + FREE_S + ACCOUNT_S)
    wait_budget.new_round()
    later = 100.0 + ROUND_S / 2 / REFILL
    assert wait_budget.limit(later) == pytest.approx(FREE_S + ROUND_S / 2)
    wait_budget.limit(1e6)
    assert wait_budget.spend(1e6, 1e6 + FREE_S + ACCOUNT_S)


def test_a_debt_is_paid_first(wait_budget: WaitBudget) -> None:
    """A reply that came much too late, since the host had stopped this process."""
    assert wait_budget.spend(100.0, 101.0)
    wait_budget.new_round()
    assert wait_budget.limit(101.0) == 0
    assert wait_budget.limit(101.0 + 2 / REFILL) > FREE_S


def test_many_quick_answers_in_a_round_are_followed_by_a_rest(wait_budget: WaitBudget) -> None:
    at = 100.0
    wait_budget.spend(at, at + 0.9 * MOMENT_S)
    at += 0.9 * MOMENT_S
    assert not wait_budget.rest_until
    for _ in range(10):
        wait_budget.spend(at, at + FREE_S)
        at += FREE_S
    assert wait_budget.rest_until == pytest.approx(at + REST * (at - 100.0))
    # A round is judged for itself.
    wait_budget.new_round()
    wait_budget.spend(200.0, 200.0 + FREE_S)
    assert wait_budget.rest_until < 200.0
