"""Topologies of common shapes: fat trees, rings, tori, stars.

Switches are called leaf1, spine1 ... or s1, s2 ...; hosts h0, h1 ... where a rack's cards are called like that, too, so
that the first cards take the places of the first hosts.
"""

from collections.abc import Iterator
from itertools import count, product
from typing import Final

from vhca.fabric.topology import Builder, Cable, End, NodeSpec, Topology, TopologyError
from vhca.management.link_speed import LinkSpeed

RADIX: Final = 36


class _Plan:
    """A topology under construction: the lowest free port of each switch, and hosts that are numbered."""

    def __init__(self, radix: int, link: LinkSpeed) -> None:
        self._builder = Builder()
        self._radix = radix
        self._link = link
        self._free: dict[str, Iterator[int]] = {}
        self._hosts = count()

    def switch(self, name: str) -> str:
        self._builder.add_node(NodeSpec(name, "switch", self._radix))
        self._free[name] = count(1)
        return name

    def join(self, one: str, other: str, cables: int = 1) -> None:
        for _ in range(cables):
            self._cable(End(one, next(self._free[one])), End(other, next(self._free[other])))

    def host(self, switch: str) -> None:
        name = f"h{next(self._hosts)}"
        self._builder.add_node(NodeSpec(name, "host", 1))
        self._cable(End(switch, next(self._free[switch])), End(name, 1))

    def _cable(self, one: End, other: End) -> None:
        self._builder.add_cable(Cable(one, other, self._link))

    def topology(self) -> Topology:
        return self._builder.topology()


def fat_tree(hosts: int, *, radix: int = RADIX, levels: int | None = None, link: LinkSpeed | None = None) -> Topology:
    """A tree of switches in `levels` (None: as few as it takes) in which as many cables lead up from a switch as down.

    The uppermost level has no more switches than its cables need; then several join the same two. One level is a star.

    :raises TopologyError: so many hosts do not fit.
    """
    half = _checked(hosts, radix) // 2
    most = {1: radix, 2: half * radix, 3: half * half * radix}
    if levels is None:
        levels = next((number for number, limit in most.items() if hosts <= limit), 3)
    if levels not in most or hosts > most[levels] or (levels > 1 and radix % 2):
        raise TopologyError(
            f"{hosts} hosts in {levels} levels of switches with {radix} ports: 1, 2 or 3 levels take"
            f" {most[1]}, {most[2]} or {most[3]}, more than one if the number of ports is even"
        )
    plan = _Plan(radix, link or LinkSpeed())
    if levels == 1:
        leaves = [plan.switch("leaf1")]
        _spread(plan, hosts, leaves, radix)
    elif levels == 2:
        leaves = [plan.switch(f"leaf{number}") for number in range(1, -(-hosts // half) + 1)]
        _spread(plan, hosts, leaves, half)
        _crown(plan, [leaves], radix, "spine")
    else:
        _three_levels(plan, hosts, radix)
    return plan.topology()


def _three_levels(plan: _Plan, hosts: int, radix: int) -> None:
    half = radix // 2
    leaves = [plan.switch(f"leaf{number}") for number in range(1, -(-hosts // half) + 1)]
    pods = [leaves[at : at + half] for at in range(0, len(leaves), half)]
    names = count(1)
    middles = [[plan.switch(f"middle{next(names)}") for _ in range(half)] for _ in pods]
    _spread(plan, hosts, leaves, half)
    for pod, middle in zip(pods, middles, strict=True):
        for leaf, upper in product(pod, middle):
            plan.join(leaf, upper)
    _crown(plan, [list(plane) for plane in zip(*middles, strict=True)], radix, "spine")


def _spread(plan: _Plan, hosts: int, leaves: list[str], each: int) -> None:
    for number in range(hosts):
        plan.host(leaves[number // each])


def _crown(plan: _Plan, planes: list[list[str]], radix: int, name: str) -> None:
    """Join the switches of each plane by spines of its own; as few as have ports for all."""
    half, names = radix // 2, count(1)
    for plane in planes:
        spines = next(n for n in range(1, half + 1) if half % n == 0 and len(plane) * (half // n) <= radix)
        tops = [plan.switch(f"{name}{next(names)}") for _ in range(spines)]
        for lower, top in product(plane, tops):
            plan.join(lower, top, half // spines)


def ring(switches: int, hosts: int, *, radix: int = RADIX, link: LinkSpeed | None = None) -> Topology:
    """Switches in a circle, hosts spread over them.

    :raises TopologyError: so many do not fit.
    """
    if switches < 3:
        raise TopologyError(f"{switches} switches: a ring has 3 at least")
    return torus((switches,), hosts, radix=radix, link=link)


def torus(size: tuple[int, ...], hosts: int, *, radix: int = RADIX, link: LinkSpeed | None = None) -> Topology:
    """Switches on a grid of this size whose edges are joined, hosts spread over them.

    :raises TopologyError: so many do not fit.
    """
    _checked(hosts, radix)
    places = _places(size)
    plan = _Plan(radix, link or LinkSpeed())
    names = {place: plan.switch("s" + "-".join(str(n + 1) for n in place)) for place in places}
    for place in places:
        for axis, length in enumerate(size):
            onward = (*place[:axis], (place[axis] + 1) % length, *place[axis + 1 :])
            # Two switches on an axis have one cable, not two.
            if length > 2 or place[axis] + 1 < length:
                plan.join(names[place], names[onward])
    _everywhere(plan, hosts, list(names.values()))
    return plan.topology()


def star(switches: int, hosts: int, *, radix: int = RADIX, link: LinkSpeed | None = None) -> Topology:
    """A switch in the middle, `switches` around it, hosts spread over those.

    :raises TopologyError: so many do not fit.
    """
    _checked(hosts, radix)
    if not 1 <= switches <= radix:
        raise TopologyError(f"{switches} switches around one with {radix} ports: give 1 to {radix}")
    plan = _Plan(radix, link or LinkSpeed())
    middle = plan.switch("middle")
    around = [plan.switch(f"s{number}") for number in range(1, switches + 1)]
    for switch in around:
        plan.join(middle, switch)
    _everywhere(plan, hosts, around)
    return plan.topology()


def _places(size: tuple[int, ...]) -> list[tuple[int, ...]]:
    total = 1
    for length in size:
        if length < 2:
            raise TopologyError(f"size {'x'.join(map(str, size))}: give 2 at least along each axis, such as 4x4x2")
        total *= length
        if total > _MOST_SWITCHES:
            raise TopologyError(f"size {'x'.join(map(str, size))}: more than {_MOST_SWITCHES} switches")
    return list(product(*map(range, size)))


def _everywhere(plan: _Plan, hosts: int, switches: list[str]) -> None:
    """The first hosts on the first switch, and so on; as many on each, or one more."""
    each, more = divmod(hosts, len(switches))
    for number, switch in enumerate(switches):
        for _ in range(each + (number < more)):
            plan.host(switch)


def _checked(hosts: int, radix: int) -> int:
    if hosts < 1:
        raise TopologyError(f"{hosts} hosts: give 1 at least")
    if not 3 <= radix <= 254:
        raise TopologyError(f"switches with {radix} ports: give 3 to 254")
    return radix


_MOST_SWITCHES: Final = 8192
