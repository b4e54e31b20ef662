"""A rack in a process of its own, so that its memory and descriptors can be told from those of the lab.

The child serves the cards and answers questions, one line each way: a word in, JSON out. As `python -m
tests.soak.distant CARDS FOLDER` this module is the child.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vhca.chip.card import node_guid

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Figures:
    """What the rack's process holds: memory of its own in KiB, descriptors, and live objects of each card by kind."""

    anonymous_kib: int
    descriptors: int
    objects: list[dict[str, int]]
    counters: list[dict[str, int]]


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
    """A rack as :class:`vhca.lab.Lab` wants it, which is another process."""

    fabric = None

    def __init__(self, cards: int, folder: Path) -> None:
        self.hcas = [DistantCard(self, index, folder) for index in range(cards)]
        self._arguments = [sys.executable, "-m", "tests.soak.distant", str(cards), str(folder)]
        self._child: subprocess.Popen[str] | None = None

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

    def _ask(self, question: str) -> Any:
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


def serve(cards: int, folder: Path) -> None:
    """The child: a rack until the standard input ends."""
    from vhca.chip.rack import Rack, RackError

    with Rack(cards, folder) as rack:
        for line in sys.stdin:
            question, *arguments = line.split()
            answer: Any = None
            if question == "active":
                try:
                    rack.wait_active(float(arguments[0]))
                except RackError as error:
                    answer = str(error)
            elif question == "figures":
                answer = {
                    "anonymous_kib": _anonymous_kib(),
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "objects": [{kind: n for kind, n in card.objects().items() if n} for card in rack.hcas],
                    "counters": [card.counters() for card in rack.hcas],
                }
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
