"""Fixtures for tests over a real socket: a device that remembers, a server, a client, all in one thread."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.wire.client import Client, memfd
from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.vfio_user import Server
from vhca.vfio_user.guard import guard
from vhca.vfio_user.loop import SelectLoop


@dataclass
class ToyRegion:
    size: int = 0
    readable: bool = True
    writable: bool = True
    mmap_fd: int = -1
    mmap_offset: int = 0
    mmap_areas: Sequence[tuple[int, int]] = ()


class ToyDevice:
    """A device that stores what is written and notes what is called.

    BAR0: 4 KiB of memory. BAR1: read-only. BAR2: 64 KiB with two mapped areas. BAR3: 8 KiB, all mapped.
    BAR4: write-only. BAR5 and ROM: not there. Region 7: 4 KiB. Region 8: not there.
    """

    def __init__(self, fd: int) -> None:
        areas = ((0x1000, 0x1000), (0x8000, 0x2000))
        self.regions = [
            ToyRegion(4096),
            ToyRegion(4096, writable=False),
            ToyRegion(0x10000, mmap_fd=fd, mmap_areas=areas),
            ToyRegion(0x2000, mmap_fd=fd, mmap_offset=0x10000),
            ToyRegion(4096, readable=False),
            ToyRegion(),
            ToyRegion(),
            ToyRegion(4096),
            ToyRegion(),
        ]
        self.irq_counts = (1, 0, 32, 1, 1)
        self.memory = {index: bytearray(region.size) for index, region in enumerate(self.regions)}
        self.writes: list[tuple[int, int, bytes]] = []
        self.resets: list[str] = []
        self.dma_changes = 0
        self.irq_changes = 0
        self.on_write: Callable[[int, int, bytes], None] = lambda region, offset, data: None
        self.on_read: Callable[[int, int, int], bytes | None] = lambda region, offset, count: None

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        own = self.on_read(region, offset, count)
        return bytes(self.memory[region][offset : offset + count]) if own is None else own

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        assert type(data) is bytes
        self.writes.append((region, offset, data))
        self.memory[region][offset : offset + len(data)] = data
        self.on_write(region, offset, data)

    def reset(self, reason: str) -> None:
        self.resets.append(reason)

    def dma_changed(self) -> None:
        self.dma_changes += 1

    def irq_state_changed(self) -> None:
        self.irq_changes += 1


class Rig:
    """A server for a toy device, and its clients."""

    def __init__(self, loop: SelectLoop | None = None) -> None:
        self.file = memfd(0x20000)
        self.device = ToyDevice(self.file)
        self.server = Server(None, self.device, dma_wait_s=0.2)
        self.loop = SelectLoop() if loop is None else loop
        self.server.start(self.loop)
        self.clients: list[Client] = []

    def step(self) -> None:
        """Let the server handle all that is there."""
        for _ in range(4):
            self.loop.run_once(0)

    def loop_is_idle(self) -> bool:
        """Tell whether no callback would run: a closed socket left in the loop would spin."""
        return not self.loop.run_once(0)

    def connect(self) -> Client:
        """Return a new client that has not said anything yet."""
        ours, theirs = socket.socketpair()
        self.clients.append(Client(ours, self.step))
        self.server.adopt(theirs)
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()
        self.loop.close()
        os.close(self.file)


def open_fds() -> int:
    """Return the number of open descriptors."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A server without a client; no descriptor may be left at the end."""
    # It has one of the process's own.
    guard()
    before = open_fds()
    rig = Rig()
    yield rig
    rig.close()
    assert open_fds() == before


@pytest.fixture
def neighbour(rig: Rig) -> Iterator[Rig]:
    """A second device in the loop of the first, as another card of a rack."""
    other = Rig(rig.loop)
    yield other
    for client in other.clients:
        client.close()
    other.server.close()
    os.close(other.file)


@pytest.fixture
def client(rig: Rig) -> Client:
    """A client that has negotiated."""
    client = rig.connect()
    client.negotiate()
    return client


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    """Two cards on one switch, served."""
    with Rack(2, tmp_path, RackConfig(logs=False)) as rack:
        yield rack


@pytest.fixture
def machine(rack: Rack) -> Iterator[Client]:
    """The machine of the first card, which has negotiated."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(rack.directory / "h0.sock"))
        client = Client(sock, lambda: None)
        client.negotiate()
        yield client
