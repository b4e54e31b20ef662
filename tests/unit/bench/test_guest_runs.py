"""Soft-RoCE may try again where it ends with an error, which is counted; the card may not."""

from types import SimpleNamespace

import pytest

from tests.bench.guest_runs import TRIES, GuestRuns
from tests.bench.results import SOFT, C, Results
from vhca.lab import LabError


@pytest.mark.parametrize(("who", "failures", "ends"), [(SOFT, TRIES - 1, True), (SOFT, TRIES, False), (C, 1, False)])
def test_tries(who: str, failures: int, ends: bool) -> None:
    results = Results()
    left = [failures]

    def run() -> float:
        if left[0]:
            left[0] -= 1
            raise LabError("status 1")
        return 2.5

    runs = SimpleNamespace(results=results)
    if ends:
        assert GuestRuns._tried(runs, who, run) == 2.5  # type: ignore[arg-type]
    else:
        with pytest.raises(LabError):
            GuestRuns._tried(runs, who, run)  # type: ignore[arg-type]
    assert len(results.samples.get("failed/Soft-RoCE", [])) == (TRIES - 1 if who == SOFT else 0)
