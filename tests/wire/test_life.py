"""Coming and going of clients, resets, and the socket itself."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.content import some_bytes
from tests.wire.client import Client, closing, eventfds, fired, memfd
from tests.wire.conftest import Rig, ToyDevice, open_fds
from vhca.vfio_user import Server, VfioUserError, proto
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.loop import SelectLoop
from vhca.vfio_user.proto import Command

ACCESS = proto.REGION_ACCESS.pack


def test_everything_of_the_client_goes_with_it(rig: Rig) -> None:
    before = open_fds()
    for round_ in range(5):
        client = rig.connect()
        client.negotiate()
        with closing(memfd(4096), *eventfds(4)) as fds:
            client.dma_map(0, 4096, fd=fds[0])
            client.dma_map(0x10000, 4096)
            client.set_irqs(0x24, 2, 0, 4, fds=fds[1:])
            rig.server.irqs.raise_irq(9)
        client.close()
        rig.step()
        assert not rig.server.connected
        assert rig.device.resets == ["lost_connection"] * (round_ + 1)
        assert len(rig.server.dma) == 0
        assert rig.server.irqs.pending() == frozenset()
        assert not rig.server.irqs.armed(0)
        assert open_fds() == before


def test_hang_up_in_the_middle_of_a_message(rig: Rig, client: Client) -> None:
    client.region_write(0, 0, b"complete", posted=True)
    client.post_raw(proto.request(1, Command.REGION_READ, ACCESS(0, 0, 4))[:-1])
    client.close()
    rig.step()
    assert not rig.server.connected
    assert rig.device.writes == [(0, 0, b"complete")]
    assert rig.connect().negotiate()


def test_hang_up_before_the_reply(rig: Rig, client: Client) -> None:
    client.post_raw(proto.request(1, Command.REGION_READ, ACCESS(0, 0, 4)) * 3)
    client.close()
    rig.step()
    assert not rig.server.connected


def test_the_device_hangs_up_in_a_handler(rig: Rig, client: Client) -> None:
    rig.device.on_write = lambda *access: rig.server.disconnect()
    client.region_write(0, 0, bytes(8), posted=True)
    assert client.hung_up()
    assert rig.device.resets == ["lost_connection"]
    rig.device.on_write = lambda *access: None
    assert rig.connect().negotiate()


def test_a_device_that_fails_in_its_reset(rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(reason: str) -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(rig.device, "reset", fail)
    assert client.ask(Command.DEVICE_RESET).errno == 5
    client.close()
    rig.step()
    assert rig.server.counters[ServerCount.DEVICE_ERROR] == 2
    assert rig.connect().negotiate()


def test_a_second_client_is_turned_away(rig: Rig, client: Client) -> None:
    client.region_write(0, 0, b"first")
    second = rig.connect()
    assert second.hung_up()
    assert rig.server.counters[ServerCount.CLIENTS_REFUSED] == 1
    assert client.region_read(0, 0, 5) == b"first"
    assert rig.device.resets == []


def test_resets(rig: Rig, client: Client) -> None:
    client.region_write(0, 0, bytes(8), posted=True)
    for _ in range(2):
        assert client.call(Command.DEVICE_RESET) == b""
    assert rig.device.resets == ["device", "device"]
    assert client.ask(Command.DEVICE_RESET, b"x").errno == 22
    assert rig.device.resets == ["device", "device"]


def test_slow_handlers_are_counted(rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.region_read(0, 0, 4)
    assert rig.server.counters[ServerCount.SLOW_WAKE] == 0
    monkeypatch.setattr("vhca.vfio_user.connection.SLOW_WAKE_S", 0.0)
    client.region_read(0, 0, 4)
    assert rig.server.counters[ServerCount.SLOW_WAKE] == 1


def test_replies_survive_a_full_socket(rig: Rig, client: Client) -> None:
    """Large replies, read slowly by another thread than the server's."""
    rig.device.regions[0].size = 1 << 20
    rig.device.memory[0] = bytearray(some_bytes(1 << 20))
    client.close()
    rig.step()
    ours, theirs = socket.socketpair()
    rig.server.adopt(theirs)
    pid = os.fork()
    if pid == 0:
        # the child is the client: it reads 1 MiB in one reply and ends with 0 if it is whole
        try:
            theirs.close()
            child = Client(ours, lambda: None)
            child.negotiate()
            os._exit(child.region_read(0, 0, 1 << 20) != bytes(rig.device.memory[0]))
        finally:
            os._exit(2)
    ours.close()
    while rig.server.connected:
        rig.loop.run_once(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ---- the socket in the file system ----


@pytest.fixture
def device() -> ToyDevice:
    return ToyDevice(-1)


def test_connect_by_path(tmp_path: Path, device: ToyDevice) -> None:
    path = tmp_path / "card.sock"
    loop = SelectLoop()
    server = Server(path, device)
    server.start(loop)
    assert path.stat().st_mode & 0o777 == 0o600

    def step() -> None:
        for _ in range(4):
            loop.run_once(0)

    for _ in range(2):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(path))
        client = Client(sock, step)
        client.step()
        client.negotiate()
        with closing(*eventfds(1)) as (fd,):
            client.set_irqs(0x24, 2, 0, 1, fds=[fd])
            server.irqs.raise_irq(0)
            assert fired(fd) == 1
        client.close()
        client.step()
    assert server.counters[ServerCount.CLIENTS] == 2
    server.close()
    assert not path.exists()
    loop.close()


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path, device: ToyDevice) -> None:
    path = tmp_path / "card.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    loop = SelectLoop()
    server = Server(path, device)
    server.start(loop)
    with pytest.raises(VfioUserError, match="another server"):
        Server(path, device).start(loop)
    server.close()
    path.write_text("precious")
    with pytest.raises(VfioUserError, match="not a socket"):
        Server(path, device).start(loop)
    assert path.read_text() == "precious"
    loop.close()


def test_paths_that_cannot_be(tmp_path: Path, device: ToyDevice) -> None:
    loop = SelectLoop()
    before = open_fds()
    with pytest.raises(VfioUserError, match="107 bytes"):
        Server("/tmp/" + "x" * 103, device).start(loop)
    with pytest.raises(VfioUserError, match="cannot listen"):
        Server(tmp_path / "no" / "folder", device).start(loop)
    assert open_fds() == before
    loop.close()


def test_a_device_that_is_not_pci() -> None:
    device = ToyDevice(-1)
    del device.regions[7:]
    with pytest.raises(VfioUserError, match="8 regions"):
        Server(None, device)


def test_serve_forever_ends_when_told(tmp_path: Path, device: ToyDevice) -> None:
    path = tmp_path / "card.sock"
    server = Server(path, device)
    client = socket.socket(socket.AF_UNIX)

    def connect_then_end() -> bool:
        return server.counters[ServerCount.CLIENTS] == 1

    pid = os.fork()
    if pid == 0:
        while True:
            try:
                client.connect(str(path))
                os._exit(0)
            except (FileNotFoundError, ConnectionRefusedError):
                pass
    client.close()
    server.serve_forever(until=connect_then_end)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not path.exists()


def test_the_package_is_usable_alone() -> None:
    code = "import sys, vhca.vfio_user; print([m for m in sys.modules if m.startswith('vhca')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    modules = ast.literal_eval(done.stdout)
    assert all(
        name.startswith("vhca.vfio_user")
        for name in modules
        if name not in ("vhca", "vhca.counting", "vhca.hw", "vhca.hw.memory")
    )
