"""All cables of a fabric, by the names of what they join, and what can be done to them from outside.

A cable is named by a card (`h0`), by another name that a card was given (`g0/1`), by one of its ends (`leaf1/3`,
`n7/1`), or by a host that has one port (`n7`). "from" and "to" are seen from the end that is named.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vhca.fabric.fabric_port import FabricPort
from vhca.fabric.faults import DIRECTIONS, Direction, Fault, FaultInjector
from vhca.fabric.line import PLAIN, LineConfig
from vhca.fabric.link import CallLater, Link, LinkEnd
from vhca.fabric.port import SwitchPort
from vhca.fabric.quantities import told_time

MOST_FLAPS: Final = 10_000
# The first number of the seeds of cables that are no card's.
_OTHERS: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class CableStatus:
    """A cable to which something was done: it is pulled, disabled, has rules, or is not as usual.

    - `name`: of a card, else its first end; `ends`: both
    - `plugged`, `up`, `disabled` (by an order, at either end)
    - `rules`, `hits`: fault rules, and the packets that those hit
    - `line`: rate, latency and error rate, "" if those are as usual
    """

    name: str
    ends: tuple[str, str]
    plugged: bool
    up: bool
    disabled: bool
    rules: int
    hits: int
    line: str


class Cables:
    """Of one fabric."""

    def __init__(self, seed: int, call_later: CallLater) -> None:
        self._seed = seed
        self._call_later = call_later
        self._ends: dict[str, LinkEnd] = {}
        self._links: dict[Link, int] = {}  # in the order in which they came, and the number of each
        self._cards: dict[str, FabricPort] = {}
        self._names: dict[Link, str] = {}
        # Orders to a cable end the flapping that was ordered before.
        self._orders: dict[Link, int] = {}
        self._lines: dict[Link, LineConfig] = {}
        # Those whose end `a` leads to another rack.
        self.halves: set[Link] = set()

    # ---- names ----

    def add(self, link: Link) -> None:
        """A cable, which both ends name."""
        if link not in self._links:
            self._links[link] = len(self._links)
            for end in (link.a, link.b):
                self._ends[end.name] = end

    def add_card(self, name: str, port: FabricPort, alias: str | None = None) -> None:
        """A card's cable; `alias` is another name of it. ValueError if that is taken."""
        self.add(port.link)
        for known in (name, alias):
            if known is not None:
                if self._cards.get(known, port) is not port:
                    raise ValueError(f"the fabric has a port called {known} already")
                self._cards[known] = port
        self._names[port.link] = name

    def end(self, name: str) -> LinkEnd:
        """The end of a cable that a name means.

        :raises KeyError: there is none.
        """
        card = self._cards.get(name)
        if card is not None:
            return card.end
        end = self._ends.get(name)
        if end is None and "/" not in name and f"{name}/2" not in self._ends:
            end = self._ends.get(f"{name}/1")
        if end is None:
            raise KeyError(name)
        return end

    def name_of(self, link: Link) -> str:
        """What a cable is called: by its card, else by its first end."""
        return self._names.get(link, link.a.name)

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links)

    # ---- up and down ----

    def set_plugged(self, name: str, plugged: bool) -> None:
        """Pull a cable, or plug it in."""
        link = self.end(name).link
        self._ordered(link)
        link.set_plugged(plugged)

    def flap(self, name: str, times: int, down_ns: int, up_ns: int) -> None:
        """Pull a cable and plug it in again, so many times, for so long each; the first time now.

        ValueError for a number of times that is not in 1 to 10,000. Another order to the cable ends it.
        """
        link = self.end(name).link
        if not 1 <= times <= MOST_FLAPS:
            raise ValueError(f"{times} times: give 1 to {MOST_FLAPS}")
        order = self._ordered(link)

        def change(left: int, plugged: bool) -> None:
            if self._orders.get(link) != order:
                return
            link.set_plugged(plugged)
            if not plugged:
                self._call_later(down_ns, lambda: change(left - 1, True))
            elif left:
                self._call_later(up_ns, lambda: change(left, False))

        change(times, False)

    def _ordered(self, link: Link) -> int:
        number = self._orders[link] = self._orders.get(link, 0) + 1
        return number

    def set_disabled(self, name: str, disabled: bool) -> None:
        """Disable a port for good, or enable it: the switch's that is named, or at which the named end's cable ends.

        No manager enables it meanwhile.
        """
        end = self.end(name)
        port = end.endpoint if isinstance(end.endpoint, SwitchPort) else end.other.endpoint
        assert isinstance(port, SwitchPort)  # a cable has at least one end at a switch
        port.hold_down(disabled)

    # ---- how it is ----

    def line(self, name: str) -> LineConfig:
        """How a cable is."""
        return self._lines.get(self.end(name).link, PLAIN)

    def set_line(self, name: str, config: LineConfig) -> None:
        """How a cable is from now on, in both directions."""
        link = self.end(name).link
        self._lines[link] = config
        if config == PLAIN:
            del self._lines[link]
        # Of a trunk's half only what this rack sends takes time here; what comes has taken it in the other rack.
        for end in (link.b,) if link in self.halves else (link.a, link.b):
            end.set_line(config, self._seed_of(end))

    def _seed_of(self, end: LinkEnd) -> int:
        """In a run that is repeated each direction of a cable has the same."""
        card = self._names.get(end.link)
        number = 1 + list(self._names.values()).index(card) if card is not None else _OTHERS + self._links[end.link]
        return self._seed + 2 * number + (end is end.link.b)

    # ---- faults ----

    def add_fault(self, name: str, fault: Fault, direction: Direction = "both") -> None:
        """Let something go wrong on a cable; with "both" the rule counts both ways together.

        ValueError for another direction.
        """
        end = self.end(name)
        if direction not in DIRECTIONS:
            raise ValueError(f"no direction {direction!r}; there are {', '.join(DIRECTIONS)}")
        if direction in ("from_card", "to_card"):
            self.check_card(name)
            end = end.link.a
        sides = {"from": (end,), "from_card": (end,), "to": (end.other,), "to_card": (end.other,)}
        for side in sides.get(direction, (end.link.a, end.link.b)):
            if side.faults is None:
                side.faults = FaultInjector(self._seed_of(side))
            side.faults.rules.append(fault)
            side.link.wires.cable_changed()

    def faults(self, name: str) -> list[tuple[Direction, Fault]]:
        """The rules of a cable, in the order in which they act.

        Which way they look is told as seen from the card, if there is one, else from the first end.
        """
        return self._faults(self.end(name).link)

    def _faults(self, link: Link) -> list[tuple[Direction, Fault]]:
        sent, arriving = (end.faults.rules if end.faults is not None else [] for end in (link.a, link.b))
        sent_ids, arriving_ids = {id(rule) for rule in sent}, {id(rule) for rule in arriving}
        there: tuple[Direction, Direction] = ("from_card", "to_card") if link in self._names else ("from", "to")
        found: list[tuple[Direction, Fault]] = []
        for rule in sent:
            found.append(("both" if id(rule) in arriving_ids else there[0], rule))
        return found + [(there[1], rule) for rule in arriving if id(rule) not in sent_ids]

    def check_card(self, name: str) -> None:
        """ValueError if a cable is no card's, so that nothing comes from a card there."""
        if self.end(name).link not in self._names:
            raise ValueError(f"{name} is no card's cable; say from or to, as seen from there")

    def remove_fault(self, name: str, fault: Fault) -> None:
        """Take one rule of a cable away, if it is still there."""
        link = self.end(name).link
        for end in (link.a, link.b):
            if end.faults is not None:
                end.faults.rules = [rule for rule in end.faults.rules if rule is not fault]
                link.wires.changes += 1
                if not end.faults.rules:
                    held, end.faults = end.faults.flush(), None
                    for packet in held:
                        end.send(packet)

    def clear_faults(self, name: str) -> None:
        """Take a cable's rules away; what they hold back goes on."""
        link = self.end(name).link
        for end in (link.a, link.b):
            if end.faults is not None:
                held = end.faults.flush()
                end.faults = None
                link.wires.cable_changed()
                for packet in held:
                    end.send(packet)

    def faulty(self) -> list[str]:
        """The cables that have rules, by name."""
        return [self.name_of(link) for link in self._links if link.a.faults is not None or link.b.faults is not None]

    def status(self) -> Iterator[CableStatus]:
        """Cables to which something was done."""
        for link in self._links:
            rules = self._faults(link) if link.a.faults is not None or link.b.faults is not None else []
            held = any(isinstance(end.endpoint, SwitchPort) and end.endpoint.held for end in (link.a, link.b))
            line = str(self._lines.get(link, ""))
            if rules or held or line or not link.plugged:
                hits = sum(rule.hits for _, rule in rules)
                ends = (link.a.name, link.b.name)
                yield CableStatus(self.name_of(link), ends, link.plugged, link.up, held, len(rules), hits, line)


def told_flap(times: int, down_ns: int, up_ns: int) -> str:
    """A flapping in words."""
    return f"flaps {times} times, {told_time(down_ns)} down and {told_time(up_ns)} up"
