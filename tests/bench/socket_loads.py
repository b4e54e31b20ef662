"""Loads of hostile clients for :mod:`tests.bench.bench_fairness`: they speak vfio-user as no QEMU would.

Importing this module adds them to :data:`tests.bench.fairness_loads.HOSTILE`. Each takes the socket of card `a` for
itself, and connects again when it is dropped.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator

from tests.bench.fairness_loads import Stage, hostile
from tests.wire.client import Client, eventfds
from vhca.pci.function import CONFIG_REGION
from vhca.vfio_user import proto
from vhca.vfio_user.proto import Command

QUEUE_AT = 0x1000
MEMORY_AND_MASTER = b"\x06\x00"
BURST = 500
SLOW_S = 0.02


class Attacker:
    """A client that comes back when it is dropped; `set_up` is called for each new connection."""

    def __init__(self, stage: Stage, set_up: Callable[[Client], None]) -> None:
        self._path = stage.a.client.sock.getpeername()
        self._set_up = set_up
        stage.a.client.close()
        self._connect()

    def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self._path)
        self.client = Client(sock, lambda: None)
        self._rest = memoryview(b"")
        self.client.negotiate()
        self._set_up(self.client)

    def send(self, data: bytes) -> None:
        """Send what the socket takes, the rest of the last call first, and throw away what came."""
        self._rest = self._rest or memoryview(data)
        try:
            self.client.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                self._rest = self._rest[self.client.sock.send(self._rest) :]
            self.drain()
        except OSError:
            self.client.close()
            with contextlib.suppress(OSError, EOFError):
                self._connect()

    def drain(self) -> None:
        """Throw away what came; raises OSError if the server has hung up."""
        with contextlib.suppress(BlockingIOError):
            while True:
                if not self.client.sock.recv(1 << 20):
                    raise ConnectionResetError


def nothing(client: Client) -> None:
    """A client that has negotiated and no more."""


def message(command: int, payload: bytes, *, no_reply: bool = False) -> bytes:
    """One command."""
    return proto.request(1, command, payload, no_reply=no_reply)


def write(offset: int, data: bytes, region: int = 0, *, no_reply: bool = True) -> bytes:
    """One write."""
    head = proto.REGION_ACCESS.pack(offset, region, len(data))
    return message(Command.REGION_WRITE, head + data, no_reply=no_reply)


def memory_by_message(client: Client) -> None:
    """Memory without a file, and a command queue in it."""
    client.dma_map(0, 1 << 30)
    client.region_write(CONFIG_REGION, 4, MEMORY_AND_MASTER)
    client.post_raw(write(0x10, bytes(4)) + write(0x14, QUEUE_AT.to_bytes(4, "big")))


DOORBELL = write(0x18, (1).to_bytes(4, "big"))


@hostile("socket: refused commands without a pause")
def refused(stage: Stage) -> Iterator[None]:
    attacker = Attacker(stage, nothing)
    bad = message(Command.REGION_READ, proto.REGION_ACCESS.pack(1 << 40, CONFIG_REGION, 4))
    while True:
        yield
        attacker.send(bad * BURST)


@hostile("socket: configuration writes without a pause")
def configuration(stage: Stage) -> Iterator[None]:
    attacker = Attacker(stage, nothing)
    while True:
        yield
        attacker.send(write(4, MEMORY_AND_MASTER, CONFIG_REGION, no_reply=False) * BURST)


@hostile("socket: DMA messages never answered, doorbells without a pause")
def unanswered_flood(stage: Stage) -> Iterator[None]:
    attacker = Attacker(stage, memory_by_message)
    while True:
        yield
        attacker.send(DOORBELL * BURST)


@hostile("socket: DMA messages never answered")
def unanswered(stage: Stage) -> Iterator[None]:
    attacker = Attacker(stage, memory_by_message)
    while True:
        yield
        attacker.send(DOORBELL)
        time.sleep(0.001)


@hostile("socket: DMA messages answered after 20 ms")
def slow(stage: Stage) -> Iterator[None]:
    attacker = Attacker(stage, memory_by_message)
    while True:
        yield
        attacker.send(b"")
        with contextlib.suppress(OSError, EOFError):
            client = attacker.client
            client.sock.setblocking(True)
            client.post_raw(DOORBELL)
            asked = client.receive()
            time.sleep(SLOW_S)
            size = proto.DMA_ACCESS.unpack_from(asked.payload)[1]
            client.post_raw(proto.reply(asked.message_id, asked.command, asked.payload[:16] + bytes(size)))


@hostile("socket: replies never read")
def unread(stage: Stage) -> Iterator[None]:
    attacker = Attacker(stage, nothing)
    wanted = message(Command.REGION_READ, proto.REGION_ACCESS.pack(0, CONFIG_REGION, 4096)) * BURST
    while True:
        yield
        with contextlib.suppress(OSError):
            attacker.client.sock.setblocking(False)
            attacker.client.sock.send(wanted)
        time.sleep(0.01)


@hostile("socket: eventfds whose counter is full and that may block")
def spoilt(stage: Stage) -> Iterator[None]:
    def set_up(client: Client) -> None:
        fds = eventfds(1)
        client.set_irqs(0x24, 2, 0, 1, fds=fds)
        os.set_blocking(fds[0], True)
        os.eventfd_write(fds[0], (1 << 64) - 2)
        os.close(fds[0])

    attacker = Attacker(stage, set_up)
    trigger = message(Command.DEVICE_SET_IRQS, proto.SET_IRQS.pack(20, 0x21, 2, 0, 1))
    while True:
        yield
        attacker.send(trigger * BURST)


@hostile("socket: coming and going")
def churn(stage: Stage) -> Iterator[None]:
    attacker = Attacker(stage, memory_by_message)
    while True:
        yield
        attacker.client.close()
        attacker.send(b"x")
