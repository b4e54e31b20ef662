"""Racks in network namespaces of their own, as on several hosts: the network between them is cut and comes back.

A namespace has no name: it is there as long as a process is in it, which ends with the test, however that ends.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.racks import Part, Place, ServedRacks
from vhca.fabric import shapes

TOPOLOGY = shapes.ring(3, 6)
PARTS = [Part("A", ["s1"]), Part("B", ["s2"]), Part("C", ["s3"])]


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


class Space:
    """A network namespace, and the process that keeps it."""

    def __init__(self) -> None:
        command = "echo; exec sleep infinity"
        self._keeper = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        if not self._keeper.stdout.readline():
            _, complaint = self._keeper.communicate()
            raise subprocess.CalledProcessError(self._keeper.returncode, "unshare", stderr=complaint)

    @property
    def process(self) -> str:
        return str(self._keeper.pid)

    @property
    def within(self) -> tuple[str, ...]:
        """What a command is to be run with."""
        return ("nsenter", f"--net=/proc/{self.process}/ns/net")

    def ip(self, *words: str) -> None:
        run(*self.within, "ip", *words)

    def remove(self) -> None:
        self._keeper.kill()
        self._keeper.communicate()


class Network:
    """A bridge in a namespace, and a namespace for each rack with a cable to it."""

    def __init__(self) -> None:
        self._spaces: list[Space] = []
        self.places: dict[str, Place] = {}

    def _space(self) -> Space:
        self._spaces.append(Space())
        return self._spaces[-1]

    def build(self) -> None:
        """Make it; `CalledProcessError` where this machine does not allow that."""
        hub = self._space()
        hub.ip("link", "add", "br0", "type", "bridge")
        hub.ip("link", "set", "br0", "up")
        for number, part in enumerate(PARTS, 1):
            space = self._space()
            hub.ip("link", "add", part.name, "type", "veth", "peer", "name", "eth0", "netns", space.process)
            hub.ip("link", "set", part.name, "master", "br0", "up")
            space.ip("addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            space.ip("link", "set", "eth0", "up")
            space.ip("link", "set", "lo", "up")
            self.places[part.name] = Place(f"10.77.0.{number}", space.within)

    def set_cable(self, rack: str, state: str) -> None:
        """Plug or pull the network cable of a rack's host."""
        self._spaces[0].ip("link", "set", rack, state)

    def remove(self) -> None:
        """Leave nothing."""
        for space in self._spaces:
            space.remove()


@pytest.fixture
def network() -> Iterator[Network]:
    for program in ("ip", "setpriv", "unshare", "nsenter"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on this host")
    network = Network()
    try:
        try:
            network.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        yield network
    finally:
        network.remove()


def until(condition: Callable[[], bool], timeout_s: float = 40) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not become true in time"
        time.sleep(0.2)


def active(racks: ServedRacks) -> int:
    """How many cables the rack with the manager sees Active, its halves of trunks among them."""
    return [cable["state"] for cable in racks.order("A", "chart")["cables"]].count("Active")


def found(racks: ServedRacks) -> int:
    """How many nodes have a LID."""
    return sum(1 for node in racks.order("A", "chart")["nodes"] if node["lid"])


def test_hosts_whose_network_is_cut_are_cables_that_were_pulled_and_come_back(network: Network, tmp_path: Path) -> None:
    racks = ServedRacks(TOPOLOGY, PARTS, tmp_path / "racks", places=network.places)
    try:
        racks.start()
        until(lambda: found(racks) == len(TOPOLOGY.nodes) and active(racks) == 4)  # two hosts, two trunks
        network.set_cable("C", "down")
        until(lambda: found(racks) == 6 and active(racks) == 3)
        lost = sum(n for name, n in racks.counters("A").items() if name.endswith(".lost_sessions"))
        assert lost == 1
        network.set_cable("C", "up")
        until(lambda: found(racks) == len(TOPOLOGY.nodes) and active(racks) == 4)
        sessions = sorted(n for name, n in racks.counters("A").items() if name.endswith(".sessions"))
        assert sessions == [1, 2]
    finally:
        racks.stop()
