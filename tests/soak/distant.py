"""A rack in a process of its own, so that its memory and descriptors can be told from those of the lab.

The child serves the cards and answers questions, one line each way: words in, JSON out. As `python -m
tests.soak.distant CARDS FOLDER [HOST ...]` this module is the child; hosts are the places of cards in the topology that
is in the folder, whose manager is then whoever has the highest priority.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firmware.kernel import Kernel
from vhca.chip.card import node_guid
from vhca.chip.rack import Rack, RackError
from vhca.chip.rack_config import CardConfig, RackConfig
from vhca.fabric import topology_files, topology_toml
from vhca.fabric.end_node import EndPort
from vhca.fabric.fabric_port import FabricPort
from vhca.fabric.port import SwitchPort
from vhca.fabric.topology import Topology
from vhca.management.performance import PortCounters

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = "topology.toml"


@dataclass(frozen=True)
class Figures:
    """What the rack's process holds: memory of its own in KiB, descriptors, and live objects of each card by kind."""

    anonymous_kib: int
    descriptors: int
    objects: list[dict[str, int]]
    counters: list[dict[str, int]]
    threads: int = 0


class DistantCard:
    """A card of the other process, as a lab knows it."""

    def __init__(self, rack: DistantRack, index: int, folder: Path) -> None:
        self.name = f"h{index}"
        self.node_guid = node_guid(self.name)
        self.socket_path = folder / f"h{index}.sock"
        self._rack = rack
        self._index = index

    def objects(self) -> dict[str, int]:
        """Live objects by kind, those that there are none of left out."""
        return self._rack.figures().objects[self._index]

    def counters(self) -> dict[str, int]:
        """Counters by name."""
        return self._rack.figures().counters[self._index]

    def trace_tail(self, lines: int = 100) -> list[str]:
        """What a card of another process does not tell; its log has it."""
        return []


class DistantRack:
    """A rack as :class:`vhca.lab.Lab` wants it, which is another process.

    With a topology, its cards have the places of these hosts.
    """

    fabric = None

    def __init__(self, cards: int, folder: Path, topology: Topology | None = None, hosts: Sequence[str] = ()) -> None:
        self.hcas = [DistantCard(self, index, folder) for index in range(cards)]
        self._arguments = [sys.executable, "-m", "tests.soak.distant", str(cards), str(folder), *hosts]
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        if topology is not None:
            (folder / TOPOLOGY).write_text(topology_toml.write(topology))

    def start(self) -> None:
        """Start the process; it listens when this returns."""
        self._child = subprocess.Popen(
            self._arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask("hello")

    def stop(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            child.stdin.close()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()

    def wait_active(self, timeout_s: float) -> None:
        """Wait until the ports of all cards whose machine is there are ACTIVE."""
        problem = self._ask(f"active {timeout_s}")
        if problem:
            raise RuntimeError(problem)

    def figures(self) -> Figures:
        """What the process holds now."""
        return Figures(**self._ask("figures"))

    def set_link(self, cable: str, up: bool) -> None:
        """Pull a cable, or plug it in again."""
        self._ask(f"{'up' if up else 'down'} {cable}")

    def healed(self) -> bool:
        """Is every cable of the topology Active?"""
        return bool(self._ask("healed"))

    def manager_state(self) -> str:
        """What our subnet manager is: "master", "standby" ..."""
        return str(self._ask("manager"))

    def counted(self) -> dict[str, int]:
        """The counters of the fabric."""
        counters: dict[str, int] = self._ask("counters")
        return counters

    def unbalanced(self) -> list[str]:
        """The cables at whose ends more or fewer packets came out than went in and were not lost."""
        found: list[str] = self._ask("unbalanced")
        return found

    def _ask(self, question: str) -> Any:
        with self._lock:
            child = self._child
            assert child is not None
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(question + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
            if not answer:
                raise RuntimeError(f"the rack's process has ended: {child.wait(20)}")
            return json.loads(answer)


def _anonymous_kib() -> int:
    """Memory of this process alone: what guests share with it does not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise RuntimeError("the kernel does not tell RssAnon")


def _unbalanced(rack: Rack) -> list[str]:
    """Packets that left the ports at a cable's ends came out of it, are on it, or were lost; in the rack's loop."""
    rack._subnet.wires.settle()
    found = []
    for link in rack._subnet.cables:
        ends = [_port_counters(rack, end.endpoint) for end in (link.a, link.b)]
        sent, arrived = sum(end.xmit_pkts for end in ends), sum(end.rcv_pkts for end in ends)
        lost = sum(link.dropped.values())
        waiting = link.a.waiting + link.b.waiting  # managers never rest
        if sent != arrived + lost + waiting:
            found.append(f"{link.name}: {sent} packets sent, {arrived} arrived, {lost} lost, {waiting} on the way")
    return found


def _port_counters(rack: Rack, at: object) -> PortCounters:
    """What the port at a cable's end counts: of a card its own, of a switch or a simulated host that one's."""
    if isinstance(at, FabricPort):
        firmware = next(card.board.firmware for card in rack.hcas if card.name == at.name)
        assert isinstance(firmware, Kernel)
        return firmware.hca.ports[1].counters
    assert isinstance(at, SwitchPort | EndPort)
    return at.counters


def _answer(rack: Rack, question: str, words: Sequence[str]) -> Any:
    if question == "active":
        try:
            rack.wait_active(float(words[0]))
        except RackError as error:
            return str(error)
    elif question == "figures":
        return {
            "anonymous_kib": _anonymous_kib(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "objects": [{kind: n for kind, n in card.objects().items() if n} for card in rack.hcas],
            "counters": [card.counters() for card in rack.hcas],
            "threads": len(os.listdir("/proc/self/task")),
        }
    elif question == "down":
        rack.fabric.link_down(words[0])
    elif question == "up":
        rack.fabric.link_up(words[0])
    elif question == "healed":
        return all(cable.state == "Active" for cable in rack.fabric.chart().cables)
    elif question == "manager":
        return rack.fabric.manager_state()
    elif question == "counters":
        return rack.fabric.counters()
    elif question == "unbalanced":
        return rack.loop.call(lambda: _unbalanced(rack))
    return None


def serve(cards: int, folder: Path, hosts: Sequence[str] = ()) -> None:
    """The child: a rack until the standard input ends."""
    configs = [CardConfig(host=host) for host in hosts] or [CardConfig()] * cards
    config = RackConfig()
    if hosts:
        config = RackConfig(topology=topology_files.load(folder / TOPOLOGY), mkey=0, heirs="any")
    with Rack(configs, folder, config) as rack:
        for line in sys.stdin:
            question, *words = line.split()
            print(json.dumps(_answer(rack, question, words)), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
