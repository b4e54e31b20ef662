"""The sockets at which host programs attach to a fabric, in the loop of a rack.

Abstract names have no permissions, so the kernel is asked who sends: only this user's programs are heard. A client's
data socket is joined to the socket of its process, for good: nobody else's datagrams come in there, and none go to
whoever takes its name later. All clients together have a bounded share of each round of the loop.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from vhca.ibsim import proto
from vhca.ibsim.counters import ToolCount
from vhca.ibsim.session import Node, Session

log = logging.getLogger(__name__)

ROUND_NS: Final = 1_000_000
"""For the messages of all clients in one round of the loop; each that is ready has one message at least."""
WAITING: Final = 256
"""Messages that wait for a client that does not read; more are lost. The library takes some hundred by itself."""
_CREDENTIALS: Final = struct.Struct("3i")
_LONGEST: Final = 512


class Loop(Protocol):
    """The event loop that a server needs: a part of asyncio's, and the number of its round."""

    rounds: int

    def add_reader(self, fileobj: int, callback: Callable[[], None], /) -> object:
        """Call `callback` whenever the descriptor is readable (level-triggered)."""
        ...

    def remove_reader(self, fileobj: int, /) -> object:
        """Wait for it no more."""
        ...

    def add_writer(self, fileobj: int, callback: Callable[[], None], /) -> object:
        """Call `callback` whenever the descriptor can be written to."""
        ...

    def remove_writer(self, fileobj: int, /) -> object:
        """Wait for it no more."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None], /) -> object:
        """Call `callback` after `delay_s`; with 0, in the next round."""
        ...


class _Wire:
    """A client's data socket, with what waits for the client."""

    def __init__(self, sock: socket.socket, process: int) -> None:
        self.sock = sock
        self.process = process  # a descriptor of it
        self.waiting: deque[bytes] = deque()
        self.gone = False


class Server:
    """Attach programs of this user whose `IBSIM_SOCKNAME` is `base`; `find` is for :class:`Session`."""

    def __init__(self, base: str, find: Callable[[str], Node], loop: Loop) -> None:
        proto.check_base(base)
        self.base = base
        self.counters: Counter[ToolCount] = Counter()
        self._loop = loop
        self._session = Session(find, open_data=self._open, send_data=self._send, close_data=self._close)
        self._control: socket.socket | None = None
        self._wires: dict[int, _Wire] = {}
        self._left_ns = ROUND_NS
        self._round = -1

    def start(self) -> None:
        """Take the names; OSError (EADDRINUSE) if somebody has them."""
        sock = _socket()
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            sock.bind(proto.control_name(self.base))
        except OSError:
            sock.close()
            raise
        self._control = sock
        self._loop.add_reader(sock.fileno(), self._control_ready)

    def close(self) -> None:
        """Forget all clients, and give the names back."""
        self._session.close()
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None

    @property
    def clients(self) -> int:
        """How many programs are attached."""
        return self._session.clients

    def all_counters(self) -> Counter[ToolCount]:
        """Of sockets and session together."""
        return self.counters + self._session.counters

    # ---- the control socket ----

    def _control_ready(self) -> None:
        assert self._control is not None
        for _ in self._share():
            try:
                message, extra, _, sender = self._control.recvmsg(_LONGEST, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                return
            process = _process_of(extra)
            if process is None:
                self.counters[ToolCount.FOREIGN] += 1
                continue
            answer = self._session.control(message, process)
            if answer is not None:
                # Who cannot be answered hears nothing: it has not bound its socket, or does not read.
                with contextlib.suppress(OSError):
                    self._control.sendto(answer, sender)

    # ---- data sockets ----

    def _open(self, slot: int, number: int, process: int) -> bool:
        """Join a socket to that of a client's process, which has to be there before and after: so it is its own."""
        sock = _socket()
        descriptor = -1
        try:
            descriptor = os.pidfd_open(process)
            sock.bind(proto.data_name(self.base, slot))
            sock.connect(proto.client_name(self.base, number))
            if _has_ended(descriptor):
                raise ProcessLookupError(errno.ESRCH, "the process has ended")
        except OSError as error:
            log.warning("tools: no data socket for process %d: %s", process, error.strerror)
            sock.close()
            if descriptor >= 0:
                os.close(descriptor)
            return False
        self._wires[slot] = _Wire(sock, descriptor)
        self._loop.add_reader(sock.fileno(), lambda: self._data_ready(slot))
        self._loop.add_reader(descriptor, lambda: self._session.lost(slot))
        return True

    def _close(self, slot: int) -> None:
        wire = self._wires.pop(slot)
        self._loop.remove_reader(wire.sock.fileno())
        self._loop.remove_writer(wire.sock.fileno())
        self._loop.remove_reader(wire.process)
        wire.sock.close()
        os.close(wire.process)

    def _data_ready(self, slot: int) -> None:
        wire = self._wires[slot]
        receive, descriptor = wire.sock.recv, wire.sock.fileno()
        serve, take = self._session.serve, self._session.data
        for end_ns in self._share():
            served = serve(slot, descriptor, end_ns)
            message: bytes | None
            if served is None:
                try:
                    message = receive(_LONGEST)
                except BlockingIOError:
                    return
                except OSError:
                    self._lose(slot, wire)
                    return
            elif served.gone:
                self._lose(slot, wire)
                return
            elif served.answer is not None:
                self._send(slot, served.answer)
                return
            elif served.empty:
                return
            else:
                message = served.rest
            if message is not None:
                take(slot, message)
            if wire.waiting or self._wires.get(slot) is not wire:
                return

    def _send(self, slot: int, message: bytes) -> None:
        wire = self._wires.get(slot)
        if wire is None or wire.gone:
            return
        if not wire.waiting:
            try:
                wire.sock.send(message)
                self.counters[ToolCount.DELIVERED] += 1
                return
            except BlockingIOError:
                # It is not heard either until it has read: what it asks for would be lost.
                self._loop.remove_reader(wire.sock.fileno())
                self._loop.add_writer(wire.sock.fileno(), lambda: self._flush(slot))
            except OSError:
                self._lose(slot, wire)
                return
        if len(wire.waiting) < WAITING:
            wire.waiting.append(message)
        else:
            self.counters[ToolCount.NOT_READ] += 1

    def _flush(self, slot: int) -> None:
        wire = self._wires[slot]
        waiting = wire.waiting
        try:
            while waiting:
                wire.sock.send(waiting[0])
                waiting.popleft()
                self.counters[ToolCount.DELIVERED] += 1
        except BlockingIOError:
            return
        except OSError:
            self._lose(slot, wire)
            return
        self._loop.remove_writer(wire.sock.fileno())
        self._loop.add_reader(wire.sock.fileno(), lambda: self._data_ready(slot))

    def _lose(self, slot: int, wire: _Wire) -> None:
        """A client's socket is gone; in a later round, since the fabric may be amid a delivery."""
        if not wire.gone:
            wire.gone = True
            self._loop.remove_reader(wire.sock.fileno())
            self._loop.remove_writer(wire.sock.fileno())
            self._loop.call_later(0, lambda: self._session.lost(slot) if self._wires.get(slot) is wire else None)

    # ---- shares ----

    def _share(self) -> Iterator[int]:
        """Turns until the time of this round is up, with that time; one in any case."""
        if self._round != self._loop.rounds:
            self._round = self._loop.rounds
            self._left_ns = ROUND_NS
        now_ns = time.monotonic_ns
        began = now_ns()
        end = began + self._left_ns
        try:
            yield end
            while now_ns() < end:
                yield end
        finally:
            self._left_ns -= now_ns() - began


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _process_of(extra: list[tuple[int, int, bytes]]) -> int | None:
    """The process that sent a message; None if it is another user's."""
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) == _CREDENTIALS.size:
            process, user, _ = _CREDENTIALS.unpack(data)
            return process if user == os.geteuid() else None
    return None


def _has_ended(descriptor: int) -> bool:
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return bool(ended.poll(0))
