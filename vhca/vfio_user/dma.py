"""The DMA engine's view of guest memory: bus addresses to mapped files, or to messages where there is no file.

Each DMA_MAP with a descriptor is one window onto a file that the client shares; every file is opened once, as a whole,
however many windows there are. A window without a descriptor is reached by DMA messages through a channel that the
server provides while a client is connected. An access may run over the borders of adjacent windows.

The kernel has no error return for a load or store that a mapped file cannot serve: it ends the process. How a file is
reached therefore depends on what can go wrong with it (see :mod:`vhca.vfio_user.files`).

Only the thread of the server's loop may use the table.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, Protocol

from vhca.hw.memory import MOST_SPANS, DmaError, Span
from vhca.vfio_user.counters import Access
from vhca.vfio_user.files import Buffer, File, FileTable
from vhca.vfio_user.guard import guard
from vhca.vfio_user.proto import ADDRESS_END, MAX_DMA_MAPS, DmaFlags

log = logging.getLogger(__name__)

ALIGNMENT: Final = 64
"""Bytes: what is reached by address may be stored in words as long as this."""
MAX_MAP_SIZE: Final = 8 << 40
"""Bytes in one mapping."""


class DmaChannel(Protocol):
    """Access to guest memory by message, for windows without a file."""

    def dma_read(self, address: int, size: int) -> bytes:
        """Return `size` bytes; raises DmaError."""
        ...

    def dma_write(self, address: int, data: Buffer) -> None:
        """Store `data`; raises DmaError."""
        ...


class _Window:
    """One DMA_MAP: guest addresses [start, end); `base` is the place of `start` in the file."""

    __slots__ = ("base", "end", "file", "memory", "readable", "start", "writable")

    def __init__(self, start: int, end: int, readable: bool, writable: bool, file: File | None, base: int) -> None:
        self.start = start
        self.end = end
        self.readable = readable
        self.writable = writable
        self.file = file
        self.memory = file.direct if file else None
        self.base = base


# Matches no address: start is above every address.
_NOWHERE: Final = _Window(ADDRESS_END, ADDRESS_END, False, False, None, 0)


def _load(window: _Window, addr: int, size: int) -> bytes:
    assert window.file is not None
    try:
        return window.file.read(addr - window.start + window.base, size)
    except (OSError, ValueError) as error:
        raise DmaError(f"DMA address {addr:#x}: {_why(error)}") from error


def _store(window: _Window, addr: int, data: memoryview) -> None:
    assert window.file is not None
    try:
        window.file.write(addr - window.start + window.base, data)
    except (OSError, ValueError) as error:
        raise DmaError(f"DMA address {addr:#x}: {_why(error)}") from error


def _why(error: OSError | ValueError) -> str:
    # Waiting for an earlier piece by message has let the client unmap this one.
    return str(error.strerror) if isinstance(error, OSError) else "unmapped during the access"


def _address(memory: mmap.mmap) -> int | None:
    """Where a mapping lies; None for one that cannot be written."""
    # No view is kept: the mapping can be closed, and whoever uses the address asks for the generation before.
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    except (TypeError, ValueError):
        return None


class DmaTable:
    """Guest memory by bus address.

    :ivar channel: how to reach windows without a file; None while no client is connected.
    :ivar mapped_bytes: size of all windows together.
    :ivar generation: another number whenever :meth:`spans` says something else.
    """

    def __init__(self, max_maps: int = MAX_DMA_MAPS) -> None:
        self.channel: DmaChannel | None = None
        self.mapped_bytes = 0
        self.generation = 0
        self._max_maps = max_maps
        self._starts: list[int] = []
        self._windows: list[_Window] = []
        self._files = FileTable()
        self._faults = guard().faults
        self._seen = self._faults[0]
        self._last = _NOWHERE

    @property
    def faults_at(self) -> int:
        """See :class:`vhca.hw.memory.MappedMemory`."""
        return guard().faults_at

    @property
    def pinned(self) -> int:
        """Mappings that could not be released at once because somebody kept a view of them."""
        return self._files.pinned

    # ---- access ----

    def read(self, addr: int, size: int) -> bytes:
        """Return a copy of `size` bytes at `addr`.

        :raises DmaError: some byte is not mapped or not readable, or the client refused.
        """
        window = self._last
        if not window.start <= addr < window.end:
            window = self._find(addr) or _NOWHERE
        # size > 0 also keeps a negative one from becoming a slice
        if addr + size <= window.end and window.readable and size > 0:
            memory = window.memory
            if memory is not None:
                at = addr - window.start + window.base
                data = memory[at : at + size]
                if self._faults[0] != self._seen:
                    self._look()
                    if window.memory is None:
                        return self._read_slow(addr, size)
                return data
        return self._read_slow(addr, size)

    def write(self, addr: int, data: Buffer) -> None:
        """Store the bytes `data` at `addr`.

        :raises DmaError: some byte is not mapped or not writable (then nothing has been stored), or the
            client refused.
        """
        window = self._last
        if not window.start <= addr < window.end:
            window = self._find(addr) or _NOWHERE
        size = len(data)
        if addr + size <= window.end and window.writable:
            memory = window.memory
            if memory is not None:
                at = addr - window.start + window.base
                memory[at : at + size] = data
                if self._faults[0] == self._seen:
                    return
                self._look()
                if window.memory is not None:
                    return
        self._write_slow(addr, data)

    def _look(self) -> None:
        """Some access of this process has failed: was it to a file of this client?"""
        self._seen = self._faults[0]
        for file in self._files.look():
            log.error("the host has no memory for a file of the client's that was mapped: it is not reached any more")
            self._remapped(file)

    def view(self, addr: int, size: int, writable: bool = False) -> memoryview | None:
        """Return a view of `size` bytes of one window, or None if they are not in one mapped window.

        The view is for use at once: one that is kept stops the release of the mapping. It is read-only
        unless `writable`.
        """
        window = self._find(addr)
        if window is None or size <= 0 or addr + size > window.end or window.memory is None:
            return None
        if not (window.writable if writable else window.readable):
            return None
        at = addr - window.start + window.base
        view = memoryview(window.memory)[at : at + size]
        return view if writable else view.toreadonly()

    def contains(self, addr: int, size: int) -> bool:
        """Tell whether all of [addr, addr + size) is mapped, whatever for."""
        try:
            return all(True for _ in self._pieces(addr, size))
        except DmaError:
            return False

    def _find(self, addr: int) -> _Window | None:
        window = self._last
        if window.start <= addr < window.end:
            return window
        at = bisect_right(self._starts, addr) - 1
        if at < 0 or addr < 0:
            return None
        window = self._windows[at]
        if addr >= window.end:
            return None
        self._last = window
        return window

    def _pieces(self, addr: int, size: int) -> Iterator[tuple[_Window, int, int]]:
        """Yield (window, address, size) for each piece of a range.

        :raises DmaError: at the first byte that is not mapped.
        """
        if addr < 0 or size < 0 or addr + size > ADDRESS_END:
            raise DmaError(f"DMA range {addr:#x}+{size:#x} is not an address range")
        end = addr + size
        while addr < end:
            window = self._find(addr)
            if window is None:
                raise DmaError(f"DMA address {addr:#x} is not mapped")
            piece = min(end, window.end) - addr
            yield window, addr, piece
            addr += piece

    def _read_slow(self, addr: int, size: int) -> bytes:
        pieces = list(self._pieces(addr, size))
        for window, at, _ in pieces:
            if not window.readable:
                raise DmaError(f"DMA address {at:#x} is mapped without read access")
        parts = []
        for window, at, count in pieces:
            if window.file is None:
                parts.append(self._channel(at).dma_read(at, count))
            else:
                parts.append(self._checked(window, _load(window, at, count), at))
        return b"".join(parts)

    def _write_slow(self, addr: int, data: Buffer) -> None:
        pieces = list(self._pieces(addr, len(data)))
        for window, at, _ in pieces:
            if not window.writable:
                raise DmaError(f"DMA address {at:#x} is mapped read-only")
        view = memoryview(data)
        done = 0
        for window, at, count in pieces:
            piece = view[done : done + count]
            if window.file is None:
                self._channel(at).dma_write(at, piece)
            else:
                _store(window, at, piece)
                self._checked(window, b"", at)
            done += count

    def _checked(self, window: _Window, data: bytes, addr: int) -> bytes:
        """What was read, or nothing, if the access was one; raises DmaError if pages were missing."""
        if self._faults[0] != self._seen:
            self._look()
            if window.file is not None and window.file.lost:
                raise DmaError(f"DMA address {addr:#x}: the host could not provide the page")
        return data

    def _channel(self, addr: int) -> DmaChannel:
        if self.channel is None:
            raise DmaError(f"DMA address {addr:#x} can only be reached by message, and no client is there")
        return self.channel

    # ---- windows ----

    def __len__(self) -> int:
        return len(self._windows)

    def windows(self) -> list[tuple[int, int, bool, bool]]:
        """Return (address, size, writable, backed by a file) of each mapping, by address."""
        return [(w.start, w.end - w.start, w.writable, w.file is not None) for w in self._windows]

    def map(self, address: int, size: int, offset: int, flags: int, fd: int | None) -> Access:
        """Add a window and say how it is reached; `fd` stays the caller's and may be closed afterwards.

        :raises OSError: EEXIST if the range overlaps another one, ENOSPC above the limits, EINVAL if the
            descriptor is not a regular file or the file ends before the range does, EACCES if it may not be
            opened that way, or what mmap says.
        """
        end = address + size
        at = bisect_right(self._starts, address)
        overlaps_before = at > 0 and self._windows[at - 1].end > address
        overlaps_after = at < len(self._windows) and self._windows[at].start < end
        if overlaps_before or overlaps_after:
            raise OSError(errno.EEXIST, f"DMA_MAP of {address:#x}+{size:#x} overlaps an earlier one")
        if len(self._windows) >= self._max_maps or size > MAX_MAP_SIZE:
            raise OSError(errno.ENOSPC, "DMA_MAP: too many or too large")
        readable, writable = bool(flags & DmaFlags.READ), bool(flags & DmaFlags.WRITE)
        file = None
        if fd is not None:
            file = self._files.open(fd, offset + size, writable, self._remapped)
        window = _Window(address, end, readable, writable, file, offset if file else 0)
        self._starts.insert(at, address)
        self._windows.insert(at, window)
        self.mapped_bytes += size
        self.generation += 1
        return "message" if file is None else file.access

    def spans(self) -> list[Span]:
        """What can be reached by address in this process: windows onto files that cannot shrink, if they are few.

        A client may map any byte of a file anywhere; by address is reached what is aligned alike on both sides.
        """
        spans: list[Span] = []
        if len(self._windows) > MOST_SPANS:
            return spans
        for window in self._windows:
            place = _address(window.memory) if window.memory is not None else None
            aligned = not (window.start - window.base) % ALIGNMENT
            if place is not None and aligned and window.end < ADDRESS_END:
                spans.append(Span(window.start, window.end, place + window.base, window.readable, window.writable))
        return spans

    def _remapped(self, file: File) -> None:
        self.generation += 1
        for window in self._windows:
            if window.file is file:
                window.memory = file.direct

    def unmap(self, address: int, size: int) -> None:
        """Remove every window inside [address, address + size); there may be none.

        A machine with an IOMMU unmaps whole ranges, mapped or not, when a guest changes its tables.

        :raises OSError: EINVAL if the range would cut a window in two; nothing is removed then.
        """
        end = address + size
        first = bisect_left(self._starts, address)
        last = bisect_left(self._starts, end)
        before = self._windows[first - 1] if first else None
        if (before is not None and before.end > address) or (last > first and self._windows[last - 1].end > end):
            raise OSError(errno.EINVAL, f"DMA_UNMAP of {address:#x}+{size:#x}: cuts a mapping in two")
        removed = self._windows[first:last]
        self.generation += 1
        del self._windows[first:last]
        del self._starts[first:last]
        self._last = _NOWHERE
        for window in removed:
            self.mapped_bytes -= window.end - window.start
        self._files.release(window.file for window in removed if window.file is not None)

    def unmap_all(self) -> None:
        """Remove every window and release every file."""
        self._last = _NOWHERE
        self.generation += 1
        self.mapped_bytes = 0
        self._starts.clear()
        self._windows.clear()
        self._files.close()
