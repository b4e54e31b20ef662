"""The rules of faults inside the cards of a running rack, for people and programs outside its loop."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from vhca.chip.fault_rules import FaultRule, FaultRuleError
from vhca.chip.faults import CardFaults
from vhca.sim.loop import Loop


class LiveFaults:
    """The rules of one card, for other threads: every method is carried out in the rack's loop.

    :ivar names: what the card is called: h0, its cable (g0/1), and, of a guest's first card, the guest (g0).
    """

    def __init__(self, loop: Loop, faults: CardFaults, name: str, cable: str | None = None) -> None:
        self._loop = loop
        self._faults = faults
        first = (cable[:-2],) if cable is not None and cable.endswith("/1") else ()
        self.names = (name, *((cable,) if cable is not None else ()), *first)

    def add(self, rule: str) -> FaultRule:
        """Let something go wrong from now on: `add("command CREATE_MKEY nth=3 status=NO_RES_ERR")`.

        The rule that is returned counts what it hits. docs/faults.md has the language.

        :raises FaultRuleError: there is no such rule, or there are as many as may be.
        """
        return self._loop.call(lambda: self._faults.add(rule))

    def rules(self) -> tuple[FaultRule, ...]:
        """The rules, in the order in which they were made."""
        return self._loop.call(lambda: self._faults.rules)

    def remove(self, rule: FaultRule | int) -> None:
        """Take a rule, or that with this number, away. KeyError: there is none."""
        number = rule if isinstance(rule, int) else rule.number
        self._loop.call(lambda: self._faults.remove(number))

    def clear(self) -> int:
        """Take all rules away, and say how many there were."""
        return self._loop.call(self._faults.clear)


class OrderError(Exception):
    """The order cannot be carried out; the text says why."""


class Fields(Protocol):
    """The fields of an order, each taken once."""

    def text(self, name: str) -> str | None:
        """A field that is a text."""
        ...

    def number(self, name: str, low: int, high: int) -> int | None:
        """A field that is a whole number."""
        ...

    def end(self) -> None:
        """Refuse what nobody took."""
        ...


class FaultOrders:
    """Orders about rules, which name the card; `cards` gives the rules of all of them."""

    def __init__(self, cards: Callable[[], Iterable[LiveFaults]]) -> None:
        self._cards = cards

    def orders(self) -> dict[str, Callable[[Fields], Any]]:
        """What there is, by name."""
        return {"card_fault_add": self._add, "card_fault_list": self._list, "card_fault_remove": self._remove}

    def _card(self, fields: Fields) -> LiveFaults:
        name = fields.text("card")
        if name is None:
            raise OrderError("the order needs the field card, such as h0, or g0 for the first card of guest g0")
        return self._named(name)

    def _named(self, name: str) -> LiveFaults:
        for card in self._cards():
            if name in card.names:
                return card
        there = ", ".join(card.names[0] for card in self._cards())
        raise OrderError(f"there is no card {name[:60]!r}; there are {there or 'none'}")

    def _add(self, fields: Fields) -> dict[str, Any]:
        card, rule = self._card(fields), fields.text("rule")
        fields.end()
        try:
            return _told(card, card.add(rule or ""))
        except FaultRuleError as error:
            raise OrderError(str(error)) from error

    def _list(self, fields: Fields) -> list[dict[str, Any]]:
        name = fields.text("card")
        fields.end()
        cards = self._cards() if name is None else [self._named(name)]
        return [_told(card, rule) for card in cards for rule in card.rules()]

    def _remove(self, fields: Fields) -> int:
        """One rule, or all: of a card, or of all cards."""
        name, number = fields.text("card"), fields.number("number", 1, 1 << 48)
        fields.end()
        if number is None:
            return sum(card.clear() for card in ([self._named(name)] if name is not None else self._cards()))
        if name is None:
            raise OrderError("the order needs the field card beside number: numbers are those of a card")
        try:
            self._named(name).remove(number)
        except KeyError as error:
            raise OrderError(f"{name} has no rule {number}") from error
        return 1


def _told(card: LiveFaults, rule: FaultRule) -> dict[str, Any]:
    return {
        "card": card.names[0],
        "names": list(card.names),
        "number": rule.number,
        "rule": rule.text,
        "seen": rule.seen,
        "hits": rule.hits,
    }
