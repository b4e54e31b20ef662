"""The slot that a virtual card is plugged into: a unix socket where one virtual machine at a time connects.

The server accepts a client, serves it, and when it goes away, in whatever way, takes everything back
that was the client's: DMA mappings, eventfds, the device's state. Then the next client finds a device
as after power-up. A second client beside a connected one is turned away.

Everything runs in one thread, the one of the loop that the server is given, or of :meth:`Server.serve_forever`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vhca.vfio_user.connection import Connection
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.device import Device
from vhca.vfio_user.dma import DmaTable
from vhca.vfio_user.eventfd import Signaller, is_eventfd
from vhca.vfio_user.irqs import IrqTable
from vhca.vfio_user.loop import Loop, SelectLoop
from vhca.vfio_user.session import Session
from vhca.vfio_user.wait_budget import ROUND_S, WaitBudget

log = logging.getLogger(__name__)

MAX_PATH_BYTES: Final = 107
"""The longest name of a unix socket on Linux."""
ACCEPT_PAUSE_S: Final = 0.2
"""Before the next try, when descriptors or memory had run out."""
LOG_LINES: Final = 100
"""A client can provoke a line with every message, and by connecting again: so many at once ..."""
LOG_LINES_PER_S: Final = 0.2
"""... and so many in each second."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class VfioUserError(Exception):
    """The server cannot do what it was asked for; the text says what to change."""


class Server:
    """A vfio-user server for one device.

    :ivar dma: guest memory, by the mappings of the connected client.
    :ivar irqs: the interrupt vectors.
    :ivar counters: named events: see :class:`~vhca.vfio_user.counters.ServerCount`.

    `dma` and `irqs` are the same objects for the life of the server; a device may keep them. The same
    holds for their methods.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        device: Device,
        *,
        dma_wait_s: float = ROUND_S,
        session_type: type[Session] = Session,
    ) -> None:
        """Prepare a server for the socket `path`; None if clients only come by :meth:`adopt`.

        `dma_wait_s` bounds the waiting for replies to DMA messages in one round of the loop: see
        :mod:`vhca.vfio_user.wait_budget`. `session_type` may be a subclass that records commands or answers them
        with errors on purpose.
        """
        if len(device.regions) < 8 or len(device.irq_counts) < 3:
            raise VfioUserError("a PCI device has at least 8 regions and 3 interrupt indices")
        self.device = device
        self.path = None if path is None else Path(path)
        self._name = "vfio-user" if path is None else str(path)
        self.counters: Counter[ServerCount] = Counter()
        self.dma = DmaTable()
        self._signaller = Signaller()
        self.irqs = IrqTable(device.irq_counts, self._signaller.signal, os.close)
        self._wait_budget = WaitBudget(dma_wait_s)
        self._session_type = session_type
        self._loop: Loop | None = None
        self._listener: socket.socket | None = None
        self._socket_identity: tuple[int, int] | None = None
        self._connection: Connection | None = None
        self._log_lines: float = LOG_LINES
        self._logged_at = 0.0

    def rest_s(self) -> float:
        """How long the device should leave guest memory alone, since waiting for it kept others waiting; mostly 0."""
        until = self._wait_budget.rest_until
        return max(0.0, until - time.monotonic()) if until else 0.0

    def rests(self) -> bool:
        """Whether there is such a time now."""
        until = self._wait_budget.rest_until
        return until != 0 and until > time.monotonic()

    def reads_on(self) -> bool:
        """Whether more of what the client sent has been read, and is handled next."""
        connection = self._connection
        return connection is not None and connection.reads_on

    # ---- life ----

    def start(self, loop: Loop) -> None:
        """Listen on the socket and serve in `loop` until :meth:`close`.

        :raises VfioUserError: the path is too long, in use, or not a socket.
        """
        self._loop = loop
        if self.path is not None:
            self._listener = listen(self.path)
            self._socket_identity = identity(self.path)
            loop.add_reader(self._listener, self._accept)
            log.info("%s: listening", self._name)
        self._signaller.open()

    def adopt(self, sock: socket.socket) -> None:
        """Serve a client that is connected already; a second one is turned away.

        :raises VfioUserError: the server has not been started.
        """
        if self._loop is None:
            raise VfioUserError("start the server first")
        if self._connection is not None and self._connection.hung_up():
            # Its end has not been noticed yet; who comes next must not suffer for it.
            self.disconnect()
        if self._connection is not None:
            self.counters[ServerCount.CLIENTS_REFUSED] += 1
            self._log("a second client was turned away", None)
            sock.close()
            return
        self.counters[ServerCount.CLIENTS] += 1
        session = self._session_type(
            self.device,
            self.dma,
            self.irqs,
            close_fd=os.close,
            check_eventfd=is_eventfd,
            log=self._log,
            counters=self.counters,
        )
        connection = Connection(
            sock, session, self.counters, self._wait_budget, self._loop, self.disconnect, self._log, self._name
        )
        self._connection = self.dma.channel = connection

    @property
    def connected(self) -> bool:
        """Whether a client is connected."""
        return self._connection is not None

    def disconnect(self) -> None:
        """Drop the client, if there is one, and take back all that was its."""
        connection = self._connection
        if connection is None:
            return
        self._connection = None
        connection.close()
        self.dma.channel = None
        self.dma.unmap_all()
        self.irqs.close()
        try:
            self.device.reset("lost_connection")
            for name in ("dma_changed", "irq_state_changed"):
                getattr(self.device, name, lambda: None)()
        except Exception as error:
            self.counters[ServerCount.DEVICE_ERROR] += 1
            self._log("the device failed in the reset after its client was lost", error)

    def close(self) -> None:
        """Drop the client, stop listening, remove the socket."""
        self.disconnect()
        self._signaller.close()
        if self._listener is not None and self.path is not None and self._loop is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            self.remove_socket()
        self._loop = None

    def remove_socket(self) -> None:
        """Remove the socket from its folder: what of :meth:`close` can be done in any thread."""
        # Another server may have its socket there by now, if somebody removed ours.
        ours = self._socket_identity
        if self.path is not None and ours is not None and ours == identity(self.path):
            with contextlib.suppress(OSError):
                self.path.unlink()

    def serve_forever(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Run a loop of its own for this one server; ends when `until()`, asked after each wake, is true."""
        loop = SelectLoop()
        self.start(loop)
        try:
            while not until():
                loop.run_once()
        finally:
            self.close()
            loop.close()

    # ---- events ----

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            self.counters[ServerCount.ACCEPT_FAILED] += 1
            self._log(f"accept failed: {error}", None)
            if self._loop is not None and error.errno in _EXHAUSTED:
                # The client still waits, and would keep the loop awake for nothing.
                self._loop.remove_reader(self._listener)
                self._loop.call_later(ACCEPT_PAUSE_S, self._listen_again)
            return
        self.adopt(sock)

    def _listen_again(self) -> None:
        if self._loop is not None and self._listener is not None:
            self._loop.add_reader(self._listener, self._accept)

    def _log(self, text: str, error: BaseException | None) -> None:
        now = time.monotonic()
        lines = min(LOG_LINES, self._log_lines + (now - self._logged_at) * LOG_LINES_PER_S)
        self._logged_at = now
        if lines >= 1:
            lines -= 1
            log.warning("%s: %s", self._name, text, exc_info=error)
            if lines < 1:
                log.warning("%s: so many lines that some are left out from here on; see the counters", self._name)
        self._log_lines = lines


def listen(path: Path) -> socket.socket:
    """Listen on `path`, for this user alone; a socket that nobody listens on is replaced.

    :raises VfioUserError: the path is too long, in use, or not a socket.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise VfioUserError(f"{path}: a socket path has at most {MAX_PATH_BYTES} bytes; use a shorter one")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        _remove_stale(path)
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(4)
    except OSError as error:
        sock.close()
        raise VfioUserError(f"{path}: cannot listen: {error.strerror}") from error
    except VfioUserError:
        sock.close()
        raise
    return sock


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at `path` from another of that name; None if there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise VfioUserError(f"{path}: exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise VfioUserError(f"{path}: another server listens there")
