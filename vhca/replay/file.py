"""The file of a recording: a mark, then chunks, each with a checksum of its own.

It only grows, and each chunk holds whole steps: what was written when its process was killed can be played. Whoever
reads expects nothing of it: lengths are checked before anything is read or unpacked, and only one chunk is in memory.
"""

import json
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any, Final

from vhca.private_files import create_private
from vhca.replay.forms import FormError, Source, Step, take_step

log = logging.getLogger(__name__)

MARK: Final = b"VHCA-REC"
VERSION: Final = 1
SUFFIX: Final = ".vhcarec"
CHUNK_BYTES: Final = 256 << 10
MOST_CHUNK_BYTES: Final = 64 << 20
"""A chunk begins to be written when it has CHUNK_BYTES, and no step may make it longer than MOST_CHUNK_BYTES."""
LIMIT_BYTES: Final = 256 << 20
LEAST_LIMIT_BYTES: Final = 64 << 10
MOST_HEAD_BYTES: Final = 1 << 20
_CHUNK: Final = Struct(">4sIII")
HEAD: Final = b"HEAD"
STEPS: Final = b"STEP"
LAST: Final = b"LAST"
_FILE_HEAD: Final = Struct(">8sI")


class RecordingError(Exception):
    """This is no recording that could be played, or no longer; the text says why."""


def _chunk(tag: bytes, data: bytes) -> bytes:
    stored = zlib.compress(data, 1)
    start = _CHUNK.pack(tag, len(stored), len(data), 0)
    return _CHUNK.pack(tag, len(stored), len(data), zlib.crc32(stored, zlib.crc32(start))) + stored


class Writer:
    """A recording that is being written, of `limit_bytes` at most; never in anybody's way.

    What cannot be written, because the disk is full, ends it: our log says so once.

    :ivar open: whether it goes on.
    :raises OSError: it cannot be made.
    """

    def __init__(self, path: Path, head: dict[str, Any], limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self.open = True
        self.steps = 0
        self.written = 0
        self._limit = max(limit_bytes, LEAST_LIMIT_BYTES)
        self._parts: list[bytes] = []
        self._size = 0
        self._file = create_private(path)
        self._write(_FILE_HEAD.pack(MARK, VERSION) + _chunk(HEAD, json.dumps(head).encode()))

    @property
    def waits(self) -> bool:
        """Whether there is something that is not in the file yet."""
        return bool(self._parts)

    def add(self, step: bytes) -> None:
        """A step, whole."""
        if len(step) > MOST_CHUNK_BYTES:
            self.end({"why": "size", "text": f"a step has {len(step)} bytes"})
            return
        if self._size + len(step) > MOST_CHUNK_BYTES:
            self.flush()
        self._parts.append(step)
        self._size += len(step)
        if self._size >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._parts or not self.open:
            return
        chunk = _chunk(STEPS, b"".join(self._parts))
        steps = len(self._parts)
        self._parts.clear()
        self._size = 0
        if self.written + len(chunk) > self._limit:
            self._last({"why": "limit", "text": f"it was to have {self._limit} bytes at most"})
            return
        self._write(chunk)
        self.steps += steps

    def end(self, last: dict[str, Any]) -> None:
        """Write what waits and how it ended, and close the file."""
        self.flush()
        self._last(last)

    def _last(self, last: dict[str, Any]) -> None:
        if self.open:
            self._write(_chunk(LAST, json.dumps({**last, "steps": self.steps}).encode()))
        self._close()

    def _close(self) -> None:
        if self.open:
            self.open = False
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        if not self.open:
            return
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            log.error("the recording %s ends here: %s", self.path, error)
            self._close()
        self.written += len(data)


class Reader:
    """A recording, step by step.

    :ivar head: what was recorded: see docs/replay.md.
    :ivar ending: how it ended, once all steps were read: "end", "limit", "size", "failed", or "cut off".
    :ivar last: what the end says, as it was written.
    :raises RecordingError: it is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ending = ""
        self.last: dict[str, Any] = {}
        try:
            self._file = path.open("rb")
            self._size = os.fstat(self._file.fileno()).st_size
            start = self._file.read(_FILE_HEAD.size)
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from error
        try:
            if start[: len(MARK)] != MARK:
                raise RecordingError(f"{path} is no recording of a card")
            version = _FILE_HEAD.unpack(start)[1] if len(start) == _FILE_HEAD.size else None
            if version is not None and version != VERSION:
                raise RecordingError(f"{path} has format {version}; this vhca reads format {VERSION}")
            chunk = self._next()
            if chunk is None or chunk[0] != HEAD or len(chunk[1]) > MOST_HEAD_BYTES:
                raise RecordingError(f"{path} does not begin with what was recorded: {self.ending or 'damaged'}")
            self.head = self._json(chunk[1])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> Iterator[Step]:
        """All steps and notes, in order. RecordingError: what follows is damaged; what came before can be relied on."""
        while (chunk := self._next()) is not None:
            tag, data = chunk
            if tag == LAST:
                self.last = self._json(data)
                self.ending = str(self.last.get("why", "end"))
                return
            if tag != STEPS:
                raise RecordingError(f"{self.path}: a second beginning before byte {self._file.tell()}")
            source = Source(data)
            while source.left:
                try:
                    yield take_step(source)
                except FormError as error:
                    raise RecordingError(f"{self.path}: before byte {self._file.tell()}: {error}") from None

    def _next(self) -> tuple[bytes, bytes] | None:
        """Tag and content of the next chunk; None at the end, or where the file is cut off."""
        at = self._file.tell()
        start = self._file.read(_CHUNK.size)
        if len(start) < _CHUNK.size:
            self.ending = "cut off"
            return None
        tag, stored_size, size, check = _CHUNK.unpack(start)
        if tag not in (HEAD, STEPS, LAST) or max(stored_size, size) > MOST_CHUNK_BYTES + (1 << 20):
            raise RecordingError(f"{self.path}: damaged at byte {at}: that is no chunk")
        if at + _CHUNK.size + stored_size > self._size:
            self.ending = "cut off"
            return None
        stored = self._file.read(stored_size)
        if zlib.crc32(stored, zlib.crc32(_CHUNK.pack(tag, stored_size, size, 0))) != check:
            raise RecordingError(f"{self.path}: damaged at byte {at}: the checksum of a chunk is wrong")
        unpack = zlib.decompressobj()
        try:
            data = unpack.decompress(stored, size + 1)
        except zlib.error as error:
            raise RecordingError(f"{self.path}: damaged at byte {at}: {error}") from None
        if len(data) != size or not unpack.eof:
            raise RecordingError(f"{self.path}: damaged at byte {at}: a chunk has not the length that it should have")
        return tag, data

    def _json(self, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RecordingError(f"{self.path}: damaged before byte {self._file.tell()}: no description is there")
        return found
