"""Memory and board under watch: every access of the card must lie in what the host handed to it.

The map of what is handed out is kept apart from the firmware: it is filled from the bytes of commands and work requests
that the card accepted, and emptied when the object behind it is destroyed. Memory that was never handed out holds a
secret that no packet may carry.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable, Hashable, Iterable

from vhca.chip.board import Board
from vhca.hw.effects import CommandDone, Effects, Loopback, RaiseIrq, Transmit
from vhca.hw.memory import DmaError, Span

BASE = 0x10_0000
# One step of the firmware does no more than this.
MAX_EFFECTS = 8000

Range = tuple[int, int]
"""Bus address and length in bytes."""


class Violation(AssertionError):
    """The card did something that it must not do."""


class WatchedMemory:
    """Flat memory with two maps: what the card may read and what it may write."""

    def __init__(self, size_bytes: int, secret: bytes) -> None:
        self.secret = secret
        self.data = bytearray(secret * (size_bytes // len(secret)))
        self.size = len(self.data)
        self._grants: dict[Hashable, tuple[list[Range], bool]] = {}
        self._readable = bytearray()
        self._writable = bytearray()
        self._stale = True
        self.everything = False
        self.stores: list[int] = []
        self._before = b""

    # ---- the host's side ----

    def poke(self, addr: int, data: bytes) -> None:
        """Store, if the address is one of this memory."""
        if not BASE <= addr <= BASE + self.size - len(data):
            return
        self.data[addr - BASE : addr - BASE + len(data)] = data

    def peek(self, addr: int, size: int) -> bytes:
        return bytes(self.data[addr - BASE : addr - BASE + size])

    def grant(self, key: Hashable, ranges: Iterable[Range], *, write: bool) -> None:
        """Hand out `ranges` (parts outside of memory are nothing) under a name; adds to an earlier grant."""
        clipped = []
        for addr, size in ranges:
            start, end = max(addr, BASE), min(addr + size, BASE + self.size)
            if start < end:
                clipped.append((start - BASE, end - BASE))
                # By a spoilt command the host may hand out what it never used: that is no secret any more.
                content = self.data[start - BASE : end - BASE]
                if self.secret in content:
                    self.data[start - BASE : end - BASE] = content.replace(self.secret, bytes(len(self.secret)))
        old = self._grants.get(key, ([], False))
        self._grants[key] = (old[0] + clipped, write or old[1])
        self._stale = True

    def revoke(self, key: Hashable) -> None:
        if self._grants.pop(key, None) is not None:
            self._stale = True

    def revoke_all_but(self, keep: Callable[[Hashable], bool]) -> None:
        self._grants = {key: value for key, value in self._grants.items() if keep(key)}
        self._stale = True
        self.everything = False

    def _maps(self) -> tuple[bytearray, bytearray]:
        if self._stale:
            self._readable = bytearray(self.size)
            self._writable = bytearray(self.size)
            for ranges, write in self._grants.values():
                for start, end in ranges:
                    self._readable[start:end] = b"\1" * (end - start)
                    if write:
                        self._writable[start:end] = b"\1" * (end - start)
            self._stale = False
        return self._readable, self._writable

    # ---- trains, which reach memory by address ----

    generation = 0
    faults_at = 0

    def spans(self) -> list[Span]:
        return [Span(BASE, BASE + self.size, ctypes.addressof(ctypes.c_char.from_buffer(self.data)))]

    def remember(self) -> None:
        """A train may begin."""
        self._before = bytes(self.data)

    def compare(self, foreign: bytes) -> None:
        """A train is over: what it stored lies in what was handed out, and does not hold what nobody handed out."""
        if self.data == self._before or self.everything:
            return
        writable = self._maps()[1]
        start = writable.find(0)
        while start >= 0:
            end = writable.find(1, start)
            end = self.size if end < 0 else end
            if self.data[start:end] != self._before[start:end]:
                raise Violation(f"a train wrote between {start + BASE:#x} and {end + BASE:#x}: not handed to the card")
            start = writable.find(0, end)
        if foreign in self.data:
            raise Violation("a train read what nobody handed to the card")

    # ---- the card's side ----

    def read(self, addr: int, size: int) -> bytes:
        start = addr - BASE
        if size < 0 or start < 0 or start + size > self.size:
            raise DmaError(f"read of {size} bytes at {addr:#x} is outside memory")
        if not self.everything and self._maps()[0].find(0, start, start + size) >= 0:
            raise Violation(f"read of {size} bytes at {addr:#x}: not handed to the card")
        return bytes(self.data[start : start + size])

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        start = addr - BASE
        end = start + len(data)
        if start < 0 or end > self.size:
            raise DmaError(f"write of {len(data)} bytes at {addr:#x} is outside memory")
        if not self.everything and self._maps()[1].find(0, start, end) >= 0:
            raise Violation(f"write of {len(data)} bytes at {addr:#x}: not handed to the card")
        if len(data) == 1:
            self.stores.append(addr)
        self.data[start:end] = data


class WatchedBoard(Board):
    """A board whose effects are counted and looked at before they are carried out."""

    secrets: tuple[bytes, ...] = ()
    on_done: Callable[[int, bytes], None] | None = None
    death = ""
    most_effects = 0
    effects_done = 0

    def execute(self, effects: Effects) -> None:
        self.most_effects = max(self.most_effects, len(effects))
        self.effects_done += len(effects)
        if len(effects) > MAX_EFFECTS:
            raise Violation(f"{len(effects)} effects in one step")
        for effect in effects:
            if isinstance(effect, Transmit | Loopback):
                payload = bytes(effect.packet.payload)
                if any(secret in payload for secret in self.secrets):
                    raise Violation(f"{self.name} sends memory that nobody handed to it: {effect.packet!r}"[:600])
            elif isinstance(effect, RaiseIrq) and not 0 <= effect.vector < self.info.msix_vectors:
                raise Violation(f"interrupt vector {effect.vector}")
            elif isinstance(effect, CommandDone) and self.on_done is not None:
                # From here on the memory of a new object is the card's, and that of a destroyed one is not.
                self.on_done(effect.slot, effect.output)
            super().execute([effect])

    def _die(self) -> None:
        self.death = traceback.format_exc()
        super()._die()
