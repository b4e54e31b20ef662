"""Where captures are written: a thread for each, so that neither a slow disk nor a slow reader holds the fabric up.

What the thread has not got to is bounded; what comes beyond that is refused, and whoever gives it counts it.
"""

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from vhca.fabric import pcapng

log = logging.getLogger(__name__)

QUEUE_BYTES: Final = 16 << 20
"""What may wait for the disk, or for a reader."""
BATCH_S: Final = 0.003
"""Behind a write there is none for so long: a thread that wakes for every packet would take the loop's time."""
MOST_FILES: Final = 100_000


class Destination(Protocol):
    """Where blocks go. All but :meth:`abandon` is for the writer's thread; errors are `OSError`."""

    name: str

    def write(self, blocks: list[bytes]) -> None:
        """Write blocks; the first of all is the header of the section."""
        ...

    def close(self) -> None:
        """End it."""
        ...

    def abandon(self) -> None:
        """Let a write that waits for somebody fail. Any thread."""
        ...


def for_its_owner(path: Path, flags: int = 0) -> int:
    """Open a file for writing that, if it is new, its owner alone may read: captures tell keys and payload.

    A pipe without a reader is refused instead of waited for.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | flags, 0o600)
    os.set_blocking(descriptor, True)
    return descriptor


@dataclass(frozen=True, slots=True)
class Ring:
    """Files of about `file_bytes` each, as dumpcap makes them: NAME_00001_20261130120000.pcapng, NAME_00002_...

    Of more than `files` the oldest is deleted; 0: none is. ValueError if there cannot be such a ring.
    """

    file_bytes: int
    files: int = 0

    def __post_init__(self) -> None:
        if self.file_bytes < 1024:
            raise ValueError(f"file_bytes {self.file_bytes}: a file has 1024 bytes at least")
        if not 0 <= self.files <= MOST_FILES:
            raise ValueError(f"files {self.files}: 1 to {MOST_FILES}, or 0 for no limit")


class File:
    """One file, which is emptied with the first write, or a ring of them. OSError if it cannot be opened."""

    def __init__(self, path: Path, ring: Ring | None = None, now: Callable[[], float] = time.time) -> None:
        self.name = str(path)
        self._path = path
        self._ring = ring
        self._now = now
        self._number = 0
        self._written: deque[Path] = deque()
        self._bytes = 0
        self._preamble = b""
        self._fresh = True
        self._descriptor = -1
        self.path = path
        self._open()

    def _open(self) -> None:
        if self._ring is not None:
            self._number += 1
            stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(self._now()))
            self.path = self._path.with_name(f"{self._path.stem}_{self._number:05}_{stamp}{self._path.suffix}")
        self._descriptor = for_its_owner(self.path)
        self._fresh = True
        self._bytes = 0
        self._written.append(self.path)

    def is_file(self, path: Path | str) -> bool:
        """Whether this is the file that is being written."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(path))
        except OSError:
            return False

    def write(self, blocks: list[bytes]) -> None:
        """See :class:`Destination`."""
        ring = self._ring
        batch: list[bytes] = []
        size = self._bytes
        for block in blocks:
            if ring is not None and size + len(block) > ring.file_bytes and size > len(self._preamble):
                self._put(batch)
                self._next(ring)
                batch, size = [self._preamble], len(self._preamble)
            batch.append(block)
            size += len(block)
            if ring is not None and pcapng.is_preamble(block):
                self._preamble += block
        self._put(batch)

    def _next(self, ring: Ring) -> None:
        self.close()
        while ring.files and len(self._written) >= ring.files:
            with contextlib.suppress(FileNotFoundError):
                self._written.popleft().unlink()
        self._open()

    def _put(self, blocks: list[bytes]) -> None:
        if self._fresh:
            self._fresh = False
            with contextlib.suppress(OSError):  # what is no ordinary file cannot be emptied
                os.ftruncate(self._descriptor, 0)
        data = memoryview(b"".join(blocks))
        while data:
            done = os.write(self._descriptor, data)
            self._bytes += done
            data = data[done:]

    def close(self) -> None:
        """See :class:`Destination`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def abandon(self) -> None:
        """A disk that hangs cannot be helped: its thread is left behind."""


class Stream:
    """A reader at the other end of a socket, who may be slow or gone; he is told `before` in front of everything."""

    def __init__(self, sock: socket.socket, name: str, before: bytes = b"") -> None:
        self.name = name
        self._sock = sock
        self._before = before

    def write(self, blocks: list[bytes]) -> None:
        """See :class:`Destination`."""
        self._sock.sendall(self._before + b"".join(blocks))
        self._before = b""

    def close(self) -> None:
        """See :class:`Destination`; who the socket belongs to closes it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def abandon(self) -> None:
        """See :class:`Destination`."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


class Writer:
    """The thread that writes one capture, from :meth:`start` on; what is given before waits for that.

    :ivar trouble: why it ended before its time, "" if it did not.
    """

    def __init__(self, destination: Destination, most_bytes: int | None = None) -> None:
        self.destination = destination
        self.trouble = ""
        self._most_bytes = QUEUE_BYTES if most_bytes is None else most_bytes
        self._changed = threading.Condition()
        self._waiting = [pcapng.section()]
        self._bytes = len(self._waiting[0])
        self._ending = False
        self._ended = threading.Event()

    def start(self) -> "Writer":
        """Begin to write.

        :raises OSError: there is no thread to be had; the destination is closed.
        """
        try:
            threading.Thread(target=self._run, name="vhca-capture", daemon=True).start()
        except RuntimeError as error:
            self._close()
            raise OSError(errno.EAGAIN, "the host has no thread left for a capture") from error
        return self

    @property
    def ended(self) -> bool:
        """True once nothing is written any more."""
        return self._ended.is_set()

    def declare(self, block: bytes) -> None:
        """Describe an interface, in this file and in those that follow; never refused."""
        with self._changed:
            self._add(block)

    def put(self, block: bytes) -> bool:
        """Have a block written soon; False if too much waits, or nothing is written any more."""
        with self._changed:
            if self._bytes + len(block) > self._most_bytes:
                return False
            return self._add(block)

    def _add(self, block: bytes) -> bool:
        if self._ending or self.ended:
            return False
        self._bytes += len(block)
        self._waiting.append(block)
        if len(self._waiting) == 1:
            self._changed.notify_all()
        return True

    def end(self, last: bytes = b"") -> None:
        """Write what waits, and `last`, and no more. Does not wait."""
        with self._changed:
            if last:
                self._add(last)
            self._ending = True
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was given is written; False if it takes longer. Not for who must not wait."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended or not self._bytes, timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Behind :meth:`end`: wait until the destination is closed; who takes too long is left alone."""
        if not self._ended.wait(timeout_s):
            self.destination.abandon()
            return False
        return True

    def wait_ended(self, timeout_s: float | None) -> bool:
        """Wait until nothing is written any more, for whatever reason; False if it takes longer."""
        return self._ended.wait(timeout_s)

    def _run(self) -> None:
        try:
            while self._write_some():
                time.sleep(BATCH_S)
        except OSError as error:
            gone = isinstance(error, BrokenPipeError | ConnectionResetError)
            self.trouble = "its reader has gone" if gone else str(error.strerror)
            tell = log.info if gone else log.error
            tell("the capture %s ends here: %s", self.destination.name, self.trouble)
        finally:
            self._close()

    def _write_some(self) -> bool:
        """Write what waits, or wait for it; False if that was the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            blocks, self._waiting = self._waiting, []
            ending = self._ending
        if blocks:
            self.destination.write(blocks)
        with self._changed:
            self._bytes -= sum(map(len, blocks))
            self._changed.notify_all()
        return not ending

    def _close(self) -> None:
        try:
            self.destination.close()
        except OSError as error:
            self.trouble = self.trouble or str(error.strerror)
            log.error("the capture %s has lost its end: %s", self.destination.name, error.strerror)
        with self._changed:
            self._ended.set()
            self._waiting.clear()
            self._bytes = 0
            self._changed.notify_all()
