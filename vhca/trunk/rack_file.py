"""Rack files: a fabric that several hosts make together, as TOML. docs/cluster.md shows one.

The file has a topology, or names a file with one, and says which switches each rack has. Hosts are where their switch
is; a cable between switches of two racks is a trunk. Of two racks that a trunk joins the one that comes first in the
file waits at its address, where each of its trunks takes a port; the other one calls.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from vhca.fabric import topology_toml
from vhca.fabric.topology import Cable, Topology, TopologyError
from vhca.fabric.topology_files import MAX_FILE_BYTES, load
from vhca.toml_files import read_toml
from vhca.trunk.keys import KeyPair, is_key

MAX_RACKS: Final = 64
MAX_TRUNKS: Final = 1024
_LAST_PORT: Final = 65535


class RackFileError(Exception):
    """There are no such racks; the text says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Trunk:
    """A cable between two racks: `waits` listens at `address`, `calls` connects to it."""

    cable: Cable
    waits: str
    calls: str
    address: str

    @property
    def name(self) -> str:
        """Both ends: leaf1/3 - leaf2/3."""
        return f"{self.cable.a} - {self.cable.b}"


@dataclass(frozen=True, slots=True)
class RackPart:
    """What one rack has of the fabric: its switches, and the hosts whose places its cards take; and its public key."""

    name: str
    switches: frozenset[str]
    cards: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class RackFile:
    """Racks by name, in order. `manager` has the subnet manager; `digest` tells one such file from another."""

    topology: Topology
    racks: Mapping[str, RackPart]
    trunks: tuple[Trunk, ...]
    manager: str
    digest: bytes

    @property
    def card_count(self) -> int:
        """The cards of all racks."""
        return sum(len(rack.cards) for rack in self.racks.values())

    def trunks_of(self, name: str) -> list[Trunk]:
        """The trunks that end at a rack."""
        return [trunk for trunk in self.trunks if name in (trunk.waits, trunk.calls)]


@dataclass(frozen=True, slots=True)
class RackShare:
    """What a process serves of the racks in a file: the rack `name`, with its `keys`."""

    file: RackFile
    name: str
    keys: KeyPair


def load_rack_file(path: Path) -> RackFile:
    """The racks that a file describes.

    :raises RackFileError: it describes none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise RackFileError(f"{path}: more than {MAX_FILE_BYTES >> 20} MiB")
        return read_rack_file(data.decode("utf-8"), path.parent)
    except OSError as error:
        raise RackFileError(f"{path}: {error.strerror}; name a file that describes racks") from error
    except UnicodeDecodeError as error:
        raise RackFileError(f"{path}: not UTF-8; name a text file") from error
    except (RackFileError, TopologyError) as error:
        raise RackFileError(f"{path}: {error}") from error


def read_rack_file(text: str, folder: Path) -> RackFile:
    """The racks that a text describes; files that it names are in `folder`.

    :raises RackFileError: it describes none.
    :raises TopologyError: nor a fabric.
    """
    try:
        document = read_toml(text)
    except ValueError as error:
        raise RackFileError(f"not TOML: {error}") from error
    tables = document.pop("rack", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RackFileError("rack is no array of tables; begin each with [[rack]]")
    if not 0 < len(tables) <= MAX_RACKS:
        raise RackFileError(f"{len(tables)} racks: describe 1 to {MAX_RACKS}, each beginning with [[rack]]")
    file = document.pop("topology", None)
    if file is None:
        topology = topology_toml.read(text, beside=("rack",))
    elif not isinstance(file, str) or document:
        raise RackFileError("topology names a file, and then there are tables called rack beside it, and nothing else")
    else:
        topology = load(folder / file)
    return _Reader(topology).racks(tables)


class _Reader:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._owners: dict[str, str] = {}  # rack by switch
        self._addresses: dict[str, tuple[str, int]] = {}
        self._managers: list[str] = []

    def racks(self, tables: list[dict[str, Any]]) -> RackFile:
        racks: dict[str, RackPart] = {}
        for number, table in enumerate(tables, 1):
            part = self._rack(table, number)
            if part.name in racks:
                raise RackFileError(f"there are two racks called {part.name}; give each its own name")
            racks[part.name] = part
        for switch in self._topology.switches:
            if switch.name not in self._owners:
                raise RackFileError(f"the switch {switch.name} is in no rack; name it in the switches of one")
        self._check_hosts(racks)
        if len(self._managers) > 1:
            raise RackFileError(f"{' and '.join(self._managers)} have the subnet manager; there is one")
        manager = (self._managers or [self._owners[self._topology.switches[0].name]])[0]
        trunks = self._trunks(list(racks))
        return RackFile(self._topology, racks, tuple(trunks), manager, self._digest())

    def _rack(self, table: dict[str, Any], number: int) -> RackPart:
        name = _take(table, number, "name", str)
        if not name or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise RackFileError(f"rack {number}: give a name of letters, digits and any of _.-")
        key = _take(table, number, "key", str)
        if key is None or not is_key(key):
            raise RackFileError(f"rack {name}: give its public key; `vhca rack keys` prints it")
        if (address := _take(table, number, "address", str)) is not None:
            match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:.%a-z]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", address)
            if match is None or not 0 < int(match[2]) <= _LAST_PORT:
                raise RackFileError(f"rack {name}: address {address!r}: give one such as tcp://10.0.0.1:7471")
            self._addresses[name] = (f"tcp://{match[1]}", int(match[2]))
        if _take(table, number, "manager", bool):
            self._managers.append(name)
        patterns, cards = _texts(table, number, "switches"), _texts(table, number, "cards")
        for key_left in table:
            raise RackFileError(
                f"rack {name}: {key_left[:80]!r} means nothing here; there are name, key, address, switches, cards and"
                " manager"
            )
        switches = self._named(name, patterns)
        return RackPart(name, frozenset(switches), tuple(cards), key)

    def _named(self, rack: str, patterns: list[str]) -> list[str]:
        found = []
        for pattern in patterns:
            names = [node.name for node in self._topology.switches if fnmatchcase(node.name, pattern)]
            if not names:
                raise RackFileError(f"rack {rack}: no switch is called {pattern}; name those of the topology")
            for switch in names:
                owner = self._owners.setdefault(switch, rack)
                if owner != rack:
                    raise RackFileError(f"rack {rack}: the switch {switch} is in rack {owner}; it can be in one only")
                found.append(switch)
        if not found:
            raise RackFileError(f"rack {rack}: it has no switch; name one at least")
        return found

    def _check_hosts(self, racks: Mapping[str, RackPart]) -> None:
        homes: dict[str, str] = {}
        for host in self._topology.hosts:
            there = {self._owners[peer.node] for _, peer, _ in self._topology.ends(host)}
            if len(there) > 1:
                raise RackFileError(
                    f"the host {host.name} has cables to racks {', '.join(sorted(there))}; it is in one"
                )
            if there:
                homes[host.name] = there.pop()
        for rack in racks.values():
            if len(set(rack.cards)) != len(rack.cards):
                raise RackFileError(f"rack {rack.name}: a host is named twice among its cards")
            for card in rack.cards:
                node = self._topology.nodes.get(card)
                if node is None or node.kind != "host" or homes.get(card) != rack.name or node.ports != 1:
                    raise RackFileError(
                        f"rack {rack.name}: {card} is none of its hosts with one port; cards take those"
                    )

    def _trunks(self, order: list[str]) -> list[Trunk]:
        used: dict[str, int] = {}
        trunks: list[Trunk] = []
        for cable in self._topology.cables:
            ends = [self._owners.get(end.node) for end in (cable.a, cable.b)]
            if None in ends or ends[0] == ends[1]:
                continue
            waits, calls = sorted((rack for rack in ends if rack is not None), key=order.index)
            if waits not in self._addresses:
                raise RackFileError(f"rack {waits}: {cable.a} - {cable.b} leads to {calls}; give it an address")
            host, port = self._addresses[waits]
            number = used[waits] = used.get(waits, -1) + 1
            if port + number > _LAST_PORT or len(trunks) >= MAX_TRUNKS:
                raise RackFileError(f"rack {waits}: more than {number} trunks; there are no more ports or trunks")
            trunks.append(Trunk(cable, waits, calls, f"{host}:{port + number}"))
        return trunks

    def _digest(self) -> bytes:
        """Of what both ends of a trunk must agree on."""
        whole = topology_toml.write(self._topology) + repr(sorted(self._owners.items()))
        return hashlib.sha256(whole.encode()).digest()


def _take(table: dict[str, Any], number: int, name: str, kind: type) -> Any:
    value = table.pop(name, None)
    if value is not None and type(value) is not kind:
        raise RackFileError(f"rack {number}: {name} = {str(value)[:80]!r}: give a {kind.__name__}")
    return value


def _texts(table: dict[str, Any], number: int, name: str) -> list[str]:
    values = _take(table, number, name, list) or []
    if not all(type(value) is str for value in values):
        raise RackFileError(f"rack {number}: {name}: give a list of texts")
    return list(values)
