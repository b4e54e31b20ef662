"""The account of waiting for DMA by message."""

import pytest

from vhca.vfio_user.patience import ACCOUNT_S, FREE_S, MOMENT_S, REFILL, REST, ROUND_S, Patience


@pytest.fixture
def patience() -> Patience:
    patience = Patience()
    patience.limit(100.0)
    return patience


def test_the_messages_of_a_round_share_its_time(patience: Patience) -> None:
    assert patience.limit(100.0) == ROUND_S
    assert not patience.spend(100.0, 100.0 + ROUND_S / 2)
    assert patience.limit(100.0 + ROUND_S / 2) == pytest.approx(ROUND_S / 2)
    assert not patience.spend(101.0, 101.0 + ROUND_S)
    assert patience.limit(102.0) == 0
    patience.new_round()
    assert patience.limit(102.0) == ROUND_S


def test_quick_answers_cost_nothing(patience: Patience) -> None:
    for _ in range(100_000):
        assert not patience.spend(100.0, 100.0 + FREE_S)
        patience.new_round()
    assert patience.limit(100.0) == ROUND_S


def test_slow_answers_empty_the_account(patience: Patience) -> None:
    slow = 5 * FREE_S
    answers = 0
    while not patience.spend(100.0, 100.0 + slow):
        answers += 1
        patience.new_round()
    assert answers == pytest.approx(ACCOUNT_S / (slow - FREE_S), abs=1)
    # what a quick answer may take is still left
    patience.new_round()
    assert patience.limit(100.0) == pytest.approx(FREE_S, abs=slow)


def test_the_account_fills_up_again_and_no_further(patience: Patience) -> None:
    patience.spend(100.0, 100.0 + FREE_S + ACCOUNT_S)
    patience.new_round()
    later = 100.0 + ROUND_S / 2 / REFILL
    assert patience.limit(later) == pytest.approx(FREE_S + ROUND_S / 2)
    patience.limit(1e6)
    assert patience.spend(1e6, 1e6 + FREE_S + ACCOUNT_S)


def test_a_debt_is_paid_first(patience: Patience) -> None:
    """A reply that came much too late, since the host had stopped this process."""
    assert patience.spend(100.0, 101.0)
    patience.new_round()
    assert patience.limit(101.0) == 0
    assert patience.limit(101.0 + 2 / REFILL) > FREE_S


def test_many_quick_answers_in_a_round_are_followed_by_a_rest(patience: Patience) -> None:
    at = 100.0
    patience.spend(at, at + 0.9 * MOMENT_S)
    at += 0.9 * MOMENT_S
    assert not patience.rest_until
    for _ in range(10):
        patience.spend(at, at + FREE_S)
        at += FREE_S
    assert patience.rest_until == pytest.approx(at + REST * (at - 100.0))
    # A round is judged for itself.
    patience.new_round()
    patience.spend(200.0, 200.0 + FREE_S)
    assert patience.rest_until < 200.0
