"""Events as a ladder of text: time, a column for each of two cards and the wire between them, one line for an event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from vhca.trace.events import TraceEvent

LOOPBACK_SUFFIX: Final = "-loopback"
CARD_COLUMN: Final = 50
WIRE_COLUMN: Final = 46
_COLOURS: Final = {"packet": "36", "completion": "32", "command": "33", "interrupt": "35", "event": "35"}
_BAD: Final = "31;1"


def _clean(text: str) -> str:
    """One line without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def card_of(place: str) -> str:
    """The card to which a port or its loopback belongs; a switch's port as it is."""
    return place.removesuffix(LOOPBACK_SUFFIX)


class Ladder:
    """Lines for events, as they come.

    `cards`: who has a column; with two, the wire is between them, and arrows show where packets go. Others, or more,
    stand in one column with their names.
    """

    def __init__(self, cards: Sequence[str], colours: bool = False) -> None:
        self._cards = list(cards)
        self._colours = colours
        self._first_ns: int | None = None

    @property
    def two(self) -> bool:
        """Two cards face each other."""
        return len(self._cards) == 2

    def header(self) -> list[str]:
        """The names of the columns."""
        names = [_clean(self._cards[0]), "wire", _clean(self._cards[1])] if self.two else ["card", "wire"]
        widths = self._widths()
        cells = [name.ljust(width) for name, width in zip(names, widths, strict=True)]
        rule = ["-" * width for width in widths]
        return [
            "  ".join(["        us", *cells]).rstrip(),
            "  ".join(["-" * 10, *rule]).rstrip(),
        ]

    def _widths(self) -> list[int]:
        return [CARD_COLUMN, WIRE_COLUMN, CARD_COLUMN] if self.two else [CARD_COLUMN + 8, WIRE_COLUMN + 10]

    def lines(self, event: TraceEvent) -> Iterator[str]:
        """The lines of one event: itself, and what is to be said of it."""
        if self._first_ns is None:
            self._first_ns = event.time_ns
        if event.lost:
            yield f"{'':10}  ... {event.lost} events are missing here"
        stamp = f"{(event.time_ns - self._first_ns) / 1e3:10.1f}"
        cells = [""] * len(self._widths())
        place = self._cell(event, cells)
        colour = _BAD if event.bad else _COLOURS.get(event.kind, "")
        painted = []
        for index, (cell, width) in enumerate(zip(cells, self._widths(), strict=True)):
            last = index == len(cells) - 1
            text = cell if last else _cut(cell, width).ljust(width)
            painted.append(f"\x1b[{colour}m{text}\x1b[0m" if self._colours and colour and index == place else text)
        yield "  ".join([stamp, *painted]).rstrip()
        if event.meaning:
            yield f"{'':10}  {'':{self._indent(place)}}= {_clean(event.meaning)}"

    def _indent(self, place: int) -> int:
        return sum(width + 2 for width in self._widths()[:place])

    def _cell(self, event: TraceEvent, cells: list[str]) -> int:
        """Put the event into its cell, and tell which one that is."""
        text = _clean(event.text)
        place = _clean(event.place)
        if event.kind == "packet":
            index = 1
            cells[1] = self._arrow(event, place, text)
        elif self.two:
            index = 0 if event.place == self._cards[0] else 2
            cells[index] = text
        else:
            index = 0
            cells[0] = f"{place}: {text}"
        return index

    def _arrow(self, event: TraceEvent, place: str, text: str) -> str:
        if not self.two or card_of(event.place) not in self._cards or event.place != card_of(event.place):
            return f"{place} {'<-' if event.inbound else '->'} {text}"
        to_right = (event.place == self._cards[0]) != event.inbound
        room = WIRE_COLUMN - 4
        body = _cut(text, room)
        fill = "-" * (room - len(body))
        return f"{body} {fill}->" if to_right else f"<-{fill} {body}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


def cards_of(events: Sequence[TraceEvent]) -> list[str]:
    """The cards and ports that events tell of, in the order of their names."""
    return sorted({card_of(event.place) for event in events}, key=lambda name: (len(name), name))
