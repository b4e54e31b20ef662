"""An exchange of all with all: every two once, and nobody twice in a round."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.bench.bench_guests import rounds


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_every_two_meet_once_and_nobody_twice_in_a_round(count: int) -> None:
    played = rounds(count)
    assert len(played) == count - 1 + count % 2
    for pairs in played:
        numbers = [number for pair in pairs for number in pair]
        assert len(numbers) == len(set(numbers))
    assert sorted(tuple(sorted(pair)) for pairs in played for pair in pairs) == list(combinations(range(count), 2))
