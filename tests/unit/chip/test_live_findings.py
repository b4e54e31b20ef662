"""Orders about findings and lives: what they cost is not a guest's to choose."""

from __future__ import annotations

from collections.abc import Sequence

from vhca.chip.live_findings import MOST_TOLD, FindingOrders
from vhca.chip.orders import _Fields
from vhca.hw.findings import Finding, ObjectEvent, ObjectLife, Place

EVENT = ObjectEvent(1_000, "created", "ALLOC_PD")


class ManyLives:
    """A card whose guest has made very many objects; `told` counts the lives that were put together."""

    def __init__(self, name: str, count: int) -> None:
        self.names: tuple[str, ...] = (name,)
        self._places = [("pd", number) for number in range(count)]
        self.told = 0

    def keep_lives(self, level: str) -> None:
        raise AssertionError(level)

    def findings(self) -> tuple[Finding, ...]:
        return ()

    def known(self, kind: str | None = None) -> list[Place]:
        return self._places if kind in (None, "pd") else []

    def lives(self, kind: str | None = None, places: Sequence[Place] | None = None) -> tuple[ObjectLife, ...]:
        assert kind is None
        assert places is not None
        self.told += len(places)
        return tuple(ObjectLife(*place, 0, True, (EVENT,)) for place in places)


def test_no_more_lives_are_put_together_than_are_told() -> None:
    cards = [ManyLives("h0", 150), ManyLives("h1", 60_000)]
    order = FindingOrders(lambda: cards).orders()["lives_list"]
    answer = order(_Fields({}))
    assert answer["count"] == 60_150
    assert len(answer["lives"]) == MOST_TOLD
    assert [card.told for card in cards] == [150, MOST_TOLD - 150]
    one = order(_Fields({"card": "h1", "kind": "pd", "number": 77}))
    assert (one["count"], [life["number"] for life in one["lives"]]) == (1, [77])
