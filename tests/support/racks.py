"""Racks in processes of their own that make one fabric together, and a lab's guests on some of their cards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vhca.chip.control import SOCKET_NAME
from vhca.chip.rack_config import CardConfig
from vhca.fabric import topology_toml
from vhca.fabric.topology import Topology
from vhca.trunk.keys import save
from vhca.trunk.sockets import new_keys

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0
PORTS = 64
"""Of each rack: so many trunks may lead to it."""


def free_ports(count: int, first: int = 21000) -> int:
    """The first of so many ports in a row that nobody has."""
    for port in range(first, 29000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(count):
                stack.enter_context(contextlib.closing(socket.socket())).bind(("127.0.0.1", port + number))
            return port
    raise AssertionError("no ports")


@dataclass(frozen=True)
class Part:
    """One rack: its switches, and the hosts whose places its cards take."""

    name: str
    switches: Sequence[str]
    cards: Sequence[str] = ()
    manager: bool = False


@dataclass(frozen=True)
class Place:
    """Where a rack is: its IP address, and what its command is to be run with."""

    address: str
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedCard:
    """A card of another process, as a lab knows it."""

    name: str
    socket_path: Path
    node_guid: int

    def counters(self) -> dict[str, int]:
        """What a card of another process does not tell."""
        return {}

    def objects(self) -> dict[str, int]:
        """Nor this."""
        return {}

    def trace_tail(self, lines: int = 100) -> list[str]:
        """Nor this: its log has it."""
        return []


class ServedRacks:
    """`vhca serve --rack` for each part; a lab's guests get the cards in the order of the parts."""

    fabric = None

    def __init__(
        self,
        topology: Topology,
        parts: Sequence[Part],
        folder: Path,
        *options: str,
        places: Mapping[str, Place] | None = None,
    ) -> None:
        self.folder = folder
        self._places = places or {}
        self.parts = parts
        self._options = options
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        port = free_ports(PORTS * len(parts))
        text = topology_toml.write(topology)
        folder.mkdir(exist_ok=True, mode=0o700)
        for number, part in enumerate(parts):
            pair = new_keys()
            save(folder / f"{part.name}.keys", pair)
            text += (
                f'[[rack]]\nname = "{part.name}"\nkey = "{pair.public}"\nswitches = {json.dumps(list(part.switches))}\n'
                f"cards = {json.dumps(list(part.cards))}\n"
                f'address = "tcp://{self._place(part.name).address}:{port + number * PORTS}"\n'
            )
            if part.manager:
                text += "manager = true\n"
        (folder / "racks.toml").write_text(text)
        nodes = topology.nodes
        self.hcas = [
            ServedCard(f"{part.name}.h{number}", folder / part.name / f"h{number}.sock", nodes[host].guid)
            for part in parts
            for number, host in enumerate(part.cards)
        ]

    def _place(self, rack: str) -> Place:
        return self._places.get(rack, Place("127.0.0.1"))

    def start(self) -> None:
        """Start all; they listen when this returns."""
        for part in self.parts:
            self.start_rack(part.name)

    def start_rack(self, name: str) -> None:
        """Start one, and wait until it takes orders."""
        words = ["serve", "--rack", "racks.toml", "--name", name, "--keys", f"{name}.keys", "--dir", name, "--quiet"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._children[name] = child = subprocess.Popen(
                [*self._place(name).within, sys.executable, "-m", "vhca.cli.main", *words, *self._options],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        deadline_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError):
                self.order(name, "show")
                return
            assert child.poll() is None, (self.folder / f"{name}.log").read_text()
            assert time.monotonic() < deadline_s, f"rack {name} takes no orders"
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """As if its host had lost power."""
        child = self._children.pop(name)
        child.kill()
        child.wait(20)

    def stop(self) -> None:
        """End all."""
        for child in self._children.values():
            child.send_signal(signal.SIGTERM)
        for child in self._children.values():
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
        self._children.clear()

    def order(self, rack: str, order: str, **fields: Any) -> Any:
        """Give a rack an order."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(20)
            sock.connect(str(self.folder / rack / SOCKET_NAME))
            sock.sendall(json.dumps({"order": order, **fields}).encode() + b"\n")
            with sock.makefile("rb") as lines:
                answer = json.loads(lines.readline())
        assert "result" in answer, answer
        return answer["result"]

    def counters(self, rack: str) -> dict[str, int]:
        """All counters of a rack's fabric."""
        counters: dict[str, int] = self.order(rack, "counters")
        return counters

    def pid(self, rack: str) -> int:
        """Number of a rack's process."""
        return self._children[rack].pid

    def wait_active(self, timeout_s: float) -> None:
        """Wait until the ports of all cards are."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            states = [port["state"] for part in self.parts for port in self.order(part.name, "show")["ports"]]
            if set(states) <= {"Active"}:
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not all Active: {states}")
            time.sleep(0.2)


def factory(topology: Topology, parts: Sequence[Part], *options: str) -> Any:
    """What makes such racks for a lab."""
    return lambda cards, folder: _checked(cards, ServedRacks(topology, parts, folder / "racks", *options))


def _checked(cards: Sequence[CardConfig], racks: ServedRacks) -> ServedRacks:
    assert len(cards) == len(racks.hcas)
    return racks
