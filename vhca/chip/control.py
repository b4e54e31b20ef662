"""The control socket of a running rack: a unix socket of mode 0600 that takes orders, one on each line.

Threads of its own serve it, so no client, however it behaves, takes the time of the device loop or of a guest: length
of lines, number of clients, waiting times and the share of time that orders take are bounded. What an order means is
not known here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vhca.vfio_user.server import identity, listen

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "rack.sock"
"""No longer than that of a rack's last card."""
MAX_LINE_BYTES: Final = 4096
MAX_CLIENTS: Final = 8
CLIENT_TIMEOUT_S: Final = 10.0
"""For a client's next line, and for it to take an answer."""
PAUSE_FACTOR: Final = 9
"""Behind an order there is none for so many times what it took: orders have a tenth of the time at most."""
LONGEST_PAUSE_S: Final = 0.5
_ACCEPT_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class HandOver:
    """The connection is somebody else's now: `serve` answers and has it until it returns, then it is closed.

    The thread that calls `serve` is one of those that clients have: there are so many of both together.
    """

    serve: Callable[[socket.socket], None]


Answer = Callable[[bytes], bytes | HandOver]
"""What to say to a line; both without their line end. It never raises for what the line says."""


class ControlSocket:
    """The socket at `path`; `answer` is called for one line at a time, in a thread that may wait."""

    def __init__(self, path: Path, answer: Answer, refusal: Callable[[str], bytes]) -> None:
        """`refusal` makes an answer of a sentence that says why there is no other."""
        self.path = Path(os.path.abspath(path))  # who looks for sockets is told the path as it is bound
        self._answer = answer
        self._too_long = refusal(f"a line has at most {MAX_LINE_BYTES} bytes")
        self._too_many = refusal(f"{MAX_CLIENTS} others are connected; try again in {CLIENT_TIMEOUT_S:.0f} seconds")
        self._listener: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._threads: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()  # for the threads
        self._turn = threading.Lock()  # one order at a time
        self._next_turn_s = 0.0
        self._stopping = threading.Event()

    # ---- life (the owner's thread) ----

    def open(self) -> None:
        """Take the socket; who connects waits until :meth:`start`.

        :raises VfioUserError: the path is too long, in use, or not a socket.
        """
        self._listener = listen(self.path)
        self._listener.setblocking(True)
        self._identity = identity(self.path)

    def start(self) -> None:
        """Serve whoever connects."""
        assert self._listener is not None
        if not self._run(self._accept, self._listener):
            log.warning("%s: no thread could be started; no orders are taken", self.path)

    def stop(self, timeout_s: float) -> None:
        """Remove the socket and hang up; an order that is under way has `timeout_s` to end."""
        if self._listener is None:
            return
        # Another rack may have its socket there by now, if somebody removed ours.
        if self._identity == identity(self.path):
            with contextlib.suppress(OSError):
                self.path.unlink()
        with self._lock:
            self._stopping.set()
            threads = list(self._threads.items())
        # It wakes the thread that waits; who is being told something hears it to its end, if he listens.
        for way in (socket.SHUT_RD, socket.SHUT_RDWR):
            for thread, sock in threads:
                if thread.is_alive():
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR if sock is self._listener else way)
            deadline_s = time.monotonic() + timeout_s / 2
            for thread, _ in threads:
                thread.join(max(0.0, deadline_s - time.monotonic()))
        self._listener.close()
        self._listener = None

    def _run(self, serve: Callable[[socket.socket], None], sock: socket.socket) -> bool:
        """Serve a socket in a thread of its own; False if there are as many already as may be."""

        def main() -> None:
            try:
                serve(sock)
            finally:
                sock.close()
                with self._lock:
                    del self._threads[threading.current_thread()]

        thread = threading.Thread(target=main, name="vhca-control", daemon=True)
        with self._lock:
            if self._stopping.is_set() or len(self._threads) > MAX_CLIENTS:
                return False
            self._threads[thread] = sock
            try:
                thread.start()
            except RuntimeError:  # the host has no thread left for us
                del self._threads[thread]
                return False
        return True

    # ---- service (threads of its own) ----

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:  # we are to stop; or descriptors or memory have run out
                self._stopping.wait(_ACCEPT_PAUSE_S)
                continue
            if not self._run(self._serve, sock):
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    if not self._stopping.is_set():
                        sock.send(self._too_many + b"\n")
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        """Answer a client until it goes, errs or is too slow."""
        heard = b""
        with contextlib.suppress(OSError):
            while not self._stopping.is_set():
                deadline_s = time.monotonic() + CLIENT_TIMEOUT_S
                while b"\n" not in heard and len(heard) < MAX_LINE_BYTES:
                    sock.settimeout(max(0.001, deadline_s - time.monotonic()))
                    data = sock.recv(MAX_LINE_BYTES - len(heard))
                    if not data or time.monotonic() > deadline_s:
                        return
                    heard += data
                line, end, heard = heard.partition(b"\n")
                sock.settimeout(CLIENT_TIMEOUT_S)
                if not end:
                    sock.sendall(self._too_long + b"\n")
                    return
                answer = self._in_turn(line)
                if isinstance(answer, HandOver):
                    sock.settimeout(None)
                    answer.serve(sock)
                    return
                sock.sendall(answer + b"\n")

    def _in_turn(self, line: bytes) -> bytes | HandOver:
        with self._turn:
            self._stopping.wait(self._next_turn_s - time.monotonic())
            began_s = time.monotonic()
            try:
                return self._answer(line)
            finally:
                ended_s = time.monotonic()
                self._next_turn_s = ended_s + min(LONGEST_PAUSE_S, PAUSE_FACTOR * (ended_s - began_s))
