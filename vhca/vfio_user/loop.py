"""What a server needs of an event loop, and the smallest one that has it."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from typing import Protocol


class HasFileno(Protocol):
    """Anything with a file descriptor."""

    def fileno(self) -> int:
        """The descriptor."""
        ...


class Loop(Protocol):
    """The event loop that a server needs: a part of asyncio's."""

    def add_reader(self, fileobj: HasFileno, callback: Callable[[], None], /) -> object:
        """Call `callback` whenever `fileobj` is readable or at its end (level-triggered)."""
        ...

    def remove_reader(self, fileobj: HasFileno, /) -> object:
        """Wait for readable `fileobj` no more; unknown ones are ignored."""
        ...

    def add_writer(self, fileobj: HasFileno, callback: Callable[[], None], /) -> object:
        """Call `callback` whenever `fileobj` can be written to (level-triggered)."""
        ...

    def remove_writer(self, fileobj: HasFileno, /) -> object:
        """Wait for writable `fileobj` no more; unknown ones are ignored."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None], /) -> object:
        """Call `callback` after `delay_s`; with 0, after other sockets had their turn."""
        ...


class SelectLoop:
    """The smallest loop that a server can run in."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def add_reader(self, fileobj: HasFileno, callback: Callable[[], None], /) -> None:
        """See :class:`Loop`."""
        self._watch(fileobj, selectors.EVENT_READ, callback)

    def remove_reader(self, fileobj: HasFileno, /) -> None:
        """See :class:`Loop`."""
        self._watch(fileobj, selectors.EVENT_READ, None)

    def add_writer(self, fileobj: HasFileno, callback: Callable[[], None], /) -> None:
        """See :class:`Loop`."""
        self._watch(fileobj, selectors.EVENT_WRITE, callback)

    def remove_writer(self, fileobj: HasFileno, /) -> None:
        """See :class:`Loop`."""
        self._watch(fileobj, selectors.EVENT_WRITE, None)

    def call_later(self, delay_s: float, callback: Callable[[], None], /) -> None:
        """See :class:`Loop`."""
        heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._order), callback))

    def run_once(self, timeout_s: float | None = None) -> bool:
        """Wait for one wake-up and run its callbacks; return whether there was one."""
        if self._later:
            due = max(0.0, self._later[0][0] - time.monotonic())
            timeout_s = due if timeout_s is None else min(due, timeout_s)
        events = self._selector.select(timeout_s)
        watched = self._selector.get_map()
        for key, ready in events:
            for event in (selectors.EVENT_READ, selectors.EVENT_WRITE):
                # An earlier callback of this wake may have closed the socket.
                now = watched.get(key.fd) if ready & event else None
                if now is not None and event in now.data:
                    now.data[event]()
        return self._run_later() or bool(events)

    def close(self) -> None:
        """Release the selector."""
        self._selector.close()

    def _watch(self, fileobj: HasFileno, event: int, callback: Callable[[], None] | None) -> None:
        """Set or forget the callback of one kind of readiness; the selector keeps {kind: callback}."""
        callbacks: dict[int, Callable[[], None]] = {}
        with contextlib.suppress(KeyError, ValueError):
            callbacks.update(self._selector.unregister(fileobj).data)
        callbacks.pop(event, None)
        if callback is not None:
            callbacks[event] = callback
        if callbacks:
            self._selector.register(fileobj, sum(callbacks), callbacks)

    def _run_later(self) -> bool:
        """What is due, but not what that asks for anew; return whether there was something."""
        now = time.monotonic()
        due = []
        while self._later and self._later[0][0] <= now:
            due.append(heapq.heappop(self._later)[2])
        for callback in due:
            callback()
        return bool(due)
