"""The log of a guest's console: what a machine prints goes to a file that does not grow for ever.

Assumes a descriptor that becomes readable and comes to its end when the machine does. Guarantees: at most
:data:`FILE_BYTES` in the file and as much in an older one beside it (`NAME.1`), however much is printed; both are
private; a machine that prints without end is slowed down, and costs this process a few wake-ups a second.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vhca.private_files import create_private

FILE_BYTES: Final = 8 << 20
_PIECE_BYTES: Final = 64 << 10
# The machine waits for room in the channel meanwhile; each wake-up takes the interpreter from the cards.
_REST_S: Final = 0.01


class Recorder:
    """Writes what comes out of `descriptor`, which it owns, to `path` in a thread of its own until the end."""

    def __init__(
        self,
        descriptor: int,
        path: Path,
        max_bytes: int = FILE_BYTES,
        listener: Callable[[bytes], None] | None = None,
    ) -> None:
        """Raises `OSError` if the file cannot be made. `listener` hears, in the thread, what came; it is quick."""
        self.path = path
        self.lost_bytes = 0  # what the disk did not take
        self.recorded_bytes = 0  # that came, all in all
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._size = 0
        self._listener = listener
        try:
            self._file = create_private(path)
            self._older.unlink(missing_ok=True)
        except BaseException:
            os.close(descriptor)
            raise
        self._thread = threading.Thread(target=self._run, name=f"console-{path.stem}", daemon=True)
        self._thread.start()

    @property
    def _older(self) -> Path:
        return self.path.with_name(self.path.name + ".1")

    def note(self, data: bytes) -> None:
        """Write something of our own, before anything was printed."""
        self._write(data)

    def join(self, timeout_s: float) -> None:
        """Wait until all that a machine said before it ended is in the file."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._descriptor, _PIECE_BYTES):
                self._write(data)
                self.recorded_bytes += len(data)
                if self._listener is not None:
                    self._listener(data)
                time.sleep(_REST_S)
        os.close(self._descriptor)
        if self._file >= 0:
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        try:
            if self._size + len(data) > self._max_bytes:
                self._turn()
            view = memoryview(data)
            while view:
                written = os.write(self._file, view)
                self._size += written
                view = view[written:]
        except OSError:  # a full disk, or the folder is gone: the machine goes on
            self.lost_bytes += len(data)

    def _turn(self) -> None:
        """Go on in a new file."""
        self.path.replace(self._older)
        os.close(self._file)
        self._file = -1
        self._file = create_private(self.path)
        self._size = 0


def tail(path: Path, max_bytes: int) -> str:
    """The last `max_bytes` of what was recorded at `path`; empty if there is nothing. Bytes that are no text
    become replacement characters; control characters stay."""
    parts: list[bytes] = []
    for place in (path, path.with_name(path.name + ".1")):
        left = max_bytes - sum(map(len, parts))
        with contextlib.suppress(OSError), place.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - left))
            parts.insert(0, stream.read(left))
    return b"".join(parts).decode("utf-8", "replace").replace("\r", "")
