"""What is on its way to the client: sent at once if the socket takes it, kept in order and sent later if not.

Nothing here waits. A client that does not read is first not listened to any more (:attr:`Outbox.full`), so that what
is kept stays bounded, and after some seconds without any progress it is given up.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from vhca.vfio_user.loop import Loop
from vhca.vfio_user.session import Outgoing

FULL_BYTES: Final = 1 << 20
"""Bytes waiting above which no more commands are taken from the client."""
STALL_S: Final = 5.0
"""A client that has not read a single byte for so long is gone."""


class Outbox:
    """The sending half of a connection.

    :ivar waiting: bytes that the socket has not taken yet.
    """

    def __init__(
        self, sock: socket.socket, loop: Loop, on_room: Callable[[], None], on_lost: Callable[[bool], None]
    ) -> None:
        """`on_room()` is called when a full outbox has run empty, `on_lost(stalled)` when the client is gone."""
        self.waiting = 0
        self._sock = sock
        self._loop = loop
        self._on_room = on_room
        self._on_lost = on_lost
        self._queue: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._was_full = False
        self._open = True
        self._progress = 0
        self._watched = False

    @property
    def full(self) -> bool:
        """Whether so much is waiting that the client should be read no further."""
        return self.waiting >= FULL_BYTES

    def send(self, message: Outgoing) -> None:
        """Send one message behind those that are waiting."""
        if not self._open:
            return
        data: memoryview | bytes = message.data
        fds: Sequence[int] = message.fds
        if not self._queue:
            sent = self._send(data, fds)
            if sent == len(data) or not self._open:
                return
            data = memoryview(data)[sent:]
            fds = () if sent else fds
            self._loop.add_writer(self._sock, self.flush)
            self._watch()
        self._queue.append((memoryview(data), fds))
        self.waiting += len(data)
        self._was_full = self._was_full or self.full

    def flush(self) -> None:
        """Send what the socket takes now."""
        queue = self._queue
        while queue and self._open:
            data, fds = queue[0]
            sent = self._send(data, fds)
            if not sent:
                return
            self._progress += sent
            self.waiting -= sent
            if sent == len(data):
                queue.popleft()
            else:
                queue[0] = (data[sent:], ())
        if self._open:
            self._loop.remove_writer(self._sock)
            if self._was_full:
                self._was_full = False
                self._on_room()

    def close(self) -> None:
        """Forget what is waiting; nothing is called any more."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self._sock)
        self._queue.clear()
        self.waiting = 0
        self._on_room = _nothing
        self._on_lost = _nothing

    def _send(self, data: memoryview | bytes, fds: Sequence[int]) -> int:
        try:
            if fds:
                return socket.send_fds(self._sock, [data], list(fds), socket.MSG_NOSIGNAL)
            return self._sock.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            self._lost(stalled=False)
            return 0

    def _lost(self, *, stalled: bool) -> None:
        on_lost = self._on_lost
        self.close()
        on_lost(stalled)

    def _watch(self) -> None:
        """See to it that there is some progress every few seconds, while something is waiting."""
        if self._watched:
            return
        self._watched = True
        before = self._progress

        def look() -> None:
            self._watched = False
            if not self._queue:
                return
            if self._progress == before:
                self._lost(stalled=True)
            else:
                self._watch()

        self._loop.call_later(STALL_S, look)


def _nothing(*_: object) -> None:
    pass
