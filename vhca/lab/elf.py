"""What an ELF file needs and what a kernel module says of itself.

Reads only what image building needs: the names of the shared libraries a program asks for, the notes of a kernel,
and the `.modinfo` section of a module. Anything malformed gives `None` or nothing, never an exception.
"""

from __future__ import annotations

import lzma
import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vhca.lab.errors import ImageError

_DT_NEEDED = 1
_SHT_DYNAMIC = 6
_PT_INTERP = 3
_PT_NOTE = 4
_HEAD_BYTES = 64 << 10
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")


@dataclass(slots=True, frozen=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def _sections(data: bytes) -> list[_Section]:
    """Section table of a 64-bit little-endian ELF file; empty for anything else."""
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        return []
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    if entry_size != _SECTION.size or table + count * entry_size > len(data) or names_index >= count:
        return []
    raw = [_SECTION.unpack_from(data, table + i * entry_size) for i in range(count)]
    names = data[raw[names_index][4] : raw[names_index][4] + raw[names_index][5]]
    found = []
    for name_at, kind, _flags, _address, offset, size, link, *_ in raw:
        name = names[name_at : names.find(b"\0", name_at)].decode("ascii", "replace")
        found.append(_Section(name, kind, offset, size, link))
    return found


def notes(data: bytes | mmap.mmap) -> Iterator[tuple[bytes, int]]:
    """Owner and type of every note (PT_NOTE) of a 64-bit little-endian ELF file."""
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        return
    (table,) = struct.unpack_from("<Q", data, 0x20)
    entry_size, count = struct.unpack_from("<HH", data, 0x36)
    if entry_size != _SEGMENT.size or table + count * entry_size > len(data):
        return
    for index in range(count):
        kind, _flags, at, _virtual, _physical, size, _memory, _align = _SEGMENT.unpack_from(
            data, table + index * entry_size
        )
        end = min(at + size, len(data))
        while kind == _PT_NOTE and at + _NOTE.size <= end:
            name_size, content_size, note_type = _NOTE.unpack_from(data, at)
            at += _NOTE.size
            yield bytes(data[at : min(at + name_size, end)]).rstrip(b"\0"), note_type
            at += -(-name_size // 4) * 4 + -(-content_size // 4) * 4


def needed_libraries(path: Path) -> list[str] | None:
    """Names of the shared libraries that a program or library asks for; `None` if it is no ELF file."""
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return None
        stream.seek(0)
        data = stream.read()
    sections = _sections(data)
    names: list[str] = []
    for section in sections:
        if section.kind != _SHT_DYNAMIC or section.link >= len(sections):
            continue
        strings = sections[section.link]
        for at in range(section.offset, min(section.offset + section.size, len(data) - 15), 16):
            tag, value = struct.unpack_from("<QQ", data, at)
            if tag == _DT_NEEDED:
                start = strings.offset + value
                names.append(data[start : data.find(b"\0", start)].decode("utf-8", "replace"))
    return names


def modinfo(module: bytes) -> dict[str, list[str]]:
    """What a kernel module (decompressed) says of itself: key -> values, such as `depends` and `alias`."""
    info: dict[str, list[str]] = {}
    for section in _sections(module):
        if section.name == ".modinfo":
            for field in module[section.offset : section.offset + section.size].split(b"\0"):
                key, equals, value = field.partition(b"=")
                if equals:
                    info.setdefault(key.decode("ascii", "replace"), []).append(value.decode("utf-8", "replace"))
    return info


def read_module(path: Path) -> bytes:
    """A module's content, decompressed (`.ko`, `.ko.xz`, `.ko.gz`, `.ko.zst`)."""
    raw = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(raw)
    if path.suffix == ".gz":
        import gzip

        return gzip.decompress(raw)
    if path.suffix == ".zst":
        if shutil.which("zstd") is None:
            raise ImageError(f"{path.name} is compressed with zstd", "install the package zstd")
        return subprocess.run(["zstd", "-dcq"], input=raw, stdout=subprocess.PIPE, check=True).stdout
    return raw


@dataclass(slots=True, frozen=True)
class ProgramHead:
    """What a program is built for, and the loader that it asks for (empty if it is linked statically)."""

    bits: int
    machine: int  # e_machine
    loader: str


def program_head(path: Path) -> ProgramHead | None:
    """The head of a program, of which at most 64 KiB are read; `None` if it is no ELF file in little-endian order."""
    with path.open("rb") as stream:
        data = stream.read(_HEAD_BYTES)
    if len(data) < 64 or data[:4] != b"\x7fELF" or data[4] not in (1, 2) or data[5] != 1:
        return None
    (machine,) = struct.unpack_from("<H", data, 0x12)
    if data[4] == 1:
        return ProgramHead(32, machine, "")
    (table,) = struct.unpack_from("<Q", data, 0x20)
    entry_size, count = struct.unpack_from("<HH", data, 0x36)
    for at in range(table, table + entry_size * count, entry_size or 1):
        if at + _SEGMENT.size > len(data):
            break
        kind, _flags, start, _virtual, _physical, size, _memory, _align = _SEGMENT.unpack_from(data, at)
        if kind == _PT_INTERP:
            return ProgramHead(64, machine, data[start : start + size].rstrip(b"\0").decode("utf-8", "replace"))
    return ProgramHead(64, machine, "")
