"""Racks over real sockets: they find each other, strangers are refused, floods dropped, and a rack may come again."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq

from vhca.chip.rack import Rack, RackError
from vhca.chip.rack_config import RackConfig
from vhca.fabric import shapes, topology_toml
from vhca.trunk.end import MOST_OFFENCES, TrunkEnd
from vhca.trunk.keys import KeyPair
from vhca.trunk.rack_file import RackFile, RackShare, read_rack_file
from vhca.trunk.sockets import new_keys

TOPOLOGY = shapes.ring(3, 6)
NAMES = ("A", "B", "C")
DEADLINE_S = 30


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "did not become true in time"
        time.sleep(0.02)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has."""
    for first in range(21000, 29000, 10):
        with ExitStack() as stack:
            try:
                for number in range(count):
                    sock = stack.enter_context(closing(socket.socket()))
                    sock.bind(("127.0.0.1", first + number))
            except OSError:
                continue
            return first
    raise AssertionError("no ports")


class Host:
    """All racks of a ring of three switches, each of which can be started and stopped."""

    def __init__(self, folder: Path) -> None:
        self.keys: dict[str, KeyPair] = {name: new_keys() for name in NAMES}
        self.port = free_ports(4)
        text = topology_toml.write(TOPOLOGY)
        for number, name in enumerate(NAMES):
            address = f"tcp://127.0.0.1:{self.port + 2 * number}"
            text += f'[[rack]]\nname = "{name}"\nkey = "{self.keys[name].public}"\nswitches = ["s{number + 1}"]\n'
            text += f'address = "{address}"\n'
        self.file: RackFile = read_rack_file(text, folder)
        self.folder = folder
        self.racks: dict[str, Rack] = {}

    def start(self, name: str, keys: KeyPair | None = None) -> Rack:
        (folder := self.folder / name).mkdir(exist_ok=True)
        share = RackShare(self.file, name, keys or self.keys[name])
        rack = self.racks[name] = Rack(0, folder, RackConfig(share=share, logs=False))
        rack.start()
        return rack

    def stop(self, name: str) -> None:
        self.racks.pop(name).stop()

    def ends(self, name: str) -> list[TrunkEnd]:
        trunks = self.racks[name]._trunks
        return [] if trunks is None else trunks.ends

    def found(self) -> int:
        """How many nodes the manager knows; 0 while it looks."""
        rack = self.racks["A"]
        manager = rack._subnet.manager
        return rack.loop.call(lambda: len(manager.topology.nodes) if manager.settled else 0)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for name in list(host.racks):
        host.stop(name)


def test_three_racks_are_one_subnet_and_one_of_them_may_go_and_come(host: Host) -> None:
    for name in NAMES:
        host.start(name)
    until(lambda: host.found() == 9)
    assert all(end.connected and end.link.up for name in NAMES for end in host.ends(name))
    host.stop("C")
    until(lambda: host.found() == 6)
    assert {end.link.up for end in host.ends("A")} == {True, False}
    host.start("C")
    until(lambda: host.found() == 9)
    trunk = host.file.trunks[0]
    files = {}
    for name, other in ((trunk.waits, trunk.calls), (trunk.calls, trunk.waits)):
        here = next(end for end in (trunk.cable.a, trunk.cable.b) if end.node in host.file.racks[name].switches)
        files[other] = host.racks[name].fabric.capture(host.folder / f"{name}.pcapng", ports=[str(here)])
    far = host.racks["B"]
    lonely = far.loop.call(lambda: far._subnet.simulated()[0].name)
    far.fabric.link_down(lonely)
    until(lambda: host.found() == 8)
    far.fabric.link_up(lonely)
    until(lambda: host.found() == 9)
    for capture in files.values():
        capture.flush()
    assert min(capture.packets for capture in files.values()) >= 10, "at both ends of the trunk"
    for capture in files.values():
        capture.stop()
    counters = host.racks["A"].fabric.counters()
    assert sum(n for name, n in counters.items() if name.endswith(".sessions")) == 3
    assert not any(n for name, n in counters.items() if name.endswith((".malformed", ".overrun", ".refused")))


def test_who_has_not_the_peers_key_is_refused_and_counted(host: Host) -> None:
    host.start("A")
    wrong = new_keys()
    with pytest.raises(RackError, match="the keys are not those"):
        host.start("B", wrong)
    trunk = next(t for t in host.file.trunks if t.calls == "B")
    context = zmq.Context()
    sockets = []
    # With another key, with that of another rack of the file, and with none.
    for keys in (wrong, host.keys["C"], None):
        sock = context.socket(zmq.DEALER)
        sock.linger = 0
        if keys is not None:
            sock.curve_publickey, sock.curve_secretkey = keys.public.encode(), keys.secret.encode()
            sock.curve_serverkey = host.keys["A"].public.encode()
        sock.connect(trunk.address)
        for _ in range(10):
            sock.send(b"VT\1\1" + bytes(300))
        sockets.append(sock)
    with closing(socket.create_connection(("127.0.0.1", int(trunk.address.rpartition(":")[2])))) as raw:
        raw.sendall(b"\xff" * 10_000)
    name = f"trunk.{trunk.name}.refused"
    until(lambda: host.racks["A"].fabric.counters().get(name, 0) >= 2)
    (end,) = (end for end in host.ends("A") if end.name == trunk.name)
    assert set(end.counters) <= {"refused", "lost_down"}
    host.start("B")
    until(lambda: end.connected)
    for sock in sockets:
        sock.close()
    context.term()


def test_a_peer_with_the_right_key_that_floods_is_dropped_and_the_rack_goes_on(host: Host) -> None:
    host.start("A")
    host.start("C")
    until(lambda: host.found() == 6)
    trunk = next(t for t in host.file.trunks if t.calls == "B" and t.waits == "A")
    keys = host.keys["B"]
    context = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.linger = 0
    sock.curve_publickey, sock.curve_secretkey = keys.public.encode(), keys.secret.encode()
    sock.curve_serverkey = host.keys["A"].public.encode()
    sock.connect(trunk.address)
    rack = host.racks["A"]

    def counters() -> dict[str, int]:
        """Of the trunk; the rack answers while it is flooded."""
        return {name.rpartition(".")[2]: n for name, n in rack.fabric.counters().items() if trunk.name in name}

    deadline_s = time.monotonic() + DEADLINE_S
    while counters().get("ignored", 0) < 1000:
        assert time.monotonic() < deadline_s
        for _ in range(200):
            with contextlib.suppress(zmq.Again):
                sock.send(b"nonsense" * 4000, zmq.NOBLOCK)
    assert counters()["malformed"] >= MOST_OFFENCES
    until(lambda: host.found() == 6)
    sock.close()
    context.term()
    host.start("B")
    until(lambda: host.found() == 9)


def test_a_rack_of_another_file_is_a_stranger(host: Host, tmp_path: Path) -> None:
    host.start("A")
    (tmp_path / "other").mkdir()
    other = Host(tmp_path / "other")
    text = topology_toml.write(shapes.ring(3, 9))
    for number, name in enumerate(NAMES):
        text += f'[[rack]]\nname = "{name}"\nkey = "{host.keys[name].public}"\nswitches = ["s{number + 1}"]\n'
        text += f'address = "tcp://127.0.0.1:{host.port + 2 * number}"\n'
    other.file, other.keys = read_rack_file(text, tmp_path), host.keys
    other.start("B")
    name = f"trunk.{next(t.name for t in host.file.trunks if t.calls == 'B')}.strangers"
    until(lambda: host.racks["A"].fabric.counters().get(name))
    assert not any(end.connected for end in host.ends("A"))
    other.stop("B")


def test_an_address_that_is_taken_is_an_error_and_nothing_is_left(host: Host) -> None:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", host.port))
        sock.listen()
        with pytest.raises(RackError, match="Address already in use"):
            host.start("A")
    host.racks.clear()
    host.start("A")
