"""What a socket and a wake-up cost in a ping-pong of two processes that spin, as two guests do: no QEMU, no card.

Each of two processes looks at memory all the time until its turn has come, and then sends a message of a doorbell's
size. A loop with a selector, as a rack has, takes it and hands the turn to the other. So three want to run, as with two
guests.
"""

from __future__ import annotations

import mmap
import os
import selectors
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

from vhca.vfio_user.connection import WRITE_8_SIZE

END: Final = 0xFF
BURST: Final = 64
CHILD_S: Final = 60.0
now_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class SocketHop:
    """Medians, in us."""

    wake: float
    """From before the send until the loop has been woken by it."""
    send: float
    """One of many sends to a receiver that is awake."""


def _spin(sock: socket.socket, shared: mmap.mmap, own: int) -> None:
    """Send when the byte at `own` changes, until it is END."""
    seen = 0
    message = bytearray(WRITE_8_SIZE)
    end = time.monotonic() + CHILD_S
    while True:
        value = shared[own]
        if value == seen:
            if time.monotonic() > end:
                return
            continue
        if value == END:
            break
        seen = value
        message[-8:] = now_ns().to_bytes(8, "little")
        sock.send(message)


def measure(rounds: int = 3000) -> SocketHop:
    """Play `rounds` messages. Assumes that the process may fork."""
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    selector = selectors.DefaultSelector()
    wakes: list[int] = []
    pids = []
    with ExitStack() as stack:
        stack.callback(selector.close)
        ends = [socket.socketpair(socket.AF_UNIX) for _ in range(2)]

        for own, (here, there) in enumerate(ends):
            stack.enter_context(here)
            pid = os.fork()
            if not pid:
                try:
                    _spin(there, shared, own)
                finally:
                    os._exit(0)
            pids.append(pid)
            there.close()
            selector.register(here, selectors.EVENT_READ, own)
        shared[0] = 1
        message = bytearray(WRITE_8_SIZE)
        while len(wakes) < rounds:
            ready = selector.select(CHILD_S)
            woken = now_ns()
            if not ready:
                break
            key = ready[0][0]
            ends[key.data][0].recv_into(message)
            wakes.append(woken - int.from_bytes(message[-8:], "little"))
            shared[1 - key.data] = len(wakes) % 250 + 1
        shared[0] = shared[1] = END
        for pid in pids:
            os.waitpid(pid, 0)
    return SocketHop(median(wakes) / 1e3, send_us())


def send_us() -> float:
    """One of :data:`BURST` sends of a doorbell's size that wake nobody."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    message, spent = bytes(WRITE_8_SIZE), []
    with ours, theirs:
        for _ in range(200):
            begin = now_ns()
            for _ in range(BURST):
                ours.send(message)
            spent.append((now_ns() - begin) / BURST)
            theirs.recv(1 << 16)
    return median(spent) / 1e3


if __name__ == "__main__":
    print(measure())
