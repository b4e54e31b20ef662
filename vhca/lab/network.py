"""The management network: a wire or a hub made of socket pairs, so that nothing leaves this machine.

Two guests are joined by one datagram socket pair: what one QEMU sends is what the other receives, with
nothing between. Any other number goes through a small learning switch in this process. One datagram is
one Ethernet frame. A guest that is gone, or does not read, loses its frames and delays nobody.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from dataclasses import dataclass

_BROADCAST_BIT = 1
_MAX_FRAME = 65536
_BUFFER_BYTES = 4 << 20


def mac_of(index: int) -> str:
    """The MAC address of guest `index` on the management network (locally administered)."""
    return f"52:54:00:76:{index >> 8 & 0xFF:02x}:{index & 0xFF:02x}"


def address_of(index: int) -> str:
    """The IPv4 address of guest `index` on the management network."""
    return f"10.0.{index // 250}.{index % 250 + 1}"


def _pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return ends


@dataclass(slots=True)
class HubCounters:
    """What a hub has done: frames in, frames out, frames dropped because a guest did not take them."""

    received: int = 0
    forwarded: int = 0
    dropped: int = 0


class Network:
    """The wiring of `guests` machines. `ends[i]` is for guest *i*'s QEMU, to be closed after its start."""

    def __init__(self, guests: int) -> None:
        self.counters = HubCounters()
        self.ends: list[socket.socket] = []
        self._hub: _Hub | None = None
        if guests == 2:
            self.ends = list(_pair())
        else:
            pairs = [_pair() for _ in range(guests)]
            self.ends = [theirs for theirs, _ in pairs]
            self._hub = _Hub([ours for _, ours in pairs], self.counters)

    def close(self) -> None:
        """Take the network down."""
        for end in self.ends:
            end.close()
        if self._hub is not None:
            self._hub.close()


class _Hub:
    """A learning Ethernet switch in a thread."""

    def __init__(self, ports: list[socket.socket], counters: HubCounters) -> None:
        self._ports = ports
        self._counters = counters
        self._where: dict[bytes, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        for port in ports:
            port.setblocking(False)
            self._selector.register(port, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="management-hub", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake:
                    return
                port = key.fileobj
                assert isinstance(port, socket.socket)
                for _ in range(64):  # a busy port must not starve the others
                    try:
                        frame = port.recv(_MAX_FRAME)
                    except OSError:
                        break
                    if len(frame) >= 14:
                        self._forward(port, frame)

    def _forward(self, source: socket.socket, frame: bytes) -> None:
        self._counters.received += 1
        target, sender = frame[:6], frame[6:12]
        if not sender[0] & _BROADCAST_BIT and (sender in self._where or len(self._where) < 4096):
            self._where[sender] = source
        known = None if target[0] & _BROADCAST_BIT else self._where.get(target)
        for port in (known,) if known is not None else self._ports:
            if port is source:
                continue
            try:
                port.send(frame)
                self._counters.forwarded += 1
            except OSError:
                self._counters.dropped += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        self._thread.join(timeout=5)
        self._selector.close()
        for end in (*self._ports, self._wake, self._waker):
            end.close()
