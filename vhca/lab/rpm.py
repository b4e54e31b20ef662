"""RPM packages of kernels, read without rpm: which Debian hosts do not have.

The file is a lead, two headers (signature and main) and a compressed cpio archive of the form `newc`, as the Linux
Standard Base describes it (Core 5.0, 22.2). Guarantees: only regular files of folders that a kernel is in are
written, below the folder that is given; links are passed over, so that none can lead out of it. Nothing is run.
"""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Protocol

from vhca.lab.errors import PackageError

_LEAD: Final = b"\xed\xab\xee\xdb"
_LEAD_BYTES: Final = 96
_HEADER_MAGIC: Final = b"\x8e\xad\xe8\x01"
_HEADER_BYTES_MAX: Final = 64 << 20
_ENTRY_BYTES: Final = 16
_PAYLOAD_COMPRESSOR: Final = 1125
_CPIO_MAGIC: Final = b"070701"
_CPIO_HEADER_BYTES: Final = 110
_NAME_BYTES_MAX: Final = 4096
_FILE_BYTES_MAX: Final = 1 << 30
_CHUNK: Final = 1 << 20
_END: Final = "TRAILER!!!"
_WANTED: Final = ("boot/", "lib/modules/", "usr/lib/modules/")


class _Readable(Protocol):
    """What can be read to its end."""

    def read(self, size: int, /) -> bytes:
        """As of a file."""
        ...


def unpack_kernel(rpm: Path, root: Path) -> None:
    """Write the files of a kernel that the package has below `root`. Raises :class:`PackageError`."""
    try:
        with rpm.open("rb") as stream, _payload(stream, rpm) as payload:
            for name, mode, size in _members(payload):
                _write(payload, root, name, mode, size)
            while payload.read(_CHUNK):  # to its end, where a checksum is
                pass
    except (OSError, EOFError, ValueError, lzma.LZMAError, struct.error) as error:
        raise PackageError(f"cannot read {rpm}: {error}", "give a package of a kernel that is whole") from error


@contextlib.contextmanager
def _payload(stream: IO[bytes], rpm: Path) -> Iterator[_Readable]:
    """The archive, decompressed as it is read; `stream` is at the beginning of the file."""
    lead = _exactly(stream, _LEAD_BYTES)
    if not lead.startswith(_LEAD):
        raise ValueError("this is no RPM package")
    signature = _header(stream)
    stream.read(-signature[2] % 8)
    compressor = _text(_header(stream), _PAYLOAD_COMPRESSOR) or "gzip"
    if compressor == "gzip":
        with gzip.open(stream) as opened:
            yield opened
    elif compressor in ("xz", "lzma"):
        with lzma.open(stream) as opened:
            yield opened
    elif compressor == "zstd":
        if shutil.which("zstd") is None:
            raise PackageError(f"{rpm} is compressed with zstd, which this host does not have", "install zstd")
        # the other process begins where we have read to, not where a buffer ends
        os.lseek(stream.fileno(), stream.tell(), os.SEEK_SET)
        with subprocess.Popen(["zstd", "-dc"], stdin=stream, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                yield process.stdout
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise ValueError("its archive is damaged")
    else:
        raise ValueError(f"it is compressed with {compressor}")


def _header(stream: IO[bytes]) -> tuple[bytes, bytes, int]:
    """A header: its index, its store, and how long the store is."""
    magic, entries, size = struct.unpack(">4s4xII", _exactly(stream, 16))
    if magic != _HEADER_MAGIC or entries * _ENTRY_BYTES + size > _HEADER_BYTES_MAX:
        raise ValueError("a header is damaged")
    return _exactly(stream, entries * _ENTRY_BYTES), _exactly(stream, size), size


def _text(header: tuple[bytes, bytes, int], wanted: int) -> str:
    """The text of a tag; empty if the header does not have it."""
    index, store, _ = header
    for tag, _kind, offset, _count in struct.iter_unpack(">IIII", index):
        if tag == wanted:
            return store[offset : store.find(b"\0", offset)].decode("ascii", "replace")
    return ""


def _members(payload: _Readable) -> Iterator[tuple[str, int, int]]:
    """Name, mode and size of each member; whoever takes one reads its data, but not the padding, before the next."""
    while True:
        head = _exactly(payload, _CPIO_HEADER_BYTES)
        if not head.startswith(_CPIO_MAGIC):
            raise ValueError("its archive is damaged")
        mode, size, name_bytes = (int(head[at : at + 8], 16) for at in (14, 54, 94))
        if not 0 < name_bytes <= _NAME_BYTES_MAX or size > _FILE_BYTES_MAX:
            raise ValueError("its archive is damaged")
        name = _exactly(payload, name_bytes)[:-1].decode("utf-8", "replace")
        _exactly(payload, -(_CPIO_HEADER_BYTES + name_bytes) % 4)
        if name == _END:
            return
        yield name.removeprefix("./").lstrip("/"), mode, size
        _exactly(payload, -size % 4)


def _write(payload: _Readable, root: Path, name: str, mode: int, size: int) -> None:
    wanted = stat.S_ISREG(mode) and name.startswith(_WANTED) and ".." not in Path(name).parts
    if not wanted:
        for _ in _chunks(payload, size):
            pass
        return
    place = root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        for chunk in _chunks(payload, size):
            file.write(chunk)


def _chunks(payload: _Readable, size: int) -> Iterator[bytes]:
    while size:
        chunk = _exactly(payload, min(size, _CHUNK))
        size -= len(chunk)
        yield chunk


def _exactly(stream: _Readable, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError("it is cut short")
    return data
