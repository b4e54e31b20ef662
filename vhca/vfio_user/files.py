"""Files that a client shares as guest memory, and how to reach them without being stopped by them.

A file is reached in one of three ways:

`mapped`
    A memfd that is sealed against shrinking (`memory-backend-memfd` of QEMU seals by default): loads and stores. Its
    pages can be missing only if the host has no memory left.
`copied`
    Any other file of memory (a file in tmpfs, a memfd without seal), which may shrink at any moment or lie in a full
    tmpfs: the kernel copies, and where a load or store would be a fatal signal it returns an error. A write is copied
    from a file of our own into the mapping, since a write to the client's file would wait for its lock, and thus for
    whatever else the client does to it.
`message`
    All others (on a disk, in FUSE, on the network, huge pages): an access could wait as long as somebody else likes, or
    find the pool of huge pages empty. Not opened at all; the client is asked for the data.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from vhca.vfio_user.counters import Access
from vhca.vfio_user.guard import NOT_GUARDED, guard

Buffer = bytes | bytearray | memoryview

MAX_FILES: Final = 64
"""Files of one client, each of which takes a descriptor or two and a mapping. QEMU shares a handful."""
CLOSE_AT_ONCE_BYTES: Final = 16 << 20
"""More than that is closed in a thread: who closes a file last gives back its memory, some 0.1 s per GiB."""

_TMPFS_MAGIC: Final = 0x01021994


class File:
    """One file of the client's.

    :ivar memory: the mapping of the whole file.
    :ivar direct: the mapping too if one may load from it and store to it, None if the kernel has to copy.
    :ivar windows: how many maps use the file.
    :ivar lost: the host could not provide a page of it at a load or store; every access is an error from then on.
    """

    __slots__ = ("_copy_fd", "_fd", "_guarded", "direct", "key", "lost", "memory", "size", "windows")

    def __init__(self, key: tuple[int, int, bool], memory: mmap.mmap, size: int, fd: int, copy_fd: int) -> None:
        """`fd` is -1 for a file that is mapped, else a descriptor of it, this object's; `copy_fd`: copied from."""
        self.key = key
        self._fd = fd
        self._copy_fd = copy_fd
        self._guarded = NOT_GUARDED
        self.lost = False
        self.windows = 0
        self.remap(memory, size)

    @property
    def access(self) -> Access:
        """How the file is reached."""
        return "mapped" if self._fd < 0 else "copied"

    def remap(self, memory: mmap.mmap, size: int) -> None:
        """Use another mapping."""
        self.unguard()
        self.memory = memory
        self.size = size
        self.direct = memory if self._fd < 0 and not self.lost else None
        if self.direct is not None:
            self._guarded = guard().add(memory)

    def look(self) -> bool:
        """Find out whether an access has failed since pages are missing; the file is not reached any more then."""
        if not self.lost and guard().lost(self._guarded):
            self.lost = True
            self.direct = None
        return self.lost

    def unguard(self) -> None:
        """Its mapping ends."""
        guard().remove(self._guarded)
        self._guarded = NOT_GUARDED

    def read(self, at: int, size: int) -> bytes:
        """Bytes of the file; raises OSError if the file does not have them, ValueError if it was closed."""
        if self.lost:
            raise OSError(errno.EIO, "the host could not provide pages of this file")
        if self.direct is not None:
            return self.direct[at : at + size]
        if self.memory.closed:
            raise ValueError("closed")
        data = os.pread(self._fd, size, at)
        if len(data) != size:
            raise OSError(errno.EFAULT, "the file has become shorter")
        return data

    def write(self, at: int, data: memoryview) -> None:
        """Store bytes; raises OSError if the file cannot take them, ValueError if it was closed."""
        if self.lost:
            raise OSError(errno.EIO, "the host could not provide pages of this file")
        if self.direct is not None:
            self.direct[at : at + len(data)] = data
            return
        os.pwrite(self._copy_fd, data, 0)
        with memoryview(self.memory) as whole, whole[at : at + len(data)] as part:
            if os.preadv(self._copy_fd, [part], 0) != len(data):
                raise OSError(errno.EFAULT, "the file has become shorter, or its file system full")

    def close_descriptor(self) -> None:
        """Close the descriptor; the mapping is closed by who asked for it."""
        self.unguard()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -2


class FileTable:
    """The open files of one client.

    :ivar pinned: mappings that could not be released at once because somebody kept a view of them.
    """

    def __init__(self) -> None:
        self.pinned = 0
        self._files: dict[tuple[int, int, bool], File] = {}
        self._closing: list[threading.Thread] = []
        self._copy_fd = -1

    def open(self, fd: int, needed: int, writable: bool, remapped: Callable[[File], None]) -> File | None:
        """Return the file behind `fd`, for one more window that ends at `needed`; None: reach it by message.

        A file that has grown is mapped again; then `remapped(file)` is called.

        :raises OSError: EINVAL if it is no regular file, or too short; ENOSPC if there are too many; what mmap says.
        """
        # In this order: what is sealed keeps the size that it has now.
        sealed = _sealed(fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "DMA_MAP: the descriptor is not a regular file")
        if status.st_size < needed:
            raise OSError(errno.EINVAL, f"DMA_MAP: {needed} bytes of a file of {status.st_size}")
        if _file_system(fd) != _TMPFS_MAGIC:
            return None
        key = (status.st_dev, status.st_ino, writable)
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = self._new_file(key, fd, status.st_size, sealed)
        elif file.size < needed:
            old, old_size = file.memory, file.size
            file.remap(_map(fd, status.st_size, writable), status.st_size)
            remapped(file)
            self._close_mappings([old], old_size)
        file.windows += 1
        return file

    def look(self) -> list[File]:
        """Find out which files have failed since the last look."""
        return [file for file in self._files.values() if not file.lost and file.look()]

    def release(self, files: Iterable[File]) -> None:
        """One window less of each of these; a file may be there more than once."""
        unused = []
        for file in files:
            file.windows -= 1
            if not file.windows:
                unused.append(self._files.pop(file.key))
        self._close_files(unused)

    def close(self) -> None:
        """Close all files, whatever windows there are."""
        files = list(self._files.values())
        self._files.clear()
        self._close_files(files)
        if self._copy_fd >= 0:
            os.close(self._copy_fd)
            self._copy_fd = -1

    def _new_file(self, key: tuple[int, int, bool], fd: int, size: int, sealed: bool) -> File:
        self._closing = [thread for thread in self._closing if thread.is_alive()]
        if len(self._files) + len(self._closing) >= MAX_FILES:
            raise OSError(errno.ENOSPC, f"DMA_MAP: more than {MAX_FILES} files")
        memory = _map(fd, size, key[2])
        if sealed:
            return File(key, memory, size, -1, -1)
        try:
            if self._copy_fd < 0:
                self._copy_fd = os.memfd_create("vhca-copy", os.MFD_CLOEXEC)
            return File(key, memory, size, os.dup(fd), self._copy_fd)
        except OSError:
            memory.close()
            raise

    def _close_files(self, files: Sequence[File]) -> None:
        for file in files:
            file.close_descriptor()
        self._close_mappings([file.memory for file in files], sum(file.size for file in files))

    def _close_mappings(self, mappings: list[mmap.mmap], size: int) -> None:
        if size > CLOSE_AT_ONCE_BYTES:
            with contextlib.suppress(RuntimeError):  # no more threads
                thread = threading.Thread(target=self._unmap, args=(mappings,), name="vhca-unmap", daemon=True)
                thread.start()
                self._closing.append(thread)
                return
        self._unmap(mappings)

    def _unmap(self, mappings: list[mmap.mmap]) -> None:
        for memory in mappings:
            try:
                memory.close()
            except BufferError:
                # A kept view holds the pages; they go when the view goes.
                self.pinned += 1


def _map(fd: int, size: int, writable: bool) -> mmap.mmap:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=protection)
    except (ValueError, OverflowError) as error:
        raise OSError(errno.EINVAL, f"DMA_MAP: {error}") from None


def _sealed(fd: int) -> bool:
    """Tell whether the file can never become shorter."""
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


def _file_system(fd: int) -> int:
    """Magic number of the file system that a file is on: statfs(2), whose first word it is."""
    status = ctypes.create_string_buffer(256)
    if _statfs(fd, status):
        raise OSError(ctypes.get_errno(), "DMA_MAP: fstatfs")
    return int.from_bytes(status.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)


_statfs: Final = ctypes.PyDLL(None, use_errno=True).fstatfs
