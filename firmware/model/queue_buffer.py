"""A queue in host memory, whose pages may lie anywhere."""

from typing import NamedTuple

from firmware.model.pages import Entries, contiguous, page_at
from vhca.hw.memory import Memory


class Place(NamedTuple):
    """A place in a queue: the bus address if all is contiguous (else -1); offset in the pages of a packed list."""

    addr: int
    offset: int
    pages: Entries
    log_page: int


class QueueBuffer:
    """A queue in host memory, given as a packed page list: offsets in bytes from the queue's start."""

    __slots__ = ("__weakref__", "_linear", "_log_page", "_offset", "_pages", "size_bytes")

    def __init__(self, pages: Entries, log_page_bytes: int, offset_bytes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._log_page = log_page_bytes
        self._offset = offset_bytes
        linear = contiguous(pages, log_page_bytes)
        start = page_at(pages, 0) + offset_bytes if linear else -1
        # The block of a queue has 63 bits for it: what lies higher is found page by page.
        linear = linear and start + size_bytes <= 1 << 63
        self._linear = start if linear else -1
        self._pages = b"" if linear else pages

    @property
    def list_bytes(self) -> int:
        """Bytes of the page list that is kept."""
        return len(self._pages)

    @staticmethod
    def pages_needed(log_page_bytes: int, offset_bytes: int, size_bytes: int) -> int:
        """How many page list entries a queue of this shape has."""
        return -(-(offset_bytes + size_bytes) >> log_page_bytes)

    def linear_at(self, offset: int) -> int:
        """Bus address of the byte at `offset` if all behind it is contiguous, else -1."""
        return self._linear + offset if self._linear >= 0 else -1

    def place(self, offset: int) -> "Place":
        """Where the bytes from `offset` on are."""
        return Place(self.linear_at(offset), self._offset + offset, self._pages, self._log_page)

    def addr(self, offset: int) -> int:
        """Bus address of a byte; 64 aligned bytes never straddle pages, so it holds for all of them."""
        if self._linear >= 0:
            return self._linear + offset
        offset += self._offset
        return page_at(self._pages, offset >> self._log_page) + (offset & ((1 << self._log_page) - 1))

    def read(self, memory: Memory, offset: int, size: int) -> bytes:
        """Copy `size` bytes from `offset`, wrapping at the queue's end."""
        total = self.size_bytes
        if offset + size > total:
            head = total - offset
            return self.read(memory, offset, head) + self.read(memory, 0, size - head)
        if self._linear >= 0:
            return memory.read(self._linear + offset, size)
        parts = []
        while size:
            room = (1 << self._log_page) - ((offset + self._offset) & ((1 << self._log_page) - 1))
            part = min(room, size)
            parts.append(memory.read(self.addr(offset), part))
            offset += part
            size -= part
        return b"".join(parts)
