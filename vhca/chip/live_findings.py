"""What hosts do wrong with the objects of a running rack's cards, for people and programs outside its loop."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from vhca.chip.live_faults import Fields, OrderError
from vhca.hw.findings import Finding, ObjectLife, Place, strictness

MOST_TOLD: Final = 200
"""Findings, or lives, that one order tells of: so it takes a few milliseconds."""


class LedgerOfCard(Protocol):
    """One card's ledger, for any thread."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the card is called."""
        ...

    def keep_lives(self, level: str) -> None:
        """See :meth:`vhca.chip.card.Card.keep_lives`."""
        ...

    def findings(self) -> tuple[Finding, ...]:
        """See :meth:`vhca.chip.card.Card.findings`."""
        ...

    def known(self, kind: str | None = None) -> list[Place]:
        """See :meth:`vhca.chip.card.Card.known`."""
        ...

    def lives(self, kind: str | None = None, places: Sequence[Place] | None = None) -> tuple[ObjectLife, ...]:
        """See :meth:`vhca.chip.card.Card.lives`."""
        ...


class FindingOrders:
    """Orders about findings; `cards` gives the ledgers of all cards."""

    def __init__(self, cards: Callable[[], Sequence[LedgerOfCard]]) -> None:
        self._cards = cards

    def orders(self) -> dict[str, Callable[[Fields], Any]]:
        """What there is, by name."""
        return {"findings_keep": self._keep, "findings_list": self._list, "lives_list": self._lives}

    def _chosen(self, name: str | None) -> Sequence[LedgerOfCard]:
        cards = self._cards()
        chosen = [card for card in cards if name is None or name in card.names]
        if name is not None and not chosen:
            there = ", ".join(card.names[0] for card in cards)
            raise OrderError(f"there is no card {name[:60]!r}; there are {there or 'none'}")
        return chosen

    def _keep(self, fields: Fields) -> int:
        """How strictly a card, or all of them, look from now on; returns how many cards that are."""
        name, level = fields.text("card"), fields.text("level")
        fields.end()
        chosen = self._chosen(name)
        try:
            strictness(level or "")
        except ValueError as error:
            raise OrderError(f"level: {error}") from error
        for card in chosen:
            card.keep_lives(level or "")
        return len(chosen)

    def _list(self, fields: Fields) -> dict[str, Any]:
        chosen = self._chosen(fields.text("card"))
        fields.end()
        found = [finding for card in chosen for finding in card.findings()]
        return {"count": len(found), "findings": [_told(finding) for finding in found[:MOST_TOLD]]}

    def _lives(self, fields: Fields) -> dict[str, Any]:
        chosen, kind = self._chosen(fields.text("card")), fields.text("kind")
        number = fields.number("number", 0, 1 << 32)
        fields.end()
        count = 0
        told: list[dict[str, Any]] = []
        for card in chosen:
            places = [place for place in card.known(kind) if number in (None, place[1])]
            count += len(places)
            told += [_life(card.names[0], life) for life in card.lives(places=places[: MOST_TOLD - len(told)])]
        return {"count": count, "lives": told}


def _told(finding: Finding) -> dict[str, Any]:
    return {
        "card": finding.card,
        "kind": str(finding.kind),
        "level": finding.level.name.lower(),
        "object": finding.object_kind,
        "number": finding.number,
        "time_ns": finding.time_ns,
        "times": finding.times,
        "text": finding.text,
        "life": None if finding.life is None else _life(finding.card, finding.life),
    }


def _life(card: str, life: ObjectLife) -> dict[str, Any]:
    return {
        "card": card,
        "kind": life.kind,
        "number": life.number,
        "uid": life.uid,
        "alive": life.alive,
        "left_out": life.left_out,
        "events": [str(event) for event in life.events],
    }
