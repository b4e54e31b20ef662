"""Where switches send packets: the linear forwarding tables of a whole subnet, by one of three engines.

- min-hop: ways of the fewest switches. In rings and tori buffers can wait for each other in a circle (a credit loop).
- up-down: ways go up, then down, and never up again; between hosts, and from hosts to switches, no credit loop can be.
- fat-tree: as up-down, and what goes to different hosts goes up by different cables; a subnet that is no fat tree gets
  up-down.

All ways between all switches are found together, as sets of switches that are bits of an integer: so the time goes with
the number of cables times the diameter. Where several cables are as good, destinations are spread over them.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vhca.subnet.engines import Engine
from vhca.subnet.topology import Topology, in_pieces
from vhca.wire.smp import NO_PORT

SWITCHES_PER_TURN: Final = 32

Pause = Generator[None, None, None]
Near = Mapping[int, tuple[int, ...]]
"""Of one switch: ports by neighbour."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Ports that are as good as each other toward a set of switches, so many switches away."""

    ports: tuple[int, ...]
    targets: int
    hops: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A LID behind a switch: the port there, and numbers by which destinations are spread.

    `path` is the number of the LID among those of its port: each is led by another way, where there are several.
    """

    lid: int
    port: int
    host: int
    leaf: int
    path: int = 0


class Routes:
    """The linear forwarding tables of a subnet.

    :ivar engine: whose they are, which may be another one than was asked for.
    """

    def __init__(self, engine: Engine, tables: dict[int, bytes]) -> None:
        self.engine = engine
        self._tables = tables

    def table(self, guid: int) -> bytes:
        """Ports by LID, up to the largest LID, 255 where nothing is; of the switch with this GUID."""
        return self._tables.get(guid, b"")


class _Graph:
    """Switches as numbers in the order of their GUIDs, and who is next to whom."""

    def __init__(self) -> None:
        self.guids: list[int] = []
        self.near: Sequence[Near] = []
        self.places: list[list[_Place]] = []
        self.leaves = 0  # switches with hosts
        self.top = 0

    def build(self, topology: Topology) -> Pause:
        """Look at all cables and ports."""
        self.guids = sorted(switch.guid for switch in topology.switches())
        number = {guid: index for index, guid in enumerate(self.guids)}
        near: list[dict[int, tuple[int, ...]]] = [{} for _ in self.guids]
        trunks: list[list[tuple[int, int]]] = [
            [] for _ in self.guids
        ]  # by switch: own ports, and which switch is behind
        for ((guid, port), (peer, _)), pause in in_pieces(topology.cables.items()):
            if pause:
                yield
            here, there = number.get(guid), number.get(peer)
            if here is not None and there is not None and here != there:
                trunks[here].append((port, there))
        for here, own in enumerate(trunks):
            for port, there in sorted(own):
                near[here][there] = (*near[here].get(there, ()), port)
            if here % SWITCHES_PER_TURN == 0:
                yield
        self.near = near
        self.places = [[] for _ in self.guids]
        found = []
        for (node, end), pause in in_pieces(topology.end_ports()):
            if pause:
                yield
            place = topology.attachment(node, end)
            if place is not None and end.lid and place[0] in number:
                found.append((number[place[0]], place[1], end.lids))
                if place[1]:
                    self.leaves |= 1 << number[place[0]]
        order = self._order_of_leaves()
        for (switch, last, lids), pause in in_pieces(found):
            if pause:
                yield
            for path, lid in enumerate(lids):
                self.places[switch].append(_Place(lid, last, last, order.get(switch, 0), path))
                self.top = max(self.top, lid)

    def _order_of_leaves(self) -> dict[int, int]:
        """Leaves that hang on the same switches are numbered one after the other."""
        leaves = sorted(_members(self.leaves), key=lambda leaf: (min(self.near[leaf], default=0), leaf))
        return {leaf: index for index, leaf in enumerate(leaves)}

    def levels(self) -> list[int]:
        """How far each switch is from the nearest one with hosts."""
        return self._distances(self.leaves or 1)

    def distances_from_root(self) -> list[int]:
        """How far each switch is from the one with most neighbours."""
        root = max(range(len(self.guids)), key=lambda index: (len(self.near[index]), -index))
        return self._distances(1 << root)

    def _distances(self, start: int) -> list[int]:
        far = [len(self.guids)] * len(self.guids)
        front = list(_members(start))
        for index in front:
            far[index] = 0
        while front:
            onward = []
            for index in front:
                for there in self.near[index]:
                    if far[there] > far[index] + 1:
                        far[there] = far[index] + 1
                        onward.append(there)
            front = onward
        return far


def _members(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _split(near: Near, wanted: int, sets: Sequence[int], hops: int) -> list[_Choice]:
    """Which ports lead to each of the switches in `wanted`, where a neighbour leads to those in its set."""
    groups: list[tuple[tuple[int, ...], int]] = [((), wanted)]
    for there, ports in near.items():
        reached = sets[there] & wanted
        if not reached:
            continue
        parts = []
        for before, members in groups:
            both = members & reached
            if both:
                parts.append((before + ports, both))
            if both != members:
                parts.append((before, members & ~reached))
        groups = parts
    return [_Choice(ports, members, hops) for ports, members in groups if ports]


class _Ways:
    """The ways between switches: for each, choices toward all others that it reaches."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        count = len(graph.guids)
        self.choices: list[list[_Choice]] = [[] for _ in range(count)]
        self.reached = [1 << index for index in range(count)]
        # The switches at each distance, by distance.
        self.rings = [[1 << index] for index in range(count)]

    def shortest(self, near: Sequence[Near]) -> Pause:
        """Find the shortest ways along `near`, from the nearest on; then nothing more is added that is reached."""
        fresh = [1 << index for index in range(len(near))]
        hops = 0
        while any(fresh):
            hops += 1
            found = [0] * len(near)
            for index, others in enumerate(near):
                if index % SWITCHES_PER_TURN == 0:
                    yield
                seen = 0
                for there in others:
                    seen |= fresh[there]
                new = seen & ~self.reached[index]
                self.rings[index].append(new)
                if new:
                    found[index] = new
                    self.reached[index] |= new
                    self.choices[index] += _split(others, new, fresh, hops)
            fresh = found

    def climb(self, order: Sequence[int], up: Sequence[Near]) -> Pause:
        """Reach what no way down leads to by going up first; `order` has each switch behind those above it."""
        for number, index in enumerate(order):
            if number % SWITCHES_PER_TURN == 0:
                yield
            most = max((len(self.rings[there]) for there in up[index]), default=0)
            rings = self.rings[index]
            rings += [0] * (most + 1 - len(rings))
            for hops in range(1, most + 1):
                level = {there: self.rings[there][hops - 1] for there in up[index] if hops <= len(self.rings[there])}
                seen = 0
                for members in level.values():
                    seen |= members
                new = seen & ~self.reached[index]
                if new:
                    rings[hops] |= new
                    self.reached[index] |= new
                    near = {there: up[index][there] for there in level}
                    self.choices[index] += _split(near, new, _Lookup(level), hops)


class _Lookup(Sequence[int]):
    """Sets by number of the switch, of some switches."""

    def __init__(self, sets: Mapping[int, int]) -> None:
        self._sets = sets

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return self._sets[index]

    def __len__(self) -> int:
        return len(self._sets)


def find(topology: Topology, engine: Engine) -> Generator[None, None, Routes]:
    """Find all routes; a generator that pauses after each short piece of work."""
    graph = _Graph()
    yield from graph.build(topology)
    ways = _Ways(graph)
    levels: list[int] | None = None
    if engine != "min-hop" and graph.guids:
        levels = graph.levels()
        ways = yield from _up_and_down(graph, [-level for level in levels])
        if any(graph.leaves & ~ways.reached[leaf] for leaf in _members(graph.leaves)):
            levels = None  # the switches with hosts are no lowest level
            ways = yield from _up_and_down(graph, graph.distances_from_root())
        if engine == "fat-tree" and (levels is None or not _is_tree(graph, levels)):
            engine = "up-down"
    # All of it for min-hop; beyond, only what no way up and down leads to: from one uppermost switch to another.
    yield from ways.shortest(graph.near) if engine == "min-hop" else _between_tops(ways)
    tables = {}
    for index, guid in enumerate(graph.guids):
        tables[guid] = _table(graph, ways.choices[index], index, levels if engine == "fat-tree" else None)
        yield
    return Routes(engine, tables)


def _up_and_down(graph: _Graph, ranks: Sequence[int]) -> Generator[None, None, _Ways]:
    """Ways that go to lower ranks first and then to higher ones only; of equal ranks the lower number is above."""
    key = [(rank, index) for index, rank in enumerate(ranks)]
    up = [{there: ports for there, ports in near.items() if key[there] < key[i]} for i, near in enumerate(graph.near)]
    down = [{there: ports for there, ports in near.items() if key[there] > key[i]} for i, near in enumerate(graph.near)]
    ways = _Ways(graph)
    yield from ways.shortest(down)
    yield from ways.climb(sorted(range(len(key)), key=key.__getitem__), up)
    return ways


def _between_tops(ways: _Ways) -> Pause:
    """Lead management between switches that no way up and down joins by the fewest switches."""
    graph = ways.graph
    if all(reached == ways.reached[0] for reached in ways.reached):
        return
    shortest = _Ways(graph)
    yield from shortest.shortest(graph.near)
    for index, choices in enumerate(shortest.choices):
        missing = shortest.reached[index] & ~ways.reached[index]
        for choice in choices:
            if choice.targets & missing:
                ways.choices[index].append(_Choice(choice.ports, choice.targets & missing, choice.hops))


def _is_tree(graph: _Graph, levels: Sequence[int]) -> bool:
    """Tell whether each cable between switches joins two levels that are next to each other."""
    return all(abs(levels[there] - levels[here]) == 1 for here, near in enumerate(graph.near) for there in near)


def _table(graph: _Graph, choices: Sequence[_Choice], own: int, levels: Sequence[int] | None) -> bytes:
    table = bytearray((NO_PORT,)) * (graph.top + 1)
    for place in graph.places[own]:
        table[place.lid] = place.port
    for choice in choices:
        ports, count = choice.ports, len(choice.ports)
        if count == 1:
            for target in _members(choice.targets):
                for place in graph.places[target]:
                    table[place.lid] = ports[0]
            continue
        # Switches that follow each other on a way must not choose by the same number.
        if levels is not None:
            by_host, scale = levels[own] == 0, count ** max(0, levels[own] - 1)
        else:
            by_host, scale = choice.hops % 2 == 0, 1
        for target in _members(choice.targets):
            for place in graph.places[target]:
                spread = place.host if by_host else place.leaf // scale
                table[place.lid] = ports[(spread + place.path) % count]
    return bytes(table)
