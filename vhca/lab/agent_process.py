"""A command in a guest, seen from the host: its output as it comes, its end, and what can be sent to it.

Guarantees: what a command prints takes at most :data:`STREAM_MAX_BYTES` of each of its outputs here, and then the
command is ended; a sink that fails ends its command and nothing else.
"""

from __future__ import annotations

import signal as signals
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from vhca.lab import guest_agent
from vhca.lab.errors import CommandTimeout, GuestError, printable

STREAM_MAX_BYTES: Final = 64 << 20
"""What an output of a command may hold that nobody has read yet."""
_LINE_MAX_BYTES: Final = 1 << 20
_ERRNO_END: Final = 4096
Sink = Callable[[bytes], None]


class Stream:
    """The output of a command, as it comes in. Iterating yields text lines until the end."""

    def __init__(self, max_bytes: int = STREAM_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._ended = False
        self._changed = threading.Condition()

    def read(self, timeout_s: float | None = None) -> bytes:
        """Return what has come in, waiting for at least one byte; `b""` at the end. `TimeoutError` if late."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._data or self._ended, timeout_s):
                raise TimeoutError
            return self._take()

    def _take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data

    def read_all(self) -> bytes:
        """Return everything until the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
            return self._take()

    def __iter__(self) -> Iterator[str]:
        rest = b""
        while data := self.read():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace") + "\n"
            if len(rest) > _LINE_MAX_BYTES:
                yield rest.decode("utf-8", "replace")
                rest = b""
        if rest:
            yield rest.decode("utf-8", "replace")

    def put(self, data: bytes) -> None:
        """Take what came in; `GuestError` if that is more than there is room for."""
        with self._changed:
            if len(self._data) + len(data) > self._max_bytes:
                raise GuestError(f"printed more than {self._max_bytes} bytes that nobody has read")
            self._data += data
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class ServicePort(Protocol):
    """A guest's service port, as a command in the guest uses it."""

    name: str

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send a frame; waits while the guest takes none. `GuestError` if it is gone."""

    def send_at_once(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send a small frame without waiting: for the port's own thread."""


class Process:
    """A command in a guest, like :class:`subprocess.Popen` as far as it goes."""

    def __init__(
        self, port: ServicePort, channel: int, args: Sequence[str], out: Sink | None, err: Sink | None
    ) -> None:
        self.args = list(args)
        self.stdout = Stream()
        self.stderr = Stream()
        self.pid = 0
        self.returncode: int | None = None
        self._port = port
        self._channel = channel
        self._sinks = {guest_agent.STDOUT: out or self.stdout.put, guest_agent.STDERR: err or self.stderr.put}
        self._changed = threading.Condition()
        self._started = False
        self._failure: GuestError | OSError | None = None
        self._credit = guest_agent.WINDOW

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and return the status (negative: killed by that signal)."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, timeout_s):
                raise CommandTimeout(f"{self._port.name}: {' '.join(self.args)} did not end within {timeout_s} s")
        if self._failure is not None:
            raise self._failure
        assert self.returncode is not None
        return self.returncode

    def poll(self) -> int | None:
        """The status if the command has ended, else `None`."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the command and all it started."""
        if not self._ended:
            self._port.send(guest_agent.SIGNAL, self._channel, number.to_bytes(2, "big"))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signals.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signals.SIGKILL)

    def write(self, data: bytes, timeout_s: float | None = 60.0) -> None:
        """Write to the command's standard input; waits while the guest does not take it."""
        view = memoryview(data)
        while view:
            with self._changed:
                if not self._changed.wait_for(lambda: self._credit > 0 or self._ended, timeout_s):
                    raise CommandTimeout(f"{self._port.name}: {self.args[0]} does not read its input")
                if self._ended:
                    return
                part = view[: min(self._credit, guest_agent.CHUNK)]
                self._credit -= len(part)
            self._port.send(guest_agent.STDIN, self._channel, bytes(part))
            view = view[len(part) :]

    def close_stdin(self) -> None:
        """End the command's standard input."""
        if not self._ended:
            self._port.send(guest_agent.STDIN, self._channel)

    def resize(self, rows: int, columns: int) -> None:
        """Tell a command that has a terminal the size of it."""
        self._port.send(guest_agent.RESIZE, self._channel, rows.to_bytes(2, "big") + columns.to_bytes(2, "big"))

    @property
    def _ended(self) -> bool:
        return self.returncode is not None or self._failure is not None

    def _wait_started(self, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._started or self._ended, timeout_s):
                raise GuestError(f"{self._port.name}: the guest did not start {self.args[0]} within {timeout_s} s")
        # What went wrong since it started is for who waits for its end.
        if self._failure is not None and not self._started:
            raise self._failure

    def _take(self, kind: int, payload: bytes) -> bool:
        """Handle a frame of this command, in the port's thread; True if it was its last."""
        if kind in self._sinks:
            if not self._ended:
                self._pass_on(self._sinks[kind], payload)
            return False
        last = kind in (guest_agent.EXIT, guest_agent.FAILED)
        with self._changed:
            if kind == guest_agent.STARTED:
                self.pid, self._started = int.from_bytes(payload[:4], "big"), True
            elif kind == guest_agent.CREDIT:
                self._credit = min(guest_agent.WINDOW, self._credit + int.from_bytes(payload[:4], "big"))
            elif self._ended:
                pass
            elif kind == guest_agent.EXIT:
                self.returncode = int.from_bytes(payload[:4], "big", signed=True)
            elif kind == guest_agent.FAILED:
                self._failure = _failure(self._port.name, payload)
            self._changed.notify_all()
        if last:
            self._close_streams()
        return last

    def _pass_on(self, sink: Sink, payload: bytes) -> None:
        try:
            sink(payload)
        except GuestError as error:
            self._give_up(GuestError(f"{self._port.name}: {self.args[0]} {error.what}; it was killed"))
        except OSError as error:
            self._give_up(error)
        except Exception as error:
            self._give_up(GuestError(f"{self._port.name}: what {self.args[0]} printed was not taken: {error!r}"))

    def _give_up(self, error: GuestError | OSError) -> None:
        """End the command; what it still prints until the guest says that it ended is dropped."""
        self._abandon(error)
        self._port.send_at_once(guest_agent.SIGNAL, self._channel, signals.SIGKILL.to_bytes(2, "big"))

    def abandon_output(self) -> None:
        """Take no more output."""
        self._sinks = dict.fromkeys(self._sinks, _nowhere)

    def _abandon(self, error: GuestError | OSError) -> None:
        with self._changed:
            if not self._ended:
                self._failure = error
            self._changed.notify_all()
        self._close_streams()

    def _close_streams(self) -> None:
        self.stdout.end()
        self.stderr.end()


def _nowhere(_data: bytes) -> None:
    pass


def _failure(name: str, payload: bytes) -> OSError:
    try:
        number, text, *_ = guest_agent.unpack_fields(payload)
        code, words = int(number), text.decode("utf-8", "replace")
    except ValueError:
        code, words = 0, "the agent failed in a way it cannot say"
    if not 0 <= code < _ERRNO_END:
        code = 0
    return OSError(code, f"{name}: {printable(words)}")
