"""The archive that a guest boots from: a writer (and a reader) of `newc` cpio archives.

The format is what the kernel unpacks as an initramfs: 110 bytes of ASCII header, name and data each padded
to 4 bytes. Guarantees: the same entries in the same order give the same bytes; owner is always root; the
archive ends on a 512-byte boundary, so that archives can be put one behind the other.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"


@dataclass(slots=True, frozen=True)
class Entry:
    """One member of an archive as the reader returns it."""

    name: str
    mode: int
    data: bytes
    rdev: tuple[int, int]


class CpioWriter:
    """Writes members one after the other; parent folders are made where they are first needed."""

    def __init__(self, stream: BinaryIO, mtime_s: int = 0) -> None:
        self._stream = stream
        self._mtime_s = mtime_s
        self._inode = 0
        self._written = 0
        self._seen: set[str] = set()

    def directory(self, name: str, mode: int = 0o755) -> None:
        """Add a folder, once, and its parents."""
        name = name.strip("/")
        if name and name not in self._seen:
            self._parents(name)
            self._member(name, stat.S_IFDIR | mode, b"")

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Add a regular file; a second one of the same name is refused."""
        self._add(name, stat.S_IFREG | mode, data)

    def symlink(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._add(name, stat.S_IFLNK | 0o777, target.encode())

    def device(self, name: str, mode: int, major: int, minor: int) -> None:
        """Add a character device node."""
        self._add(name, stat.S_IFCHR | mode, b"", (major, minor))

    def tree(self, root: Path, name: str = "") -> None:
        """Add everything below `root` under `name`."""
        for path in sorted(root.iterdir()):
            place = f"{name}/{path.name}" if name else path.name
            if path.is_symlink():
                self.symlink(place, str(path.readlink()))
            elif path.is_dir():
                self.directory(place)
                self.tree(path, place)
            else:
                self.file(place, path.read_bytes(), stat.S_IMODE(path.stat().st_mode))

    def close(self) -> None:
        """Write the trailer and the padding; the stream stays open."""
        self._inode = -1
        self._member(_TRAILER, 0, b"")
        self._stream.write(b"\0" * (-self._written % 512))

    def _add(self, name: str, mode: int, data: bytes, rdev: tuple[int, int] = (0, 0)) -> None:
        name = name.strip("/")
        if name in self._seen:
            raise ValueError(f"{name} is in the archive already")
        self._parents(name)
        self._member(name, mode, data, rdev)

    def _parents(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        if parent and parent not in self._seen:
            self.directory(parent)

    def _member(self, name: str, mode: int, data: bytes, rdev: tuple[int, int] = (0, 0)) -> None:
        self._seen.add(name)
        self._inode += 1
        raw_name = name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = (self._inode, mode, 0, 0, links, self._mtime_s, len(data), 0, 0, *rdev, len(raw_name), 0)
        head = _MAGIC + b"".join(b"%08X" % field for field in fields) + raw_name
        head += b"\0" * (-len(head) % 4)
        tail = b"\0" * (-len(data) % 4)
        self._stream.write(head)
        self._stream.write(data)
        self._stream.write(tail)
        self._written += len(head) + len(data) + len(tail)


def read_archive(data: bytes) -> Iterator[Entry]:
    """Yield the members of one archive or of several put one behind the other; `ValueError` if malformed."""
    at = 0
    while at < len(data):
        if data[at] == 0:  # padding between archives
            at += 1
            continue
        if data[at : at + 6] != _MAGIC or at + 110 > len(data):
            raise ValueError(f"no newc header at byte {at}")
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name_end = at + 110 + fields[11]
        start = name_end + (-name_end % 4)
        end = start + fields[6]
        if end > len(data):
            raise ValueError(f"the member at byte {at} is cut short")
        name = data[at + 110 : name_end - 1].decode()
        if name != _TRAILER:
            yield Entry(name, fields[1], data[start:end], (fields[9], fields[10]))
        at = end + (-end % 4)
